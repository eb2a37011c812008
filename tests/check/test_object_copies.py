"""Tests of repairs with intact copies of objects, which the user provides."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.check.object_copies import ObjectCopies
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.limits import LEVEL_FAN_OUT, OBJECT_BYTES_MAX
from s3fs_meta.meta.tables import damage_marks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import Ino, ObjectKey, Txg
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import flipped
from tests.sync.conftest import Power, read_file, unmount, write_file
from tests.sync.kept import Files, empty, files_at, fill, forget

pytestmark = pytest.mark.thorough


READ_ONLY = OpenOptions(read_only=True)
Damage = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damage] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) * 2 // 3],
    "one bit": lambda data: flipped(data, len(data) // 2),
    "oversized": lambda data: data + bytes(80 << 20),
}


async def written(power: Power) -> dict[int, Ino]:
    """Write 11 txgs, an image at txg 7 and all level objects; return each txg's files."""
    inos: dict[int, Ino] = {}
    async with power.session("a", tasks=False) as session:
        while session.link.txg < 11:
            txg = session.link.next_txg
            if txg == 7:
                await session.imager.make()
            else:
                inos[txg] = write_file(session, b"%d" % txg * 3000)
                await session.flush()
            if txg % LEVEL_FAN_OUT == 0:
                await session.leveler.make_due()
        await unmount(session)
    return inos


class Mended:
    """A repair that uses copies from another store, and the result of the repair."""

    def __init__(self, power: Power, copies: dict[ObjectKey, bytes]) -> None:
        self.power = power
        self.copies = MemoryStore()
        self.copies.objects = dict(copies)
        self.state = power.home / "repair"
        self.done: list[str] = []

    async def repair(self) -> ObjectCopies:
        """Return the repair; it saves replaced objects in the directory ``state``."""
        self.state.mkdir(exist_ok=True)
        keys = await self.power.keys()
        store = self.power.store
        replaced = ReplacedObjects(store, self.state, SystemClock())
        return ObjectCopies(store, self.copies, keys.keyring, keys.superblock.uuid, replaced)

    async def run(self, *, deep: bool = True) -> None:
        """Repair metadata objects first, and then packs."""
        repair = await self.repair()
        lease = lease_codec.decode(lease_codec.KEY, self.power.store.objects[lease_codec.KEY])
        await repair.mend_metadata(lease)
        async with self.power.session("look", options=READ_ONLY, tasks=False) as session:
            await repair.mend_packs(session.db, deep=deep)
        self.done = repair.done


def mutable(key: str) -> bool:
    """Return whether an object may be overwritten, in which case its copy may be outdated."""
    return key.startswith(("superblock", "lease"))


@pytest.mark.parametrize("damage", DAMAGES)
async def test_every_damaged_object_is_restored_from_a_copy(power: Power, damage: str) -> None:
    """The restored object equals its copy, and the damaged object is saved."""
    await written(power)
    whole = dict(power.store.objects)
    keys = sorted(key for key in whole if not mutable(key))
    assert {key.split("/")[0] for key in keys} == {"changelog", "image", "level", "pack"}
    if damage != "one bit":  # Every other damage is tested with one object of each kind.
        keys = list({key.split("/")[0]: key for key in keys}.values())
    for key in keys:
        damaged = DAMAGES[damage](whole[key])
        if damaged is None:
            del power.store.objects[key]
        else:
            power.store.objects[key] = damaged
        mended = Mended(power, whole)
        await mended.run()

        assert power.store.objects == whole, key
        [line] = mended.done
        assert line.startswith(f"{key}: ")
        if damaged:
            [saved] = mended.state.iterdir()
            assert str(saved) in line
            assert saved.read_bytes() == damaged
            saved.unlink()


async def test_object_that_is_too_large_to_save_is_not_replaced(
    power: Power, tmp_path: Path
) -> None:
    """An object that is too large to save is reported, and the other objects are restored."""
    await written(power)
    whole = dict(power.store.objects)
    bucket, state = tmp_path / "bucket", tmp_path / "state"
    bucket.mkdir()
    state.mkdir()
    store = LocalStore(bucket)
    for key, data in whole.items():
        await store.put(key, data)
    pack, other = [key for key in whole if key.startswith("pack/")][:2]
    os.truncate(bucket / pack, OBJECT_BYTES_MAX + 1)
    await store.delete([other])
    keys = await power.keys()
    copies = MemoryStore()
    copies.objects = dict(whole)
    replaced = ReplacedObjects(store, state, SystemClock())
    repair = ObjectCopies(store, copies, keys.keyring, keys.superblock.uuid, replaced)
    async with power.session("look", options=READ_ONLY, tasks=False) as session:
        await repair.mend_packs(session.db, deep=True)

    [refused] = [line for line in repair.done if line.startswith(pack)]
    assert f"it is not restored: it has {OBJECT_BYTES_MAX + 1} bytes" in refused
    assert (bucket / pack).stat().st_size == OBJECT_BYTES_MAX + 1
    assert (await store.get(other, len(whole[other]))).data == whole[other]
    assert os.listdir(state) == []


