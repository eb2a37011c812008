"""Tests of the table packs: states, sizes and live bytes of packs."""

import itertools
from functools import partial

import pytest

from s3fs_meta.errors import BadRowError, MetadataError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs
from s3fs_meta.meta.tables.packs import PackRow
from s3fs_meta.model import ObjectKey, PackId, PackState, Txg
from tests.meta.conftest import steps_of


def key(number: int) -> ObjectKey:
    """Return the key of a pack."""
    return ObjectKey(f"pack/00/1-{number:032x}")


def make_pack(db: Database, number: int, live_bytes: int = 0, *, size: int = 1000) -> PackId:
    """Create a stored pack with some bytes of live blocks."""
    pack = packs.create(db, key(number), size)
    packs.stored(db, pack)
    packs.add_live_bytes(db, pack, live_bytes)
    return pack


def test_bytes_of_a_pack_are_not_counted_during_its_upload(db: Database) -> None:
    """A pack has a row before its upload, but its size is added to stored_bytes afterwards."""
    pack = packs.create(db, key(1), 1000)
    assert packs.get(db, pack) == PackRow(pack, key(1), PackState.UPLOADING, 1000, 0, None)
    assert packs.uploading(db) == [(pack, key(1))]
    assert db.counters.stored_bytes == 0
    packs.stored(db, pack)
    packs.stored(db, pack)
    assert packs.uploading(db) == []
    assert db.counters.stored_bytes == 1000
    assert (packs.object_key(db, pack), packs.object_bytes(db, pack)) == (key(1), 1000)


def test_number_of_a_deleted_pack_is_not_reused(db: Database) -> None:
    first = make_pack(db, 1)
    packs.delete(db, first)
    assert packs.create(db, key(2), 1) == first + 1


def test_pack_is_condemned_before_it_is_deleted(db: Database) -> None:
    """When a pack is condemned, its size is subtracted from stored_bytes, but its row stays."""
    pack = make_pack(db, 1)
    packs.condemn(db, pack)
    packs.condemn(db, pack)
    assert packs.condemned(db) == [(pack, key(1))]
    assert packs.get(db, pack).state is PackState.CONDEMNED
    assert db.counters.stored_bytes == 0
    packs.delete(db, pack)
    assert packs.find(db, pack) is None
    assert db.counters.stored_bytes == 0


def test_bytes_of_a_condemned_pack_that_was_never_stored_are_not_counted(db: Database) -> None:
    """If a crash interrupts a pack's upload, the pack's size is never added to stored_bytes."""
    pack = packs.create(db, key(1), 1000)
    packs.condemn(db, pack)
    packs.delete(db, pack)
    assert db.counters.stored_bytes == 0


@pytest.mark.parametrize("end", [packs.condemn, packs.delete])
def test_pack_with_live_blocks_cannot_be_deleted(db: Database, end: object) -> None:
    """Deleting a pack with live blocks is a programming error and raises AssertionError."""
    pack = make_pack(db, 1, live_bytes=5)
    with pytest.raises(AssertionError):
        end(db, pack)  # type: ignore[operator]


def test_dead_packs_are_listed_with_the_earliest_death_first(db: Database) -> None:
    """Dead packs are listed up to the retention floor; a second call continues the list."""
    made = [make_pack(db, number, 10) for number in range(5)]
    for txg, pack in ((7, made[0]), (5, made[1]), (6, made[2]), (5, made[3])):
        db.counters.txg = txg
        packs.drop_live_bytes(db, pack, 10)
    packs.condemn(db, made[3])
    assert [row.pack for row in packs.find_condemned(db, range(10_000))] == [made[3]]
    assert [row.pack for row in packs.find_dead(db, Txg(6), 10)] == [made[1], made[2]]
    [first] = packs.find_dead(db, Txg(6), 1)
    assert first.pack == made[1]
    assert [row.pack for row in packs.find_dead(db, Txg(7), 10, first)] == [made[2], made[0]]
    assert packs.find_dead(db, Txg(4), 10) == []
    assert packs.has_dead(db, Txg(4), Txg(6))
    assert not packs.has_dead(db, Txg(7), Txg(9))
    plan = db.all("EXPLAIN QUERY PLAN SELECT pack FROM packs WHERE died_txg IS NOT NULL")
    assert "packs_dead" in plan[0][3]


def test_repair_records_dead_and_condemned_packs_as_dead_from_the_current_txg(db: Database) -> None:
    made = [make_pack(db, number, 10) for number in range(3)]
    for pack in made[:2]:
        packs.drop_live_bytes(db, pack, 10)
    packs.condemn(db, made[1])
    db.counters.txg = 9
    packs.renew_died_txg(db)
    assert [packs.get(db, pack).died_txg for pack in made] == [9, 9, None]


def test_repair_records_a_condemned_pack_without_blocks_as_dead_from_the_current_txg(
    db: Database,
) -> None:
    """Another host may still restore an abandoned txg in which the pack had live blocks."""
    orphan = packs.create(db, key(1), 100)
    db.counters.txg = Txg(4)
    packs.condemn(db, orphan)
    assert packs.get(db, orphan).died_txg == 4

    db.counters.txg = Txg(9)
    packs.renew_died_txg(db)

    assert packs.get(db, orphan).died_txg == 9


