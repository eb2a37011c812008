"""Pending change records: changes that are not in the bucket yet."""

from collections.abc import Callable

import apsw
import pytest

from s3fs_meta.codec import envelope
from s3fs_meta.errors import DamagedDatabaseError, DatabaseError
from s3fs_meta.limits import CHANGELOG_RUN_BYTES, KIB
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, inodes, local_state, packs, pending, xattrs
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import BlockId, BlockIndex, Ino, ObjectKey, Txg
from tests.meta.conftest import MakeDatabase


def now_ns() -> int:
    """Return the same time at every call."""
    return 5


def create(db: Database) -> Ino:
    """Create an inode and return its number."""
    db.begin()
    return inodes.create(db, 0o100644, 0, 0, Ino(1), 0).ino


def test_pending_change_record_is_committed_or_rolled_back_with_its_group(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    db = make_database(journal_mode=journal_mode)
    recorder = ChangeRecorder(db, now_ns)
    create(db)
    db.commit()
    assert (recorder.last_seq, recorder.oldest_ns) == (1, 5)
    assert recorder.bytes > 0
    before = recorder.bytes
    if not db.pragmas.can_undo:
        return
    create(db)
    db.rollback()
    assert (recorder.last_seq, recorder.bytes) == (1, before)
    create(db)
    db.commit()
    assert recorder.last_seq == 2


def test_changes_of_local_rows_are_not_recorded(make_database: MakeDatabase) -> None:
    """Changes of rows that only this host uses are never shipped."""
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    db.begin_local()
    local_state.put(db, "clean", "0")
    db.commit()
    assert recorder.last_seq == 0
    assert pending.is_empty(db)


def test_changing_only_the_counters_triggers_no_txg(make_database: MakeDatabase) -> None:
    """A change of the counters alone is recorded, but causes no txg."""
    db = make_database()
    ChangeRecorder(db, now_ns)
    db.begin_local()
    db.counters.capacity_bytes = 7
    db.commit()
    assert not pending.is_empty(db)
    assert not pending.has_news(db)
    create(db)
    db.commit()
    assert pending.has_news(db)


def test_new_txg_number_alone_is_not_recorded(make_database: MakeDatabase) -> None:
    """Otherwise each new txg of an idle mount would record a change."""
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    db.begin_local()
    db.counters.txg += 1
    db.commit()
    assert recorder.last_seq == 0


def test_shipped_change_records_are_ignored_and_deleted_in_slices(
    make_database: MakeDatabase,
) -> None:
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    for _ in range(60):
        create(db)
        db.commit()
    db.begin_local()
    recorder.attempted(Txg(1), b"", 58, BlockId(1), [])
    db.commit()
    assert not pending.is_empty(db)
    again = ChangeRecorder(db, now_ns)
    assert (again.bytes, again.last_seq) == (recorder.bytes, 60)
    db.begin_local()
    assert recorder.purge()
    assert recorder.purge()
    assert not recorder.purge()
    db.commit()
    assert db.all("SELECT seq FROM pending ORDER BY seq") == [(59,), (60,)]


def test_number_of_a_deleted_change_record_is_not_reused(make_database: MakeDatabase) -> None:
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    create(db)
    db.commit()
    db.begin_local()
    recorder.attempted(Txg(1), b"", 1, BlockId(1), [])
    recorder.purge()
    db.commit()
    assert ChangeRecorder(db, now_ns).last_seq == 1


def test_number_of_a_record_that_merging_removed_is_not_reused_after_an_undo(
    make_database: MakeDatabase,
) -> None:
    """Records of a cut are identified by number, so no number may be used twice."""
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    for _ in range(2):
        create(db)
        db.commit()
    db.begin_local()
    recorder.replace_run(1, 2, b"")
    db.commit()
    create(db)

    db.undo()

    assert recorder.last_seq == 2


def test_failed_txg_without_records_does_not_hide_the_age_of_later_records(
    make_database: MakeDatabase,
) -> None:
    """The oldest time is kept, because status reports the age of unshipped changes."""
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    cut_oldest_ns = recorder.begin_txg()
    create(db)
    db.commit()
    oldest_ns = recorder.oldest_ns

    recorder.resume_txg(cut_oldest_ns)

    assert recorder.oldest_ns == oldest_ns > 0


def test_changes_of_a_large_commit_group_are_split_into_several_records(
    make_database: MakeDatabase,
) -> None:
    """Each pending change record must be small enough for one object in the bucket."""
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    db.begin()
    for number in range(100):
        ino = inodes.create(db, 0o100644, 0, 0, Ino(1), 0).ino
        xattrs.set(db, ino, b"user.large", bytes([number]) * 64 * KIB)
    db.commit()
    sizes = [row[0] for row in db.all("SELECT length(changeset) FROM pending")]
    assert len(sizes) == 2
    assert max(sizes) < CHANGELOG_RUN_BYTES + 200 * KIB
    assert recorder.bytes == sum(sizes)


@pytest.mark.parametrize("bytes_max", [1, 1000, 1 << 20])
def test_slices_of_pending_change_records_contain_every_record_once(
    make_database: MakeDatabase, bytes_max: int
) -> None:
    """Records are merged until the merged record is as large as one object may be."""
    db = make_database()
    ChangeRecorder(db, now_ns)
    for _ in range(20):
        create(db)
        db.commit()
    seq, created = 0, 0
    while (run := pending.merged_run(db.connection, seq, 18, bytes_max)) is not None:
        assert run.last_seq > seq
        seq = run.last_seq
        created += changesets.summary(run.changeset).created
    assert (seq, created) == (18, 18)


def test_changelog_lists_only_new_and_moved_blocks(make_database: MakeDatabase) -> None:
    """A changelog does not list unchanged locations or a pack that is being uploaded."""
    db = make_database()
    recorder = ChangeRecorder(db, now_ns)
    ino = create(db)
    numbers = []
    for index in range(4):
        block = db.counters.take_block()
        blocks.create_dirty(db, block, ino, BlockIndex(index), 10)
        block_map.set(db, ino, BlockIndex(index), block)
        numbers.append(block)
    old, new, coming = (
        packs.create(db, ObjectKey(f"pack/00/1-{digit * 32}"), 500) for digit in "abc"
    )
    packs.stored(db, old)
    for block in numbers[:3]:
        blocks.set_location(db, blocks.get(db, block), bytes(32), old, 0, 10)
    recorder.attempted(Txg(1), b"", 0, numbers[2], [old])
    packs.stored(db, new)
    blocks.set_location(db, blocks.get(db, numbers[0]), bytes(32), new, 0, 10)
    db.commit()

    news = pending.read_news(db.connection)

    assert sorted(row.block for row in news.blocks) == [numbers[0], numbers[2], numbers[3]]
    assert [one.pack for one in news.packs] == [new]
    waiting = pending.read_news(db.connection, [numbers[1]])
    assert sorted(row.block for row in waiting.blocks) == numbers
    assert coming not in {one.pack for one in news.packs}


def test_outbox_keeps_the_bytes_of_a_changelog_until_it_is_confirmed(
    make_database: MakeDatabase,
) -> None:
    """Each retry of an upload must send the same bytes of the changelog."""
    db = make_database()
    db.begin_local()
    pending.put_outbox(db, Txg(7), b"exactly these")
    db.commit()
    assert pending.outbox(db) == (7, b"exactly these")
    assert not pending.is_empty(db)
    db.begin_local()
    pending.clear_outbox(db)
    db.commit()
    assert pending.outbox(db) is None


def test_outbox_can_store_the_longest_possible_changelog(make_database: MakeDatabase) -> None:
    """The longest changelog is also the longest value in a database."""
    db = make_database()
    longest = bytes(envelope.ENCODED_BYTES_MAX)
    db.begin_local()
    pending.put_outbox(db, Txg(7), longest)
    db.commit()
    assert pending.outbox(db) == (7, longest)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_commit_can_be_retried_after_a_failure_during_recording(
    make_database: MakeDatabase, failing: int
) -> None:
    """If a commit fails, the group stays open; the retry writes its change record exactly once."""
    db, copy = make_database(), make_database("copy.db")
    recorder = ChangeRecorder(db, now_ns, run_bytes=500)
    db.connection.execute(
        "CREATE TEMP TRIGGER refused BEFORE INSERT ON main.pending"
        f" WHEN new.seq = {failing} BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    inos = [create(db) for _ in range(20)]
    with pytest.raises(DatabaseError):
        db.commit()
    assert recorder.bytes == 0
    db.connection.execute("DROP TRIGGER refused")
    for ino in inos[3:]:
        inodes.delete(db, ino)
    db.commit()

    found = list(pending.records(db.connection, 0))
    assert [seq for seq, _changeset in found] == list(range(1, recorder.last_seq + 1))
    assert recorder.bytes == sum(len(changeset) for _seq, changeset in found)
    copy.begin()
    for _seq, changeset in found:
        changesets.apply(copy.connection, changeset, "test")
    query = "SELECT ino, nlink FROM inodes"
    assert copy.all(query) == db.all(query)


def test_inodes_of_pending_change_records_are_read_in_slices(make_database: MakeDatabase) -> None:
    """Each slice of inodes returns the position at which the next slice begins."""
    db = make_database()
    ChangeRecorder(db, now_ns)
    made = []
    for _ in range(10):
        made.append(create(db))
        db.commit()
    seen: dict[Ino, int] = {}
    after, pieces, complete = 0, 0, False
    while not complete:
        last, after, complete = pending.inodes_changed(db.connection, after, 3)
        assert len(last) <= 4
        seen |= last
        pieces += 1
    assert pieces > 2
    assert {ino: seen[ino] for ino in made} == {ino: seq for seq, ino in enumerate(made, 1)}


@pytest.mark.parametrize(
    "read",
    [
        lambda connection: pending.records_of_run(connection, 1, 1),
        lambda connection: pending.merged_run(connection, 0, 1, KIB),
        lambda connection: list(pending.records(connection, 0)),
        pending.read_news,
        pending.pack_news,
    ],
)
def test_damage_found_while_recorded_changes_are_read_is_reported(
    make_database: MakeDatabase, read: Callable[[apsw.Connection], object]
) -> None:
    """The driver raises UnicodeDecodeError, which would look like a bug of this program."""
    db = make_database()
    db.begin()
    text = "CAST(x'ff' AS TEXT)"
    for name in ("pack_news", "blocks"):
        db.run(f"DROP TABLE {name}")
    db.run("CREATE TABLE pack_news (pack)")
    db.run(f"INSERT INTO pending VALUES (1, {text})")
    db.run(f"INSERT INTO pack_news VALUES ({text})")
    db.commit()

    with pytest.raises((DatabaseError, DamagedDatabaseError)):
        read(db.connection)
