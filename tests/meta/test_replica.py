"""Replicas: databases to which changelogs are applied."""

import shutil
from pathlib import Path

import pytest

from s3fs_meta.codec.changelog import Location, PackNote
from s3fs_meta.errors import FormatError
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.replica import Replica
from s3fs_meta.meta.tables import block_map, blocks, inodes, local_state, packs
from s3fs_meta.model import BlockId, BlockIndex, Ino, ObjectKey, PackId, PackState
from tests.meta.conftest import MakeDatabase
from tests.meta.pairs import Pair, lost
from tests.meta.random_tree import Tree
from tests.rows import contents

KEY = ObjectKey("pack/00/1-" + "0" * 32)


@pytest.fixture
def pair(make_database: MakeDatabase, tmp_path: Path) -> Pair:
    """Return an empty database that records its changes, and a replica of it."""
    return Pair(make_database(), tmp_path)


def write(db: Database, ino: Ino, index: int) -> BlockId:
    """Write a block of ten bytes to a file."""
    db.begin()
    block = db.counters.take_block()
    blocks.create_dirty(db, block, ino, BlockIndex(index), 10)
    block_map.set(db, ino, BlockIndex(index), block)
    inodes.add_mapped_blocks(db, ino, 1)
    return block


def place(block: BlockId, pack: int = 1, offset: int = 0) -> Location:
    """Return the location of a block in a pack."""
    return Location(block, 10, b"h" * 32, PackId(pack), offset, 8)


def note(pack: int = 1, state: PackState = PackState.STORED) -> PackNote:
    """Return the record of a pack as it appears in a changelog."""
    return PackNote(PackId(pack), KEY, 100, state)


def a_file(db: Database) -> Ino:
    """Create a file and return its inode number."""
    db.begin()
    return inodes.create(db, 0o100644, 0, 0, Ino(1), 0).ino


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replica_has_the_rows_of_the_writer_after_each_txg(pair: Pair, seed: int) -> None:
    tree = Tree(pair.db, seed)
    for txg in range(1, 6):
        for _ in range(30):
            tree.step()
        pair.db.commit()
        there = pair.db.all("SELECT DISTINCT block, 1 FROM block_map")
        pair.apply_note(txg, locations=tuple(lost(*row) for row in there))
        assert contents(pair.copy.connection) == contents(pair.db.connection)
        assert local_state.get(pair.copy, "chain") == f"link {txg}"


def test_replica_records_block_locations_and_dead_packs(pair: Pair) -> None:
    """When the last block of a pack is deleted, the replica records the pack as dead."""
    ino = a_file(pair.db)
    block = write(pair.db, ino, 0)
    pair.apply_note(1, locations=(place(block),), notes=(note(),))
    row = blocks.get(pair.copy, block)
    assert (row.refs, row.pack, row.stored_bytes) == (1, 1, 8)
    assert packs.get(pair.copy, PackId(1))[3:] == (100, 8, None)

    pair.db.begin()
    block_map.remove(pair.db, ino, BlockIndex(0))
    pair.apply_note(2)

    assert blocks.find(pair.copy, block) is None
    assert packs.get(pair.copy, PackId(1))[3:] == (100, 0, 2)


def test_replica_moves_a_block_to_its_new_pack(pair: Pair) -> None:
    """The changelog of a compaction contains the new location of each moved block."""
    block = write(pair.db, a_file(pair.db), 0)
    pair.apply_note(1, locations=(place(block),), notes=(note(),))
    moved = PackNote(PackId(2), ObjectKey("pack/00/1-" + "1" * 32), 50, PackState.STORED)

    pair.apply_note(2, locations=(place(block, 2),), notes=(moved,))

    assert blocks.get(pair.copy, block).pack == 2
    assert packs.get(pair.copy, PackId(1)).died_txg == 2
    assert packs.get(pair.copy, PackId(2)).live_bytes == 8


def test_replica_ignores_the_location_of_an_unreferenced_block(pair: Pair) -> None:
    """A changelog may contain the location of a block that was deleted in the same txg."""
    pair.apply_note(1, locations=(place(BlockId(77)),), notes=(note(),))

    assert blocks.find(pair.copy, BlockId(77)) is None
    assert packs.get(pair.copy, PackId(1)).died_txg == 1


def test_replica_keeps_a_lost_block_without_its_location(pair: Pair) -> None:
    block = write(pair.db, a_file(pair.db), 0)
    pair.apply_note(1, locations=(lost(block, 10),))

    row = blocks.get(pair.copy, block)
    assert (row.plain_bytes, row.hash, row.pack) == (10, None, None)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("no place", "block 1 is in use, but has no location"),
        ("no pack", "block 1 is in use, but its pack 1 is not recorded as stored"),
        ("condemned pack", "block 1 is in use, but its pack 1 is not recorded as stored"),
        ("forgotten pack", "the txg deletes pack 1, which still contains blocks of files"),
    ],
)
def test_txg_that_does_not_match_the_replica_changes_no_row(
    pair: Pair, wrong: str, why: str
) -> None:
    """A replica applies a txg completely or not at all."""
    block = write(pair.db, a_file(pair.db), 0)
    before = contents(pair.copy.connection)
    with pytest.raises(FormatError, match=why):
        pair.apply_note(
            1,
            locations=() if wrong == "no place" else (place(block),),
            notes={"no pack": (), "condemned pack": (note(state=PackState.CONDEMNED),)}.get(
                wrong, (note(),)
            ),
            forgotten=(PackId(1),) if wrong == "forgotten pack" else (),
        )

    assert contents(pair.copy.connection) == before
    assert local_state.get(pair.copy, "chain") is None
    assert packs.find(pair.copy, PackId(1)) is None


