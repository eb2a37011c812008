"""Tests of synchronous writes, for each of which the kernel sends one fsync."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.programs import QuickProgram

pytestmark = pytest.mark.mount


def _open_sync(flag: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | flag)
        try:
            os.write(fd, b"new")
        finally:
            os.close(fd)

    return write


def _write_sync(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwritev(fd, [b"new"], 0, os.RWF_DSYNC)
    finally:
        os.close(fd)


def _sync_map(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[:3] = b"new"
        pages.flush()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(_open_sync(os.O_DSYNC), id="O_DSYNC"),
        pytest.param(_open_sync(os.O_SYNC), id="O_SYNC"),
        pytest.param(_write_sync, id="RWF_DSYNC"),
        pytest.param(_sync_map, id="msync"),
    ],
)
def test_synchronous_write_causes_one_fsync(
    mounted: Place, program: QuickProgram, write: Callable[[Path], None]
) -> None:
    path = mounted.mountpoint / "f"
    path.write_bytes(b"old")
    before = _fsyncs(program, mounted)
    write(path)
    assert _fsyncs(program, mounted) == before + 1
    assert path.read_bytes() == b"new"


def test_fsync_of_a_directory_reaches_the_daemon(mounted: Place, program: QuickProgram) -> None:
    (mounted.mountpoint / "d").mkdir()
    before = program.status(mounted.mountpoint)["requests"]["fsyncdir"]
    fd = os.open(mounted.mountpoint / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    assert program.status(mounted.mountpoint)["requests"]["fsyncdir"] == before + 1


def _fsyncs(program: QuickProgram, place: Place) -> int:
    return int(program.status(place.mountpoint)["requests"]["fsync"])
