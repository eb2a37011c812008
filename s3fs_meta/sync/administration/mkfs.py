"""mkfs: creating the objects of a filesystem, and recognising the keys of its objects.

Owns: the order in which the objects are created: the superblock (which claims the URL), its copy,
the first image, and the lease (which makes the filesystem exist). ``mount`` refuses the objects of
an interrupted mkfs; ``destroy`` (``removal``) deletes them.
"""

import os
import re
import secrets
import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import history_index, kept_point, text_object
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.key_slots import STANDARD_COST, KdfCost
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head
from s3fs_meta.codec.superblock import Superblock, superblock_facts
from s3fs_meta.errors import FormatError, NotEmptyError, ObjectMissingError, PreconditionError
from s3fs_meta.limits import (
    LIST_PAGE_KEYS,
    RETENTION_S_DEFAULT,
    TEXT_OBJECT_BYTES_MAX,
)
from s3fs_meta.meta.db.database import COOKIE_KEY_BYTES, Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.image import pieces as image_pieces
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.superblock.selection import find_trace

# The keys of the two superblock objects.
SUPERBLOCK_KEYS: Final = (superblock_codec.KEY, superblock_codec.COPY_KEY)
KeepKey = Callable[[Superblock, str | None], None]

_PROBE_KEY: Final = re.compile(r"probe/[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class NewFilesystem:
    """The settings that the user chose at mkfs."""

    label: str
    block_bytes: int
    page_size: int
    passphrase: bytes | None  # None if the new filesystem is not encrypted
    unsafe_single_writer: bool = False
    cost: KdfCost = STANDARD_COST
    retention_s: int = RETENTION_S_DEFAULT


async def make_filesystem(
    store: ObjectStore,
    wanted: NewFilesystem,
    tmp: Path,
    clock: Clock,
    hook: Hook = no_hook,
    keep_key: KeepKey = lambda _superblock, _recovery_key: None,
) -> Superblock:
    """Create a filesystem at an empty URL; return its superblock.

    Args:
        store: the bucket or prefix.
        wanted: the settings.
        tmp: an existing directory for a temporary database.
        clock: the clock for the times of the image and the lease.
        hook: called after each step.
        keep_key: called with the superblock and the recovery key (None if not encrypted), before
            any object of the filesystem is stored. If it raises an error, none is stored.

    Raises:
        NotEmptyError: the URL contains a filesystem or other objects, or another process creates
            a filesystem there at the same time. The message says if objects were stored.
        UnconditionalStoreError: the store ignores conditional writes, and the user did not
            allow that.
    """
    await _require_empty(store)
    keeper = LeaseKeeper(store, clock)
    await keeper.require_conditions(unsafe_allowed=wanted.unsafe_single_writer)
    superblock, keyring, recovery_key = await in_thread(_new_superblock, wanted)
    keep_key(superblock, recovery_key)
    data = superblock_codec.encode(superblock)
    try:
        await store.create(superblock_codec.KEY, data)
    except PreconditionError as exc:
        raise NotEmptyError(f"another process is creating a filesystem at {store.url}") from exc
    hook("superblock put")
    try:
        await store.create(superblock_codec.COPY_KEY, data)
        hook("superblock copy put")
        head = await _put_image(store, superblock, keyring, tmp, clock)
        await keeper.create(uuid.uuid4().hex, head)
    except PreconditionError as exc:
        raise NotEmptyError(
            f"another process stored {exc.key!r} at {store.url} while mkfs created a filesystem,"
            " which is therefore incomplete; s3fs-meta destroy, or destroy --by-name if their keys"
            " differ, removes the objects of both"
        ) from exc
    return superblock


async def _put_image(
    store: ObjectStore, superblock: Superblock, keyring: Keyring, tmp: Path, clock: Clock
) -> Head:
    """Store the first image of a new filesystem; return the head for its lease."""
    database = tmp / f"mkfs-{superblock.uuid}.db"
    try:
        await in_thread(_new_database, database, superblock)
        image = image_pieces.new_image(Txg(0), Epoch(0))
        pieces = await image_pieces.put_pieces(store, keyring, image, database)
        head, manifest = await image_pieces.describe(
            keyring, image, database, pieces, created_ns=clock.now_ns()
        )
    finally:
        image_copy.remove(database)
    await store.create(head.manifest_key, manifest)
    return head


async def _require_empty(store: ObjectStore) -> None:
    keys = await _first_keys(store)
    if not keys:
        return
    if await _is_being_removed(store):
        raise NotEmptyError(
            f"the filesystem at {store.url} is being removed;"
            " run s3fs-meta destroy to finish the removal"
        )
    if await has_superblock(store):
        raise NotEmptyError(
            f"the prefix {store.url} already contains a filesystem; s3fs-meta destroy removes it"
        )
    if any(map(is_own, keys)) and await find_trace(store) is not None:
        raise NotEmptyError(
            f"the prefix {store.url} contains a filesystem without a superblock (found "
            f"{keys[0]!r}). To restore the superblock, run s3fs-meta fsck -y on a host that has"
            " mounted the filesystem; to remove the filesystem, run s3fs-meta destroy"
        )
    below = next((found for key in keys if (found := _filesystem_below(key))), None)
    if below is not None:
        raise NotEmptyError(
            f"the filesystem {store.url}/{below} lies below {store.url}; choose another prefix"
        )
    raise NotEmptyError(
        f"the prefix {store.url} is not empty (found {keys[0]!r}); choose another prefix"
    )


async def _is_being_removed(store: ObjectStore) -> bool:
    try:
        data = (await store.get(superblock_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
    except (ObjectMissingError, FormatError):
        return False
    return superblock_codec.tombstone_label(data) is not None


async def has_superblock(store: ObjectStore) -> bool:
    """Return whether one of the superblock objects has the header of a superblock (any version).

    Raises:
        StoreError: the superblock objects cannot be read.
    """
    for key in SUPERBLOCK_KEYS:
        try:
            data = (await store.get(key, TEXT_OBJECT_BYTES_MAX)).data
            text_object.version_of("superblock", key, data)
        except (ObjectMissingError, FormatError):
            continue
        return True
    return False


def _filesystem_below(key: str) -> str | None:
    """Return the prefix of a filesystem below the URL to which a key may belong, or None."""
    names = key.split("/")
    for count in range(1, len(names)):
        if is_own("/".join(names[count:])):
            return "/".join(names[:count])
    return None


async def _first_keys(store: ObjectStore) -> list[ObjectKey]:
    """Return up to LIST_PAGE_KEYS keys of a store, except probes that another mkfs has left."""
    found: list[ObjectKey] = []
    async with aclosing(store.list("")) as listing:
        async for info in listing:
            if _PROBE_KEY.fullmatch(info.key) is not None:
                continue
            found.append(info.key)
            if len(found) == LIST_PAGE_KEYS:
                break
    return found


def _new_superblock(wanted: NewFilesystem) -> tuple[Superblock, Keyring, str | None]:
    superblock, keyring, recovery_key = superblock_codec.create(
        uuid=str(uuid.uuid4()),
        label=wanted.label,
        block_bytes=wanted.block_bytes,
        page_size=wanted.page_size,
        unsafe=wanted.unsafe_single_writer,
        passphrase=wanted.passphrase,
        cost=wanted.cost,
    )
    if wanted.retention_s != superblock.retention_s:
        superblock = superblock_codec.amend(superblock, keyring, retention_s=wanted.retention_s)
    return superblock, keyring, recovery_key


def _new_database(path: Path, superblock: Superblock) -> None:
    """Create the database of an empty filesystem, without local tables."""
    db = Database.create(
        path,
        Pragmas(journal_mode="delete", page_size=superblock.page_size),
        {**superblock_facts(superblock), "cookie_key": secrets.token_bytes(COOKIE_KEY_BYTES)},
        uid=os.getuid(),
        gid=os.getgid(),
    )
    db.close()
    image_copy.finish(path, (), ())


def is_own(key: str) -> bool:
    """Return whether a key has the form of the keys that a filesystem uses."""
    return (
        key in {*SUPERBLOCK_KEYS, lease_codec.KEY}
        or _PROBE_KEY.fullmatch(key) is not None
        or image_codec.parse_manifest_key(key) is not None
        or image_codec.parse_piece_key(key) is not None
        or pack_codec.parse_key(key) is not None
        or changelog_codec.parse_key(key) is not None
        or changelog_codec.parse_part_key(key) is not None
        or level_codec.parse_key(key) is not None
        or history_index.RUNS.parse_key(key) is not None
        or kept_point.parse_key(key) is not None
    )
