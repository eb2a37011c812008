"""The filesystems of the damage matrix, made with one fixed history of transaction groups.

txg  0        the image of mkfs
     1        the fence record of the writer
     2 … 7    files are created, changed, renamed and removed; a level of txgs 1 to 5
     5, 7     points in time that are kept
     8, 9     the newest image
    10        a changelog that no level object contains
    11 … 15   further changes; a level of txgs 11 to 15
    16        a changelog that refers to a separate part object
    17, 18    the last changes
    19        block locations, shipped at the unmount
"""

import random
import shutil
import stat
from pathlib import Path
from typing import Final
from unittest import mock

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.model import ROOT_INO, BlockIndex, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.superblock.changes import change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from tests.damage_matrix.world import (
    BLOCK_BYTES,
    PASSPHRASE,
    ROOT,
    Host,
    Objects,
    Record,
    World,
    bucket_of,
    host,
    past,
    secret_of,
)

IMAGE_AT: Final = Txg(9)
KEPT_AT: Final = (Txg(5), Txg(7))
EARLY_AT: Final = Txg(12)
PART_AT: Final = Txg(16)
LAST: Final = Txg(19)


async def build(home: Path, *, encrypted: bool) -> World:
    """Make a filesystem with its history, and the variants that some kinds of damage need.

    Args:
        home: an empty directory, which keeps the state directory of the writer.
        encrypted: whether the filesystem has a passphrase.
    """
    world = World(encrypted)
    store = MemoryStore()
    await _make(store, home, encrypted=encrypted)
    world.state = home / "writer"
    world.early_state = home / "writer-early"
    world.foreign_state = home / "foreign"
    world.young = dict(store.objects)
    await change(store, Remembered(world.state), secret_of(encrypted=encrypted), _retained)
    world.early = await _history(store, world.state, 1, encrypted=encrypted)
    world.objects = dict(store.objects)
    world.fork = await _fork(world.early, home, encrypted=encrypted)
    foreign = MemoryStore()
    await _make(foreign, home, encrypted=encrypted)
    await _history(foreign, world.foreign_state, 3, encrypted=encrypted)
    world.foreign = dict(foreign.objects)
    await _record_points(world, store, home / "past")
    return world


def _retained(superblock: Superblock, keyring: Keyring) -> Superblock:
    """Return a newer version of the superblock, with a retention of 30 days."""
    return superblock_codec.amend(superblock, keyring, retention_s=30 * 86_400)


async def _make(store: MemoryStore, home: Path, *, encrypted: bool) -> None:
    wanted = NewFilesystem(
        label="matrix",
        block_bytes=BLOCK_BYTES,
        page_size=4096,
        passphrase=PASSPHRASE if encrypted else None,
        cost=CHEAPEST_COST,
    )
    await make_filesystem(store, wanted, home, SystemClock())


async def _history(store: MemoryStore, state: Path, seed: int, *, encrypted: bool) -> Objects:
    """Write the history listed in the module's docstring; return the bucket's objects at txg 12."""
    early: Objects = {}
    rnd = random.Random(seed)
    async with host(store, state, encrypted=encrypted) as writer:
        while writer.session.link.txg < LAST - 1:
            txg = Txg(writer.session.link.txg + 1)
            await _change(writer, rnd, txg)
            if txg == IMAGE_AT - 1:  # The next txg uploads the blocks of the new image.
                await writer.session.leveler.make_due()
                await writer.session.make_image()
            elif txg == PART_AT:
                with mock.patch.object(
                    writer.session.uploader, "bounds", UploadBounds(locations=1)
                ):
                    await writer.ship()
            else:
                await writer.ship()
            if txg in KEPT_AT:
                await PointKeeper(writer.session).keep(f"kept-{txg}")
            if txg == EARLY_AT:
                early = dict(store.objects)
                await writer.session.durability.sync_all()
                shutil.copytree(state, state.with_name(f"{state.name}-early"))
        await writer.session.leveler.make_due()
    assert max(key for key in store.objects if key.startswith("changelog/")) == key_of(LAST)
    return early


async def _change(writer: Host, rnd: random.Random, txg: Txg) -> None:
    """Make the changes of one txg: create a file, and change existing files."""
    namespace = writer.fs.namespace
    blocks = [rnd.randbytes(rnd.randrange(1000, BLOCK_BYTES + 1)) for _ in range(2)]
    await writer.write(b"file-%d" % txg, blocks[0].ljust(BLOCK_BYTES, b"."), blocks[1])
    await writer.write(b"always", rnd.randbytes(5000))
    if txg == 2:
        namespace.make_directory(ROOT_INO, b"directory", 0o755, ROOT)
        namespace.make_symlink(ROOT_INO, b"link", b"file-2", ROOT)
    if txg in {6, 14}:
        writer.fs.namespace.unlink(ROOT_INO, b"file-%d" % (txg - 2))
    if txg in {7, 17}:
        directory = writer.fs.lookup(ROOT_INO, b"directory")
        assert directory is not None
        await writer.write(b"inner-%d" % txg, rnd.randbytes(3000), parent=directory.ino)
        namespace.rename(ROOT_INO, b"file-%d" % (txg - 2), directory.ino, b"moved-%d" % txg)
    writer.session.durability.commit()


async def _fork(early: Objects, home: Path, *, encrypted: bool) -> Objects:
    """Return the objects of a bucket that another host has written from txg 12 on."""
    store = MemoryStore()
    store.objects = dict(early)
    rnd = random.Random(2)
    options = OpenOptions(force_takeover=True)
    async with host(store, home / "fork", encrypted=encrypted, options=options) as other:
        while other.session.link.txg < LAST - 1:
            await _change(other, rnd, Txg(other.session.link.txg + 1))
            await other.ship()
        await other.session.leveler.make_due()
    return dict(store.objects)


async def _record_points(world: World, store: MemoryStore, state: Path) -> None:
    """Record the tree, the time and the block locations at each point in time."""
    bucket = await bucket_of(store, encrypted=world.encrypted, state=state)
    for txg in range(LAST + 1):
        async with past(bucket, Txg(txg), state) as then:
            world.times[Txg(txg)] = then.session.link.created_ns
            world.points[Txg(txg)] = await then.observe()
            world.records[Txg(txg)] = _records(then)


def _records(then: Host) -> dict[bytes, list[Record | None]]:
    """Return the locations of all blocks of each file."""
    found: dict[bytes, list[Record | None]] = {}
    waiting = [(b"", ROOT_INO)]
    while waiting:
        path, ino = waiting.pop()
        for name, attributes in then.entries(ino):
            child = path + b"/" + name
            if stat.S_ISDIR(attributes.mode):
                waiting.append((child, attributes.ino))
            elif stat.S_ISREG(attributes.mode):
                count = -(-attributes.size_bytes // BLOCK_BYTES)
                found[child] = [then.record(attributes.ino, BlockIndex(n)) for n in range(count)]
    return found


def key_of(txg: int) -> str:
    """Return the key of a txg's changelog."""
    return changelog_codec.key_of(Txg(txg))
