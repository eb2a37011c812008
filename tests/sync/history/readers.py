"""Helpers that read a bucket at one point in time."""

from contextlib import aclosing
from pathlib import Path

from s3fs_meta.clock import SystemClock
from s3fs_meta.limits import FORMER_NAMES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import PointInTime, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.history.snapshot_mount import Bucket, RestoreOptions, open_snapshot, read_bucket
from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader
from s3fs_meta.sync.history.versions.path_log import PathLog
from s3fs_meta.sync.history.versions.path_versions import PathVersions
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.volume import OpenOptions, Volume
from tests.sync.conftest import Power


def at(txg: int) -> PointInTime:
    """Return the point in time of the given txg."""
    return PointInTime(f"txg={txg}", txg=Txg(txg))


async def bucket_of(power: Power) -> Bucket:
    """Return the filesystem in the bucket, as a reader opens it."""
    return await read_bucket(power.store, power.remembered("-"), power.secret, SystemClock())


async def open_at(power: Power, txg: int, state: Path, earlier: Volume | None = None) -> Volume:
    """Open the filesystem at a txg; if an earlier point in time is open, continue from it."""
    options = OpenOptions(pragmas=Pragmas(journal_mode="off"))
    bucket = await bucket_of(power)
    return await open_snapshot(
        bucket, StateDir(state), options, at(txg), RestoreOptions(earlier=earlier)
    )


async def concerning(
    bucket: Bucket,
    tmp: Path,
    path: bytes,
    *,
    first: int = 1,
    store: ObjectStore | None = None,
    former_names_max: int = FORMER_NAMES_MAX,
) -> list[Txg]:
    """Return the txgs that changed a path, newest first, as the log command finds them.

    Args:
        bucket: the bucket.
        tmp: an existing directory, in which the database is restored.
        path: the path, from the root.
        first: the first txg that may be returned.
        store: the store to search, or None for the store of the bucket.
        former_names_max: the maximum number of removed names to follow.
    """
    end, oldest = await bucket.points.newest(), await bucket.points.oldest()
    target = tmp / "log.db"
    target.unlink(missing_ok=True)
    await bucket.restore(end, target)
    search = HistorySearch(store or bucket.store, bucket.keyring, bucket.uuid, end)
    changelogs = ChangelogReader(store or bucket.store, bucket.keyring, bucket.uuid)
    db = Database.open(target, Pragmas())
    try:
        versions = PathVersions(db, search, changelogs, oldest.txg, end)
        bindings = await versions.bindings(path.split(b"/"))
        log = PathLog(db, search, changelogs, bindings, end.txg, former_names_max=former_names_max)
        async with aclosing(log.backwards(Txg(first))) as found:
            return [one.txg async for one in found]
    finally:
        db.close()
