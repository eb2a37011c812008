"""The move of local state into a quarantine directory, interrupted at each system call."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import DatabaseError
from s3fs_meta.export import quarantine_list
from s3fs_meta.sync.host_state.state_dir import StateDir
from tests.faults import raising
from tests.polling import PROCESS_S_MAX
from tests.sync.conftest import TAKEOVER, Power, block_of, read_file, unmount, write_file

pytestmark = pytest.mark.thorough

KILLED: Final = 9
# Quarantines the local state, but exits before the n-th call that creates or removes a name.
CHILD: Final = """
import errno, os, sys
from pathlib import Path
from s3fs_meta.sync.host_state.state_dir import StateDir

state, left = StateDir(Path(sys.argv[1])), int(sys.argv[2])
refuses_links = False

def exit_early(event, _arguments):
    global left
    if event in {"os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir"}:
        if left == 0:
            os._exit(9)
        left -= 1
    if event == "os.link" and refuses_links:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

if sys.argv[3] == "resume":
    sys.addaudithook(exit_early)
assert state.try_lock()
if sys.argv[3] == "move":
    sys.addaudithook(exit_early)
    state.quarantine_as("1")
"""
# Quarantines the local state on a disk that refuses hard links, such as vfat.
CHILD_WITHOUT_LINKS: Final = """
import errno, os, sys
from pathlib import Path
from s3fs_meta.sync.host_state.state_dir import StateDir

def refuse(event, _arguments):
    if event == "os.link":
        raise OSError(int(sys.argv[2]), os.strerror(int(sys.argv[2])))

state = StateDir(Path(sys.argv[1]))
assert state.try_lock()
sys.addaudithook(refuse)
state.quarantine_as("1")
"""
# Interrupts a quarantine on a disk that refuses hard links; a refused link counts as a call.
CHILD_KILLED_WITHOUT_LINKS: Final = CHILD.replace("refuses_links = False", "refuses_links = True")
# Prints each name that is linked, renamed or removed, and each directory opened for a sync.
CHILD_THAT_PRINTS: Final = """
import os, sys
from pathlib import Path
from s3fs_meta.sync.host_state.state_dir import StateDir

state = StateDir(Path(sys.argv[1]))
assert state.try_lock()

def note(event, arguments):
    if event in {"open", "os.link", "os.rename", "os.remove"}:
        print(event.removeprefix("os."), os.path.basename(arguments[0]))

