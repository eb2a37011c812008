"""The flush command, which uploads all changes of a mount."""

import json
import re
import shutil
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_copy_of_the_bucket_after_a_flush_contains_the_flushed_file(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A copy of the bucket that was made after the flush can be mounted and contains the file."""
    (mounted.mountpoint / "f").write_bytes(b"important")

    done = json.loads(program.ok("flush", "--json", mounted.mountpoint))
    # Txg 1 is the fence record.
    assert done == {"published": True, "txg": 2, "uncollected": ""}

    shutil.copytree(mounted.bucket, tmp_path / "copy")
    elsewhere = Program(tmp_path / "elsewhere")
    (tmp_path / "look").mkdir()
    elsewhere.ok("mount", "-o", "ro", f"local://{tmp_path}/copy", tmp_path / "look")
    assert (tmp_path / "look" / "f").read_bytes() == b"important"
    elsewhere.ok("umount", tmp_path / "look")


def test_second_flush_reports_that_all_changes_are_in_the_bucket(
    program: Program, mounted: Place
) -> None:
    (mounted.mountpoint / "f").touch()
    program.ok("flush", mounted.mountpoint)

    assert program.ok("flush", mounted.mountpoint) == "the bucket already has all changes\n"
    done = json.loads(program.ok("flush", "--json", mounted.mountpoint))
    assert done == {"published": False, "txg": 2, "uncollected": ""}


def test_flush_reports_the_txg_of_the_uploaded_image(program: Program, mounted: Place) -> None:
    (mounted.mountpoint / "f").touch()
    printed = program.ok("flush", "--image", mounted.mountpoint)
    assert re.search(r"^uploaded an image of transaction group [0-9]+$", printed, re.MULTILINE)

    done = json.loads(program.ok("flush", "--image", "--json", mounted.mountpoint))
    assert done["image_txg"] == program.status(mounted.mountpoint)["image"]["txg"]


def test_read_only_mount_refuses_to_upload_an_image(program: Program, place: Place) -> None:
    program.ok("mount", "-o", "ro", place.url, place.mountpoint)
    done = program.run("flush", "--image", place.mountpoint)
    program.ok("flush", place.mountpoint)
    program.ok("umount", place.mountpoint)

    assert done.returncode == ExitStatus.REQUEST
    assert done.stderr == "s3fs-meta: read-only: only a mount for writing uploads an image\n"


def test_flush_exits_with_8_if_the_path_is_not_mounted(program: Program, tmp_path: Path) -> None:
    assert program.run("flush", tmp_path).returncode == 8
