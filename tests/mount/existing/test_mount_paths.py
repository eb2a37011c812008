"""Tests of mapping a user's path to a directory entry of a mount."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.control.protocol import decode, encode
from s3fs_meta.errors import ControlError, UsageError
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.model import Ino
from s3fs_meta.mount.existing import mount_paths, targets
from s3fs_meta.mount.existing.mount_paths import Entry, entry_message, remove
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount_errors import NotMountedError
from tests.cli.conftest import Place
from tests.programs import Program


@pytest.mark.parametrize(
    ("path", "why"),
    [
        *(
            (path, "must end with the name of a")
            for path in ("/", ".", "..", "d/.", "d/..", "d//./")
        ),
        *((path, "No such file") for path in ("missing", "missing/", "missing/name")),
        *((path, "Not a directory") for path in ("file/", "file//", "link/", "file/name")),
    ],
)
def test_path_without_a_directory_entry_is_refused(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path such as ".." refers to no directory entry that rm(1) would remove."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("d")
    with pytest.raises(UsageError, match=rf"{path}(:| ).*{why}"):
        mount_paths.existing([path], None)


def test_path_of_another_filesystem_is_refused(tmp_path: Path) -> None:
    """The error names the path as the user gave it, not its directory."""
    (tmp_path / "f").touch()
    with pytest.raises(NotMountedError, match=rf"^the path {tmp_path}/f is not on an s3fs-meta"):
        mount_paths.existing([tmp_path / "f"], None)


def test_large_inode_number_of_another_filesystem_is_no_past_point_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filesystems such as mergerfs use all 64 bits of an inode number."""
    (tmp_path / "f").touch()
    found = os.stat(tmp_path / "f")
    large = os.stat_result((found.st_mode, PAST_INO_MIN, *found[2:]))
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda *_arguments, **_options: large)
        with pytest.raises(NotMountedError, match="is not on an s3fs-meta"):
            mount_paths.nodes([tmp_path / "f"], None)


def test_error_for_a_url_in_place_of_a_path_says_that_it_is_a_url(tmp_path: Path) -> None:
    url = f"local://{tmp_path}/bucket"
    for read in (mount_paths.existing, mount_paths.nodes):
        with pytest.raises(UsageError, match=rf"^{url} is a URL, and this command takes paths in"):
            read([Path(url)], None)
    with pytest.raises(UsageError, match=r"^missing:file: No such file"):
        mount_paths.existing([Path("missing:file")], None)


@pytest.mark.mount
def test_past_point_in_time_cannot_be_changed_or_cached(program: Program, mounted: Place) -> None:
    mnt = mounted.mountpoint
    (mnt / "f").touch()
    program.ok("flush", mnt)
    past = mnt / ".snapshots"

    for changing in ("rm", "lock"):
        for path in (past, past / "newest", past / "newest" / "f"):
            done = program.run(changing, path)
            assert done.returncode == ExitStatus.USAGE
            assert done.stderr == (
                f"s3fs-meta: cannot change {path}: past points in time are read-only\n"
            )
    for command in (("warm",), ("warm", "--pin"), ("unpin",), ("dropcache",)):
        done = program.run(*command, past / "newest" / "f")
        assert done.returncode == ExitStatus.USAGE
        assert "is not in the cache of the mount; to cache it, mount that point" in done.stderr