sys.addaudithook(note)
state.quarantine_as("1")
"""
# The kill points of one move: before each of seven calls (two mkdir, two link, one rename, two
# unlink), and after the last call.
STEPS: Final = 8
# Without hard links: before two mkdir, a refused link, three renames and the mark; and at the end.
STEPS_WITHOUT_LINKS: Final = 8
FILES: Final = {"meta.db": b"db", "meta.db-wal": b"wal", "blocks/1": b"block"}


def stopped(state: Path, steps: int, work: str = "move", child: str = CHILD) -> bool:
    """Run a process that moves the state or resumes a move; return True if it exited early."""
    command = [sys.executable, "-c", child, str(state), str(steps), work]
    status = subprocess.run(command, timeout=PROCESS_S_MAX, check=False).returncode
    assert status in {0, KILLED}
    return status == KILLED


def new_state(path: Path) -> StateDir:
    """Return a state directory with local state."""
    state = StateDir(path)
    state.blocks.mkdir()
    for name, data in FILES.items():
        (path / name).write_bytes(data)
    return state


def files_in(path: Path) -> dict[str, bytes]:
    """Return the files of local state in a directory."""
    return {name: (path / name).read_bytes() for name in FILES if (path / name).exists()}


def require_complete(state: StateDir) -> None:
    """Require that the next process finds the complete local state in exactly one directory."""
    assert state.try_lock()
    state.unlock()
    aside = state.quarantine("1")
    assert sorted([files_in(state.path), files_in(aside)], key=len) == [{}, FILES]
    assert aside.exists() == bool(files_in(aside))


@pytest.mark.parametrize("steps", range(STEPS))
def test_next_process_finishes_or_undoes_a_killed_quarantine(tmp_path: Path, steps: int) -> None:
    """The database stays together with its logs and its block files."""
    state = new_state(tmp_path / "s")

    assert stopped(state.path, steps) == (steps < STEPS - 1)

    require_complete(state)


@pytest.mark.parametrize("again", range(4))
@pytest.mark.parametrize("steps", [4, 5])
def test_resumed_quarantine_may_be_killed_again(tmp_path: Path, steps: int, again: int) -> None:
    state = new_state(tmp_path / "s")
    assert stopped(state.path, steps)

    assert stopped(state.path, again, "resume") == (again < (3 if steps == 4 else 2))

    require_complete(state)
    assert bool(files_in(state.path)) == (steps == 4)


@pytest.mark.parametrize("steps", range(STEPS_WITHOUT_LINKS))
def test_killed_quarantine_on_a_disk_without_hard_links_is_finished_or_undone(
    tmp_path: Path, steps: int
) -> None:
    """SQLite deletes a log if its database is missing, so the log must not stay behind."""
    state = new_state(tmp_path / "s")
    killed = steps < STEPS_WITHOUT_LINKS - 1
    assert stopped(state.path, steps, child=CHILD_KILLED_WITHOUT_LINKS) == killed

    require_complete(state)
    assert not list(state.path.glob("kept-1/unfinished"))


@pytest.mark.parametrize("again", range(4))
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_resumed_quarantine_on_a_disk_without_hard_links_may_be_killed_again(
    tmp_path: Path, steps: int, again: int
) -> None:
    """When the block files have moved, the next process finishes the move instead of undoing it."""
    state = new_state(tmp_path / "s")
    assert stopped(state.path, steps, child=CHILD_KILLED_WITHOUT_LINKS)

    stopped(state.path, again, "resume", CHILD_KILLED_WITHOUT_LINKS)

    require_complete(state)
    assert bool(files_in(state.path)) == (steps == 3)


def test_database_made_after_a_quarantine_without_hard_links_stays(tmp_path: Path) -> None:
    """A new database and its files must not be moved into the quarantine of the old database."""
    state = new_state(tmp_path / "s")
    (state.path / "meta.db-wal").unlink()  # Only the new database has a log.
    assert not stopped(state.path, 100, child=CHILD_KILLED_WITHOUT_LINKS)
    (state.path / "meta.db").write_bytes(b"new db")
    (state.path / "meta.db-wal").write_bytes(b"new wal")

    assert state.try_lock()

    state.unlock()
    assert files_in(state.path) == {"meta.db": b"new db", "meta.db-wal": b"new wal"}


@pytest.mark.parametrize("steps", [4, 5])
def test_database_of_an_older_program_stays_after_a_killed_quarantine_without_hard_links(
    tmp_path: Path, steps: int
) -> None:
    """An older program ignores the quarantine mark and makes a new database, which must stay."""
    state = new_state(tmp_path / "s")
    assert stopped(state.path, steps, child=CHILD_KILLED_WITHOUT_LINKS)
    for name in FILES:
        (state.path / name).unlink(missing_ok=True)
    state.blocks.mkdir()
    for name in FILES:
        (state.path / name).write_bytes(b"later " + FILES[name])

    assert state.try_lock()

    state.unlock()
    assert files_in(state.path) == {name: b"later " + data for name, data in FILES.items()}
    assert not list(state.path.glob("kept-1/unfinished"))


def test_quarantine_syncs_new_names_before_it_removes_old_names(tmp_path: Path) -> None:
    """New names are synced before old names are removed, so that a power cut acts like a kill.

    The new names are on the disk before the block files move. A move is therefore undone or
    finished after a power cut in the same way as after a kill.
    """
    state = new_state(tmp_path / "s")

    command = [sys.executable, "-c", CHILD_THAT_PRINTS, str(state.path)]
    done = subprocess.run(
        command, timeout=PROCESS_S_MAX, check=True, capture_output=True, text=True
    )

    synced = ["open kept-1", "open s"]
    assert done.stdout.splitlines() == [
        *("link meta.db", "link meta.db-wal", *synced),
        *("rename blocks", *synced),
        *("remove meta.db", "remove meta.db-wal", *synced),
    ]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_quarantine_succeeds_for_each_errno_of_a_disk_without_hard_links(
    tmp_path: Path, code: int
) -> None:
    state = new_state(tmp_path / "s")

    command = [sys.executable, "-c", CHILD_WITHOUT_LINKS, str(state.path), str(code)]
    subprocess.run(command, timeout=PROCESS_S_MAX, check=True)

    assert files_in(state.quarantine("1")) == FILES
    require_complete(state)


def test_quarantine_fails_without_a_change_if_the_disk_refuses_a_link(tmp_path: Path) -> None:
    """If a link fails for a reason other than a disk without hard links, the move is undone."""
    state = new_state(tmp_path / "s")

    command = [sys.executable, "-c", CHILD_WITHOUT_LINKS, str(state.path), str(errno.ENOSPC)]
    done = subprocess.run(command, timeout=PROCESS_S_MAX, check=False, capture_output=True)
    assert done.returncode == 1

    assert files_in(state.path) == FILES
    assert not state.quarantine("1").exists()


def test_failed_quarantine_leaves_the_local_state_in_place(tmp_path: Path) -> None:
    """If the quarantine directory exists already, no file is moved."""
    state = new_state(tmp_path / "s")
    state.quarantine("1").mkdir()
    (state.quarantine("1") / "meta.db").write_bytes(b"an earlier state")

    with pytest.raises(DatabaseError, match=r"cannot quarantine .*File exists; nothing was lost"):
        state.quarantine_as("1")

    assert files_in(state.path) == FILES
    assert (state.quarantine("1") / "meta.db").read_bytes() == b"an earlier state"


def test_full_disk_during_a_quarantine_leaves_the_local_state_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full, files that were already linked are removed from the quarantine."""
    state = new_state(tmp_path / "s")
    link = os.link

    def link_one(source: Path, target: Path, *, follow_symlinks: bool) -> None:
        if source.name != "meta.db":
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "link", link_one)
    with pytest.raises(DatabaseError, match=r"No space left on device; nothing was lost"):
        state.quarantine_as("1")

    assert files_in(state.path) == FILES
    assert not state.quarantine("1").exists()


