"""End marks: rows that record whether the last process ended normally."""

from contextlib import closing

import pytest

from s3fs_meta.export.quarantine_list import find_all, open_database
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import inodes, local_state
from s3fs_meta.model import ROOT_INO
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.end_marks import settle_before_quarantine, synced, unclean
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import REGULAR, TAKEOVER, Power, unmount

MARKS = ("clean", "volatile")


async def closed(power: Power, pragmas: Pragmas) -> Database:
    """Open the database of a filesystem that was unmounted."""
    async with power.session("a", tasks=False) as session:
        await session.close()
    return Database.open(StateDir(power.home / "a").database, pragmas)


@pytest.mark.parametrize(
    ("journal_mode", "synchronous", "marked"),
    [
        ("wal", "normal", ["1", "nothing"]),
        ("wal", "off", ["0", "power"]),
        ("memory", "off", ["0", "crash"]),
    ],
)
async def test_command_without_a_mount_marks_the_database_while_it_runs(
    plain: Power, journal_mode: str, synchronous: str, marked: list[str]
) -> None:
    """A command marks the database only if a crash with its settings can damage pages."""
    db = await closed(plain, Pragmas(journal_mode=journal_mode, synchronous=synchronous))

    with unclean(db):
        during = [local_state.get(db, name) for name in MARKS]

    assert during == marked
    assert [local_state.get(db, name) for name in MARKS] == ["1", "nothing"]
    db.close()


@pytest.mark.parametrize("synchronous", ["off", "normal", "extra"])
async def test_synced_context_enables_syncs_and_restores_the_former_setting(
    plain: Power, synchronous: str
) -> None:
    db = await closed(plain, Pragmas(synchronous=synchronous))
    before = db.connection.pragma("synchronous")

    with synced(db):
        assert db.connection.pragma("synchronous") > 0

    assert db.connection.pragma("synchronous") == before
    db.close()


async def test_error_in_an_open_commit_group_is_raised_and_the_mark_remains(plain: Power) -> None:
    """SQLite refuses to change the setting "synchronous" within a commit group."""
    db = await closed(plain, Pragmas(synchronous="off"))

    def fail_halfway() -> None:
        with unclean(db):
            db.begin_local()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_halfway()
    db.rollback()
    assert local_state.get(db, "clean") == "0"
    db.close()


async def test_state_that_was_synced_for_an_interrupted_quarantine_is_uploaded_by_the_next_mount(
    plain: Power,
) -> None:
    """The next mount may choose the state, although it is then marked as cleanly closed."""
    async with plain.session("a", tasks=False) as session:
        await unmount(session)
    async with plain.session("a", tasks=False) as session:
        session.db.begin()
        ino = inodes.create(session.db, REGULAR, 0, 0, ROOT_INO, 0).ino
        session.durability.commit()
    with closing(Database.open(StateDir(plain.home / "a").database, Pragmas())) as db:
        settle_before_quarantine(db)

    async with plain.session("a", tasks=False) as session:
        await session.flush()
    async with plain.session("b", options=TAKEOVER, tasks=False) as session:
        assert inodes.find(session.db, ino) is not None


async def test_untrusted_state_with_other_keys_is_not_marked_as_consistent_in_quarantine(
    plain: Power,
) -> None:
    """The mark would tell ``recover-state`` that content and rows are from the same time."""
    doubtful = OpenOptions(pragmas=Pragmas(journal_mode="memory"))
    async with plain.session("a", options=doubtful, tasks=False) as session:
        session.db.begin_local()
        local_state.put(session.db, "key_check", "other")
        session.durability.commit()

    async with plain.session("a", options=OpenOptions(accept_superblock=True), tasks=False):
        pass

    [kept] = find_all(plain.home / "a")
    with closing(open_database(kept)) as db:
        assert [local_state.get(db, name) for name in MARKS] == ["0", "crash"]
