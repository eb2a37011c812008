"""Settings of the C library's memory allocator, and large buffers that do not use it.

Owns: the settings, the check for the C library, how the kernel maps a large buffer, and reusable
buffers for ranges. Does not know: what a process allocates, and when it is idle.

By default, glibc creates an arena for each thread, up to eight arenas for each processor. Memory
that is freed in one arena is not reused in another arena. When a buffer with a separate mapping is
freed, glibc also raises the minimum size of such buffers, up to 32 MiB. The daemon's threads
allocate and free packs and ranges of 8 to 16 MiB, so their arenas keep several times the memory in
use. A limit of two arenas should cost little, because most allocations hold the interpreter lock.

Buffers smaller than ALLOCATOR_MAPPED_BYTES_MIN stay in the arenas, because in a trial with mappings
from 1 MiB on, an upload took a third more processor time.
Measurements: docs/design/performance.md, "Memory". Source: mallopt(3).
"""

import contextlib
import ctypes
import mmap
import weakref
from typing import Final

from s3fs_meta.limits import (
    ALLOCATOR_ARENAS,
    ALLOCATOR_MAPPED_BYTES_MIN,
    ALLOCATOR_UNUSED_BYTES_MAX,
    LARGE_BUFFER_BYTES_MIN,
    RANGE_BUFFER_BYTES,
)

# Parameters of mallopt(3), from malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def new_buffer(size_bytes: int) -> memoryview:
    """Return a writable buffer of zeros, whose memory is freed when its last view is released.

    A large buffer consists of huge pages if the system permits them: the kernel then maps 2 MiB per
    page instead of 4 KiB, which takes a fifth of the time (madvise(2), MADV_HUGEPAGE).
    """
    if size_bytes < LARGE_BUFFER_BYTES_MIN:
        return memoryview(bytearray(size_bytes))
    return memoryview(_mapped(size_bytes))


def _mapped(size_bytes: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # EINVAL: the kernel has no transparent huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class RangeBuffers:
    """Reusable buffers for large ranges of objects.

    The kernel clears new memory, and clearing takes as long as receiving the data. So a buffer is
    reused after its last view was deleted. Unused buffers are kept only between ``keep`` and
    ``free``, so idle processes keep no buffers. Any thread may call the methods.
    """

    def __init__(self) -> None:
        self._kept_max = 0
        self._free: list[mmap.mmap] = []

    def new(self, size_bytes: int) -> memoryview:
        """Return a writable buffer, which may contain bytes of an earlier range."""
        if not LARGE_BUFFER_BYTES_MIN <= size_bytes <= RANGE_BUFFER_BYTES or not self._kept_max:
            return new_buffer(size_bytes)
        try:
            mapping = self._free.pop()
        except IndexError:
            mapping = _mapped(RANGE_BUFFER_BYTES)
        # All views refer to this array, so Python frees the array after the last view.
        array = (ctypes.c_ubyte * size_bytes).from_buffer(mapping)
        weakref.finalize(array, self._give_back, mapping).atexit = False
        return memoryview(array).cast("B")

    @staticmethod
    def memory_bytes(size_bytes: int) -> int:
        """Return how many bytes of memory a buffer of *size_bytes* may keep allocated."""
        is_kept = LARGE_BUFFER_BYTES_MIN <= size_bytes <= RANGE_BUFFER_BYTES
        return RANGE_BUFFER_BYTES if is_kept else size_bytes

    def keep(self, count_max: int) -> None:
        """Keep the memory of at most *count_max* released buffers."""
        self._kept_max = count_max

    def free(self) -> None:
        """Free the memory of released buffers, and keep none from now on."""
        self._kept_max = 0
        self._free.clear()

    @property
    def kept_count(self) -> int:
        """Return the number of released buffers whose memory is kept."""
        return len(self._free)

    def _give_back(self, mapping: mmap.mmap) -> None:
        if len(self._free) < self._kept_max:
            self._free.append(mapping)


range_buffers: Final = RangeBuffers()  # buffers shared by the entire process


def bound_free_memory() -> bool:
    """Bound the freed memory that the C library keeps.

    Call this before threads start, because existing arenas are kept.

    Returns:
        False if nothing was changed, because the C library is not glibc.
    """
    libc = ctypes.CDLL(None)
    # Only glibc has gnu_get_libc_version(3).
    # If another allocator replaces the allocator of glibc, mallopt(3) has no effect.
    if not hasattr(libc, "gnu_get_libc_version") or not hasattr(libc, "mallopt"):
        return False
    libc.mallopt(_M_ARENA_MAX, ALLOCATOR_ARENAS)
    libc.mallopt(_M_MMAP_THRESHOLD, ALLOCATOR_MAPPED_BYTES_MIN)
    libc.mallopt(_M_TRIM_THRESHOLD, ALLOCATOR_UNUSED_BYTES_MAX)
    return True
