"""Commands without a mount that upload to a full bucket."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = [pytest.mark.mount, pytest.mark.thorough]


def test_fsck_ends_if_the_bucket_has_no_room_and_the_next_one_continues(
    program: Program, empty: Place, small_disk: Path
) -> None:
    """A pack that does not fit is not uploaded again without end. No content is lost."""
    url, content = f"local://{small_disk}/bucket", os.urandom(400_000)
    program.ok("mkfs", "--plain", url)
    program.ok("mount", "-o", "sync_interval=1h", url, empty.mountpoint)
    with (empty.mountpoint / "f").open("wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    program.kill(empty.mountpoint)
    subprocess.run(["umount", "-l", empty.mountpoint], check=True)
    found = os.statvfs(small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(found.f_bavail * found.f_bsize - 200_000))

    refused = program.run("fsck", "-y", url)

    assert (refused.returncode, refused.stdout) == (8, "")
    assert "store unavailable for 'pack/" in refused.stderr.splitlines()[-1]
    assert "ENOSPC in" in refused.stderr.splitlines()[-1]
    assert "will retry in" not in refused.stderr
    filler.unlink()
    assert program.run("fsck", "-y", url).returncode in {0, 1}
    program.ok("mount", url, empty.mountpoint)
    assert (empty.mountpoint / "f").read_bytes() == content