@pytest.mark.parametrize(
    "damage", ["died_txg = x'00'", "state = 9", "object_key = x'00'", "object_key = 'no pack'"]
)
async def test_pack_is_restored_although_the_row_of_another_pack_is_damaged(
    power: Power, tmp_path: Path, damage: str
) -> None:
    """The check that follows repairs the row, so the row must not end the command."""
    await written(power)
    keys, copies = await power.keys(), MemoryStore()
    copies.objects = dict(power.store.objects)
    replaced = ReplacedObjects(power.store, tmp_path, SystemClock())
    repair = ObjectCopies(power.store, copies, keys.keyring, keys.superblock.uuid, replaced)
    async with power.session("a", tasks=False) as session:
        damaged, lost = list(packs.iterate(session.db))[:2]
        session.db.begin_local()
        session.db.run(f"UPDATE packs SET {damage} WHERE pack = ?", (damaged.pack,))
        del power.store.objects[lost.object_key]

        await repair.mend_packs(session.db, deep=False)

    assert power.store.objects[lost.object_key] == copies.objects[lost.object_key]


async def test_pack_that_is_marked_as_damaged_is_restored_from_a_copy(power: Power) -> None:
    """fsck reads marked packs without --deep, so it must first look for their copies."""
    await written(power)
    whole = dict(power.store.objects)
    key = next(key for key in whole if key.startswith("pack/"))
    power.store.objects[key] = flipped(whole[key], len(whole[key]) // 2)
    mended = Mended(power, whole)
    repair = await mended.repair()
    async with power.session("a", tasks=False) as session:
        await repair.mend_packs(session.db, deep=False)
        assert repair.done == []
        session.db.begin()
        [number] = [pack for pack, other in packs.all_keys(session.db) if other == key]
        damage_marks.add(session.db, Mark(number, None))
        session.db.commit()
        await repair.mend_packs(session.db, deep=False)

    assert power.store.objects[key] == whole[key]


async def test_many_lost_objects_are_restored_from_copies(power: Power) -> None:
    """If every second object of the bucket is lost, all content is readable after the repair."""
    inos = await written(power)
    whole = dict(power.store.objects)
    for number, key in enumerate(sorted(whole)):
        if not mutable(key) and number % 2:
            del power.store.objects[key]
    await Mended(power, whole).run()
    assert power.store.objects == whole
    async with power.session("c", options=READ_ONLY, tasks=False) as session:
        for number, ino in inos.items():
            assert await read_file(session, ino) == b"%d" % number * 3000


async def test_copy_of_a_changelog_from_a_fork_is_not_used(power: Power) -> None:
    """A changelog of a fork is authentic, but the next changelog contains a different hash."""
    await written(power)
    whole = dict(power.store.objects)
    last = max(key for key in whole if key.startswith("changelog/"))
    for key in list(power.store.objects):
        if key.startswith("changelog/") and key > key_of(Txg(8)):
            del power.store.objects[key]
    for key in list(power.store.objects):
        if key.startswith("level/") and key.endswith("10"):
            del power.store.objects[key]
    async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False) as session:
        while session.link.txg < 14:
            write_file(session, b"theirs")
            await session.flush()
    theirs = dict(power.store.objects)
    for damaged in (key_of(Txg(9)), key_of(Txg(10)), last):
        for missing in (True, False):
            power.store.objects = dict(whole)
            if missing:
                del power.store.objects[damaged]
            else:
                power.store.objects[damaged] = flipped(whole[damaged], 100)
            before = dict(power.store.objects)
            copies = {key: data for key, data in theirs.items() if key == damaged}
            repair = await Mended(power, copies).repair()
            await repair.mend_metadata(None)
            assert power.store.objects == before
            assert repair.done == []


async def test_foreign_and_damaged_copies_of_objects_are_not_used_for_repairs(
    power: Power, tmp_path: Path
) -> None:
    """A copy is verified before it replaces an object in the bucket."""
    await written(power)
    whole = dict(power.store.objects)
    other = Power(MemoryStore(), tmp_path / "other")
    other.encrypted = power.encrypted
    (tmp_path / "other").mkdir()
    await other.make()
    await written(other)
    copies = {key: flipped(data, len(data) // 2) for key, data in whole.items()}
    copies |= {key: data for key, data in other.store.objects.items() if not mutable(key)}
    for key in [
        key_of(Txg(3)),
        key_of(Txg(11)),
        *[key for key in whole if key.startswith("pack/")],
    ]:
        del power.store.objects[ObjectKey(key)]
    before = dict(power.store.objects)
    repair = await Mended(power, copies).repair()
    await repair.mend_metadata(None)
    assert power.store.objects == before


async def test_objects_of_kept_points_are_restored_from_copies(power: Power) -> None:
    """Objects of kept points may be older than the first retained txg."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        files: Files = {}
        for number in range(3):
            fill(session, files, b"%d" % number * 3000)
            await session.flush()
        keeper = PointKeeper(session)
        await keeper.keep("dropped")
        point = await keeper.keep("kept")
        older = dict(power.store.objects)
        await keeper.drop(["dropped"])
        state = dict(files)
        empty(session, files)
        await forget(session)
        await unmount(session)
    whole = dict(power.store.objects)
    copies = {**older, **whole}
    needed = [key for key in whole if key.startswith("image/") and key in older]
    needed += [key_of(Txg(txg)) for txg in range(max(point.image_txg, 1), point.txg + 1)]
    for key in (*needed, point.key):
        power.store.objects[key] = flipped(whole[key], len(whole[key]) // 2)
        await Mended(power, copies).run()
        assert power.store.objects == whole
        if key != point.key:
            del power.store.objects[key]
            await Mended(power, copies).run()
            assert power.store.objects == whole
    assert await files_at(power, "kept") == state
