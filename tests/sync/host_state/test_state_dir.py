"""The state directory: its lock, owner, permissions and quarantined states."""

import errno
import fcntl
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from s3fs_meta.console.boundary import text_of
from s3fs_meta.errors import HeldError, SettingsError
from s3fs_meta.state_paths import locate_snapshot_state
from s3fs_meta.sync.host_state.state_dir import (
    LockWatch,
    StateDir,
    remove_stale_snapshots,
    remove_unused,
    without_new_remains,
)
from tests.faults import raising
from tests.polling import WAIT_S_MAX

OTHER_UID = 12345


async def test_second_process_cannot_lock_the_state_directory(tmp_path: Path) -> None:
    """The lock is exclusive, even between two file descriptors of one process."""
    first, second = StateDir(tmp_path / "s"), StateDir(tmp_path / "s")
    await first.lock()

    assert second.is_locked_by_other
    with pytest.raises(HeldError, match="another process"):
        await second.lock()

    first.unlock()
    await second.lock()
    second.unlock()


@pytest.mark.parametrize("call", ["open", "flock", "lstat"])
async def test_disk_error_of_the_lock_is_reported_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A lock that cannot be taken is neither free nor held by another process."""
    state = StateDir(tmp_path / "s")
    (state.path / "lock").touch()
    open_fds = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        if call == "flock":  # An error of flock(2) contains no path.
            patch.setattr(fcntl, call, raising(OSError(errno.EIO, os.strerror(errno.EIO))))
        else:
            path = str(state.path / "lock")
            patch.setattr(os, call, raising(OSError(errno.EIO, os.strerror(errno.EIO), path)))
        with pytest.raises(OSError, match="Input/output error") as caught:
            await state.lock()

    assert caught.value.errno == errno.EIO
    assert text_of(caught.value).startswith(f"{state.path}/lock: ")
    assert len(os.listdir("/proc/self/fd")) == open_fds
    await state.lock()  # The failed attempt left no lock.
    state.unlock()


def test_check_of_a_lock_that_fails_is_reported_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDir(tmp_path / "s")
    (state.path / "lock").touch()
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, "No locks available")))

    with pytest.raises(OSError, match="No locks available") as caught:
        _ = state.is_locked_by_other

    assert caught.value.filename == f"{state.path}/lock"


async def test_disk_error_after_the_lock_was_taken_releases_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the last commit cannot be read, so the directory must not be used."""
    state, other = StateDir(tmp_path / "s"), StateDir(tmp_path / "s")
    state.database.touch()
    real_open = os.open

    def refuse(path: str | Path, *args: int, **kwargs: int) -> int:
        if Path(path) == state.database:
            raise OSError(errno.EIO, "refused", str(path))
        return real_open(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match=r"meta\.db"):
            await state.lock()

    await other.lock()
    other.unlock()


def test_state_directory_that_cannot_be_created_causes_one_error_line(tmp_path: Path) -> None:
    """If a state directory cannot be created, the error has path, reason and --cachedir."""
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError, match=r"cannot make the state directory .*--cachedir"):
        StateDir(tmp_path / "file" / "s")


def test_quarantine_moves_the_complete_local_state(tmp_path: Path) -> None:
    """The quarantine contains database, WAL and blocks; the state directory is empty afterwards."""
    state = StateDir(tmp_path / "s")
    state.database.write_bytes(b"db")
    state.database.with_name("meta.db-wal").write_bytes(b"wal")
    state.blocks.mkdir()
    (state.blocks / "1").write_bytes(b"block")

    kept = state.quarantine_as("20260101")

    assert not state.database.exists()
    assert not state.blocks.exists()
    assert sorted(path.name for path in kept.iterdir()) == ["blocks", "meta.db", "meta.db-wal"]
    assert (kept / "blocks" / "1").read_bytes() == b"block"


async def test_state_directories_of_killed_snapshot_mounts_are_removed(tmp_path: Path) -> None:
    """Directories of killed mounts are removed unless they are in use, foreign or unsafe."""
    present = StateDir(tmp_path / "fs[1]")
    await present.lock()
    left, used, begun, wanted = (
        StateDir(locate_snapshot_state(present.path, name))
        for name in ("/left", "/used", "/new", "/own")
    )
    other = StateDir(locate_snapshot_state(tmp_path / "fs1", "/left"))
    for one in (left, used, wanted, other):
        await one.lock()
    for one in (left, wanted, other):
        one.unlock()

    unsafe = StateDir(locate_snapshot_state(present.path, "/unsafe"))
    (unsafe.path / "lock").touch()
    unsafe.path.chmod(0o777)

    remove_stale_snapshots(present.path, wanted.path)

    kept = [present, used, begun, wanted, other, unsafe]
    assert set(os.listdir(tmp_path)) == {one.path.name for one in kept}
    present.unlock()
    used.unlock()


