"""A tree that changes at random, and copies of its past states, which must equal records."""

import random

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.model import ROOT_INO, Ino, Txg
from tests.fs.conftest import BLOCK_BYTES, Volume, look, make_directory, make_file
from tests.fs.past.copying import Copier
from tests.fs.trees.samples import assert_sound, facts, settled

Facts = dict[bytes, tuple[object, ...]]


class History:
    """A filesystem with a tree that changes at random."""

    def __init__(self, fs: Filesystem, volume: Volume, chance: random.Random) -> None:
        self.fs = fs
        self.volume = volume
        self.chance = chance
        self.copier = Copier(fs, volume.session)
        self.top = make_directory(fs, b"tree")
        self.files: dict[bytes, tuple[Ino, bytes]] = {}  # Directory and name of each file.
        self.directories = [self.top]
        self.seen: dict[Txg, Facts] = {}
        self.copies: dict[bytes, Facts] = {}
        self.count = 0

    def _name(self, kind: bytes) -> bytes:
        self.count += 1
        return b"%s %d" % (kind, self.count)

    async def create(self) -> None:
        """Create a file with a few blocks, or a directory."""
        parent, name = self.chance.choice(self.directories), self._name(b"new")
        if self.chance.random() < 0.2:
            self.directories.append(make_directory(self.fs, name, parent))
            return
        ino = make_file(self.fs, name, parent)
        self.files[name] = (parent, name)
        await self._write(ino)

    async def _write(self, ino: Ino) -> None:
        for index in self.chance.sample(range(4), self.chance.randint(1, 4)):
            data = bytes([self.chance.randint(1, 5)]) * self.chance.choice([10, BLOCK_BYTES])
            await self.fs.write(ino, index * BLOCK_BYTES, data)

    async def change(self) -> None:
        """Write into a file, rename it, add a hard link to it, or remove it."""
        if not self.files:
            return
        key = self.chance.choice(list(self.files))
        parent, name = self.files[key]
        ino = look(self.fs, name, parent).ino
        match self.chance.randrange(5):
            case 0 | 1:
                await self._write(ino)
            case 2:
                new = self.chance.choice(self.directories), self._name(b"moved")
                self.fs.namespace.rename(parent, name, *new)
                self.files[key] = new
            case 3:
                new = self.chance.choice(self.directories), self._name(b"linked")
                self.fs.namespace.link(ino, *new)
                self.files[new[1]] = new
            case _:
                self.fs.namespace.unlink(parent, name)
                del self.files[key]

    async def ship(self) -> None:
        """Upload all changes; record the tree at this txg."""
        await self.volume.upload()
        self.seen[self.volume.session.link.txg] = await facts(self.fs, self.top)

    async def copy(self) -> None:
        """Copy the tree as it was at a random txg."""
        if not self.seen:
            return
        txg, name = self.chance.choice(list(self.seen)), self._name(b"copy")
        await self.copier.copy(txg, target=CloneTarget(ROOT_INO, name))
        self.copies[name] = self.seen[txg]

    async def forget(self) -> None:
        """Remove a copy, compact packs, or make an image."""
        match self.chance.randrange(3):
            case 0 if self.copies:
                name = self.chance.choice(list(self.copies))
                self.fs.tree_removal.remove(ROOT_INO, name, look(self.fs, name).ino)
                await settled(self.fs)
                del self.copies[name]
            case 1:
                await self.volume.session.compactor.run_once()
            case _:
                await self.volume.session.make_image()

    async def compare(self) -> None:
        """Require that every copy equals the recorded tree of its txg."""
        for name, wanted in self.copies.items():
            assert await facts(self.fs, look(self.fs, name).ino) == wanted, name
        assert_sound(self.fs)
