"""The flush command."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_flushed_file_can_be_read_without_this_host(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A copy of the bucket after the flush is a complete filesystem."""
    (mounted.mountpoint / "f").write_bytes(b"important")

    done = json.loads(program.ok("flush", "--json", mounted.mountpoint))
    assert done == {"published": True, "txg": 2}  # txg 1 is the fence record

    shutil.copytree(mounted.bucket, tmp_path / "copy")
    elsewhere = Program(tmp_path / "elsewhere")
    (tmp_path / "look").mkdir()
    elsewhere.ok("mount", "-o", "ro", f"local://{tmp_path}/copy", tmp_path / "look")
    assert (tmp_path / "look" / "f").read_bytes() == b"important"
    elsewhere.ok("umount", tmp_path / "look")


def test_second_flush_has_nothing_to_do(program: Program, mounted: Place) -> None:
    """The output of a flush that changed nothing says so."""
    (mounted.mountpoint / "f").touch()
    program.ok("flush", mounted.mountpoint)

    assert program.ok("flush", mounted.mountpoint) == "the bucket already holds everything\n"


def test_unmounted_path_has_its_status(program: Program, tmp_path: Path) -> None:
    """A flush of an unmounted path has a specific exit status."""
    assert program.run("flush", tmp_path).returncode == 8
