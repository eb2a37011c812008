"""Failing DELETE requests: a later pass of garbage collection deletes the same objects."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from typing_extensions import override

from s3fs_meta.errors import StoreAccessError, StoreUnavailableError, TransientStoreError
from s3fs_meta.limits import DELETES_REFUSED_MAX
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ObjectKey, PackState
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.packs import stray_pack
from tests.sync.conftest import Power, remove_file, unmount, write_file

pytestmark = pytest.mark.thorough


class _InterruptedDeletions(FaultyStore):
    """A store in which one DELETE request fails after it has deleted half of the objects."""

    left = 0  # Counts DELETE requests up to the failing request; 0 if no request fails.

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete the objects, or half of them."""
        self.left -= 1
        if self.left:
            await super().delete(keys)
        else:
            await super().delete(keys[: len(keys) // 2])
            raise StoreUnavailableError(keys[-1], 1, 0.0, "connection reset")


class _RefusedDeletions(FaultyStore):
    """A store with a policy that denies the deletion of some objects."""

    denies: Callable[[ObjectKey], bool] = staticmethod(lambda _key: False)

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete the other objects, and fail for the first denied object, as S3 does."""
        denied = [key for key in keys if self.denies(key)]
        await super().delete([key for key in keys if key not in denied])
        for key in denied:
            raise StoreAccessError(key, "AccessDenied", "check the policy")


async def _make_garbage(power: Power) -> None:
    """Leave packs, images and changelogs that no retained txg needs."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for number in range(1, 6):
            ino = write_file(session, bytes([number]) * 5000)
            await session.flush()
            remove_file(session, ino)
            await session.imager.make()
        await unmount(session)


def _require_counted(session: Session) -> None:
    """Require that no pack stays condemned, and that the total is the size of all stored packs."""
    rows = list(packs.iterate(session.db))
    assert all(row.state is PackState.STORED for row in rows)
    assert session.db.counters.stored_bytes == sum(row.object_bytes for row in rows)


@pytest.mark.parametrize("is_remounted", [False, True])
async def test_failed_deletions_are_repeated(
    power: Power, is_remounted: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After a failure, garbage collection leaves the same objects as without the failure."""
    await _make_garbage(power)
    counts: dict[int, Counter[str]] = {}
    at, has_failed = 0, True
    while has_failed:
        at += 1
        copied = power.copy(tmp_path_factory.mktemp("copy"))
        store = _InterruptedDeletions(copied.store)
        async with copied.session("a", tasks=False, store=store) as session:
            store.left = at
            await session.reclaimer.run()
            has_failed = session.reclaimer.last_error != ""
            if not is_remounted:
                await session.reclaimer.reclaim_all()
                _require_counted(session)
            await unmount(session)
        async with copied.session("a", tasks=False) as session:
            await session.reclaimer.reclaim_all()
            _require_counted(session)
            assert (await session.reclaimer.plan()).total == 0
        counts[at] = Counter(key.partition("/")[0] for key in copied.store.objects)
        del counts[at]["changelog"]  # Each pass that deletes objects ships a txg.

    assert at > 4
    assert all(counts[one] == counts[at] for one in counts), counts


@pytest.mark.parametrize("kind", ["pack", "image", "changelog"])
async def test_refused_deletion_of_one_object_does_not_prevent_other_deletions(
    power: Power, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The refusal is reported, and a later pass deletes the object and the rest of its image."""
    await _make_garbage(power)
    copied = power.copy(tmp_path_factory.mktemp("copy"))
    store = _RefusedDeletions(power.store)
    async with copied.session("a", tasks=False) as session:
        await session.reclaimer.reclaim_all()
        await unmount(session)
    denied = min(
        key
        for key in power.store.objects
        if key.startswith(f"{kind}/") and key not in copied.store.objects
    )
    async with power.session("a", tasks=False, store=store) as session:
        store.denies = lambda key: key == denied
        await session.reclaimer.run()
        assert denied in session.reclaimer.last_error
        with pytest.raises(StoreAccessError, match=denied):
            await session.reclaimer.reclaim_all()
        rest = {key for key in power.store.objects if not key.startswith("changelog/")}
        wanted = {key for key in copied.store.objects if not key.startswith("changelog/")}
        assert denied in power.store.objects
        pieces = {key for key in rest if kind == "image" and key.startswith("image/")}
        assert rest - pieces - {denied} <= wanted

        store.denies = lambda _key: False
        await session.reclaimer.run()
        await session.reclaimer.run()
        assert session.reclaimer.last_error == ""
        assert denied not in power.store.objects
        _require_counted(session)
        assert (await session.reclaimer.plan()).total == 0
        await unmount(session)


@pytest.mark.parametrize("kind", ["image", "changelog"])
async def test_refused_object_that_another_program_deletes_is_no_longer_reported(
    power: Power, kind: str
) -> None:
    """An administrator may delete the object with other credentials."""
    await _make_garbage(power)
    store = _RefusedDeletions(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        store.denies = lambda key: key.startswith(f"{kind}/")
        await session.reclaimer.run()
        assert session.reclaimer.last_error
        while (error := session.reclaimer.last_error) and (
            denied := next((key for key in power.store.objects if key in error), None)
        ):
            await power.store.delete([denied])
            await session.reclaimer.run()

        assert error == ""
        await session.reclaimer.reclaim_all()
        await unmount(session)


async def test_store_that_refuses_every_deletion_receives_few_requests(power: Power) -> None:
    """The credentials may lack the permission to delete any object."""
    await power.retain(0)
    store = _RefusedDeletions(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        session.db.begin()
        for number in range(500):
            pack = packs.create(session.db, ObjectKey(f"pack/00/1-{number:032x}"), 1000)
            packs.stored(session.db, pack)
            packs.note_if_dead(session.db, pack)
        session.db.commit()
        for _ in range(3):
            write_file(session, b"x")
            await session.imager.make()
        store.denies = lambda _key: True
        store.calls.clear()
        await session.reclaimer.run()

        assert "AccessDenied" in session.reclaimer.last_error
        requests = sum(call.method == "delete" for call in store.calls)
        assert requests < 20 * DELETES_REFUSED_MAX
        assert len(packs.find_condemned(session.db, range(10_000))) == 500


@pytest.mark.parametrize("kind", ["pack", "changelog"])
async def test_refused_objects_beyond_the_limit_of_a_pass_do_not_prevent_other_deletions(
    power: Power, kind: str
) -> None:
    """Otherwise the bucket would grow until an administrator changes the policy of the store."""
    await _make_garbage(power)
    store = _RefusedDeletions(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        garbage = await session.reclaimer.plan()
        changelogs = [info.key for info in garbage.changelogs]
        dead = [row.object_key for row in garbage.packs]
        refused = {*(dead if kind == "pack" else changelogs)[:3]}
        store.denies = lambda key: key in refused
        for _ in range(len(changelogs) + len(dead)):
            await session.reclaimer.reclaim(limit=3)

        assert {*changelogs, *dead} & power.store.objects.keys() == refused
        await unmount(session)


async def test_condemned_packs_beyond_the_limit_of_a_pass_stay_condemned(power: Power) -> None:
    """A pass without room for all condemned packs does not revive those that no txg needs."""
    await power.retain(0)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        for number in range(6):
            ino = write_file(session, bytes([number + 1]) * 5000)
            await session.flush()
            remove_file(session, ino)
        for _ in range(3):
            await session.imager.make()
        store.fail("create")
        with pytest.raises(TransientStoreError):
            await session.reclaimer.reclaim()
        condemned = {row.pack for row in packs.find_condemned(session.db, range(10_000))}
        assert len(condemned) == 6

        deleted = await session.reclaimer.reclaim(limit=2)

        left = {row.pack for row in packs.find_condemned(session.db, range(10_000))}
        assert left == condemned - {row.pack for row in deleted.packs}


async def test_refused_orphan_pack_is_deleted_by_a_later_pass(power: Power) -> None:
    """A pack without a row gets a row; its deletion must not wait for another retention."""
    await power.retain(0)
    async with power.session("a") as session:
        write_file(session, b"x")
        await unmount(session)
        orphan, data = stray_pack(session.volume.keyring, 1)
    power.store.objects[orphan] = data
    store = _RefusedDeletions(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        store.denies = lambda key: key == orphan
        for number in range(4):
            write_file(session, b"%d" % number)
            await session.imager.make()
        with pytest.raises(StoreAccessError):
            await session.reclaimer.reclaim_all()
        assert orphan in power.store.objects

        store.denies = lambda _key: False
        await session.reclaimer.run()

        assert orphan not in power.store.objects
