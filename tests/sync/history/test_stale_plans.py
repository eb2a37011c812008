"""Garbage collection in a bucket that is reset to an older state."""

from collections.abc import Mapping

import pytest

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, read_file, ship, write_file

pytestmark = pytest.mark.thorough


async def make_images(session: Session, count: int) -> Txg:
    """Make images, each after a change, without garbage collection; return the last txg."""
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
    """The images that the plan lists may be the only ones in the older state of the bucket."""
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
        if garbage != "images":  # the rows of the abandoned images are already shipped
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


def require_unchanged(power: Power, expected: Mapping[ObjectKey, bytes]) -> None:
    """Require that the bucket contains all objects of its older state."""
    present = power.store.objects
    assert [key for key, data in expected.items() if present.get(key) != data] == ["lease"]
