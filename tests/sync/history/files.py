"""Helpers that change files in a session and ship each change as a separate txg."""

from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.tables import dentries, hard_links, inodes
from s3fs_meta.model import ROOT_INO, BlockIndex, Ino, Txg
from s3fs_meta.sync.session import Session
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import remove_file, write_file
from tests.sync.history.index_matches import index_all


class Files:
    """File operations in one session; each operation ships a txg."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.db = session.db

    async def ship(self) -> Txg:
        """Ship the changes and return their txg."""
        await self.session.shipper.ship(anyway=True)
        return self.session.link.txg

    async def make(
        self, name: bytes, size: int, parent: Ino = ROOT_INO, content: bytes = b""
    ) -> tuple[Ino, Txg]:
        """Create a file with a name, and ship the txg."""
        ino = write_file(self.session, content or (b"%d" % size * size)[:size])
        inodes.set_parent(self.db, ino, parent)
        dentries.add(self.db, parent, name, ino)
        return ino, await self.ship()

    async def make_directory(self, name: bytes, parent: Ino = ROOT_INO) -> Ino:
        """Create a directory, and ship the txg."""
        self.db.begin()
        ino = inodes.create(self.db, 0o40755, 0, 0, parent, 0, nlink=2).ino
        dentries.add(self.db, parent, name, ino)
        await self.ship()
        return ino

    async def write(self, ino: Ino, size: int) -> Txg:
        """Add a block to a file and change its size."""
        self.db.begin()
        self.session.cache.write_new(ino, BlockIndex(size), 0, b"x")
        inodes.set_size(self.db, ino, size, 1)
        return await self.ship()

    async def rename(self, old: bytes, new: bytes, parent: Ino = ROOT_INO) -> Txg:
        """Rename a file; an existing file with the new name is removed."""
        self.db.begin()
        ino = dentries.remove(self.db, parent, old)
        if dentries.find(self.db, parent, new) is None:
            dentries.add(self.db, parent, new, ino)
        else:
            remove_file(self.session, dentries.replace(self.db, parent, new, ino))
        inodes.touch(self.db, ino, ctime_ns=10**18 + self.session.link.txg)
        return await self.ship()

    async def remove(self, name: bytes, parent: Ino = ROOT_INO) -> Txg:
        """Remove a file of one block."""
        self.db.begin()
        remove_file(self.session, dentries.remove(self.db, parent, name))
        return await self.ship()

    async def move(self, name: bytes, old: Ino, new: Ino) -> Txg:
        """Move a file or directory from one directory to another."""
        self.db.begin()
        ino = dentries.remove(self.db, old, name)
        dentries.add(self.db, new, name, ino)
        hard_links.moved(self.db, inodes.get(self.db, ino), old, new)
        return await self.ship()

    async def link(self, ino: Ino, name: bytes, parent: Ino) -> Txg:
        """Add a hard link to a file."""
        self.db.begin()
        hard_links.link_added(self.db, inodes.get(self.db, ino), parent)
        inodes.add_links(self.db, ino, 1, 0)
        dentries.add(self.db, parent, name, ino)
        return await self.ship()

    async def remove_directory(self, name: bytes, parent: Ino = ROOT_INO) -> Txg:
        """Remove an empty directory."""
        self.db.begin()
        inodes.delete(self.db, dentries.remove(self.db, parent, name))
        return await self.ship()

    async def index(self, empty: int = 2 * HISTORY_FAN_OUT) -> None:
        """Append empty changelogs, and build the history index of all earlier txgs."""
        await append_empty_changelogs(self.session, empty)
        await index_all(self.session)
        self.db.counters.begin_txg(self.session.link.next_txg)
