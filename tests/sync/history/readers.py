"""Readers of a bucket at one point in time."""

from contextlib import aclosing
from pathlib import Path

from s3fs_meta.clock import SystemClock
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history import txg_log
from s3fs_meta.sync.history.snapshot_mount import Bucket, open_snapshot, read_bucket
from s3fs_meta.sync.history.txg_log import Rewinder
from s3fs_meta.sync.state_dir import StateDir
from s3fs_meta.sync.volume import OpenOptions, Volume
from tests.sync.conftest import Power


def at(txg: int) -> PointInTime:
    """Return the point in time of a txg."""
    return PointInTime(f"txg={txg}", txg=Txg(txg))


async def bucket_of(power: Power) -> Bucket:
    """Return the filesystem in the bucket, as a reader opens it."""
    return await read_bucket(power.store, power.remembered("-"), power.secret, SystemClock())


async def open_at(power: Power, txg: int, state: Path) -> Volume:
    """Open the filesystem at the point in time of a txg."""
    return await open_snapshot(await bucket_of(power), StateDir(state), OpenOptions(), at(txg))


async def concerning(bucket: Bucket, tmp: Path, path: bytes) -> list[Txg]:
    """Return the txgs that changed a path, the newest first."""
    number = 0

    async def restore(link: Link) -> Database:
        nonlocal number
        number += 1
        target = tmp / f"rewound-{number}.db"
        await bucket.restore(link, target)
        return Database.open(target, Pragmas())

    rewinder = Rewinder(bucket, path.split(b"/"), restore)
    last = await bucket.points.newest()
    async with aclosing(txg_log.backwards(bucket, last, Txg(0))) as changelogs:
        return [one.txg async for one in changelogs if await rewinder.undo(one)]
