"""The C library's allocator, told to keep what a step of training frees for the next one.

glibc gives large blocks back to the system as soon as they are free, and every step asks for them
again, page by page. Without that a run of ResNet18 on a CPU takes 6 to 15 % less time, one of small
networks less or as much (tests/benchmarks/README.md). The peak of memory is the same; what differs
is when it falls.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3): free bytes above which the heap shrinks; size from which a block is
mapped by itself, and unmapped as soon as it is free."""
_VARIABLES = tuple(f"MALLOC_{name}_" for name in ("TRIM_THRESHOLD", "MMAP_THRESHOLD", "TOP_PAD"))
_NEVER, _LARGEST = 2**31 - 1, 32 * 2**20
"""The largest values that glibc accepts for them."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process; return whether the C library could be told to.

    It can with glibc alone. Thresholds that the environment sets (`MALLOC_TRIM_THRESHOLD_` and the
    like, `GLIBC_TUNABLES`) are left as they are.
    """
    library = _glibc()
    if library is None or _is_set_by_environment():
        return False
    told = [library.mallopt(_TRIM_THRESHOLD, _NEVER), library.mallopt(_MMAP_THRESHOLD, _LARGEST)]
    return all(told)


def give_back_memory() -> None:
    """Give this process's free memory back to the system, where it is glibc's."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _is_set_by_environment() -> bool:
    return any(name in os.environ for name in _VARIABLES) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )


@cache
def _glibc() -> Any:
    """Return the C library of this process, or None where it is not glibc."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
