"""Tests of damage marks, which must be correct and complete after fsck."""

import pytest
from typing_extensions import override

from s3fs_meta.check.report import Mode
from s3fs_meta.errors import ObjectMissingError
from s3fs_meta.meta.tables import block_map, damage_marks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockIndex, ObjectKey, PackId
from s3fs_meta.objects.contract import Fetched, ObjectStore
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.check.healthy import Healthy
from tests.damage import flipped


def _two_blocks(healthy: Healthy) -> tuple[PackId, ObjectKey, int]:
    """Upload two blocks in one pack and evict them; return the pack, its key, the second offset."""
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"one of two", b"two of two"))
    pack = healthy.pack_of(healthy.attributed, 0)
    located = block_map.locate(healthy.db, healthy.attributed, BlockIndex(1))
    assert located is not None
    assert located.pack_offset is not None
    return pack, packs.object_key(healthy.db, pack), located.pack_offset


async def test_deep_check_marks_unreadable_blocks(healthy: Healthy) -> None:
    """fsck -p --deep marks the location of a damaged block as damaged; fsck -n --deep does not."""
    pack, key, offset = _two_blocks(healthy)
    healthy.store.objects[key] = flipped(healthy.store.objects[key], offset + 2)

    assert (await healthy.check_all(deep=True)).broken == ["I51"]
    assert damage_marks.marks(healthy.db) == []
    assert (await healthy.check_all(Mode.SAFE)).exit_status == 0
    assert damage_marks.marks(healthy.db) == []

    report = await healthy.check_all(Mode.SAFE, deep=True)
    assert damage_marks.marks(healthy.db) == [Mark(pack, offset)]
    assert [line for line in report.notes if "1 damaged locations" in line]
    assert healthy.db.changed


@pytest.mark.parametrize("is_missing", [True, False])
async def test_fsck_run_with_repairs_marks_a_missing_or_truncated_pack_as_damaged(
    healthy: Healthy, is_missing: bool
) -> None:
    """fsck -p marks the pack as damaged, even without --deep; fsck -n does not."""
    pack, key, offset = _two_blocks(healthy)
    data = healthy.store.objects.pop(key)
    if not is_missing:
        healthy.store.objects[key] = data[:offset]

    await healthy.check_all()
    assert damage_marks.marks(healthy.db) == []
    await healthy.check_all(Mode.SAFE)
    assert damage_marks.marks(healthy.db) == [Mark(pack, None)]


async def test_damage_mark_of_a_block_remains_after_the_block_is_recorded_as_lost(
    healthy: Healthy,
) -> None:
    """fsck keeps the damage mark after a repair, because earlier txgs refer to the location."""
    pack, key, offset = _two_blocks(healthy)
    healthy.store.objects[key] = flipped(healthy.store.objects[key], offset + 2)

    await healthy.check_all(Mode.ALL, deep=True)
    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(1)) is None
    assert damage_marks.marks(healthy.db) == [Mark(pack, offset)]
    assert (await healthy.check_all(Mode.SAFE, deep=True)).lines() == ["clean"]
    assert damage_marks.marks(healthy.db) == [Mark(pack, offset)]


async def test_fsck_reads_packs_in_which_a_mount_has_marked_live_blocks(healthy: Healthy) -> None:
    """After a failed read, fsck finds and repairs the damage without --deep."""
    pack, key, offset = _two_blocks(healthy)
    healthy.store.objects[key] = flipped(healthy.store.objects[key], offset + 2)
    healthy.db.begin()
    damage_marks.add(healthy.db, Mark(pack, None))
    healthy.db.commit()

    assert (await healthy.check_all()).broken == ["I51"]
    report = await healthy.check_all(Mode.ALL)
    assert (report.exit_status, report.broken) == (1, ["I51"])
    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(1)) is None


async def test_fsck_removes_wrong_damage_marks(healthy: Healthy) -> None:
    """fsck -p removes a damage mark if the object is intact or if the pack has no row."""
    pack, key, offset = _two_blocks(healthy)
    healthy.db.begin()
    for mark in (Mark(pack, offset), Mark(PackId(99), None)):
        damage_marks.add(healthy.db, mark)
    healthy.db.commit()

    await healthy.check_all(deep=True)
    assert len(damage_marks.marks(healthy.db)) == 2
    report = await healthy.check_all(Mode.SAFE)
    assert damage_marks.marks(healthy.db) == []
    assert [line for line in report.notes if "2 damage marks" in line]

    healthy.db.begin()
    damage_marks.add(healthy.db, Mark(pack, None))
    healthy.db.commit()
    before = healthy.store.objects[key]
    healthy.store.objects[key] = flipped(before, 2)
    await healthy.check_all(Mode.SAFE, deep=True)
    assert damage_marks.marks(healthy.db) == [Mark(pack, None)]
    healthy.store.objects[key] = before
    await healthy.check_all(Mode.SAFE, deep=True)
    assert damage_marks.marks(healthy.db) == []


async def test_invalid_damage_mark_of_a_pack_does_not_prevent_a_deep_check(
    healthy: Healthy,
) -> None:
    """The repair of I5 removes the mark."""
    pack, _key, _offset = _two_blocks(healthy)
    healthy.sql("INSERT INTO properties VALUES (?, x'')", f"damaged/{pack}/x")

    report = await healthy.check_all(Mode.ALL, deep=True)

    assert (report.exit_status, report.broken) == (1, ["I5"])
    assert (await healthy.check_all(deep=True)).lines() == ["clean"]


async def test_block_is_not_marked_as_damaged_if_a_second_read_succeeds(healthy: Healthy) -> None:
    """fsck reads a block again if the first read returned corrupt bytes or no object."""
    _pack, key, _offset = _two_blocks(healthy)
    for wrong in ("corrupt", "missing"):
        store = _WrongOnce(healthy.store, key, wrong)
        report = await healthy.check_all(Mode.ALL, deep=True, store=store)
        assert (report.exit_status, report.broken) == (0, [])
    assert damage_marks.marks(healthy.db) == []


class _WrongOnce(FaultyStore):
    """A store whose first reply for one object is corrupt or an error."""

    def __init__(self, inner: ObjectStore, key: ObjectKey, how: str) -> None:
        super().__init__(inner)
        self._key, self._how = key, how

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object, or the simulated error."""
        if key == self._key and self._how == "corrupt":
            self.corrupt("get")
        elif key == self._key and self._how:
            self.fail("get", ObjectMissingError(key))
        self._how = "" if key == self._key else self._how
        return await super().get(key, max_bytes)
