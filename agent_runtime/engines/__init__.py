"""Engines run models: `local` in this process, `scripted` for tests; `base` is the seam to the turn loop."""
