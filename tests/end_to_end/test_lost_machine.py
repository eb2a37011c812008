"""Tests of the loss of a host: which files another host restores, and which files are lost."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Place, lose_host
from tests.programs import Program

pytestmark = pytest.mark.mount

STATE = "user.s3fs-meta.state"


def test_another_host_restores_all_flushed_files(
    place: Place, program: Program, tmp_path: Path
) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "sync_interval=1h", place.url, mnt)
    for number in range(50):
        (mnt / f"file-{number}").write_text(f"content {number}\n" * number)
    os.link(mnt / "file-7", mnt / "again")
    program.ok("flush", mnt)
    (mnt / "after").write_text("lost with the machine")
    lose_host(program, place)

    other = type(program)(tmp_path / "other-state")
    other.ok("mount", "--takeover", place.url, mnt)

    assert not (mnt / "after").exists()
    for number in range(50):
        assert (mnt / f"file-{number}").read_text() == f"content {number}\n" * number
    assert (mnt / "again").stat().st_nlink == 2
    other.ok("umount", mnt)
    other.ok("fsck", "-n", "--deep", place.url)


def test_another_host_restores_a_file_that_was_synced_with_fsync_remote(
    place: Place, program: Program, tmp_path: Path
) -> None:
    mnt = place.mountpoint
    program.ok("mount", "-o", "sync_interval=1h,fsync=remote", place.url, mnt)
    (mnt / "a" / "b").mkdir(parents=True)
    with (mnt / "a" / "b" / "precious").open("w") as file:
        file.write("precious")
        file.flush()
        os.fsync(file.fileno())
    lose_host(program, place)

    other = type(program)(tmp_path / "other-state")
    other.ok("mount", "--takeover", place.url, mnt)
    assert (mnt / "a" / "b" / "precious").read_text() == "precious"
    other.ok("umount", mnt)


def test_status_reports_files_that_are_not_uploaded(place: Place, program: Program) -> None:
    """An extended attribute and ``status --unshipped`` report files that are not uploaded."""
    mnt = place.mountpoint
    program.ok("mount", "-o", "sync_interval=1h,commit=3600", place.url, mnt)
    (mnt / "d").mkdir()
    (mnt / "d" / "file").write_text("new")
    assert os.getxattr(mnt / "d" / "file", STATE) == b"dirty"
    with (mnt / "d" / "file").open() as file:
        os.fsync(file.fileno())
    assert os.getxattr(mnt / "d" / "file", STATE) == b"local"
    assert os.listxattr(mnt / "d" / "file") == []
    with pytest.raises(PermissionError):
        os.setxattr(mnt / "d" / "file", STATE, b"bucket")
    listed = program.ok("status", "--unshipped", mnt).split()
    assert listed == ["/d", "/d/file"]
    assert program.status(mnt)["chain"]["unshipped_age_s"] > 0

    program.ok("flush", mnt)

    assert os.getxattr(mnt / "d" / "file", STATE) == b"bucket"
    assert program.ok("status", "--unshipped", mnt) == ""
    found = json.loads(program.ok("status", "--unshipped", "--json", mnt))
    assert found == {"paths": [], "complete": True}
    chain = program.status(mnt)["chain"]
    assert chain["unshipped_since_ns"] == 0
    (mnt / "d" / "file").unlink()
    assert program.ok("status", "--unshipped", mnt).split() == ["/d/file"]
    program.ok("umount", mnt)


def test_flush_with_option_image_uploads_a_new_image(place: Place, program: Program) -> None:
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "file").write_text("x")
    before = len(list((place.bucket / "image").iterdir()))
    program.ok("flush", "--image", place.mountpoint)
    assert len(list((place.bucket / "image").iterdir())) == before + 1
    program.ok("umount", place.mountpoint)
