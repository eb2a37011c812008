"""The promote command, which turns a follower into the writer."""

import json

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_follower_can_be_promoted_while_no_host_holds_the_lease(
    program: Program, place: Place
) -> None:
    """The promote command prints the first txg of the new epoch.

    The next mount shows later writes.
    """
    program.ok("mount", "-o", "ro,follow", place.url, place.mountpoint)

    done = json.loads(program.ok("promote", "--json", place.mountpoint))

    assert done == {"txg": 1, "epoch": 1}
    (place.mountpoint / "f").write_bytes(b"written")
    program.ok("umount", place.mountpoint)
    program.ok("mount", place.url, place.mountpoint)
    assert (place.mountpoint / "f").read_bytes() == b"written"
    program.ok("umount", place.mountpoint)
    program.ok("fsck", "-n", place.url)


def test_promote_command_fails_on_a_writer(program: Program, mounted: Place) -> None:
    """The promote command fails on a writer, and the error mentions the options ro,follow."""
    done = program.run("promote", mounted.mountpoint)

    assert done.returncode == ExitStatus.USAGE
    assert "ro,follow" in done.stderr
