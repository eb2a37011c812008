"""Tests of damage to the rows of packs, one invariant at a time."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.meta.tables import blocks, packs
from s3fs_meta.model import PackId, PackState
from tests.check.healthy import Healthy


@pytest.mark.parametrize("change", ["state = 9", "object_bytes = 0"])
async def test_impossible_row_of_a_pack_is_corrected(healthy: Healthy, change: str) -> None:
    """fsck corrects the state, which live blocks prove, and the size, which the listing contains.

    Invariant I38.
    """
    pack = healthy.pack_of(healthy.uploaded, 1)
    healthy.sql(f"UPDATE packs SET {change} WHERE pack = ?", pack)

    assert "I38" in (await healthy.check_all()).broken
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert healthy.dump() == healthy.before


async def free_pack(healthy: Healthy) -> PackId:
    """Upload a file and remove its content; return the pack, which has no live blocks."""
    healthy.db.begin()
    ino = healthy.create(healthy.directory, b"freed")
    healthy.db.commit()
    [block] = healthy.write_uploaded(ino, b"content of an earlier point in time")
    pack = healthy.pack_of(ino, 0)
    healthy.sql("DELETE FROM block_map WHERE block = ?", block)
    await healthy.check_all(Mode.ALL)
    return pack


@pytest.mark.parametrize("change", ["state = 9", "object_bytes = 0"])
async def test_row_of_a_pack_without_live_blocks_is_corrected(
    healthy: Healthy, change: str
) -> None:
    """fsck keeps the row; without it, a pack that a retained txg may need would be deleted."""
    pack = await free_pack(healthy)
    row = packs.get(healthy.db, pack)
    healthy.sql(f"UPDATE packs SET {change} WHERE pack = ?", pack)

    await healthy.assert_all_repaired()

    assert packs.find(healthy.db, pack) == row


async def test_pack_that_lost_its_key_is_not_deleted_with_unknown_packs(healthy: Healthy) -> None:
    """Retained points in time may need the pack, but no row can name its object any more."""
    pack = await free_pack(healthy)
    key = packs.object_key(healthy.db, pack)
    healthy.sql("UPDATE packs SET object_key = 'pack/none' WHERE pack = ?", pack)

    await healthy.check_all(Mode.ALL, delete_unknown=True)

    assert packs.find(healthy.db, pack) is None
    assert key in healthy.store.objects


def test_impossible_key_of_a_pack_is_reported_and_kept(healthy: Healthy) -> None:
    """fsck only reports the impossible key, because no other row contains the correct key."""
    pack = healthy.pack_of(healthy.uploaded, 1)
    healthy.sql("UPDATE packs SET object_key = 'pack/none' WHERE pack = ?", pack)

    report = healthy.check(Mode.ALL)

    assert (report.exit_status, report.broken) == (4, ["I38"])


async def test_blocks_of_a_pack_row_with_an_impossible_key_are_found(healthy: Healthy) -> None:
    """fsck finds the blocks of the pack in the pack index in the bucket."""
    pack = healthy.pack_of(healthy.uploaded, 1)
    key = packs.object_key(healthy.db, pack)
    healthy.sql("UPDATE packs SET object_key = 'pack/none' WHERE pack = ?", pack)

    assert {"I38", "I46", "I49"} <= set((await healthy.check_all()).broken)
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert packs.object_key(healthy.db, healthy.pack_of(healthy.uploaded, 1)) == key
    assert healthy.changed_inodes() == set()


def test_two_rows_of_one_pack_are_merged(healthy: Healthy) -> None:
    """fsck merges two rows of one pack, because the blocks of both are in the same object.

    Invariant I39.
    """
    pack = healthy.pack_of(healthy.uploaded, 1)
    row = packs.get(healthy.db, pack)
    moved = healthy.block_of(healthy.uploaded, 1)
    healthy.db.begin()
    other = packs.create(healthy.db, row.object_key, row.object_bytes)
    packs.stored(healthy.db, other)
    found = blocks.get(healthy.db, moved)
    assert found.hash is not None
    assert found.pack_offset is not None
    assert found.stored_bytes is not None
    blocks.set_location(
        healthy.db,
        blocks.get(healthy.db, moved),
        found.hash,
        other,
        found.pack_offset,
        found.stored_bytes,
    )
    healthy.db.commit()

    healthy.assert_mended("I39")

    assert blocks.get(healthy.db, moved).pack == pack
    assert packs.find(healthy.db, other) is None
    assert packs.get(healthy.db, pack) == row


def test_wrong_number_of_live_bytes_of_a_pack_is_corrected(healthy: Healthy) -> None:
    """fsck corrects the live bytes; with too few, garbage collection would delete the pack.

    Invariant I63.
    """
    healthy.sql("UPDATE packs SET live_bytes = live_bytes - 1")
    healthy.assert_mended("I63")
    assert healthy.dump() == healthy.before


def test_txg_of_death_is_cleared_for_a_pack_with_live_blocks(healthy: Healthy) -> None:
    """fsck clears ``died_txg``; otherwise, garbage collection would delete the live pack.

    Invariant I64.
    """
    healthy.sql("UPDATE packs SET died_txg = 1")
    healthy.assert_mended("I64")
    assert healthy.dump() == healthy.before


def test_death_of_a_pack_may_be_recorded_for_a_txg_later_than_the_txg_counter(
    healthy: Healthy,
) -> None:
    """A fence raises the number of the next txg, but not ``txg`` in the table ``counters``."""
    healthy.sql(
        "UPDATE blocks SET pack = NULL, pack_offset = NULL, stored_bytes = NULL, hash = NULL"
    )
    healthy.sql("UPDATE packs SET live_bytes = 0, died_txg = 9")
    assert "I64" in healthy.check().broken

    healthy.sql("""INSERT INTO local_state VALUES ('chain', '{"txg":7}')""")
    assert "I64" not in healthy.check().broken

    healthy.sql("UPDATE packs SET died_txg = 10")
    assert "I64" in healthy.check().broken


def test_check_of_death_txgs_ignores_a_malformed_chain_position(healthy: Healthy) -> None:
    """A malformed row of local state must not cause an SQLite error in the check of packs."""
    healthy.sql("INSERT INTO local_state VALUES ('chain', '{')")
    assert healthy.check().lines() == ["clean"]


def test_missing_txg_of_death_is_added_for_a_dead_pack(healthy: Healthy) -> None:
    """fsck sets ``died_txg``; otherwise, the dead pack would never be deleted."""
    healthy.db.begin()
    key = packs.object_key(healthy.db, healthy.pack_of(healthy.uploaded, 1))
    dead = packs.create(healthy.db, type(key)(key[:-1] + ("0" if key[-1] != "0" else "1")), 10)
    packs.stored(healthy.db, dead)
    healthy.db.commit()

    healthy.assert_mended("I64")

    row = packs.get(healthy.db, dead)
    assert (row.state, row.died_txg) == (PackState.STORED, healthy.db.counters.txg)
