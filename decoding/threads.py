"""How many threads torch may use on a CPU, and how they wait.

With one OpenMP thread per core, a busy neighbour (a tool, the event loop) makes a decode step many times slower: the
threads meet at a barrier after every product, and one that has lost its core keeps the others spinning. So one core
stays free, and waiting threads sleep.
"""

from __future__ import annotations

import os
import sys

from threadpoolctl import threadpool_info, threadpool_limits

WAIT_POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
"""Read by the OpenMP runtimes (GNU's, Intel's and LLVM's) when torch loads them."""


def default_threads() -> int:
    """Return all cores that this process may use but one, at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity masks
        cores = os.cpu_count() or 1
    return max(1, cores - 1)


def configure_threads(threads: int | None = None) -> int:
    """Set the threads of torch and of NumPy's BLAS and a passive wait policy; return the number of threads.

    Call it before torch is first imported, as early as the program's entry point: the OpenMP runtime reads the wait
    policy once, when torch loads it. Afterwards only the number of threads still takes effect. What the user has set
    in the environment (`OMP_NUM_THREADS`, `OMP_WAIT_POLICY`, ...) wins over the defaults; an explicit `threads` wins
    over both.

    Raises:
        ValueError: `threads` is below 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}; torch needs at least 1.")
    for name, value in WAIT_POLICY.items():
        os.environ.setdefault(name, value)
    count = threads if threads is not None else _from_environment() or default_threads()
    os.environ["OMP_NUM_THREADS"] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    if "numpy" in sys.modules:  # else its BLAS reads the environment when it is loaded
        threadpool_limits(count, "blas")
    return count


def one_thread() -> bool:
    """Tell whether torch and NumPy's BLAS compute with one thread each."""
    import torch

    return torch.get_num_threads() == 1 and all(
        pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "blas"
    )


def _from_environment() -> int | None:
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(value) if value.isdigit() and int(value) > 0 else None
