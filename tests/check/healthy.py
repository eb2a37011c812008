"""A random filesystem without damage, to which tests of fsck do damage."""

import os
import random
import stat
from collections.abc import Iterable
from pathlib import Path

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check.fsck import check_database
from s3fs_meta.check.invariants import INVARIANTS
from s3fs_meta.check.report import Mode, Report, Severity
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.hashed_dir import NumberedDir
from s3fs_meta.limits import KIB
from s3fs_meta.meta import placements
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.placements import Placed
from s3fs_meta.meta.tables import (
    block_map,
    blocks,
    cached_blocks,
    dentries,
    hard_links,
    inodes,
    packs,
    symlinks,
    xattrs,
)
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, BlockState, Epoch, Ino, PackId
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.memory import MemoryStore

BLOCK_BYTES = 64 * KIB
NOW_NS = 1_760_000_000_000_000_000
PROPERTIES = {
    "uuid": b"00000000-0000-4000-8000-000000000000",
    "block_bytes": b"%d" % BLOCK_BYTES,
    "cookie_key": bytes(range(16)),
}
# The index of the column with the inode number in each table. Blocks and packs belong to no inode.
OWNER_COLUMNS = {
    "inodes": 0,
    "dentries": 0,
    "hard_links": 0,
    "symlinks": 0,
    "xattrs": 0,
    "block_map": 0,
}
OTHER_TABLES = ("blocks", "packs", "cached_blocks", "copies", "counters", "properties")

Dump = dict[str, set[Row]]


