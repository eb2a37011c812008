"""Use of past blocks in current files: sharing, locations and live bytes."""

from collections.abc import Iterator

import pytest

from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.meta.db.attached import attached
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, damage_marks, inodes, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.meta.trees import past_content
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, BlockState, Ino, ObjectKey, PackId, Txg
from tests.meta.conftest import NOW_NS, MakeDatabase

TXG = Txg(7)
KEY = ObjectKey(f"pack/00/1-{'0' * 32}")
HASH = b"h" * 32


def _file(db: Database) -> Ino:
    return inodes.create(db, 0o100644, 0, 0, ROOT_INO, NOW_NS).ino


def _store(db: Database, ino: Ino, count: int = 1, key: ObjectKey = KEY) -> PackId:
    """Store 10-byte blocks with different hashes in a new pack, and map them into a file."""
    pack = packs.create(db, key, 1000)
    packs.stored(db, pack)
    for index in range(count):
        block = db.counters.take_block()
        blocks.create_dirty(db, block, ino, BlockIndex(index), 10)
        block_map.set(db, ino, BlockIndex(index), block)
        blocks.set_location(
            db, blocks.get(db, block), bytes([index]) + HASH[1:], pack, 20 * index, 20
        )
    inodes.add_mapped_blocks(db, ino, count)
    return pack


def _remove(db: Database, ino: Ino) -> None:
    for index, block in block_map.indexes_from(db, ino, BlockIndex(0), 99):
        block_map.remove(db, ino, index)
        if not blocks.drop_ref(db, block):
            blocks.delete(db, block)
    inodes.delete(db, ino)


@pytest.fixture
def past(make_database: MakeDatabase) -> Database:
    """Return a past database in which inode 2 has three blocks in pack 1."""
    db = make_database("past.db", journal_mode="off")
    db.begin()
    _store(db, _file(db), 3)
    db.commit()
    return db


@pytest.fixture
def db(make_database: MakeDatabase, past: Database) -> Iterator[Database]:
    """Yield the current database with the past database attached; inode 2 still has its blocks."""
    made = make_database("present.db")
    made.begin()
    assert past.counters.next_block == 4
    _store(made, _file(made), 3)
    made.commit()
    with attached(made, past.path):
        made.begin()
        past_content.begin(made)
        yield made


def _share(db: Database, start: int = 0, limit: int = 9) -> tuple[Ino, tuple[int | None, int]]:
    new = _file(db)
    done = past_content.share_range(db, TXG, Ino(2), new, BlockIndex(start), limit)
    return new, done


def _blocks(db: Database, ino: Ino) -> list[BlockId]:
    return [block for _index, block in block_map.indexes_from(db, ino, BlockIndex(0), 99)]


def test_past_block_that_is_still_in_use_is_shared(db: Database) -> None:
    new, done = _share(db)
    assert done == (None, 0)
    assert _blocks(db, new) == [1, 2, 3]
    assert [blocks.get(db, BlockId(block)).refs for block in (1, 2, 3)] == [2, 2, 2]
    assert inodes.get(db, new).mapped_blocks == 3
    assert db.counters.next_block == 4
    assert packs.get(db, PackId(1)).live_bytes == 60


def test_past_block_that_was_deleted_gets_a_new_number(db: Database) -> None:
    """A deleted block gets a new row with its old location, and its pack is revived."""
    _remove(db, Ino(2))
    db.run("DELETE FROM pack_news")
    assert packs.get(db, PackId(1)).died_txg is not None
    new, done = _share(db)
    assert done == (None, 1)
    assert _blocks(db, new) == [4, 5, 6]
    row = blocks.get(db, BlockId(5))
    assert (row.refs, row.plain_bytes, row.pack, row.pack_offset, row.stored_bytes) == (
        *(1, 10),
        *(1, 20, 20),
    )
    assert row.hash == b"\x01" + HASH[1:]
    pack = packs.get(db, PackId(1))
    assert (pack.live_bytes, pack.died_txg) == (60, None)
    assert db.all("SELECT pack FROM pack_news") == [(1,)]
    assert (db.counters.next_block, db.counters.block_bytes) == (7, 30)


def test_pack_that_remained_alive_is_not_listed_in_the_next_changelog(db: Database) -> None:
    other = _file(db)
    block_map.set(db, other, BlockIndex(0), BlockId(1))
    blocks.add_ref(db, BlockId(1))
    _remove(db, Ino(2))
    db.run("DELETE FROM pack_news")
    new, done = _share(db)
    assert done == (None, 0)
    assert _blocks(db, new) == [1, 4, 5]
    assert packs.get(db, PackId(1)).live_bytes == 60
    assert db.all("SELECT pack FROM pack_news") == []