def test_txg_that_makes_a_reference_count_negative_is_refused(pair: Pair) -> None:
    ino = a_file(pair.db)
    block = write(pair.db, ino, 0)
    pair.apply_note(1, locations=(place(block),), notes=(note(),))
    pair.copy.begin_local()
    pair.copy.run("UPDATE blocks SET refs = 0")
    pair.copy.commit()

    pair.db.begin()
    block_map.remove(pair.db, ino, BlockIndex(0))
    with pytest.raises(FormatError, match="block 1 has a negative reference count: -1"):
        pair.apply_note(2)


def test_replica_deletes_the_row_of_a_deleted_pack_without_reusing_its_number(pair: Pair) -> None:
    """The number of a deleted pack must not be used again by the next writer."""
    pair.apply_note(1, notes=(note(5),))
    pair.apply_note(2, notes=(note(5, PackState.CONDEMNED),))
    pair.apply_note(3, forgotten=(PackId(5),))

    assert packs.find(pair.copy, PackId(5)) is None
    assert pair.copy.counters.next_pack == 6


def _require_totals(db: Database) -> None:
    """Require that the totals of a replica equal the sums of its rows."""
    sums = db.one(
        "SELECT (SELECT coalesce(sum(plain_bytes), 0) FROM blocks),"
        f" (SELECT coalesce(sum(object_bytes), 0) FROM packs WHERE state = {PackState.STORED:d})"
    )
    assert (db.counters.block_bytes, db.counters.stored_bytes) == sums


def test_totals_of_a_replica_are_correct_after_each_txg(pair: Pair) -> None:
    """A follower needs the totals for statfs(2), but changelogs do not contain them."""
    ino = a_file(pair.db)
    block, other = write(pair.db, ino, 0), write(pair.db, ino, 1)
    pair.apply_note(1, locations=(place(block), place(other, offset=8)), notes=(note(),))
    assert (pair.copy.counters.block_bytes, pair.copy.counters.stored_bytes) == (20, 100)

    pair.db.begin()
    block_map.remove(pair.db, ino, BlockIndex(0))
    moved = PackNote(PackId(2), ObjectKey("pack/00/1-" + "1" * 32), 50, PackState.STORED)
    pair.apply_note(2, locations=(place(other, 2),), notes=(moved, note(1, PackState.CONDEMNED)))
    assert (pair.copy.counters.block_bytes, pair.copy.counters.stored_bytes) == (10, 50)
    _require_totals(pair.copy)

    pair.db.begin()
    block_map.remove(pair.db, ino, BlockIndex(1))
    pair.apply_note(3, forgotten=(PackId(1), PackId(2)))
    assert (pair.copy.counters.block_bytes, pair.copy.counters.stored_bytes) == (0, 0)
    _require_totals(pair.copy)


def test_totals_of_a_replica_are_recomputed(pair: Pair) -> None:
    """A replica computes its totals before it becomes the writer."""
    block = write(pair.db, a_file(pair.db), 0)
    pair.apply_note(1, locations=(place(block),), notes=(note(),))

    pair.copy.begin_local()
    replica.settle(pair.copy)
    pair.copy.commit()

    counters = pair.copy.counters
    assert (counters.next_pack, counters.block_bytes, counters.stored_bytes) == (2, 10, 100)


def test_replica_refuses_changes_recorded_for_another_database_state(
    pair: Pair, tmp_path: Path
) -> None:
    a_file(pair.db)
    changeset = pair.changeset()
    pair.copy.close()
    shutil.copy(tmp_path / "copy.db", tmp_path / "other.db")
    other = Database.open(tmp_path / "other.db", Pragmas())
    other.begin()
    inodes.create(other, 0o100644, 0, 0, Ino(1), 0)
    other.commit()
    follower = Replica(other)
    follower.begin()
    with pytest.raises(FormatError, match="does not fit"):
        follower.add(changeset, (), "changelog/1")
    follower.abandon()
    other.close()


def test_replica_refuses_a_pack_with_the_number_of_another_pack(pair: Pair) -> None:
    """Two packs with the same number would make reads use the wrong object."""
    pair.copy.begin_local()
    packs.create(pair.copy, ObjectKey(f"{KEY[:-1]}f"), 100)
    pair.copy.commit()
    ino = a_file(pair.db)
    block = write(pair.db, ino, 0)

    with pytest.raises(FormatError, match="the key of pack 1 differs"):
        pair.apply_note(1, locations=(place(block),), notes=(note(),))
