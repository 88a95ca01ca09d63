"""Freed memory stays with the process, so that no step of training asks the system for it again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from client_app import allocator
from client_app import app as client_app
from tests.support import run_federation

FAULTS = """
import resource, torch
from client_app.allocator import give_back_memory, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def step():
    blocks = [torch.ones(5 * 2**20) for _ in range(4)]  # 20 MiB each

{call}
for _ in range(3):
    step()
counts = []
for _ in range(3):  # the heap may grow once more, by a block; memory that is not kept faults in all
    before = faults()
    for _ in range(10):
        step()
    counts.append(faults() - before)
print(min(counts), resident())
give_back_memory()
print(resident())
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no glibc here")


def faults_of(call: str, **environment: str) -> tuple[int, int, int]:
    """Return the fewest page faults of ten steps in three, and resident bytes, then given back."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(call=call)],
        env=os.environ | environment, check=True, capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    faults, held, left = map(int, done.stdout.split())
    return faults, held, left


@glibc
def test_freed_memory_is_kept_and_given_back() -> None:
    pages = 10 * 4 * 20 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    # glibc's first thresholds, which it raises by itself, depending on what was freed before
    first = {f"MALLOC_{name}_THRESHOLD_": str(128 * 2**10) for name in ("TRIM", "MMAP")}
    assert faults_of("assert not keep_freed_memory()", **first)[0] > pages / 2
    faults, held, left = faults_of("assert keep_freed_memory()")
    assert faults < pages / 100
    assert held - left > 60 * 2**20


@glibc
@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "1000000", False),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4", True),
        ("MALLOC_ARENA_MAX", "2", True),  # says nothing of thresholds
    ],
)
def test_thresholds_set_by_the_environment_are_left_alone(
    name: str, value: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert allocator.keep_freed_memory() == kept


def test_without_glibc_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator._glibc.cache_clear()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    try:
        assert not allocator.keep_freed_memory()
        allocator.give_back_memory()
    finally:
        allocator._glibc.cache_clear()


@pytest.mark.parametrize("simulated", [True, False])
def test_a_device_gives_back_after_every_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    """A simulation's worker keeps it: its next client trains at once."""
    calls: list[str] = []
    monkeypatch.setattr(client_app, "keep_freed_memory", lambda: calls.append("keep"))
    monkeypatch.setattr(client_app, "give_back_memory", lambda: calls.append("give back"))
    monkeypatch.setattr(client_app, "simulated", lambda: simulated)
    run_federation(tmp_path, 2, subset=0.1, num_rounds=1)
    assert set(calls) == ({"keep"} if simulated else {"keep", "give back"})
    assert calls[:2] == (["keep", "keep"] if simulated else ["keep", "give back"])
