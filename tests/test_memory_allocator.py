"""Tests of the settings of glibc's memory allocator."""

import ctypes
import subprocess
import sys

import pytest

from s3fs_meta import memory_allocator
from s3fs_meta.limits import LARGE_BUFFER_BYTES_MIN, MIB, RANGE_BUFFER_BYTES

# Each thread allocates buffers and then one small value. It frees only the buffers.
# The small value occupies the end of the thread's arena.
# Therefore the allocator cannot return the freed buffers to the kernel.
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
def test_memory_freed_by_one_thread_is_reused_by_the_next_thread() -> None:
    """After 16 threads have freed 4 MiB each, the process uses at most 32 MiB more memory."""
    command = [sys.executable, "-c", _CODE, "bound"]
    kept_mib = int(subprocess.run(command, capture_output=True, check=True).stdout)

    assert kept_mib <= 32


@pytest.mark.parametrize("size_bytes", [1, LARGE_BUFFER_BYTES_MIN - 1, LARGE_BUFFER_BYTES_MIN + 1])
def test_new_buffer_has_exactly_the_requested_size_and_contains_zeros(size_bytes: int) -> None:
    """A small and a large buffer are writable, and each has its own memory."""
    buffer, other = memory_allocator.new_buffer(size_bytes), memory_allocator.new_buffer(size_bytes)

    assert bytes(buffer) == bytes(size_bytes)
    buffer[-1] = 1
    assert other[-1] == 0


def test_memory_allocator_is_configured_only_for_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without glibc, the configuration of the allocator changes nothing and raises no error."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())

    assert not memory_allocator.bound_free_memory()


def test_memory_of_a_range_is_reused_after_its_last_view_is_released() -> None:
    """A view of any part of a buffer prevents the reuse of the complete buffer."""
    buffers = memory_allocator.RangeBuffers()
    buffers.keep(1)
    first = buffers.new(RANGE_BUFFER_BYTES)
    first[:] = b"1" * len(first)
    part = first[MIB : MIB + 10].toreadonly()
    del first

    second = buffers.new(RANGE_BUFFER_BYTES)
    second[:] = b"2" * len(second)
    assert (bytes(part), buffers.kept_count) == (b"1" * 10, 0)
    del part
    assert buffers.kept_count == 1

    assert bytes(buffers.new(RANGE_BUFFER_BYTES)[:10]) == b"1" * 10


def test_released_ranges_are_kept_only_up_to_a_maximum() -> None:
    """After ``keep(0)`` or ``free``, the memory of released ranges is not kept."""
    buffers = memory_allocator.RangeBuffers()
    counts = []
    for kept_max in (0, 2):
        buffers.keep(kept_max)
        used = [buffers.new(LARGE_BUFFER_BYTES_MIN) for _ in range(3)]
        used.clear()
        counts.append(buffers.kept_count)
    late = buffers.new(LARGE_BUFFER_BYTES_MIN)
    buffers.free()
    counts.append(buffers.kept_count)
    del late
    counts.append(buffers.kept_count)

    assert counts == [0, 2, 0, 0]


@pytest.mark.parametrize(
    "size_bytes", [1, LARGE_BUFFER_BYTES_MIN - 1, LARGE_BUFFER_BYTES_MIN, RANGE_BUFFER_BYTES + 1]
)
def test_buffer_of_a_range_has_exactly_the_requested_size(size_bytes: int) -> None:
    """If the memory of a range is too small or too large, it is not kept."""
    buffers = memory_allocator.RangeBuffers()
    buffers.keep(1)

    buffer = buffers.new(size_bytes)
    buffer[-1] = 1

    assert (len(buffer), buffer.format, buffer.readonly) == (size_bytes, "B", False)
    del buffer
    assert buffers.kept_count == (size_bytes == LARGE_BUFFER_BYTES_MIN)
