"""How tokens are made: a model thread, rows that share forwards, caches that fork, sampling and grammars.

The modules are imported by name (`agent_runtime.decoding.worker`, `.requests`, `.grammar`), so that what needs no torch
(`.requests`, `.threads`) loads without it.
"""
