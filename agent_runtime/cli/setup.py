"""What has to be right in the process before torch is imported."""

from __future__ import annotations


def before_torch() -> None:
    """Set the thread environment of a process that runs models.

    torch reads it once, when it is imported, and an agent's file may import torch: so this comes first.
    """
    from agent_runtime.decoding.threads import configure_threads

    configure_threads()