def test_pack_that_died_in_the_fenced_txg_counts_as_dead_from_the_next_txg(db: Database) -> None:
    """Packs that died before the fenced txg keep their ``died_txg``."""
    made = [make_pack(db, number, 10) for number in range(4)]
    for txg, pack in zip((4, 5, 6), made, strict=False):
        db.counters.txg = txg
        packs.drop_live_bytes(db, pack, 10)
    packs.outlive(db, Txg(5))
    assert [packs.get(db, pack).died_txg for pack in made] == [4, 6, 6, None]


def test_pack_that_receives_a_block_again_is_no_longer_dead(db: Database) -> None:
    """A dead pack keeps its ``died_txg`` until it receives a block."""
    pack = make_pack(db, 1, 10)
    packs.note_if_dead(db, pack)
    assert packs.get(db, pack).died_txg is None
    packs.drop_live_bytes(db, pack, 10)
    db.counters.txg = 8
    packs.note_if_dead(db, pack)
    assert packs.get(db, pack).died_txg == 1
    packs.add_live_bytes(db, pack, 3)
    assert packs.get(db, pack).died_txg is None


def test_mostly_dead_packs_are_listed(db: Database) -> None:
    """Packs with live blocks are listed by their dead bytes, in descending order."""
    made = {live: make_pack(db, live, live) for live in (0, 1, 250, 500, 501, 1000)}
    [every] = packs.slices(db)
    found = packs.mostly_dead(db, every, 0.5, 10)
    assert [row.pack for row in found] == [made[1], made[250], made[500]]
    assert [row.pack for row in packs.mostly_dead(db, every, 0.5, 1)] == [made[1]]
    assert packs.mostly_dead(db, every, 0.5, 9, found[0]) == found[1:]
    assert packs.mostly_dead(db, every, 0.5, 9, found[2]) == []
    assert [row.live_bytes for row in found] == [1, 250, 500]
    parts = [packs.mostly_dead(db, part, 0.5, 2) for part in packs.slices(db, 2)]
    assert packs.with_most_dead_bytes(itertools.chain(*parts), 2) == found[:2]


def test_search_for_packs_without_an_index_reads_one_slice(db: Database) -> None:
    """One statement on the event loop must not read the millions of packs of a large bucket."""
    for number in range(200):
        make_pack(db, number, 0 if number % 50 else 5)
    mostly_dead = partial(packs.mostly_dead, fraction=1.0, limit=9)
    for search in (packs.find_condemned, mostly_dead, packs.count, packs.live_bytes):
        counts = [steps_of(db, partial(search, db, part)) for part in packs.slices(db, 50)]
        assert len(counts) == 5
        assert 0 < max(counts) < 50 * 20


def test_totals_of_slices_add_up_to_the_totals_of_all_packs(db: Database) -> None:
    for number in range(7):
        make_pack(db, number, number)
    parts = list(packs.slices(db, 3))
    assert len(parts) > 1
    assert sum(packs.count(db, part) for part in parts) == 7
    assert sum(packs.live_bytes(db, part) for part in parts) == sum(range(7))


def test_all_packs_are_listed(db: Database) -> None:
    made = [make_pack(db, number) for number in range(3)]
    assert list(packs.all_keys(db)) == [(pack, key(n)) for n, pack in enumerate(made)]
    assert [row.pack for row in packs.iterate(db)] == made


def test_pack_can_be_created_with_a_given_number(db: Database) -> None:
    """A rollback adds later packs with their numbers to the older database."""
    packs.adopt(db, PackId(40), key(1), 700)
    packs.adopt(db, PackId(40), key(1), 700)
    known = packs.create(db, key(2), 50)
    packs.adopt(db, known, key(2), 50)
    assert packs.get(db, PackId(40)).state is PackState.STORED
    assert packs.get(db, known).state is PackState.STORED
    assert known == 41
    assert db.counters.stored_bytes == 750


def test_reference_to_a_pack_without_a_row_is_reported_as_damage(db: Database) -> None:
    """A reference to a pack number that has no row is damage."""
    with pytest.raises(MetadataError, match="pack 9 has no row"):
        packs.drop_live_bytes(db, PackId(9), 1)
    with pytest.raises(MetadataError, match="pack 9 has no row"):
        packs.object_key(db, PackId(9))


def test_bytes_of_a_revived_pack_are_counted_again(db: Database) -> None:
    pack = make_pack(db, 1)
    packs.condemn(db, pack)
    packs.revive(db, pack)
    packs.revive(db, pack)

    assert packs.get(db, pack).state is PackState.STORED
    assert db.counters.stored_bytes == 1000


def test_paging_of_dead_packs_continues_after_packs_that_a_copy_needs(db: Database) -> None:
    """An empty page is the last one, so packs in use must not be omitted from the pages."""
    made = [make_pack(db, number) for number in (1, 2, 3)]
    for pack in made:
        packs.note_if_dead(db, pack, Txg(1))
    db.held_packs = frozenset(made[:2])

    seen: list[PackId] = []
    after: PackRow | None = None
    while rows := packs.find_dead(db, Txg(1), 2, after):
        seen += [row.pack for row in rows]
        after = rows[-1]

    assert seen == made


def test_pack_with_a_key_of_a_wrong_type_is_reported_or_omitted(db: Database) -> None:
    bad, good = make_pack(db, 1), make_pack(db, 2)
    db.run("UPDATE packs SET object_key = CAST(object_key AS BLOB) WHERE pack = ?", (bad,))

    with pytest.raises(BadRowError):
        packs.keys_after(db, PackId(0), 10)
    assert list(packs.all_keys(db)) == [(good, key(2))]
