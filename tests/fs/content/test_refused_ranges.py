"""Tests of refused operations on ranges of files, which must never call *begin*.

The function *begin* announces a change.
"""

import pytest

from s3fs_meta.errors import ReadOnlyStateError, TooBigError
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import FILE_BYTES_MAX
from s3fs_meta.model import Ino
from tests.fs.conftest import make_file

PUNCH = PUNCH_HOLE | KEEP_SIZE


@pytest.mark.parametrize("mode", [0, KEEP_SIZE, PUNCH, ZERO_RANGE])
async def test_refused_fallocate_does_not_clear_suid(fs: Filesystem, mode: int) -> None:
    """The function *begin*, which clears suid, is called once, and not on a read-only mount."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, bytes(100))
    begun: list[Ino] = []
    await fs.ranges.allocate(ino, mode, 0, 10, begun.append)
    assert begun == [ino]

    fs.status.degrade("a test")
    with pytest.raises(ReadOnlyStateError):
        await fs.ranges.allocate(ino, mode, 0, 10, begun.append)
    assert begun == [ino]


async def test_range_copy_that_copies_nothing_does_not_clear_suid(fs: Filesystem) -> None:
    """A copy that is refused, or that has nothing to copy, does not call *begin*."""
    source, target = make_file(fs, b"f"), make_file(fs, b"g")
    await fs.write(source, 0, bytes(100))
    begun: list[Ino] = []
    with pytest.raises(TooBigError):
        fs.ranges.try_copy(source, 0, target, FILE_BYTES_MAX, 10, begun.append)
    with pytest.raises(TooBigError):
        await fs.ranges.copy(source, 0, target, FILE_BYTES_MAX, 10, begun.append)
    assert fs.ranges.try_copy(source, 100, target, 0, 10, begun.append) == 0
    assert await fs.ranges.copy(source, 100, target, 0, 10, begun.append) == 0
    assert begun == []

    assert fs.ranges.try_copy(source, 0, target, 0, 10, begun.append) == 10
    assert await fs.ranges.copy(source, 0, target, 0, 10, begun.append) == 10
    assert begun == [target, target]
