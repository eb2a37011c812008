"""End marks: rows that record whether the last process ended normally."""

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.end_marks import synced, unclean
from tests.sync.conftest import Power

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
async def test_synced_context_turns_syncs_on_and_then_restores_the_setting(
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