def test_local_state_is_quarantined_on_a_disk_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = new_state(tmp_path / "s")
    monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, "Operation not permitted")))

    state.quarantine_as("1")

    assert files_in(state.quarantine("1")) == FILES
    assert files_in(state.path) == {}


def test_killed_quarantine_leaves_no_database_without_its_log(tmp_path: Path) -> None:
    """An older program would open a database without its log and lose the changes in the log."""
    state = new_state(tmp_path / "s")
    assert stopped(state.path, STEPS - 2)

    assert files_in(state.path).keys() == {"meta.db-wal"}


def test_file_named_like_a_quarantine_directory_does_not_prevent_the_lock(tmp_path: Path) -> None:
    state = new_state(tmp_path / "s")
    (tmp_path / "elsewhere").mkdir()
    (state.path / "kept-link").symlink_to(tmp_path / "elsewhere")
    (state.path / "kept-file").touch()

    assert state.try_lock()

    state.unlock()
    assert sorted(path.name for path in state.path.glob("kept-*")) == ["kept-file", "kept-link"]


async def test_unshipped_file_of_a_host_killed_during_the_quarantine_can_be_recovered(
    power: Power,
) -> None:
    """The next mount finds the database and the block files in one quarantine directory."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()
        block = block_of(session.db, write_file(session, b"not shipped"))
        session.db.commit()
    async with power.session("b", options=TAKEOVER) as session:
        ino = write_file(session, b"from b")
        await unmount(session)
    state = StateDir(power.home / "a")
    assert stopped(state.path, 4)
    assert not state.blocks.exists()

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == b"from b"

    [kept] = quarantine_list.find_all(state.path)
    assert quarantine_list.summary(kept)["only_here_bytes"] == len(b"not shipped")
    assert block in BlockFiles(kept.blocks, state.tmp).numbers()
