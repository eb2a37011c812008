"""Tests of copying intact blocks out of packs whose index cannot be read."""

import secrets

import pytest

from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.upload.pack_index import read_index
from s3fs_meta.sync.upload.pack_salvage import copy_intact
from tests.meta.conftest import MakeDatabase, make_database

__all__ = ["make_database"]

CONTENTS = {BlockId(7): b"seven " * 300, BlockId(8): b"eight " * 300}


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def keyring(request: pytest.FixtureRequest) -> Keyring:
    """Return the keys of an encrypted or of a plain filesystem."""
    return Keyring.from_master(bytes(32)) if request.param else Keyring(None, bytes(32))


def packed(keyring: Keyring) -> pack_codec.Pack:
    """Return a pack of epoch 3 with two blocks of inode 5."""
    key = pack_codec.new_key(Epoch(3), secrets.token_bytes(16))
    writer = pack_codec.PackWriter(key, keyring, "zstd-1")
    for block, content in CONTENTS.items():
        digest = keyring.block_hash(content)
        writer.add(block, Ino(5), BlockIndex(block), digest, content)
    return writer.finish()


def adopt(db: Database, pack: pack_codec.Pack) -> None:
    """Add the rows that an image has for the blocks of a pack."""
    db.begin()
    db.run("CREATE TEMP TABLE image_packs (pack INTEGER PRIMARY KEY, object_key BLOB)")
    db.run(
        "CREATE TEMP TABLE image_blocks (block INTEGER PRIMARY KEY, plain_bytes INTEGER,"
        " hash BLOB, pack INTEGER, pack_offset INTEGER, stored_bytes INTEGER)"
    )
    db.run("INSERT INTO temp.image_packs VALUES (1, ?)", (pack.key.encode(),))
    for one in pack.entries:
        row = (one.block, one.plain_bytes, one.hash, one.offset, one.stored_bytes)
        db.run("INSERT INTO temp.image_blocks VALUES (?, ?, ?, 1, ?, ?)", row)
        db.run("INSERT INTO block_map VALUES (?, ?, ?)", (one.ino, one.block_index, one.block))
    db.commit()


async def test_only_blocks_that_match_their_hash_are_copied(
    make_database: MakeDatabase, keyring: Keyring
) -> None:
    """The new pack has the epoch of the damaged pack, and a valid index."""
    pack, db, store = packed(keyring), make_database(), MemoryStore()
    adopt(db, pack)
    damaged = bytearray(pack.data[:-1])
    damaged[pack.entries[0].offset + 10] ^= 1  # one bit in the record of block 7
    store.objects[pack.key] = bytes(damaged)

    made, copied = await copy_intact(store, keyring, db, [pack.key])

    assert copied == 1
    [info] = made
    assert pack_codec.parse_key(info.key) == Epoch(3)
    [entry] = await read_index(store, keyring, info.key, info.size_bytes)
    assert (entry.block, entry.ino, entry.block_index) == (8, 5, 8)
    [(_entry, content)] = pack_codec.open_pack(keyring, info.key, store.objects[info.key])
    assert content == CONTENTS[BlockId(8)]
    assert store.objects[pack.key] == bytes(damaged)


@pytest.mark.parametrize("data", [None, b"", b"x", b"\0" * 5000])
async def test_nothing_is_stored_without_an_intact_block(
    make_database: MakeDatabase, keyring: Keyring, data: bytes | None
) -> None:
    pack, db, store = packed(keyring), make_database(), MemoryStore()
    adopt(db, pack)
    if data is not None:
        store.objects[pack.key] = data

    assert await copy_intact(store, keyring, db, [pack.key]) == ([], 0)
    assert store.objects.keys() <= {pack.key}
