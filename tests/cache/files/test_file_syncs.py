"""Concurrent syncs of several files."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from s3fs_meta.cache.files import file_syncs
from s3fs_meta.cache.files.file_syncs import start_write_back, sync_files
from tests.faults import raising

BARRIER_S_MAX = 60.0


def test_files_are_synced_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of two syncs ends only after the other sync has begun, so they must run together."""
    fdatasync, both = os.fdatasync, threading.Barrier(2)

    def meet(fd: int) -> None:
        both.wait(BARRIER_S_MAX)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", meet)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((tmp_path / name).open("wb")) for name in ("one", "two")]
        sync_files([file.fileno() for file in files])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_sync_of_several_files_fails_if_one_of_the_syncs_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: int
) -> None:
    """The sync of a pipe fails; the regular files are still synced."""
    synced, fdatasync = set[int](), os.fdatasync

    def note(fd: int) -> None:
        fdatasync(fd)
        synced.add(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    reader, writer = os.pipe()
    try:
        with (tmp_path / "one").open("wb") as one, (tmp_path / "two").open("wb") as two:
            regular = [one.fileno(), two.fileno()]
            fds = regular.copy()
            fds.insert(place, writer)
            with pytest.raises(OSError, match="Invalid argument"):
                sync_files(fds)
            assert synced == set(regular)
    finally:
        os.close(reader)
        os.close(writer)


def test_write_back_of_a_pipe_is_skipped() -> None:
    """A pipe cannot be written back, because it has no pages; this is not an error."""
    reader, writer = os.pipe()
    try:
        start_write_back(writer)
    finally:
        os.close(reader)
        os.close(writer)


def test_sync_of_files_fails_if_write_back_of_one_file_cannot_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a failed write-back, fdatasync proves nothing, because ext4 may drop the pages."""
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    with (tmp_path / "file").open("wb") as file, (tmp_path / "other").open("wb") as other:
        closed = other.fileno()
        other.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            sync_files([file.fileno(), closed])


def test_one_thread_syncs_all_files_if_no_helper_thread_can_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If no helper thread can start, the caller's thread syncs all files alone."""
    synced: list[int] = []
    monkeypatch.setattr(
        file_syncs, "start_thread_soon", raising(RuntimeError("can't start new thread"))
    )
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((tmp_path / name).open("wb")) for name in ("one", "two")]
        fds = [file.fileno() for file in files]
        sync_files(fds)

    assert synced == fds
