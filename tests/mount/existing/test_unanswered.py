"""Tests of the reason that a command reports if no daemon answers it, on real mounts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.control.protocol import SOCKET_NAME
from s3fs_meta.mount.existing import mount_table, targets
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_error_about_a_killed_mount_shows_unshipped_changes_and_a_remedy(
    program: Program, place: Place
) -> None:
    """The error about a killed mount suggests a mount command with the same options."""
    program.ok("mount", "-o", "sync_interval=1h,noatime", place.url, place.mountpoint)
    with (place.mountpoint / "f").open("wb") as file:
        file.write(b"x" * 5000)
        os.fsync(file.fileno())
    program.kill(place.mountpoint)
    again = (
        f"s3fs-meta mount --cachedir {program.cachedir} -o noatime,sync_interval=3600.0"
        f" {place.url} {place.mountpoint}"
    )
    rest = "only on this host: 4.88 KiB in 1 block and changes of the metadata"

    asked = program.run("status", place.mountpoint, here=False)
    listed = program.ok("status", here=False)
    removed = program.run("rm", place.mountpoint / "f")
    warmed = program.run("warm", place.mountpoint / "f")
    done = program.run("umount", place.mountpoint, here=False)

    assert removed.stderr == warmed.stderr == asked.stderr
    assert {asked.returncode, removed.returncode, warmed.returncode} == {ExitStatus.NOT_MOUNTED}
    assert f"was killed ({rest}); mount it again to recover: {again}\n" in asked.stderr
    assert f"{place.url} on {place.mountpoint}: the daemon of {place.mountpoint} was" in listed
    assert done.returncode == ExitStatus.STORE
    assert f"({rest}); the next mount uploads the changes: {again}\n" in done.stderr
    assert mount_table.find(str(place.mountpoint)) is None


def test_killed_mount_without_changes_is_reported_as_fully_uploaded(
    program: Program, mounted: Place
) -> None:
    (mounted.mountpoint / "f").write_bytes(b"x" * 5000)
    program.ok("flush", mounted.mountpoint)
    program.kill(mounted.mountpoint)

    asked = program.run("flush", mounted.mountpoint)
    done = program.run("umount", mounted.mountpoint)

    assert "was killed (everything is in the bucket); mount it again" in asked.stderr
    assert done.returncode == 0
    assert "the daemon had been killed, and everything is in the bucket" in done.stderr
    program.ok("mount", mounted.url, mounted.mountpoint)
    assert (mounted.mountpoint / "f").read_bytes() == b"x" * 5000


def test_killed_idle_mount_is_reported_as_fully_uploaded(program: Program, place: Place) -> None:
    """After sync_interval, an idle daemon uploads its changes, so a later kill loses nothing."""
    program.ok("mount", "-o", "sync_interval=1", place.url, place.mountpoint)
    with (place.mountpoint / "f").open("wb") as file:
        file.write(b"x" * 5000)
        file.flush()
        os.fsync(file.fileno())
    while (figures := program.status(place.mountpoint))["chain"]["unshipped_since_ns"]:
        assert figures["upload"]["last_error"] == ""
    program.kill(place.mountpoint)

    assert "(everything is in the bucket)" in program.run("status", place.mountpoint).stderr


def test_mount_with_another_state_directory_is_not_reported_as_killed(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    done = program.run("flush", mounted.mountpoint, "--cachedir", tmp_path / "other", here=False)

    assert done.returncode == ExitStatus.NOT_MOUNTED
    assert f"{mounted.mountpoint} is mounted, but its daemon does not use" in done.stderr
    assert "give the --cachedir of the mount" in done.stderr


def test_error_about_a_removed_control_socket_does_not_advise_another_cachedir(
    program: Program, mounted: Place
) -> None:
    state = targets.of_mountpoint(mounted.mountpoint, program.cachedir).state
    (state / SOCKET_NAME).unlink()

    done = program.run("flush", mounted.mountpoint)

    assert done.returncode == ExitStatus.NOT_MOUNTED
    assert f"its socket in the state directory {state} was removed; end the mount" in done.stderr
    assert "--cachedir" not in done.stderr
    subprocess.run(["umount", mounted.mountpoint], check=True)
    program.ok("umount", mounted.mountpoint)


_AS_ANOTHER_USER = """
import os, pathlib, sys
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.unanswered import named
from s3fs_meta.mount_errors import NotMountedError
place = targets.of_either(sys.argv[1], None)
os.seteuid(65534)
try:
    with named(place):
        raise NotMountedError("the socket of the daemon")
except NotMountedError as exc:
    print(type(exc).__name__, exc.message)
"""


@pytest.mark.parametrize("by", ["mountpoint", "url"])
def test_error_about_a_mount_of_another_user_names_the_user(
    program: Program, mounted: Place, by: str
) -> None:
    """The error about the mount of another user names the mountpoint and the user."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_ANOTHER_USER, str(getattr(mounted, by))],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )
    assert done.stdout.startswith(f"OtherUserError {mounted.mountpoint} is mounted by user root")


_PATH_AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from s3fs_meta.mount.requests import history_requests
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.errors import S3fsError
os.setgid(65534)
os.setuid(65534)
path = Path(sys.argv[1])
for find in (
    lambda: history_requests.past_path(path, None),
    lambda: mount_paths.existing([path], None),
    lambda: mount_paths.nodes([path], None),
):
    try:
        find()
    except S3fsError as exc:
        print(type(exc).__name__, exc.message)
"""


@pytest.mark.parametrize("name", ["report", "missing", "folder/missing"])
def test_error_about_a_path_in_an_inaccessible_mount_names_the_user(
    program: Program, mounted: Place, name: str
) -> None:
    """Without allow_other, another user cannot even examine the mountpoint."""
    (mounted.mountpoint / "report").touch()
    (mounted.mountpoint / "folder").mkdir()

    done = subprocess.run(
        [sys.executable, "-c", _PATH_AS_ANOTHER_USER, str(mounted.mountpoint / name)],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    text = f"OtherUserError {mounted.mountpoint} is mounted by user root: run this command as that user"
    assert done.stdout.splitlines() == [text] * 3


def test_umount_with_another_state_directory_does_not_unmount(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """Without an answer of the daemon, the command could not wait for the upload."""
    other = tmp_path / "other"
    done = program.run("umount", mounted.mountpoint, "--cachedir", other, here=False)

    assert done.returncode == ExitStatus.NOT_MOUNTED
    assert "give the --cachedir of the mount" in done.stderr
    assert mount_table.find(str(mounted.mountpoint)) is not None
    done = program.run("umount", "--force", mounted.mountpoint, "--cachedir", other, here=False)
    assert "was killed" not in done.stderr
    assert mount_table.find(str(mounted.mountpoint)) is None