def test_snapshot_directory_of_another_user_prevents_no_removal_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have started a snapshot mount as root with the same --cachedir."""
    # The test uses relative paths, because other users cannot enter the parent directories.
    monkeypatch.chdir(tmp_path)
    uid = os.geteuid()
    state = Path("fs")
    foreign, own = (locate_snapshot_state(state, name) for name in ("/foreign", "/own"))
    for path in (foreign, own):
        path.mkdir(0o700)
        (path / "lock").touch()
    foreign.chmod(0)
    if uid == 0:
        for path in (tmp_path, own, own / "lock"):
            os.chown(path, OTHER_UID, -1)
        os.seteuid(OTHER_UID)
    try:
        remove_stale_snapshots(state, Path())
        assert (foreign.exists(), own.exists()) == (True, False)
    finally:
        os.seteuid(uid)
        foreign.chmod(0o700)


async def test_wait_for_the_lock_of_a_state_directory_does_not_create_the_directory(
    tmp_path: Path,
) -> None:
    """A command that waits for the lock must not create a state directory that was removed."""
    state = StateDir(tmp_path / "s")
    await state.lock()

    with trio.fail_after(WAIT_S_MAX), LockWatch(state.path) as watch:
        (state.path / "lock").unlink()  # The other process begins to remove the directory.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.wait_until_free)
            await trio.testing.wait_all_tasks_blocked()
            await trio.lowlevel.checkpoint()
            assert nursery.child_tasks
            state.remove()
            state.unlock()

    assert not state.path.exists()


async def test_lock_on_a_failed_disk_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no command could end a mount after ext4 or XFS has shut down its disk."""
    state = StateDir(tmp_path / "s")
    await state.lock()
    path = str(state.path / "lock")
    monkeypatch.setattr(os, "open", raising(OSError(errno.EIO, os.strerror(errno.EIO), path)))

    with trio.fail_after(WAIT_S_MAX), LockWatch(state.path) as watch:
        await watch.wait_until_free()

    monkeypatch.setattr(os, "open", raising(OSError(errno.EACCES, os.strerror(errno.EACCES), path)))
    with pytest.raises(PermissionError):
        LockWatch(state.path)


@pytest.mark.mount
def test_lock_on_a_disk_that_became_read_only_can_be_watched(small_disk: Path) -> None:
    """Otherwise no command could end a mount after ext4 has made its disk read-only."""
    state = StateDir(small_disk / "s")
    assert state.try_lock()
    subprocess.run(["mount", "-o", "bind", str(small_disk), str(small_disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(small_disk)], check=True)
        assert state.is_locked_by_other
        with LockWatch(state.path):
            state.unlock()
        assert not state.is_locked_by_other
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)


def test_deletion_of_local_state_preserves_quarantined_states(tmp_path: Path) -> None:
    """Database, WAL and blocks are deleted. A second call finds nothing to delete."""
    state = StateDir(tmp_path / "s")
    state.database.write_bytes(b"db")
    state.database.with_name("meta.db-wal").write_bytes(b"wal")
    (state.blocks / "ab").mkdir(parents=True)
    (state.path / "kept-1").mkdir()

    state.drop_contents()
    state.drop_contents()

    assert [path.name for path in state.path.iterdir()] == ["kept-1"]


def test_removal_of_local_state_reports_an_entry_that_cannot_be_removed(small_disk: Path) -> None:
    """If one entry cannot be removed, such as a mountpoint, all other entries are removed."""
    state = StateDir(small_disk.parent)
    state.database.write_bytes(b"db")
    state.tmp.mkdir()
    assert state.try_lock()

    left = state.discard()

    state.unlock()
    assert left.rescued == []
    assert [str(exc.filename) for exc in left.failures] == [str(small_disk)]
    assert os.listdir(state.path) == [small_disk.name]