@pytest.mark.mount
def test_command_paths_follow_symlinks_except_in_the_last_component(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    mnt = mounted.mountpoint
    (mnt / "d").mkdir()
    (mnt / "d" / "link").symlink_to("/")
    (tmp_path / "way").symlink_to(mnt / "d")
    (found,) = mount_paths.existing([tmp_path / "way" / "link"], program.cachedir)

    assert found.place.url == mounted.url
    assert (found.parent, found.name) == ((mnt / "d").stat().st_ino, b"link")
    assert found.ino == os.lstat(mnt / "d" / "link").st_ino
    assert found.path == str(mnt / "d" / "link")


@pytest.mark.mount
def test_paths_in_several_filesystems_are_refused(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    mnt, past = mounted.mountpoint, tmp_path / "past"
    (mnt / "d").mkdir()
    (tmp_path / "way").symlink_to(mnt / "d")
    program.ok("flush", mnt)
    past.mkdir()
    program.ok("mount", "-o", "ro,at=newest", mounted.url, past)
    try:
        [root, found] = mount_paths.nodes([mnt, tmp_path / "way"], program.cachedir)
        assert (root.ino, root.path) == (1, str(mnt))
        assert (found.ino, found.path) == ((mnt / "d").stat().st_ino, str(mnt / "d"))
        assert mount_paths.shown(root.place, "/") == str(mnt)
        assert mount_paths.shown(root.place, "/d") == str(mnt / "d")
        with pytest.raises(UsageError, match=f"{past} is on another filesystem than {mnt}"):
            mount_paths.nodes([mnt, past], program.cachedir)
        with pytest.raises(UsageError, match="No such file"):
            mount_paths.nodes([mnt / "missing"], program.cachedir)
        with pytest.raises(NotMountedError):
            mount_paths.nodes([tmp_path], program.cachedir)
    finally:
        program.ok("umount", past)


@pytest.mark.mount
def test_mountpoint_cannot_be_removed(program: Program, mounted: Place) -> None:
    """The mountpoint and the directories above it cannot be removed."""
    mnt = mounted.mountpoint
    with pytest.raises(UsageError, match=f"^the path {mnt} is a mountpoint; give paths below it$"):
        mount_paths.existing([mnt], program.cachedir)
    with pytest.raises(
        UsageError, match=f"^another filesystem is mounted on {mnt}, below {mnt.parent}$"
    ):
        mount_paths.existing([mnt.parent], program.cachedir)


@pytest.mark.mount
def test_existing_target_of_a_copy_is_refused(program: Program, mounted: Place) -> None:
    """The target of a copy must not exist, but its parent directory must exist."""
    mnt = mounted.mountpoint
    (mnt / "nowhere").symlink_to("missing")
    (source,) = mount_paths.existing([mnt / "nowhere"], program.cachedir)
    found = mount_paths.free(mnt / "new", program.cachedir, source)

    assert (found.parent, found.name, found.ino) == (1, b"new", 0)
    (mnt / "file").touch()
    for path in (mnt / "nowhere", mnt / "missing" / "new", mnt, mnt / "file" / "new"):
        with pytest.raises(UsageError):
            mount_paths.free(path, program.cachedir, source)


@pytest.mark.mount
def test_copy_to_another_filesystem_is_refused(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    (mounted.mountpoint / "f").touch()

    for target in (tmp_path / "copy", Path("/proc/copy")):
        done = program.run("clone", mounted.mountpoint / "f", target)
        assert done.returncode == 2
        assert f"{target} is on another filesystem than {mounted.mountpoint}/f" in done.stderr
    (tmp_path / "outside").touch()
    done = program.run("clone", tmp_path / "outside", mounted.mountpoint / "copy")
    assert (done.returncode, "is not on an s3fs-meta filesystem" in done.stderr) == (8, True)


_SEES_NOTHING = """
import sys
from s3fs_meta.mount.existing import mount_paths as entries
from s3fs_meta.cli import start
entries.require_seen.__kwdefaults__["within_s"] = 0.0
entries._is_there = lambda entry: entry.ino != 0
sys.argv[0] = "s3fs-meta"
start.program()
"""


def _entry(path: Path, ino: int) -> mount_paths.Entry:
    return mount_paths.Entry(
        targets.Target("local:///a", path), Ino(1), path.name.encode(), Ino(ino), str(path)
    )


def test_commands_wait_until_the_kernel_shows_their_effect(tmp_path: Path) -> None:
    """A command waits until the kernel no longer returns the cached state of the name."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()
    later = threading.Timer(0.1, lambda: old.rename(new))
    gone = _entry(old, old.stat().st_ino)
    later.start()
    try:
        mount_paths.require_seen([gone], there=False)
        assert not old.exists()
        mount_paths.require_seen([_entry(new, 0)], there=True)
        assert new.exists()
    finally:
        later.join()

    old.touch()
    # The wait for the removal also ends if another process has replaced the entry.
    mount_paths.require_seen([gone], there=False)


def test_command_fails_if_the_kernel_does_not_show_its_effect_in_time(tmp_path: Path) -> None:
    old, new = _entry(tmp_path, tmp_path.stat().st_ino), _entry(tmp_path / "new", 0)
    with pytest.raises(ControlError, match="was removed, but the kernel"):
        mount_paths.require_seen([old], there=False, within_s=0.05)
    with pytest.raises(ControlError, match="was created, but the kernel"):
        mount_paths.require_seen([new], there=True, within_s=0.05)


@pytest.mark.mount
@pytest.mark.parametrize(
    ("words", "what"),
    [(["rm"], "removed"), (["rm", "--wait"], "removed"), (["clone"], "created")],
    ids=["plain", "rm", "clone"],
)
def test_rm_and_clone_fail_if_the_kernel_does_not_show_their_effect(
    program: Program, mounted: Place, words: list[str], what: str
) -> None:
    (mounted.mountpoint / "f").touch()
    paths = [mounted.mountpoint / name for name in (["f"] if what == "removed" else ["f", "g"])]
    done = subprocess.run(
        [sys.executable, "-c", _SEES_NOTHING, *words, *paths],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )

    assert done.returncode == ExitStatus.CONTROL
    why = "but the kernel has not noticed the change yet"
    assert done.stderr == f"s3fs-meta: {paths[-1]} was {what}, {why}\n"
    assert paths[-1].exists() == (what == "created")


def test_error_about_an_unmounted_path_names_the_given_path(tmp_path: Path) -> None:
    """The error contains the path that the user gave, not the state directory."""
    place = Target("local:///a", tmp_path / "s", "/mnt/x")
    with pytest.raises(NotMountedError, match=r"^no s3fs-meta filesystem is mounted on /mnt/x;"):
        remove(Entry(place, Ino(1), b"name", Ino(2), "/mnt/x/name"))


def test_names_of_arbitrary_bytes_are_unchanged_after_encoding_and_decoding(tmp_path: Path) -> None:
    for name in (b"plain", "\u00e4".encode(), b"odd \xff\n"):
        entry = Entry(Target("local:///a", tmp_path), Ino(1), name, Ino(2), "/mnt/x")
        arrived = decode(encode(entry_message(entry)))
        assert (arrived["parent"], os.fsencode(arrived["name"]), arrived["ino"]) == (1, name, 2)