def test_second_copy_of_past_content_shares_the_blocks_of_the_first_copy(db: Database) -> None:
    _remove(db, Ino(2))
    first, _done = _share(db)
    second, done = _share(db)
    assert done == (None, 0)
    assert _blocks(db, first) == _blocks(db, second) == [4, 5, 6]
    assert packs.get(db, PackId(1)).live_bytes == 60


def test_past_content_does_not_share_an_unreferenced_block(db: Database) -> None:
    """A block without references exists only until its upload ends, so it cannot be shared."""
    for index, block in block_map.indexes_from(db, Ino(2), BlockIndex(0), 99):
        block_map.remove(db, Ino(2), index)
        assert blocks.drop_ref(db, block) == 0
    new, _done = _share(db)
    assert _blocks(db, new) == [4, 5, 6]


@pytest.mark.parametrize("leaving", ["unreferenced", "moving"])
def test_revived_pack_is_listed_if_other_hosts_consider_it_dead(db: Database, leaving: str) -> None:
    """While this host still uploads a pack's last blocks, other hosts may consider the pack dead."""
    _remove(db, Ino(2))
    other = _file(db)
    [block] = _blocks(db, _share(db, limit=1)[0])
    if leaving == "unreferenced":
        db.run("UPDATE blocks SET refs = 0")
    else:
        cached_blocks.put(db, block, BlockState.SEALED, other, BlockIndex(0))
    db.run("DELETE FROM pack_news")
    _new, done = _share(db, start=1)
    assert done == (None, 1)
    assert db.all("SELECT pack FROM pack_news") == [(1,)]
    assert packs.get(db, PackId(1)).live_bytes == 60


def test_past_block_that_moved_to_a_damaged_pack_is_not_shared(db: Database) -> None:
    """If a past block was moved to a damaged pack, a new row uses its intact old location."""
    moved = packs.create(db, ObjectKey(f"pack/22/1-{'2' * 32}"), 1000)
    packs.stored(db, moved)
    blocks.set_location(db, blocks.get(db, BlockId(2)), b"\x01" + HASH[1:], moved, 0, 20)
    damage_marks.add(db, Mark(moved, None))
    new, _done = _share(db)
    assert _blocks(db, new) == [1, 4, 3]
    row = blocks.get(db, BlockId(4))
    assert (row.pack, row.pack_offset) == (1, 20)


def test_past_block_at_a_damaged_location_is_refused(db: Database) -> None:
    damage_marks.add(db, Mark(PackId(1), 20))
    with pytest.raises(PastUnavailableError, match="damaged"):
        _share(db)


def test_block_with_the_number_but_not_the_content_of_a_past_block_is_not_shared(
    db: Database,
) -> None:
    db.run("UPDATE blocks SET hash = ? WHERE block = 2", (b"other" + HASH[5:],))
    new, _done = _share(db)
    assert _blocks(db, new) == [1, 4, 3]


def test_past_block_that_is_mapped_several_times_gets_one_row(
    make_database: MakeDatabase, past: Database
) -> None:
    """The reference count of a shared past block is the number of its uses in the block map."""
    past.begin()
    past.run("UPDATE block_map SET block = 1 WHERE block_index = 2")
    past.commit()
    db = make_database("present.db")
    db.begin()
    _store(db, _file(db), 3)
    _remove(db, Ino(2))
    with attached(db, past.path):
        db.begin()
        past_content.begin(db)
        new, _done = _share(db)
        assert _blocks(db, new) == [4, 5, 4]
        assert [blocks.get(db, BlockId(block)).refs for block in (4, 5)] == [2, 1]
        assert packs.get(db, PackId(1)).live_bytes == 40


def test_sharing_a_past_range_continues_where_the_last_call_stopped(db: Database) -> None:
    new, done = _share(db, limit=2)
    assert done == (2, 0)
    assert past_content.share_range(db, TXG, Ino(2), new, BlockIndex(2), 2) == (None, 0)
    assert past_content.share_range(db, TXG, Ino(2), new, BlockIndex(3), 2) == (None, 0)
    assert _blocks(db, new) == [1, 2, 3]
    assert inodes.get(db, new).mapped_blocks == 3