def test_deletion_of_local_state_preserves_files_of_other_programs(tmp_path: Path) -> None:
    """A file in ``blocks`` that is neither a block nor the intent log is not deleted."""
    state = StateDir(tmp_path / "s")
    (state.blocks / "15xxx").mkdir(parents=True)
    (state.blocks / "ab").mkdir()  # This is the layout of older programs.
    for name in ("15xxx/15ab2", "15xxx/notes.txt", "ab/1ab", "thesis", "intent-log"):
        (state.blocks / name).write_bytes(b"x")

    state.drop_contents()

    kept = sorted(path for path in state.blocks.rglob("*") if path.is_file())
    assert kept == [state.blocks / "15xxx" / "notes.txt", state.blocks / "thesis"]


def test_deletion_of_local_state_continues_after_an_error_in_the_blocks(tmp_path: Path) -> None:
    """A block file of an older layout cannot be moved if its new directory is a file."""
    state = StateDir(tmp_path / "s")
    state.database.write_bytes(b"db")
    (state.blocks / "15xxx").mkdir(parents=True)
    (state.blocks / "ab").mkdir()
    for name in ("15xxx/15ab2", "ab/1ab", "xxx", "intent-log"):
        (state.blocks / name).write_bytes(b"x")

    state.drop_contents()

    assert not state.database.exists()
    kept = sorted(path for path in state.blocks.rglob("*") if path.is_file())
    assert kept == [state.blocks / "ab" / "1ab", state.blocks / "xxx"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the path of a state directory that looks as if a mount had used it."""
    made = StateDir(tmp_path / "s")
    made.database.write_bytes(b"db")
    made.blocks.mkdir(mode=0o700)
    made.keep_holder("holder")
    return made.path


def _listing(path: Path) -> list[tuple[str, int, int]]:
    found = [(entry, entry.lstat()) for entry in [path, *path.rglob("*")]]
    return sorted((str(entry), status.st_mode, status.st_uid) for entry, status in found)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("entry", ["", "meta.db", "blocks", "holder"])
def test_state_directory_with_an_entry_of_another_user_is_refused(state: Path, entry: str) -> None:
    """The error names the entry, its owner, the user and a remedy; nothing is changed."""
    os.chown(state / entry, OTHER_UID, -1)
    before = _listing(state)

    with pytest.raises(SettingsError, match=f"belongs to user {OTHER_UID}.*--cachedir") as refused:
        StateDir(state)

    assert str(state / entry) in refused.value.message
    assert _listing(state) == before


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o1777])
def test_state_directory_writable_by_other_users_is_refused(state: Path, mode: int) -> None:
    state.chmod(mode)

    with pytest.raises(SettingsError, match=rf"other users can write .*{mode:04o}.*chmod 700"):
        StateDir(state)

    assert stat.S_IMODE(state.stat().st_mode) == mode


@pytest.mark.parametrize("name", ["meta.db", "mount.log", "lock", "blocks", "holder.new"])
def test_symbolic_link_in_the_state_directory_is_refused(
    state: Path, tmp_path: Path, name: str
) -> None:
    """A symbolic link could make the program overwrite any file of the user."""
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    present = state / name
    if present.is_dir():
        present.rmdir()
    present.unlink(missing_ok=True)
    present.symlink_to(target)

    with pytest.raises(SettingsError, match="symbolic link"):
        StateDir(state)

    assert target.read_bytes() == b"precious"


def test_symbolic_link_in_place_of_the_state_directory_is_refused(
    state: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(state)

    with pytest.raises(SettingsError, match="symbolic link"):
        StateDir(link)


def test_special_file_in_the_state_directory_is_refused(state: Path) -> None:
    """Opening a FIFO could block without end, so special files are refused."""
    os.mkfifo(state / "mount.log")

    with pytest.raises(SettingsError, match="special file"):
        StateDir(state)


@pytest.mark.parametrize("name", ["tmp", "blocks"])
def test_file_in_place_of_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    """The message names the path, and says what to do with the file and the former directory."""
    (tmp_path / name).write_bytes(b"")

    with pytest.raises(
        SettingsError, match=f"{name}' .* is not a directory; move it away, and put"
    ):
        StateDir(tmp_path)


def test_state_directory_readable_by_other_users_is_made_private(state: Path) -> None:
    """Files that other users could only read are trusted, and are made private."""
    state.chmod(0o755)

    StateDir(state)

    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_file_writable_by_others_in_a_readable_state_directory_is_refused(state: Path) -> None:
    """Files that other users could write are not trusted."""
    state.chmod(0o755)
    (state / "meta.db").chmod(0o666)

    with pytest.raises(SettingsError, match=r"other users can write to .*meta\.db.*0666"):
        StateDir(state)


def test_file_writable_by_others_in_a_private_state_directory_is_made_private(state: Path) -> None:
    """In a private directory other users cannot reach a file, so its mode does not matter."""
    (state / "meta.db").chmod(0o664)

    StateDir(state)

    assert stat.S_IMODE((state / "meta.db").stat().st_mode) == 0o644


def test_state_directory_created_under_umask_0_is_private(tmp_path: Path) -> None:
    """The program sets the permissions of a new state directory itself."""
    path = tmp_path / "new"
    mask = os.umask(0)
    try:
        StateDir(path).keep_holder("another")
    finally:
        os.umask(mask)

    modes = [stat.S_IMODE(entry.stat().st_mode) for entry in (path, path / "holder")]
    assert modes == [0o700, 0o600]
    StateDir(path)


def test_state_directory_created_by_a_failed_command_is_removed(tmp_path: Path) -> None:
    """A failed command removes a state directory only if it has created the directory."""

    def command(path: Path) -> None:
        with without_new_remains(path):
            state = StateDir(path)
            state.tmp.mkdir()
            state.log.touch()
            assert state.try_lock()
            state.unlock()
            raise HeldError("no")

    new, old = tmp_path / "new", tmp_path / "old"
    StateDir(old)
    for path in (new, old):
        with pytest.raises(HeldError):
            command(path)

    assert not new.exists()
    assert old.is_dir()
    with without_new_remains(new):
        StateDir(new)
    assert new.is_dir()


@pytest.mark.parametrize(
    "name", ["meta.db", "holder", "superblock", "kept-1/x", "blocks/7", "tmp/1"]
)
def test_state_directory_with_other_files_is_not_removed(tmp_path: Path, name: str) -> None:
    """A file that the program does not know may be valuable, so its directory stays."""
    path = tmp_path / "state"

    def command() -> None:
        with without_new_remains(path):
            (StateDir(path).path / name).parent.mkdir(exist_ok=True)
            (path / name).touch()
            raise HeldError("no")

    with pytest.raises(HeldError):
        command()

    assert (path / name).exists()


def test_state_directory_used_by_another_process_is_not_removed(tmp_path: Path) -> None:
    """A state directory that contains only a lock may belong to a mount that is starting."""
    state = StateDir(tmp_path / "state")
    assert state.try_lock()

    remove_unused(state.path)

    assert state.path.is_dir()
    state.unlock()
    remove_unused(state.path)
    assert not state.path.exists()
    remove_unused(state.path)


def test_state_directory_used_just_before_its_removal_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may use the directory between the check and the lock."""
    really = StateDir.try_lock

    def used(state: StateDir) -> bool:
        state.database.touch()
        return really(state)

    path = StateDir(tmp_path / "state").path
    monkeypatch.setattr(StateDir, "try_lock", used)

    remove_unused(path)

    assert (path / "meta.db").exists()


def test_failed_removal_of_a_state_directory_preserves_the_original_error(tmp_path: Path) -> None:
    """If a command and its cleanup both fail, the caller gets the error of the command."""
    path = tmp_path / "state"

    def command() -> None:
        with without_new_remains(path):
            path.mkdir(mode=0o777)
            path.chmod(0o777)  # The cleanup refuses a directory that others can write to.
            raise HeldError("the reason")

    with pytest.raises(HeldError, match="the reason"):
        command()

    assert path.is_dir()


async def test_state_directory_is_created_again_if_it_was_removed_before_the_lock(
    tmp_path: Path,
) -> None:
    first, second = StateDir(tmp_path / "state"), StateDir(tmp_path / "state")
    await first.lock()
    first.remove()
    first.unlock()

    await second.lock()

    assert (second.path / "lock").exists()
    assert second.path.stat().st_mode & 0o777 == 0o700
    second.unlock()


def test_lock_of_a_removed_state_directory_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is not accepted if the state directory was replaced before the lock was taken."""
    state, third = StateDir(tmp_path / "state"), None
    really = fcntl.flock

    def replaced(fd: int, operation: int) -> None:
        nonlocal third
        if third is None:
            shutil.rmtree(state.path)
            third = StateDir(state.path)
            assert third.try_lock()
        really(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)

    assert not state.try_lock()
    assert third is not None
    third.unlock()
    assert state.try_lock()
    state.unlock()
