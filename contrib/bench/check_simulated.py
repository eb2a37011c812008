"""Run fsck on a filesystem whose database lists packs that its bucket does not contain.

``python -m contrib.bench.check_simulated BUCKET DATABASE`` checks the filesystem. The listing of
the bucket is generated from the rows of packs. The program prints its peak memory in bytes, then
the report of fsck. The check runs in a separate process, so that only fsck contributes to the peak.
The process reads its own peak: the ``ru_maxrss`` that its parent could read would include memory
from before exec.
"""

import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import trio
from typing_extensions import override

from contrib.bench import machine
from s3fs_meta.check.report import Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_keys
from s3fs_meta.sync.superblock.unlocking import Passphrase

PAGE_ROWS = 1000


class SimulatedStore(LocalStore):
    """A store whose listing contains one object for each row of the table ``packs``."""

    def __init__(self, bucket: Path, db: Database) -> None:
        super().__init__(bucket)
        self._db = db

    @override
    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the real objects and one object for each row of ``packs``, ordered by key."""
        async for info in super().list(prefix, after=after):
            yield info
        if not "pack/".startswith(prefix) and not prefix.startswith("pack/"):
            return
        last = 0
        while rows := self._db.all(
            "SELECT pack, object_key, object_bytes FROM packs WHERE pack > ? ORDER BY pack LIMIT ?",
            (last, PAGE_ROWS),
        ):
            await trio.lowlevel.checkpoint()
            for pack, key, size_bytes in rows:
                last = pack
                if key.startswith(prefix) and key > after:
                    yield ObjectInfo(ObjectKey(key), size_bytes)


async def check(bucket: Path, database: Path) -> list[str]:
    """Run fsck on the filesystem; return the lines of the report."""
    db = Database.open(database, Pragmas(), read_only=True, repairing=True)
    try:
        store = SimulatedStore(bucket, db)
        keys = await open_keys(store, Remembered(bucket), Passphrase(bytes))
        examined = Examined(db, store, keys.keyring, mounted=True)
        return (await check_filesystem(examined, FsckOptions(), Report(), SystemClock())).lines()
    finally:
        db.close()


if __name__ == "__main__":
    lines = trio.run(check, Path(sys.argv[1]), Path(sys.argv[2]))
    print(machine.memory_bytes(os.getpid())["resident_peak"])
    print("\n".join(lines))