class Healthy:
    """A filesystem with its cache directory and its bucket.

    The following inodes always exist: ``directory`` with the subdirectory ``inner``; in
    ``directory`` the file ``uploaded`` of three blocks and a hole, and the file ``dirty`` with
    dirty blocks; ``linked``, a file with two names in ``directory`` and one in the root;
    ``symlink``; ``fifo``; and the file ``attributed`` with extended attributes. All other inodes
    are random.
    """

    def __init__(
        self, home: Path, seed: int = 1, steps: int = 30, keyring: Keyring | None = None
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.rnd = random.Random(seed)
        self.epoch = Epoch(100)  # The epoch of the host that runs fsck.
        self.keyring = keyring or Keyring(None, bytes(32))
        self.store = MemoryStore()
        self.db = Database.create(
            home / "meta.db", Pragmas(synchronous="off"), PROPERTIES, now_ns=NOW_NS
        )
        self.tmp = home / "tmp"
        self.files = BlockFiles(home / "blocks", self.tmp)
        self.directories = [ROOT_INO]
        self.regular: list[Ino] = []
        self.db.begin()
        for step in (self._mkdir, self._create, self._write, self._create):
            step()
        self._make_known()
        for _ in range(steps):
            self._random_step()
        self.dirty = self.create(self.directory, b"dirty")
        for index in (0, 1):
            self.write(self.dirty, index, self.rnd.randbytes(2000 + index))
        self.db.commit()
        self.before = self.dump()

    # --- changes to the filesystem -------------------------------------------------------------

    def _make_known(self) -> None:
        self.directory = self.mkdir(ROOT_INO, b"directory")
        self.inner = self.mkdir(self.directory, b"inner")
        self.uploaded = self.create(self.directory, b"uploaded")
        for index in (0, 1, 3):
            self.write(self.uploaded, index, self.rnd.randbytes(3000 + index))
        self.upload()
        self.linked = self.create(self.directory, b"linked")
        self.link(self.linked, self.directory, b"linked again")
        self.link(self.linked, ROOT_INO, b"linked elsewhere")
        self.symlink = self.make_symlink(self.directory, b"symlink", b"uploaded")
        self.fifo = self.create(self.inner, b"fifo", stat.S_IFIFO | 0o600)
        self.attributed = self.create(self.inner, b"attributed")
        xattrs.set(self.db, self.attributed, b"user.colour", b"blue")
        xattrs.set(self.db, self.attributed, b"user.empty", b"")

    def _random_step(self) -> None:
        self.rnd.choice(
            [
                self._mkdir,
                self._create,
                self._create,
                self._write,
                self._write,
                self._link,
                self._symlink,
                self._attribute,
                self._unlink,
                self._share,
                self.upload,
                self._evict,
            ]
        )()

    def _name(self) -> bytes:
        raw = self.rnd.randbytes(self.rnd.randrange(1, 40))
        return raw.replace(b"/", b"_").replace(b"\0", b"_") + b"%d" % self.db.counters.dentries

    def _mkdir(self) -> None:
        self.directories.append(self.mkdir(self.rnd.choice(self.directories), self._name()))

    def _create(self) -> None:
        self.regular.append(self.create(self.rnd.choice(self.directories), self._name()))

    def _write(self) -> None:
        ino, index = self.rnd.choice(self.regular), self.rnd.randrange(4)
        if block_map.find(self.db, ino, BlockIndex(index)) is None:
            self.write(ino, index, self.rnd.randbytes(self.rnd.randrange(1, 200)))

    def _link(self) -> None:
        self.link(self.rnd.choice(self.regular), self.rnd.choice(self.directories), self._name())

    def _symlink(self) -> None:
        self.make_symlink(self.rnd.choice(self.directories), self._name(), self._name())

    def _attribute(self) -> None:
        ino = self.rnd.choice(self.regular)
        xattrs.set(self.db, ino, b"user.%d" % self.rnd.randrange(9), self._name())

    def _unlink(self) -> None:
        """Remove one name of a file that has several names."""
        ino = self.rnd.choice(self.regular)
        row = inodes.get(self.db, ino)
        if row.nlink < 2:
            return
        parent, _ = self.rnd.choice(hard_links.parents(self.db, ino))
        name = self.name_of(parent, ino)
        dentries.remove(self.db, parent, name)
        hard_links.link_removed(self.db, row, parent)
        inodes.add_links(self.db, ino, -1, NOW_NS)
        inodes.change_directory(self.db, parent, NOW_NS, entries=-1)

    def _share(self) -> None:
        """Map an uploaded block at a second position, as deduplication does."""
        located = block_map.locate(self.db, self.uploaded, BlockIndex(0))
        ino, index = self.rnd.choice(self.regular), BlockIndex(self.rnd.randrange(4, 9))
        if located is None or block_map.find(self.db, ino, index) is not None:
            return
        block_map.set(self.db, ino, index, located.block)
        blocks.add_ref(self.db, located.block)
        self.grow(ino, index, located.plain_bytes)

    def _evict(self) -> None:
        clean = cached_blocks.in_state(self.db, BlockState.CLEAN)
        if clean:
            self.forget_copy(self.rnd.choice(clean))

    def mkdir(self, parent: Ino, name: bytes) -> Ino:
        """Create a directory."""
        made = inodes.create(self.db, stat.S_IFDIR | 0o755, 1, 2, parent, NOW_NS, nlink=2)
        dentries.add(self.db, parent, name, made.ino)
        inodes.change_directory(self.db, parent, NOW_NS, entries=1, subdirectories=1)
        return made.ino

    def create(self, parent: Ino, name: bytes, mode: int = stat.S_IFREG | 0o644) -> Ino:
        """Create an empty file."""
        made = inodes.create(self.db, mode, 1, 2, parent, NOW_NS)
        dentries.add(self.db, parent, name, made.ino)
        inodes.change_directory(self.db, parent, NOW_NS, entries=1)
        return made.ino

    def make_symlink(self, parent: Ino, name: bytes, target: bytes) -> Ino:
        """Create a symbolic link."""
        mode = stat.S_IFLNK | 0o777
        made = inodes.create(self.db, mode, 1, 2, parent, NOW_NS, size_bytes=len(target))
        symlinks.create(self.db, made.ino, target)
        dentries.add(self.db, parent, name, made.ino)
        inodes.change_directory(self.db, parent, NOW_NS, entries=1)
        return made.ino

    def link(self, ino: Ino, parent: Ino, name: bytes) -> None:
        """Add another name to a file."""
        hard_links.link_added(self.db, inodes.get(self.db, ino), parent)
        inodes.add_links(self.db, ino, 1, NOW_NS)
        dentries.add(self.db, parent, name, ino)
        inodes.change_directory(self.db, parent, NOW_NS, entries=1)

    def write(self, ino: Ino, index: int, content: bytes) -> BlockId:
        """Fill a hole in a file with a dirty block."""
        block = self.db.counters.take_block()
        self.files.create(block, 0, content)
        blocks.create_dirty(self.db, block, ino, BlockIndex(index), len(content))
        block_map.set(self.db, ino, BlockIndex(index), block)
        self.grow(ino, index, len(content))
        return block

    def grow(self, ino: Ino, index: int, length: int) -> None:
        """Extend a file to the end of a block."""
        size = max(inodes.get(self.db, ino).size_bytes, index * BLOCK_BYTES + length)
        inodes.set_size_and_mtime(self.db, ino, size, NOW_NS, 1)

    def upload(self, *chosen: BlockId) -> None:
        """Upload the given blocks, or every dirty block, in one pack. The blocks stay cached."""
        pending = chosen or cached_blocks.in_state(self.db, BlockState.DIRTY)
        if not pending:
            return
        writer = pack_codec.PackWriter(
            pack_codec.new_key(Epoch(1), self.rnd.randbytes(16)), self.keyring, "zstd-1"
        )
        for block in pending:
            row = cached_blocks.get(self.db, block)
            assert row is not None
            content = self.files.read(block, 0, blocks.get(self.db, block).plain_bytes)
            digest = self.keyring.block_hash(content)
            writer.add(block, row.ino, row.block_index, digest, content)
        pack = writer.finish()
        self.store.objects[pack.key] = bytes(pack.data)
        number = packs.create(self.db, pack.key, len(pack.data))
        packs.stored(self.db, number)
        for entry in pack.entries:
            placed = Placed(entry.block, entry.hash, number, entry.offset, entry.stored_bytes)
            placements.apply(self.db, [placed])
            cached_blocks.set_state(self.db, entry.block, BlockState.CLEAN)

    def write_uploaded(self, ino: Ino, *contents: bytes) -> list[BlockId]:
        """Write the first blocks of a file, upload the blocks in a new pack, and commit."""
        self.db.begin()
        made = [self.write(ino, index, content) for index, content in enumerate(contents)]
        self.upload(*made)
        self.db.commit()
        self.before = self.dump()
        return made

    def evict(self, *chosen: BlockId) -> None:
        """Evict cached blocks and commit."""
        self.db.begin()
        for block in chosen:
            self.forget_copy(block)
        self.db.commit()
        self.before = self.dump()

    def forget_copy(self, block: BlockId) -> None:
        """Evict the cached copy of an uploaded block."""
        cached_blocks.delete(self.db, block)
        self.files.remove(block)

    def shorten(self, block: BlockId, length: int) -> None:
        """Truncate the cache file of a block, as if the last write to the file had been lost."""
        os.truncate(NumberedDir(self.files.root).path(f"{block:x}"), length)

    def add_lease(self) -> None:
        """Put a released lease into the bucket, because fsck requires a lease."""
        lease = Lease(
            Epoch(1), "holder", "host", 1, NOW_NS, released=True, head=None, nonce="00" * 16
        )
        self.store.objects[lease_codec.KEY] = lease_codec.encode(lease)

    # --- reading the state of the filesystem ---------------------------------------------------

    def name_of(self, parent: int, ino: int) -> bytes:
        """Return a name of an inode in a directory."""
        row = self.db.one("SELECT name FROM dentries WHERE parent = ? AND ino = ?", (parent, ino))
        assert row is not None
        return bytes(row[0])

    def lost_and_found(self) -> Ino:
        """Return the directory ``lost+found``, which must exist."""
        found = dentries.find(self.db, ROOT_INO, b"lost+found")
        assert found is not None
        return found

    def block_of(self, ino: Ino, index: int) -> BlockId:
        """Return the block at an index of a file."""
        block = block_map.find(self.db, ino, BlockIndex(index))
        assert block is not None
        return block

    def pack_of(self, ino: Ino, index: int) -> PackId:
        """Return the pack that contains an uploaded block."""
        pack = blocks.get(self.db, self.block_of(ino, index)).pack
        assert pack is not None
        return pack

    def sql(self, statement: str, *arguments: int | str | bytes | None) -> None:
        """Execute one SQL statement on the database directly, and commit."""
        self.db.begin()
        self.db.inodes.run(statement, arguments)
        self.db.commit()

    def dump(self) -> Dump:
        """Return all rows of the tables in OWNER_COLUMNS and OTHER_TABLES."""
        tables = (*OWNER_COLUMNS, *OTHER_TABLES)
        return {table: set(self.db.inodes.all(f"SELECT * FROM {table}")) for table in tables}

    def dump_without_syncs(self) -> Dump:
        """Return the rows of ``dump``, as if no cache file had been synced."""
        columns = "block, state, ino, block_index, 0"
        rows = set(self.db.all(f"SELECT {columns} FROM cached_blocks"))
        return {**self.dump(), "cached_blocks": rows}

    def changed_inodes(self) -> set[int]:
        """Return the inodes and directories whose rows differ from the rows in ``before``."""
        after = self.dump()
        return {
            row[column]
            for table, column in OWNER_COLUMNS.items()
            for row in self.before[table] ^ after[table]
        }

    # --- checking and repairing the filesystem -------------------------------------------------

    def check(self, repair: Mode = Mode.REPORT, *, mounted: bool = False) -> Report:
        """Check the database, but neither the cache directory nor the bucket."""
        report = Report()
        return check_database(self.db, repair=repair, report=report, mounted=mounted)

    async def check_all(
        self,
        repair: Mode = Mode.REPORT,
        *,
        deep: bool = False,
        delete_unknown: bool = False,
        store: ObjectStore | None = None,
    ) -> Report:
        """Check the database, the cache directory and the bucket."""
        cache = CacheDirectory(self.files.root, self.tmp)
        return await check_filesystem(
            Examined(
                self.db,
                store or self.store,
                self.keyring,
                cache,
                epoch=self.epoch,
                facts=PROPERTIES,
            ),
            FsckOptions(repair, deep, delete_unknown),
            Report(),
            SystemClock(),
        )

    def assert_mended(self, *broken: str, concerns: Iterable[int] = ()) -> None:
        """Require that exactly the invariants *broken* are violated, and that a repair succeeds.

        Only rows of the inodes in *concerns* may differ after the repair. *broken* contains names
        of invariants, such as I26.
        """
        assert self.check().broken == list(broken)
        if not _all_safe(broken):
            assert self.check(Mode.SAFE).exit_status == 4
        report = self.check(Mode.SAFE if _all_safe(broken) else Mode.ALL)
        assert (report.exit_status, report.broken) == (_corrected(broken), list(broken))
        assert self.check().lines() == ["clean"]
        assert self.changed_inodes() <= set(concerns)

    def assert_repaired(self) -> None:
        """Require that a repair of damaged rows succeeds, after which fsck finds no damage."""
        assert self.check(Mode.ALL).exit_status == 1
        assert self.check().lines() == ["clean"]

    async def assert_all_repaired(self) -> None:
        """Call ``assert_repaired``, and also check the cache directory and the bucket."""
        assert (await self.check_all(Mode.ALL)).exit_status == 1
        assert (await self.check_all()).lines() == ["clean"]

    async def assert_all_mended(
        self, *broken: str, concerns: Iterable[int] = (), deep: bool = False
    ) -> None:
        """Call ``assert_mended``, and also check the cache directory and the bucket."""
        assert (await self.check_all(deep=deep)).broken == list(broken)
        mode = Mode.SAFE if _all_safe(broken) else Mode.ALL
        report = await self.check_all(mode, deep=deep)
        assert (report.exit_status, report.broken) == (_corrected(broken), list(broken))
        assert (await self.check_all(deep=deep)).lines() == ["clean"]
        assert self.changed_inodes() <= set(concerns)


def _all_safe(broken: Iterable[str]) -> bool:
    return all(one.safe for one in INVARIANTS if one.name in broken)


def _corrected(broken: Iterable[str]) -> int:
    """Return the exit status of a repair: 0 if it only removed a crash's leftovers, otherwise 1."""
    named = [one for one in INVARIANTS if one.name in broken]
    return 1 if any(one.severity is Severity.DAMAGE for one in named) else 0
