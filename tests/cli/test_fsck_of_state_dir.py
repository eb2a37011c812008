"""Tests of fsck with unexpected entries in the state directory."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.cli.fsck_in_process import state_of
from tests.programs import Program

pytestmark = pytest.mark.thorough


@pytest.mark.mount
def test_fsck_refuses_a_link_in_place_of_a_directory_of_blocks(
    program: Program, unsent: Place, tmp_path: Path
) -> None:
    """No block behind the link becomes a hole; without the link, no content is lost."""
    with (unsent.mountpoint / "f").open("wb", buffering=0) as file:
        file.write(b"only in the cache")
        os.fsync(file.fileno())
    program.kill(unsent.mountpoint)
    subprocess.run(["umount", "-l", unsent.mountpoint], check=True)
    directory = state_of(unsent, program.cachedir).blocks / "xxx"
    moved = directory.rename(tmp_path / "moved")
    directory.symlink_to(moved)

    for option in ("-n", "-y"):
        refused = program.run("fsck", option, unsent.url)
        assert (refused.returncode, refused.stdout) == (8, "")
        assert f"{str(directory)!r} is a link; put the directory" in refused.stderr

    directory.unlink()
    shutil.move(moved, directory)
    assert "lost" not in program.run("fsck", "-y", unsent.url).stdout
    program.ok("mount", unsent.url, unsent.mountpoint)
    assert (unsent.mountpoint / "f").read_bytes() == b"only in the cache"
