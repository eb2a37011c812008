"""Tests of lseek(2) with SEEK_DATA and SEEK_HOLE, on a real mount."""

import gc
import os
from pathlib import Path

import pytest
import trio

from s3fs_meta.fuse import raw_operations
from tests.fuse.conftest import BLOCK_BYTES, Mounted

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module", autouse=True)
def _few_open_files() -> None:
    """Close files of earlier tests, because lseek(2) finds holes only if few files are open."""
    gc.collect()


def seek(root: Path) -> None:
    """Find data and holes of a file, first while it is open for writing and then afterwards."""
    with open(root / "f", "wb", buffering=0) as file, open(root / "f", "rb") as reader:
        os.pwrite(file.fileno(), b"x" * BLOCK_BYTES, 10 * BLOCK_BYTES)
        for fd in (file.fileno(), reader.fileno()):
            assert_no_holes(fd, 11 * BLOCK_BYTES)
        os.pwrite(file.fileno(), b"y", 20 * BLOCK_BYTES)
        os.fsync(file.fileno())
        assert_no_holes(reader.fileno(), 20 * BLOCK_BYTES + 1)
        os.ftruncate(file.fileno(), 15 * BLOCK_BYTES)
        assert_no_holes(reader.fileno(), 15 * BLOCK_BYTES)
    with open(root / "f", "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 10 * BLOCK_BYTES
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 0
        assert os.lseek(file.fileno(), 10 * BLOCK_BYTES, os.SEEK_HOLE) == 11 * BLOCK_BYTES
        with pytest.raises(OSError, match="No such device or address"):
            os.lseek(file.fileno(), 11 * BLOCK_BYTES, os.SEEK_DATA)


def assert_no_holes(fd: int, size_bytes: int) -> None:
    """Require that lseek reports the complete file as data."""
    for offset in (0, 1, size_bytes - 1):
        assert os.lseek(fd, offset, os.SEEK_DATA) == offset
        assert os.lseek(fd, offset, os.SEEK_HOLE) == size_bytes
    for offset in (size_bytes, size_bytes + 1):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError, match="No such device or address"):
                os.lseek(fd, offset, whence)


async def test_lseek_reports_no_holes_while_a_file_is_being_written(mounted: Mounted) -> None:
    """While a file is being written, a hole could have dirty pages, which cp(1) would then skip."""
    await mounted.run(seek, mounted.path)
    assert mounted.handlers.operations.requests["lseek"] == 44


async def test_lseek_reports_no_holes_if_the_size_in_the_kernel_is_unknown(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_operations, "kernel_size", lambda *_: None)

    async def never(_limit_s: float = 0.0) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(mounted.handlers.operations.write_back, "collect", never)

    def ask(root: Path) -> None:
        with open(root / "f", "wb", buffering=0) as file:
            os.pwrite(file.fileno(), b"x", BLOCK_BYTES)
            assert_no_holes(file.fileno(), BLOCK_BYTES + 1)

    await mounted.run(ask, mounted.path)
    assert mounted.handlers.operations.requests["lseek"] == 1


async def test_lseek_of_a_file_whose_descriptor_is_not_found_collects_its_data(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server has no descriptor; its request must not end hole detection for all files."""
    monkeypatch.setattr(raw_operations, "kernel_size", lambda *_: None)

    def ask(root: Path) -> None:
        with open(root / "f", "wb", buffering=0) as file:
            os.pwrite(file.fileno(), b"x", BLOCK_BYTES)
            assert_no_holes(file.fileno(), BLOCK_BYTES + 1)
        with open(root / "f", "rb", buffering=0) as file:
            assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == BLOCK_BYTES

    await mounted.run(ask, mounted.path)
