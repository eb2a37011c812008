"""The reclaim command, which deletes unneeded objects with or without a mount."""

import json
import os
from pathlib import Path

import pytest

from s3fs_meta.codec import changelog, superblock
from s3fs_meta.limits import MIB
from tests.cli.conftest import Place
from tests.end_to_end.contents import write_synced
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_reclaim_dry_run_on_a_mount_reports_that_it_deleted_nothing(
    program: Program, mounted: Place
) -> None:
    """In a dry run, the daemon plans the deletions and the command prints the plan."""
    found = json.loads(program.ok("reclaim", "--dry-run", "--json", mounted.mountpoint))
    assert found["deleted"] is False
    assert found["url"] == mounted.url
    assert program.ok("reclaim", mounted.mountpoint) == "nothing to delete\n"


def test_reclaim_command_on_an_unmounted_filesystem_deletes_orphaned_parts(
    program: Program, place: Place
) -> None:
    """The command acquires the lease to delete a changelog part to which no changelog refers."""
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "f").write_bytes(b"x")
    program.ok("umount", place.mountpoint)
    key = changelog.part_key("changelog-part/000000000001-1-0123456789abcdef", 0)
    found = superblock.decode(superblock.KEY, (place.bucket / superblock.KEY).read_bytes())
    keyring = superblock.unlock_plain(found)
    data = changelog.encode_part(key, changelog.Section(b"of an attempt", ()), keyring)
    stray = place.bucket / key
    stray.parent.mkdir(parents=True)
    stray.write_bytes(data)

    planned = json.loads(program.ok("reclaim", "--dry-run", "--json", place.url))
    assert planned["objects"]["changelogs"] == {"count": 1, "bytes": len(data)}
    assert stray.exists()
    assert "changelogs" in program.ok("reclaim", place.url)
    assert not stray.exists()
    assert program.status(place.url)["state"] == "free"
    assert program.run("fsck", "-n", place.url).returncode == 0


def test_reclaim_command_exits_with_8_if_the_path_is_not_mounted(
    program: Program, tmp_path: Path
) -> None:
    assert program.run("reclaim", tmp_path).returncode == 8


def test_reclaim_command_ignores_the_upload_limit(program: Program, place: Place) -> None:
    """The reclaim command ignores the upload limit, because a user waits for the command."""
    mnt = place.mountpoint
    program.ok("mount", place.url, mnt)
    (mnt / "old").write_bytes(os.urandom(MIB))
    program.ok("flush", "--image", mnt)
    (mnt / "old").unlink()
    program.ok("flush", "--image", mnt)
    (mnt / "other").touch()
    # Now neither of the two newest images, which are always retained, refers to the old content.
    program.ok("flush", "--image", mnt)
    program.ok("retention", place.url, "0")
    program.ok("set", mnt, "upload_limit=1K")
    write_synced(mnt / "new", os.urandom(MIB))

    found = json.loads(program.ok("reclaim", "--json", mnt))
    assert found["objects"]["packs"]["count"] == 1
    assert program.status(mnt)["upload"]["pending_blocks"] == 0
    program.ok("umount", mnt)