@pytest.mark.parametrize("why", ["condemned", "deleted", "other object", "marked", "record"])
def test_past_content_that_is_not_retained_is_refused_before_any_change(
    db: Database, why: str
) -> None:
    _remove(db, Ino(2))
    if why == "condemned":
        packs.condemn(db, PackId(1))
    elif why == "deleted":
        packs.delete(db, PackId(1))
    elif why == "other object":
        db.run("UPDATE packs SET object_key = 'pack/11/1-x'")
    else:
        damage_marks.add(db, Mark(PackId(1), 20 if why == "record" else None))
    new = _file(db)
    changes = db.rows_changed()
    reason = "a replaced history" if why in {"deleted", "other object"} else "is damaged"
    with pytest.raises(PastUnavailableError, match=f"{KEY}, .*{reason}"):
        past_content.share_range(db, TXG, Ino(2), new, BlockIndex(0), 9)
    # There are three temporary rows for parts, three for blocks, and three for equal content.
    temporary = 3 + 3 + 3
    assert db.rows_changed() - changes <= temporary
    assert _blocks(db, new) == []


def test_intact_equal_block_replaces_damaged_past_content(db: Database) -> None:
    _remove(db, Ino(2))
    other = _file(db)
    _store(db, other, 3, ObjectKey(f"pack/22/1-{'2' * 32}"))
    damage_marks.add(db, Mark(PackId(1), None))
    new, _done = _share(db)
    assert _blocks(db, new) == _blocks(db, other)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            "hash = NULL, pack = NULL, pack_offset = NULL, stored_bytes = NULL",
            "lost before it reached the bucket",
        ),
        ("plain_bytes = x'ff'", "no copy was made"),
        ("pack_offset = x'ff'", "no copy was made"),
        ("stored_bytes = x'ff'", "no copy was made"),
    ],
    ids=["lost content", "plain_bytes", "pack_offset", "stored_bytes"],
)
def test_past_content_that_was_lost_or_has_an_impossible_row_is_refused(
    make_database: MakeDatabase, past: Database, change: str, error: str
) -> None:
    past.begin()
    past.run(f"UPDATE blocks SET {change} WHERE block = 2")
    past.commit()
    db = make_database("present.db")
    db.begin()
    _store(db, _file(db), 3)
    _remove(db, Ino(2))
    with attached(db, past.path):
        db.begin()
        past_content.begin(db)
        with pytest.raises(PastUnavailableError, match=error):
            _share(db)


def test_check_before_a_copy_finds_the_available_packs_and_blocks(
    db: Database, past: Database
) -> None:
    """The check before a copy returns the available packs, and the blocks in other packs."""
    rows = [blocks.get(past, BlockId(block)) for block in (1, 2, 3)]
    assert past_content.is_retained(db, PackId(1), KEY)
    assert not past_content.is_retained(db, PackId(1), ObjectKey("pack/other"))
    assert not past_content.is_retained(db, PackId(9), KEY)
    damage_marks.add(db, Mark(PackId(1), 20))
    assert not past_content.is_retained(db, PackId(1), KEY)
    assert [past_content.is_available(db, row, KEY) for row in rows] == [True, False, True]
    damage_marks.remove(db, [Mark(PackId(1), 20)])
    packs_of_others = ObjectKey("pack/other")  # Blocks that are in use do not need this pack.
    assert [past_content.is_available(db, row, packs_of_others) for row in rows] == [True] * 3
    damage_marks.add(db, Mark(PackId(1), 20))
    _remove(db, Ino(2))
    assert [past_content.is_available(db, row, KEY) for row in rows] == [True, False, True]
    packs.condemn(db, PackId(1))
    assert [past_content.is_available(db, row, KEY) for row in rows] == [False] * 3
    _store(db, _file(db), 2, ObjectKey(f"pack/22/1-{'2' * 32}"))
    assert [past_content.is_available(db, row, KEY) for row in rows] == [True, True, False]
    lost = rows[0]._replace(hash=None, pack=None)
    assert not past_content.is_available(db, lost, KEY)


def test_past_blocks_of_equal_content_are_merged(
    make_database: MakeDatabase, past: Database
) -> None:
    """After a deduplication, equal blocks of the past may be in different packs."""
    past.begin()
    _store(past, _file(past), 3, ObjectKey(f"pack/22/1-{'2' * 32}"))
    past.run("UPDATE block_map SET ino = 2, block_index = block_index + 3 WHERE ino = 3")
    past.commit()
    db = make_database("present.db")
    db.begin()
    for key in (KEY, ObjectKey(f"pack/22/1-{'2' * 32}")):
        ino = _file(db)
        _store(db, ino, 3, key)
        _remove(db, ino)
    with attached(db, past.path):
        db.begin()
        past_content.begin(db)
        new, done = _share(db)
        assert done == (None, 1)
        assert _blocks(db, new) == [7, 8, 9, 7, 8, 9]
        assert [blocks.get(db, BlockId(block)).refs for block in (7, 8, 9)] == [2, 2, 2]
        assert [row.live_bytes for row in packs.iterate(db)] == [60, 0]
        assert (db.counters.next_block, db.counters.block_bytes) == (10, 30)
