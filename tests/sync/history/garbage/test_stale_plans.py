"""Garbage collection in a bucket that is reset or that ignores deletions."""

from collections.abc import Callable, Mapping, Sequence

import pytest
from typing_extensions import override

from s3fs_meta.codec import changelog, image
from s3fs_meta.errors import StoreUnavailableError, UnexpectedStoreError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ObjectKey, PackId, PackState, Txg
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import Fault, FaultyStore
from tests.sync.conftest import (
    Power,
    keys_of,
    location_of,
    read_file,
    remove_file,
    ship,
    write_file,
)

pytestmark = pytest.mark.thorough


async def make_images(session: Session, count: int) -> Txg:
    """Make images after changes, without garbage collection; return the last txg."""
    for _ in range(count):
        write_file(session, b"x" * 5000)
        await session.imager.make()
    return await ship(session) if session.db.changed else session.link.txg


async def require_restorable(power: Power, session: Session, txg: Txg) -> None:
    """Require that a host without local state can restore a txg."""
    opened = session.volume
    restorer = Restorer(power.store, opened.keyring, opened.uuid, no_progress)
    assert (await restorer.restore(None, power.home / f"at-{txg}.db", txg)).txg == txg


@pytest.mark.parametrize("garbage", ["images", "pieces without a manifest"])
async def test_garbage_found_before_a_reset_of_the_bucket_is_not_deleted(
    power: Power, garbage: str
) -> None:
    """After a reset, images that were found to be garbage may be the only images left."""
    await power.retain(0)
    faulty = FaultyStore(power.store)
    older: dict[ObjectKey, bytes] = {}
    is_armed = False

    def hook(step: str) -> None:
        if step == "manifests deleted" and not is_armed:
            faulty.fail("delete", StoreUnavailableError("image", 1, 0.0, "away"))
        if step == "packs condemned" and is_armed and older:
            power.store.objects.clear()
            power.store.objects.update(older)
            older.clear()

    async with power.session("a", tasks=False, hook=hook, store=faulty) as session:
        last = await make_images(session, 2)
        older.update(power.store.objects)
        expected = dict(older)
        await make_images(session, 3)
        ino = write_file(session, b"current")
        await session.flush()
        if garbage != "images":  # The rows of the abandoned images are shipped already.
            with pytest.raises(StoreUnavailableError):
                await session.reclaimer.reclaim()
        is_armed = True
        await session.reclaimer.reclaim_all()

        assert not older
        require_unchanged(power, expected)
        await require_restorable(power, session, last)
        await require_restorable(power, session, session.link.txg)
    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == b"current"


async def test_packs_condemned_before_a_reset_of_the_bucket_are_usable_again(power: Power) -> None:
    """After a reset, points in time of the older state need the condemned packs."""
    await power.retain(0)
    older: dict[ObjectKey, bytes] = {}
    condemned: list[PackId] = []

    def hook(step: str) -> None:
        if step == "packs condemned" and older:
            condemned.extend(pack for pack, _key in packs.condemned(session.db))
            power.store.objects.clear()
            power.store.objects.update(older)
            older.clear()

    async with power.session("a", tasks=False, hook=hook) as session:
        ino = write_file(session, b"past" * 5000)
        await session.flush()
        remove_file(session, ino)
        await make_images(session, 2)
        older.update(power.store.objects)
        await make_images(session, 3)
        await session.reclaimer.reclaim_all()
        await session.flush_at_end()

        assert len(condemned) == 1
        for db in (session.db, await _restored(power, session)):
            row = packs.get(db, condemned[0])
            assert row.state is PackState.STORED
            assert row.object_key in power.store.objects
            assert db.counters.stored_bytes == sum(
                one.object_bytes for one in packs.iterate(db) if one.state is PackState.STORED
            )


async def test_pack_with_a_sent_delete_stays_condemned_after_a_reset_of_the_bucket(
    power: Power,
) -> None:
    """The store may have deleted a pack although the response was lost."""
    await power.retain(0)
    faulty, condemned = FaultyStore(power.store), list[PackId]()

    def hook(step: str) -> None:
        if step == "packs condemned" and not condemned:
            condemned.extend(pack for pack, _key in packs.condemned(session.db))
            faulty.fail("delete", StoreUnavailableError("pack", 1, 0.0, "away"))

    async with power.session("a", tasks=False, hook=hook, store=faulty) as session:
        ino = write_file(session, b"past" * 5000)
        await session.flush()
        remove_file(session, ino)
        await make_images(session, 2)
        older = dict(power.store.objects)
        await make_images(session, 3)
        with pytest.raises(StoreUnavailableError):
            await session.reclaimer.reclaim_all()
        power.store.objects.clear()
        power.store.objects.update(older)
        write_file(session, b"after the reset")
        await session.flush()
        await session.reclaimer.reclaim_all()

        assert len(condemned) == 1
        row = packs.find(session.db, condemned[0])
        assert row is not None
        assert row.state is PackState.CONDEMNED


async def _restored(power: Power, session: Session) -> Database:
    target = power.home / "restored.db"
    opened = session.volume
    await Restorer(power.store, opened.keyring, opened.uuid, no_progress).restore(None, target)
    return Database.open(target, Pragmas())


def require_unchanged(power: Power, expected: Mapping[ObjectKey, bytes]) -> None:
    """Require that the bucket contains all objects of its state before the reset."""
    present = power.store.objects
    assert [key for key, data in expected.items() if present.get(key) != data] == ["lease"]


class _KeptObjects(FaultyStore):
    """A store that confirms the deletion of images, but keeps the images."""

    deletions = 0

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete only objects that are not part of an image."""
        self.deletions += 1
        assert self.deletions < 50, "garbage collection does not end"
        await super().delete([key for key in keys if not key.startswith(image.PREFIX)])


async def test_reclaim_stops_if_the_store_still_lists_deleted_objects(power: Power) -> None:
    """The error names an object that the store still lists, and a remedy."""
    await power.retain(0)
    store = _KeptObjects(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        await make_images(session, 4)
        before = keys_of(power, image.PREFIX)

        with pytest.raises(
            UnexpectedStoreError, match=r"'image/.*confirmed the deletion but still lists"
        ):
            await session.reclaimer.reclaim_all()

        assert keys_of(power, image.PREFIX) == before


class _SearchedStore(FaultyStore):
    """A store that calls a function after the search for garbage has listed the packs."""

    on_search: Callable[[], None] = staticmethod(lambda: None)

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        """Call the function when the parts of changelogs are listed."""
        if (method, key) == ("list", changelog.PART_PREFIX):
            self.on_search()
        return await super().enter(method, key)


async def test_pack_that_was_used_again_during_the_search_is_not_deleted(power: Power) -> None:
    """New points in time may need a pack that was used again during the search for garbage."""
    await power.retain(0)
    store = _SearchedStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        ino = write_file(session, b"dead" * 5000)
        await session.flush()
        pack = location_of(session, ino).pack
        assert pack is not None
        key = packs.object_key(session.db, pack)
        remove_file(session, ino)
        await make_images(session, 3)
        assert [row.object_key for row in (await session.reclaimer.plan()).packs] == [key]

        def use_again() -> None:
            session.db.begin_local()
            packs.add_live_bytes(session.db, pack, 1)
            packs.drop_live_bytes(session.db, pack, 1)

        store.on_search = use_again
        await session.reclaimer.reclaim()

        assert key in power.store.objects
