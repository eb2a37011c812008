"""Syncs of several files at the same time."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from s3fs_meta.cache.file_syncs import start_write_back, sync_files

BARRIER_S_MAX = 60.0


def test_files_are_synced_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of the two syncs ends only after the other one has begun."""
    fdatasync, both = os.fdatasync, threading.Barrier(2)

    def meet(fd: int) -> None:
        both.wait(BARRIER_S_MAX)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", meet)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((tmp_path / name).open("wb")) for name in ("one", "two")]
        sync_files([file.fileno() for file in files])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_sync_of_files_fails_if_the_sync_of_one_file_fails(tmp_path: Path, place: int) -> None:
    """A pipe cannot be synced, so its sync fails; the other files are still synced."""
    reader, writer = os.pipe()
    try:
        with (tmp_path / "one").open("wb") as one, (tmp_path / "two").open("wb") as two:
            fds = [one.fileno(), two.fileno()]
            fds.insert(place, writer)
            with pytest.raises(OSError, match="Invalid argument"):
                sync_files(fds)
    finally:
        os.close(reader)
        os.close(writer)


def test_write_back_of_a_pipe_cannot_be_started(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            file.write(b"x")
            assert [start_write_back(file.fileno()), start_write_back(writer)] == [True, False]
    finally:
        os.close(reader)
        os.close(writer)
