"""Tests of the temporary state directories of mounted points in time."""

import pytest

from s3fs_meta.model import Txg
from s3fs_meta.mount.past_points import temporary_state
from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.mount
def test_mount_removes_the_temporary_state_of_killed_mounts(program: Program, place: Place) -> None:
    """A mount removes the temporary state of exited processes, but not of running processes."""
    program.ok("mount", place.url, place.mountpoint)
    program.ok("umount", place.mountpoint)
    (state,) = program.cachedir.iterdir()
    stale = temporary_state(state, Txg(2), 999_999)
    stale.mkdir()
    (stale / "lock").touch()
    (stale / "meta.db").write_bytes(b"x")
    program.ok("mount", place.url, place.mountpoint)
    (place.mountpoint / "f").write_bytes(b"x")
    program.ok("flush", place.mountpoint)
    assert (place.mountpoint / ".snapshots" / "newest" / "f").read_bytes() == b"x"

    names = {path.name for path in program.cachedir.iterdir()}
    assert stale.name not in names
    assert len(names) == 2
