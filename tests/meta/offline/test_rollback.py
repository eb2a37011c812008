"""Preparation of an older database that a rollback makes current.

``tests/sync/administration/test_rollback.py`` tests complete rollbacks.
"""

from pathlib import Path

import pytest

from s3fs_meta.errors import SettingsError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline.rollback import take_over, unlisted
from s3fs_meta.meta.tables import blocks, damage_marks, packs, properties
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import ObjectKey, PackId, PackState
from tests.meta.offline.files_in_packs import database, file_in, pack


def test_rollback_never_decreases_the_next_unused_numbers(tmp_path: Path) -> None:
    """A rollback must not decrease the txg or the next numbers of inodes, blocks and packs."""
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    present.counters.next_ino = 100
    present.counters.next_block = 200
    present.counters.next_pack = 300
    present.counters.txg = 40
    present.commit()

    take_over(past, present)

    found = Database.open(past.path, Pragmas()).counters
    assert (found.next_ino, found.next_block, found.next_pack) == (100, 200, 300)
    assert found.txg == 40


def test_rollback_marks_unused_packs_as_dead_from_the_current_txg(tmp_path: Path) -> None:
    """A pack that only the newer database uses is dead from the current txg on."""
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    revived, dead, unknown = pack(present, 1), pack(present, 2), pack(present, 3)
    present.run("UPDATE packs SET died_txg = 7 WHERE pack IN (?, ?)", (revived, dead))
    file_in(present, unknown, b"x" * 32)
    present.counters.txg = 40
    present.commit()
    assert pack(past, 1) == revived
    file_in(past, revived, b"y" * 32)

    take_over(past, present)

    assert [(row.pack, row.live_bytes, row.died_txg) for row in packs.iterate(past)] == [
        (revived, 50, None),
        (dead, 0, 7),
        (unknown, 0, 40),
    ]
    assert past.counters.stored_bytes == 3000
    assert past.counters.block_bytes == 100


def test_rollback_finds_a_block_of_a_condemned_pack_by_number_or_content(tmp_path: Path) -> None:
    """After a rollback, a block of a condemned pack has the location of equal content."""
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    assert pack(past, 1) == pack(present, 1)
    _ino, moved = file_in(past, PackId(1), b"m" * 32)
    _ino, equal = file_in(past, PackId(1), b"e" * 32)
    target = pack(present, 2)
    assert file_in(present, target, b"m" * 32)[1] == moved
    present.counters.next_block += 10
    assert file_in(present, target, b"e" * 32)[1] != equal
    packs.condemn(present, PackId(1))
    present.commit()

    take_over(past, present)

    assert [blocks.get(past, block).pack for block in (moved, equal)] == [target, target]
    states = [(row.state, row.live_bytes) for row in packs.iterate(past)]
    assert states == [(PackState.CONDEMNED, 0), (PackState.STORED, 100)]


def test_rollback_gives_a_damaged_block_the_location_of_equal_content(tmp_path: Path) -> None:
    """A rollback returns the number of blocks that are damaged in all packs."""
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    assert pack(past, 1) == pack(present, 1)
    _ino, healed = file_in(past, PackId(1), b"h" * 32)
    _ino, lost = file_in(past, PackId(1), b"l" * 32)
    target = pack(present, 2)
    file_in(present, target, b"h" * 32)
    damage_marks.add(past, Mark(PackId(7), None))
    damage_marks.add(present, Mark(PackId(1), None))
    present.commit()

    assert take_over(past, present) == 1

    assert [blocks.get(past, block).pack for block in (healed, lost)] == [target, PackId(1)]
    assert damage_marks.marks(past) == [Mark(PackId(1), None)]


def test_error_about_a_rollback_names_the_deleted_packs_that_it_needs(tmp_path: Path) -> None:
    """The error lists the first deleted packs, and gives the number of further packs."""
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    for number in range(1, 6):
        file_in(past, pack(past, number), bytes([number]) * 32)
    present.commit()

    with pytest.raises(
        SettingsError, match=r"is in the packs pack/00/1-0+1, .*3 and 2 more, which"
    ):
        take_over(past, present)


def test_rollback_finds_a_renumbered_pack_by_its_key(tmp_path: Path) -> None:
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    first, second, third = (pack(past, number) for number in (1, 2, 3))
    found = [file_in(past, one, bytes([one]) * 32)[1] for one in (first, second, third)]
    assert pack(present, 2) == first
    assert pack(present, 1) == second
    assert pack(present, 4) == third
    unreadable = ObjectKey(f"pack/00/1-{5:032x}")
    properties.keep_packs(present, [unreadable])
    present.commit()
    past.commit()

    stray = ObjectKey(f"pack/00/1-{3:032x}")
    assert unlisted(past, present) == [(stray, 1000)]
    assert take_over(past, present, {stray}) == 0

    keys = [packs.object_key(past, blocks.get(past, block).pack or PackId(0)) for block in found]
    assert keys == [f"pack/00/1-{number:032x}" for number in (1, 2, 3)]
    assert [(row.pack, row.live_bytes) for row in packs.iterate(past)] == [
        (first, 50),
        (second, 50),
        (third, 0),
        (third + 1, 50),
    ]
    assert past.counters.next_pack == third + 2
    assert properties.renumbered_packs(past) == (past.counters.txg, third + 2)
    assert properties.kept_packs(past) == {unreadable}


def test_rollback_that_needs_a_deleted_pack_is_refused_although_its_number_is_in_use(
    tmp_path: Path,
) -> None:
    past, present = database(tmp_path / "past"), database(tmp_path / "present")
    file_in(past, pack(past, 1), b"x" * 32)
    assert pack(present, 2) == 1
    present.commit()
    with pytest.raises(SettingsError, match=r"pack/00/1-0+1"):
        take_over(past, present)
