"""The flush command, which uploads all changes of a mount."""

import json
import shutil
from pathlib import Path

import pytest

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


def test_flush_exits_with_8_if_the_path_is_not_mounted(program: Program, tmp_path: Path) -> None:
    assert program.run("flush", tmp_path).returncode == 8
