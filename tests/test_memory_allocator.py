"""The settings of the memory allocator: glibc accepts them, another C library is left alone."""

import ctypes
import subprocess
import sys

import pytest

from s3fs_meta import memory_allocator

# Threads allocate and free buffers one after the other. A small value that stays behind them keeps
# the end of an arena in use, so that the buffers before it are free but not returned.
_CODE = """
import sys, threading
from s3fs_meta.memory_allocator import bound_free_memory
if sys.argv[1] == "bound":
    assert bound_free_memory()
MIB, THREADS = 1 << 20, 16
kept, done = [], threading.Event()
def work(finished):
    held = [b"x" * (MIB // 10) for _ in range(40)]
    kept.append(bytes(MIB // 1000))
    del held
    finished.set()
    done.wait()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before = resident()
for _ in range(THREADS):
    finished = threading.Event()
    threading.Thread(target=work, args=(finished,)).start()
    finished.wait()
print((resident() - before) // MIB)
done.set()
"""


def has_glibc() -> bool:
    """Return whether Python uses glibc."""
    return hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


@pytest.mark.skipif(not has_glibc(), reason="the C library is not glibc")
def test_freed_memory_of_one_thread_is_used_by_the_next() -> None:
    """After 16 threads have freed 4 MiB each, the process keeps the memory of a few of them."""
    command = [sys.executable, "-c", _CODE, "bound"]
    kept_mib = int(subprocess.run(command, capture_output=True, check=True).stdout)

    assert kept_mib <= 32


def test_other_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without glibc, nothing is called and nothing is raised."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())

    assert not memory_allocator.bound_free_memory()
