"""Random operations on inodes, dentries and blocks, for tests of derived rows and counters."""

import random
import stat

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, dentries, hard_links, inodes, symlinks, xattrs
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino


class Tree:
    """Random operations on files in the root directory, as a mount performs them."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.rnd = random.Random(seed)
        self.names: list[bytes] = []
        self.now_ns = 1_760_000_000_000_000_000

    def step(self) -> None:
        """Run one random operation."""
        self.now_ns += self.rnd.randrange(1, 10**9)
        self.db.begin()
        if not self.names or self.rnd.random() < 0.3:
            self.create()
            return
        name = self.rnd.choice(self.names)
        ino = dentries.find(self.db, ROOT_INO, name)
        assert ino is not None
        change = self.rnd.choice(
            [self.link, self.unlink, self.set_attribute, self.write, self.punch, self.chmod]
        )
        change(name, ino)

    def new_name(self) -> bytes:
        """Return a random name that is not in use."""
        while True:
            name = self.rnd.randbytes(self.rnd.randrange(1, 20)).hex().encode() + b"\xff"
            if name not in self.names:
                return name

    def enter(self, ino: Ino) -> None:
        """Add a dentry for an inode."""
        name = self.new_name()
        dentries.add(self.db, ROOT_INO, name, ino)
        inodes.change_directory(self.db, ROOT_INO, self.now_ns, entries=1)
        self.names.append(name)

    def create(self) -> None:
        """Create a file or a symbolic link."""
        mode = self.rnd.choice([0o100644, 0o120777])
        made = inodes.create(self.db, mode, 1, 2, ROOT_INO, self.now_ns)
        if mode == 0o120777:
            symlinks.create(self.db, made.ino, self.rnd.randbytes(20))
        self.enter(made.ino)

    def link(self, _name: bytes, ino: Ino) -> None:
        """Add a hard link to a file."""
        hard_links.link_added(self.db, inodes.get(self.db, ino), ROOT_INO)
        inodes.add_links(self.db, ino, 1, self.now_ns)
        self.enter(ino)

    def unlink(self, name: bytes, ino: Ino) -> None:
        """Remove one name of a file; delete the inode with its last name."""
        before = inodes.get(self.db, ino)
        dentries.remove(self.db, ROOT_INO, name)
        self.names.remove(name)
        inodes.change_directory(self.db, ROOT_INO, self.now_ns, entries=-1)
        hard_links.link_removed(self.db, before, ROOT_INO)
        inodes.add_links(self.db, ino, -1, self.now_ns)
        if before.nlink == 1:
            symlinks.delete(self.db, ino)
            xattrs.delete_all(self.db, ino)
            for index, _block in block_map.indexes_from(self.db, ino, BlockIndex(0), 1000):
                block_map.remove(self.db, ino, index)
            inodes.delete(self.db, ino)

    def set_attribute(self, _name: bytes, ino: Ino) -> None:
        """Set or remove an extended attribute."""
        name = self.rnd.choice([b"user.a", b"user.b"])
        if xattrs.find(self.db, ino, name) is not None and self.rnd.random() < 0.5:
            xattrs.remove(self.db, ino, name)
        else:
            xattrs.set(self.db, ino, name, self.rnd.randbytes(self.rnd.randrange(50)))

    def write(self, _name: bytes, ino: Ino) -> None:
        """Map a new block into the inode if it is a file."""
        if not stat.S_ISREG(inodes.get(self.db, ino).mode):
            return
        block = self.db.counters.take_block()
        old = block_map.set(self.db, ino, BlockIndex(self.rnd.randrange(5)), BlockId(block))
        mapped = 1 if old is None else 0
        size = inodes.get(self.db, ino).size_bytes
        inodes.set_size_and_mtime(self.db, ino, size + 1, self.now_ns, mapped)

    def punch(self, _name: bytes, ino: Ino) -> None:
        """Remove a block from the block map, which creates a hole."""
        if block_map.remove(self.db, ino, BlockIndex(self.rnd.randrange(5))) is not None:
            inodes.add_mapped_blocks(self.db, ino, -1)

    def chmod(self, _name: bytes, ino: Ino) -> None:
        """Change the mode and the times of an inode."""
        before = inodes.get(self.db, ino)
        inodes.replace(self.db, before._replace(mode=before.mode ^ 0o111, ctime_ns=self.now_ns))
        inodes.touch(self.db, ino, atime_ns=self.now_ns + 5)
