"""Fixtures: a cache with a real database, real files and a store that can fail on request."""

import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.fetching.fetcher import DamageHandlers, Found
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.limits import MIB
from s3fs_meta.meta import placements
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.placements import Placed
from s3fs_meta.meta.tables import block_map, packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import CacheOptions
from s3fs_meta.testing.faulty_store import FaultyStore

INO = Ino(7)


class CacheBench:
    """A block cache with its database, its block files and a store that can fail."""

    def __init__(self, home: Path) -> None:
        self.store = FaultyStore(MemoryStore())
        self.keyring = Keyring(None, bytes(32))
        facts = {"uuid": b"u", "block_bytes": b"1048576", "cookie_key": bytes(16)}
        self.db = Database.create(home / "meta.db", Pragmas(), facts)
        self.files = BlockFiles(home / "blocks", home / "tmp")
        # The damaged blocks that the cache reported; True means that the block's pack is missing.
        self.heard: list[tuple[int, bool]] = []
        self.asked: list[int] = []  # The cache tried to find these blocks in other packs.
        self.elsewhere: Found | None = None
        self.cache = self.new_cache()

    async def _find_other_copy(self, located: Located) -> Found | None:
        self.asked.append(located.block)
        return self.elsewhere

    def new_cache(self, bytes_max: int = 64 * MIB) -> BlockCache:
        """Return a new cache on the existing database, files and store, as after a remount."""
        cache = BlockCache(
            self.db,
            self.store,
            self.keyring,
            self.files,
            CacheOptions(cache_bytes=bytes_max, read_timeout_s=60, write_timeout_s=60),
            DamageHandlers(
                lambda located, is_missing: self.heard.append((located.block, is_missing)),
                self._find_other_copy,
            ),
        )
        cache.load()
        self.cache = cache
        return cache

    def write(self, index: int, content: bytes) -> BlockId:
        """Write block *index* of the file INO, and return the block number."""
        self.db.begin()
        return self.cache.write_new(INO, BlockIndex(index), 0, content)

    async def log_writes(self) -> bool:
        """Make all content durable by an intent log entry; return False if the log is unusable."""
        return await self.cache.block_sync.log_writes(
            meanwhile=self.db.commit, afterwards=self.db.sync_wal
        )

    async def prepare_log(self, size_bytes: int) -> None:
        """Allocate the intent log, so that the next sync can use it."""
        await self.cache.block_sync.prepare_log(size_bytes)
        await self.cache.block_sync.sync_files()

    def located(self, index: int) -> Located:
        """Return the location of block *index* in the file INO."""
        found = block_map.locate(self.db, INO, BlockIndex(index))
        assert found is not None
        return found

    async def upload_content(self, content: bytes) -> BlockId:
        """Write and upload block 0 of the file INO; return the number of the clean block."""
        block = self.write(0, content)
        await self.upload(0)
        return block

    async def store_evicted(self, count: int, size_bytes: int) -> list[bytes]:
        """Upload blocks of the file INO in one pack, evict them, and return the blocks' data."""
        rng = random.Random(count)
        contents = [rng.randbytes(size_bytes) for _ in range(count)]
        for index, content in enumerate(contents):
            self.write(index, content)
        await self.upload(*range(count))
        self.db.begin()
        self.cache.evictor.evict_bytes(1 << 60)
        self.store.calls.clear()
        return contents

    async def pack_keys(self) -> AsyncIterator[ObjectKey]:
        """Yield the keys of all packs in the store."""
        async for info in self.store.list("pack/"):
            yield info.key

    async def upload(self, *indexes: int) -> ObjectKey:
        """Upload blocks of the file INO in one pack, and return the key of the pack."""
        found = [self.located(index) for index in indexes]
        random_bytes = found[0].block.to_bytes(16, "big")
        key = pack_codec.new_key(Epoch(1), random_bytes)
        writer = pack_codec.PackWriter(key, self.keyring, "zstd-1")
        for index, located in zip(indexes, found, strict=True):
            content = self.cache.read_local(located, 0, located.plain_bytes)
            content_hash = self.keyring.block_hash(content)
            writer.add(located.block, INO, BlockIndex(index), content_hash, memoryview(content))
        pack = writer.finish()
        await self.store.create(key, pack.data)
        self.db.begin()
        self.cache.seal(located.block for located in found)
        number = packs.create(self.db, key, len(pack.data))
        packs.stored(self.db, number)
        placements.apply(
            self.db,
            [
                Placed(entry.block, entry.hash, number, entry.offset, entry.stored_bytes)
                for entry in pack.entries
            ],
        )
        for located in found:
            self.cache.uploaded(located.block)
        await self.cache.settle([located.block for located in found], [])
        self.db.commit()
        return key

    def watch_removals(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Return a list that gets the thread's id whenever a thread removes a block file."""
        removed_by: list[int] = []
        remove, remove_all = self.files.remove, self.files.remove_all

        def one(block: BlockId) -> None:
            removed_by.append(threading.get_ident())
            remove(block)

        def several(gone: Sequence[BlockId]) -> None:
            removed_by.extend(threading.get_ident() for _ in gone)
            remove_all(gone)

        monkeypatch.setattr(self.files, "remove", one)
        monkeypatch.setattr(self.files, "remove_all", several)
        return removed_by


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CacheBench]:
    """Yield an empty cache with its database, files and store."""
    made = CacheBench(tmp_path)
    yield made
    made.db.close()
