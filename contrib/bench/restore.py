"""The time of a restore until the first ``ls``, from an image and many changelogs.

On a host without local state, restores with level objects (merged changelogs) alternate with
restores without them. The bucket is a directory, so that no result includes network time. On a
network each object costs a round trip, so the benchmark also counts the objects.
"""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import trio

from contrib.bench import fill, local_bucket, machine, samples
from contrib.bench.subjects import S3fsSubject
from s3fs_meta.clock import SystemClock
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Txg
from s3fs_meta.sync.chain import levels
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_keys
from s3fs_meta.sync.superblock.unlocking import Passphrase

NAME_BYTES: Final = 16
FILES_PER_TXG: Final = 20
FILE_MODE: Final = 0o100644


def run(scratch: Path, *, many: int, txgs: int, rounds: int) -> dict[str, object]:
    """Make a filesystem of *many* empty files and *txgs* changelogs; measure its restores."""
    writer = S3fsSubject("writer", scratch / "writer", options={"sync_interval": "3600"})
    fill.make_filled(writer, files=many, per_directory=1000, name_bytes=NAME_BYTES)
    trio.run(_work, writer, 0)
    image_alone_s = [_first_ls(writer, scratch / f"image-{number}") for number in range(rounds)]
    trio.run(_work, writer, txgs)
    level = writer.bucket / "level"
    aside = scratch / "level"
    seconds: dict[str, list[float]] = {"levels": [], "changelogs": []}
    read = {name: trio.run(_objects, writer.bucket, name == "levels") for name in seconds}
    for number in range(rounds):
        seconds["levels"].append(_first_ls(writer, scratch / f"levels-{number}"))
        level.rename(aside)
        seconds["changelogs"].append(_first_ls(writer, scratch / f"changelogs-{number}"))
        aside.rename(level)
    return {
        "files": many,
        "txgs": txgs,
        "objects_read_besides_the_image": read,
        "seconds": {
            name: samples.summary(taken)
            for name, taken in {"image alone": image_alone_s, **seconds}.items()
        },
    }


async def _work(writer: S3fsSubject, txgs: int) -> None:
    """Ship *txgs* changelogs with new files, and merge them into levels; if 0, make an image."""
    clock = SystemClock()
    async with local_bucket.session_of(writer, clock) as session:
        if not txgs:
            await session.make_image()
        for txg in range(txgs):
            session.db.begin()
            for number in range(FILES_PER_TXG):
                now_ns = clock.now_ns()
                ino = inodes.create(session.db, FILE_MODE, 0, 0, ROOT_INO, now_ns).ino
                dentries.add(session.db, ROOT_INO, b"%010d-%05d" % (txg, number), ino)
                inodes.change_directory(session.db, ROOT_INO, now_ns, entries=1)
            await session.flush()
        await session.leveler.make_due()


async def _objects(bucket: Path, by_levels: bool) -> int:
    """Return the number of objects that a restore reads in addition to the newest image."""
    async with local_bucket.opened(bucket) as store:
        images = [info.key async for info in store.list("image/") if info.key.endswith("/manifest")]
        start = max(int(key.split("/")[1].split("-")[0]) for key in images)
        numbers = [int(info.key.split("/")[1]) async for info in store.list("changelog/")]
        if not by_levels:
            return max(numbers) - start
        keys = await open_keys(store, Remembered(bucket), Passphrase(bytes))
        ends = await levels.ends_by_first(store, keys.keyring, Txg(start))
    count, at, end = 0, start, max(numbers)
    while at < end:
        at = max((one for one in ends.get(Txg(at + 1), []) if one <= end), default=at + 1)
        count += 1
    return count


def _first_ls(writer: S3fsSubject, root: Path) -> float:
    """Mount the bucket without local state; return the seconds until ``ls`` returns."""
    reader = S3fsSubject("reader", root, options={"ro": ""}, beside=writer)
    machine.drop_kernel_caches()
    start = time.perf_counter()
    with reader:
        done = subprocess.run(["ls", reader.mountpoint], capture_output=True, check=True)
        taken_s = time.perf_counter() - start
        assert done.stdout, "the restored filesystem is empty"
    shutil.rmtree(root)
    return taken_s
