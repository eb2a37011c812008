"""Copying the intact blocks of packs whose index cannot be read, during a rebuild.

Owns: reading these packs and storing new packs with the copied blocks.
Does not know: how the locations of the blocks are found (``meta.offline.lost_indexes``).
Keeps: a block is copied only if its bytes match the keyed hash in the row of the block. The
damaged pack is not changed. A new pack has the epoch of the damaged pack, so that a rebuild treats
its index like the lost index.
Memory: one damaged pack and one new pack at a time.
"""

import secrets
from collections.abc import Collection, Iterator, Sequence

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import Pack, PackEntry, PackWriter
from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline import lost_indexes
from s3fs_meta.meta.offline import rebuild as rebuilt_rows
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.options.option_table import default_of
from s3fs_meta.sync.upload.pack_index import read_pack


async def copy_intact(
    store: ObjectStore, keyring: Keyring, db: Database, unreadable: Collection[ObjectKey]
) -> tuple[list[ObjectInfo], int]:
    """Copy all intact blocks that only packs with an unreadable index contain into new packs.

    The index entries of all readable packs, and the rows of an image or the chain, must have been
    added to the database before. The new packs are added, too.

    Returns:
        The new packs, and the number of copied blocks.

    Raises:
        StoreError: the store is unavailable; the new packs that were stored remain.
    """
    await in_thread(lost_indexes.collect, db, unreadable)
    made: list[ObjectInfo] = []
    copied = 0
    for key in unreadable:
        entries = await in_thread(lost_indexes.entries_of, db, key)
        if not entries:
            continue
        packs = _packs(keyring, key, await read_pack(store, key), entries)
        while (pack := await in_thread(next, packs, None)) is not None:
            await store.create(pack.key, pack.data)
            await in_thread(rebuilt_rows.add_pack, db, pack.key, len(pack.data), pack.entries)
            made.append(ObjectInfo(pack.key, len(pack.data)))
            copied += len(pack.entries)
    return made, copied


def _packs(
    keyring: Keyring, key: ObjectKey, data: bytes, entries: Sequence[PackEntry]
) -> Iterator[Pack]:
    """Yield new packs with the intact blocks of a damaged pack. Consume the iterator in a thread.

    A block may need more space than before, because the compression may be different, so the blocks
    of one pack may need several packs.
    """
    epoch = pack_codec.parse_key(key)
    assert epoch is not None, "the key of a pack has an epoch"
    writer: PackWriter | None = None
    for entry in entries:
        try:
            content = _content(keyring, key, data, entry)
        except FormatError:
            continue  # the block becomes a hole
        if writer is None:
            new_key = pack_codec.new_key(epoch, secrets.token_bytes(pack_codec.RANDOM_BYTES))
            writer = PackWriter(new_key, keyring, default_of("compression"))
        writer.add(entry.block, entry.ino, entry.block_index, entry.hash, content)
        if writer.full:
            yield writer.finish()
            writer = None
    if writer is not None:
        yield writer.finish()


def _content(keyring: Keyring, key: ObjectKey, data: bytes, at: PackEntry) -> bytes:
    """Return the content of a block; raise FormatError if its bytes do not match its hash."""
    stored = memoryview(data)[at.offset : at.offset + at.stored_bytes]
    if len(stored) != at.stored_bytes:
        raise FormatError(key, f"the object ends at byte {len(data)}, before the end of a block")
    return pack_codec.open_block(keyring, key, stored, at.offset, at.plain_bytes, at.hash)
