"""Two histories of one filesystem: another host writes to an older copy of the bucket."""

import pytest

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, remove_file, unmount, write_file
from tests.sync.kept import Files, fill

PUBLISH = OpenOptions(mend=Mend(publish_local=True))


async def fork(power: Power, files: Files, *, fails_to_delete: bool = False) -> dict[str, bytes]:
    """Write a file, then remove it on the same host; return the objects before the removal."""
    async with power.session("a", tasks=False) as session:
        fill(session, files, b"shared" * 500)
        await session.make_image()
        await unmount(session)
    older, [shared] = dict(power.store.objects), list(files)
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        remove_file(session, shared)
        await session.flush()
        if fails_to_delete:
            for number in range(3):
                write_file(session, b"later %d" % number)
                await session.imager.make()
            store.fail("delete", StoreUnavailableError("pack", 1, 0.0, "away"))
            with pytest.raises(StoreUnavailableError):
                await session.reclaimer.reclaim_all()
            assert packs.condemned(session.db)
        await unmount(session)
    return {str(key): data for key, data in older.items()}


def put_back(power: Power, objects: dict[str, bytes]) -> None:
    """Restore the bucket to an older copy."""
    power.store.objects.clear()
    power.store.objects.update(objects)  # type: ignore[arg-type]


async def publish(power: Power) -> None:
    """Publish the local state of the first host as fsck -y --publish-local does."""
    async with power.session("a", options=PUBLISH, tasks=False) as session:
        await unmount(session)


async def keep_theirs(power: Power, files: Files, last: int) -> Txg:
    """Write files on host b until its txg is later than *last*; keep this point as "theirs"."""
    async with power.session("b", tasks=False) as session:
        while session.link.txg <= last:
            fill(session, files, b"%d" % session.link.txg * 900)
            await session.flush()
        point = await PointKeeper(session).keep("theirs")
        await unmount(session)
    return point.txg
