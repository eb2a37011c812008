"""Helpers that write files, keep points and read kept files from the bucket alone."""

from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import BlockIndex, Ino, PointInTime
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.history.snapshot_mount import open_snapshot, read_bucket
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import let_go
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.uncached_reads import UncachedReader
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, remove_file, write_file

Files = dict[Ino, bytes]


def fill(session: Session, files: Files, *contents: bytes) -> None:
    """Write one file for each of the given contents."""
    for content in contents:
        files[write_file(session, content)] = content


def empty(session: Session, files: Files) -> None:
    """Remove all files."""
    for ino in list(files):
        remove_file(session, ino)
        del files[ino]


async def forget(session: Session, *, times: int = 1) -> None:
    """Make three images and reclaim; without retention, only the last two images remain."""
    for _ in range(times):
        for number in range(3):
            write_file(session, b"later %d" % number)
            await session.make_image()
        await session.reclaimer.reclaim_all()


async def kept_files(session: Session, name: str = "a", count: int = 3) -> Files:
    """Write files in several txgs after an image, keep this point, and return the files."""
    files: Files = {}
    for number in range(count):
        fill(session, files, b"%d" % number * 3000)
        await session.flush()
    await PointKeeper(session).keep(name)
    return dict(files)


async def files_at(power: Power, name: str) -> Files:
    """Return the content of all one-block files at a kept point."""
    return await files_of(power, PointInTime(name, kept=name))


async def files_of(power: Power, wanted: PointInTime) -> Files:
    """Return the content of all one-block files at a point in time."""
    bucket = await read_bucket(power.store, power.remembered("-"), power.secret, power.clock)
    volume = await open_snapshot(bucket, StateDir(power.home / "past"), OpenOptions(), wanted)
    try:
        assert volume.notices == ()
        # UncachedReader reads only the bucket, so it fails if a pack is missing there.
        reader = UncachedReader(volume.db, volume.store, volume.keyring)
        found: Files = {}
        for ino, size_bytes in volume.db.all("SELECT ino, size_bytes FROM inodes WHERE ino > 1"):
            located = block_map.locate_range(volume.db, Ino(ino), BlockIndex(0), BlockIndex(0))
            [content] = await reader.read(list(located.values()))
            assert len(content.data) == size_bytes
            found[Ino(ino)] = content.data
        return found
    finally:
        volume.db.close()
        let_go(volume)
