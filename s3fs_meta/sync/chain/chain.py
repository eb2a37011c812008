"""The chain of changelogs in the bucket: listing, fetching and verifying changelogs.

Owns: the class of chain positions, the row with the local database's position, reading the chain.
Does not know: how a changelog is applied to rows, which host may append.
Keeps: a changelog is part of the chain only if it records the hash of the previous link.
Design: docs/design/durability.md, "The chain".
"""

import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import NO_FLOOR, Changelog, Section, key_of
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.fields import Fields, dump
from s3fs_meta.codec.image import NO_HASH, Manifest, content_hash
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.meta.tables import local_state, packs, pending
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain import names

_ROW = "chain"
_FLOOR = "floor"
_OWN = "own_txg"
_END_PROBES = 2  # number of newest changelogs to try, because the last one may be damaged


class Link(NamedTuple):
    """A position in the chain: the txg of a database, and the hash of its changelog."""

    txg: Txg
    hash: str
    created_ns: int  # time at which the txg was cut, by the clock of the writer
    floor: Txg = NO_FLOOR  # retention floor: the oldest retained txg

    @property
    def next_txg(self) -> Txg:
        """Return the txg of the next changelog."""
        return Txg(self.txg + 1)


class FetchedChangelog(NamedTuple):
    """A changelog read from the bucket, its position in the chain, and the size of its object."""

    changelog: Changelog
    link: Link
    object_bytes: int

    @property
    def txg(self) -> Txg:
        """Return the txg of the changelog."""
        return self.link.txg


def encode_link(link: Link) -> str:
    """Encode a chain position as JSON text for the local state."""
    return dump(link._asdict()).decode("ascii")


def recorded(db: Database) -> Link | None:
    """Return the position of a database in the chain, or None if it is unknown.

    Raises:
        FormatError: the row of the position is damaged.
    """
    text = local_state.get(db, _ROW)
    if text is not None:
        fields = Fields.parse(str(db.path), text.encode("ascii", "replace"))
        return Link(
            Txg(fields.integer("txg")),
            fields.hexadecimal("hash", HASH_BYTES),
            fields.integer("created_ns"),
            Txg(fields.integer("floor")),
        )
    head = image_head.recorded(db, "head")
    return None if head is None else Link(head.txg, NO_HASH, 0)


def record(db: Database, link: Link) -> None:
    """Record the position of a database in the chain. Requires an open transaction."""
    local_state.put(db, _ROW, encode_link(link))


def record_own(db: Database, link: Link) -> None:
    """Record a txg written by this host as the database's position. Needs an open transaction."""
    local_state.put_all(db, {_ROW: encode_link(link), _OWN: str(link.txg)})


def adopt_attempt(db: Database, link: Link) -> None:
    """Record that this host's attempted changelog (the outbox) ends the chain.

    Requires an open transaction. Call this while opening the filesystem. Unused packs are then
    retained for one more txg.
    """
    record_own(db, link)
    packs.outlive(db, link.txg)
    pending.clear_outbox(db)


def require_attempt(db: Database, keyring: Keyring) -> None:
    """Check that this host's attempted changelog can be uploaded, if there is one. The call blocks.

    The upload of a damaged changelog would end the chain for all other hosts.

    Raises:
        FormatError: the bytes of the changelog in the local database are damaged.
        NewerFormatError: a newer version of the program wrote the changelog.
    """
    attempt = pending.outbox(db)
    if attempt is None:
        return
    key = key_of(attempt[0])
    try:
        changelog_codec.decode(key, attempt[1], keyring)
    except NewerFormatError:
        raise
    except FormatError as exc:
        raise FormatError(str(db.path), f"its copy of {key} is damaged: {exc.what}") from exc


def drop_fence(db: Database) -> None:
    """Delete the row of this host's attempted fence record, which contains no changes.

    Requires an open transaction. The bucket may still receive the record, so its txg counts as
    a txg of this host; otherwise this host's state directory would look like a copy.
    """
    attempt = pending.outbox(db)
    if attempt is not None:
        note_own(db, max(attempt[0], own_txg(db) or attempt[0]))
        pending.clear_outbox(db)


def note_own(db: Database, txg: Txg) -> None:
    """Record the last txg that this host wrote itself. Requires an open transaction."""
    local_state.put(db, _OWN, str(txg))


def noted_own(db: Database) -> Txg | None:
    """Return the txg recorded by ``note_own``, or None if there is none."""
    number = local_state.number(db, _OWN)
    return None if number is None else Txg(number)


def own_txg(db: Database) -> Txg | None:
    """Return the last txg that this host may have written itself, according to its rows.

    A restored database, or a database of an older version of the program, does not record this txg.
    In this case the last txg in the database is returned, because this host may have written it.
    """
    noted = noted_own(db)
    if noted is not None:
        return noted
    link = recorded(db)
    return None if link is None else link.txg


def wanted_floor(db: Database, link: Link) -> Txg:
    """Return the retention floor for the changelog after a chain position."""
    return max(link.floor, Txg(local_state.number(db, _FLOOR) or 0))


def want_floor(db: Database, floor: Txg) -> None:
    """Record the retention floor for the next changelog. Requires an open transaction."""
    local_state.put(db, _FLOOR, str(floor))


async def numbers_from(store: ObjectStore, keyring: Keyring, known: Txg) -> list[Txg]:
    """List the txgs, starting at *known*, whose changelogs are in the bucket, in ascending order.

    Keys with a txg beyond the end of the chain are ignored. After a gap, a key is accepted only if
    an object after the gap is authentic (``names.reached``).

    Args:
        store: the bucket.
        keyring: the keys of the filesystem.
        known: a txg that the chain has reached.
    """
    return await _reached_of(store, keyring, known, await listed_from(store, known))


async def numbers_after(
    store: ObjectStore, keyring: Keyring, known: Txg, count_max: int | None = None
) -> list[Txg]:
    """List the txgs after *known* as ``numbers_from`` does, or only the first *count_max* of them."""
    first = Txg(known + 1)
    listed = await listed_from(store, first, count_max)
    found = await _reached_of(store, keyring, known, listed)
    if count_max is not None and len(found) < len(listed) == count_max:
        # Changelogs that are not listed yet may be authentic.
        found = await _reached_of(store, keyring, known, await listed_from(store, first))
    return found[:count_max]


async def _reached_of(
    store: ObjectStore, keyring: Keyring, known: Txg, listed: list[Txg]
) -> list[Txg]:
    named = [(txg, key_of(txg)) for txg in listed]
    last = await names.reached(store, keyring, known, named, names.CHANGELOG_STEP_MAX)
    return [txg for txg in listed if txg <= last]


async def listed_from(store: ObjectStore, first: Txg, count_max: int | None = None) -> list[Txg]:
    """List the txgs in changelog keys, starting at *first*, in ascending order, unverified."""
    return [txg for txg, _info in await objects_from(store, first, count_max)]


async def objects_from(
    store: ObjectStore, first: Txg, count_max: int | None = None
) -> list[tuple[Txg, ObjectInfo]]:
    """List the changelog objects, starting at txg *first*, with their txgs, unverified."""
    found: list[tuple[Txg, ObjectInfo]] = []
    after = key_of(Txg(first - 1)) if first > 0 else changelog_codec.PREFIX
    async with aclosing(store.list(changelog_codec.PREFIX, after=after)) as listing:
        async for info in listing:
            txg = changelog_codec.parse_key(info.key)
            if txg is not None and txg >= first:
                found.append((txg, info))
            if len(found) == count_max:
                break
    return sorted(found)


async def sizes_after(store: ObjectStore, txg: Txg, last: Txg) -> list[int]:
    """Return the sizes of all changelogs and parts of the txgs after *txg*, up to *last*."""
    found: list[int] = []
    for prefix, parse in (
        (changelog_codec.PREFIX, changelog_codec.parse_key),
        (changelog_codec.PART_PREFIX, changelog_codec.parse_part_key),
    ):
        async with aclosing(store.list(prefix, after=f"{prefix}{txg:012d}~")) as listing:
            async for info in listing:
                number = parse(info.key)
                if number is not None and txg < number <= last:
                    found.append(info.size_bytes)
    return found


async def fetch_next(
    store: ObjectStore, keyring: Keyring, uuid: str, before: Link
) -> FetchedChangelog:
    """Return the changelog that directly follows a chain position.

    Raises:
        ObjectMissingError: this changelog does not exist.
        FormatError: the changelog is damaged, or does not contain the hash of its predecessor.
    """
    fetched = await fetch(store, keyring, uuid, before.next_txg)
    if fetched.changelog.previous != before.hash:
        key = key_of(before.next_txg)
        raise FormatError(
            key, f"the object records a different hash of changelog {before.txg} than this host"
        )
    if fetched.link.floor < before.floor:
        raise FormatError(
            key_of(fetched.link.txg),
            "the retention floor is lower than in the previous changelog",
        )
    return fetched


async def hash_before(store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg) -> str | None:
    """Return the hash of the preceding changelog, as recorded in the changelog of a txg.

    Returns:
        None if the changelog of the txg cannot be read or records no hash.

    Raises:
        StoreError: the store cannot be reached.
    """
    try:
        previous = (await fetch(store, keyring, uuid, txg)).changelog.previous
    except (FormatError, ObjectMissingError):
        return None
    return None if previous == NO_HASH else previous


async def floor_after(store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg) -> Txg:
    """Return the retention floor at the end of the chain, or NO_FLOOR if its end cannot be read.

    Changelogs before the floor may be deleted, except the changelogs that kept points need. An
    early changelog may therefore still exist after later ones have been deleted.

    Args:
        txg: a txg that the chain has reached.

    Raises:
        NewerFormatError: a newer version of the program wrote the last changelog.
    """
    numbers = await numbers_from(store, keyring, txg)
    for last in reversed(numbers[-_END_PROBES:]):
        try:
            return (await fetch(store, keyring, uuid, last)).link.floor
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            continue
    return NO_FLOOR


def require_known(changelog: Changelog) -> None:
    """Raise NewerFormatError if a changelog has a schema version unknown to this program."""
    if changelog.schema_version > SCHEMA_VERSION:
        key = key_of(changelog.txg)
        raise NewerFormatError(key, f"the schema version {changelog.schema_version} is unknown")


async def fetch(store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg) -> FetchedChangelog:
    """Return the changelog of a txg, without checking the hash of its predecessor.

    Raises:
        ObjectMissingError: the changelog does not exist.
        NewerFormatError: the changelog claims an unknown version, and the next changelog does not
            prove that it is damaged.
        FormatError: the object with the changelog's key is damaged, or belongs to another
            filesystem.
    """
    key = key_of(txg)
    data = (await store.get(key, ENCODED_BYTES_MAX)).data
    changelog = await _decode(store, keyring, uuid, txg, data)
    if changelog.uuid != uuid:
        raise FormatError(key, "the changelog belongs to another filesystem")
    return FetchedChangelog(changelog, _link(changelog, data), len(data))


async def _decode(
    store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg, data: bytes
) -> Changelog:
    key = key_of(txg)
    try:
        return await in_thread(changelog_codec.decode, key, data, keyring)
    except NewerFormatError as exc:
        newer = exc
    if await _is_followed(store, keyring, uuid, txg, data) is False:
        raise FormatError(key, f"{newer.what}, but the next changelog records a different hash")
    raise newer


async def _is_followed(
    store: ObjectStore, keyring: Keyring, uuid: str, txg: Txg, data: bytes
) -> bool | None:
    """Return whether the next changelog records the hash of *data*; None if it is unreadable."""
    after = key_of(Txg(txg + 1))
    try:
        following = (await store.get(after, ENCODED_BYTES_MAX)).data
        changelog = await in_thread(changelog_codec.decode, after, following, keyring)
    except (FormatError, ObjectMissingError):
        return None
    if changelog.uuid != uuid:
        return None
    return changelog.previous == await in_thread(content_hash, data)


async def link_of_image(
    store: ObjectStore, keyring: Keyring, uuid: str, manifest: Manifest, key: ObjectKey
) -> Link:
    """Return the chain position of an image.

    If the changelog of the image's txg is damaged or missing, the hash comes from the manifest or
    from the next changelog.

    Raises:
        FormatError: the image does not belong to the chain.
    """
    try:
        own = await fetch_of_image(store, keyring, uuid, manifest, key)
    except NewerFormatError:
        raise
    except FormatError as exc:
        if exc.key != key_of(manifest.txg):
            raise
        return await _link_of_image_alone(store, keyring, uuid, manifest)
    except ObjectMissingError:
        return await _link_of_image_alone(store, keyring, uuid, manifest)
    return Link(manifest.txg, NO_HASH, manifest.created_ns) if own is None else own.link


async def _link_of_image_alone(
    store: ObjectStore, keyring: Keyring, uuid: str, manifest: Manifest
) -> Link:
    """Return the chain position of an image whose changelog cannot be read.

    A manifest contains the hash of its own changelog. But if that changelog is of kind IMAGE, the
    manifest contains the hash of the previous changelog. Then only the next changelog contains the
    hash of the image's changelog. If no next changelog exists, the hash of the changelog before the
    image is used. The next writer takes the hash from its rows.
    """
    own_hash = manifest.changelog
    floor = NO_FLOOR
    with contextlib.suppress(FormatError, ObjectMissingError):
        before = await fetch(store, keyring, uuid, Txg(manifest.txg - 1))
        floor = before.link.floor
        if before.link.hash == manifest.changelog:
            after = await fetch(store, keyring, uuid, Txg(manifest.txg + 1))
            own_hash = after.changelog.previous
    return Link(manifest.txg, own_hash, manifest.created_ns, floor)


async def fetch_of_image(
    store: ObjectStore, keyring: Keyring, uuid: str, manifest: Manifest, key: ObjectKey
) -> FetchedChangelog | None:
    """Return the changelog of an image's txg, or None for the first image of the filesystem.

    Raises:
        FormatError: the image does not belong to the chain, or its changelog is damaged.
        ObjectMissingError: the changelog does not exist.
    """
    if manifest.uuid != uuid:
        raise FormatError(key, "the image belongs to another filesystem")
    if manifest.changelog == NO_HASH:
        return None
    own = await fetch(store, keyring, uuid, manifest.txg)
    image = own.changelog.image
    if own.link.hash != manifest.changelog and (image is None or image.key != key):
        raise FormatError(
            key, "the changelog of the image's txg has a different hash than the image records"
        )
    return own


async def sections(
    store: ObjectStore, keyring: Keyring, changelog: Changelog
) -> AsyncGenerator[Section, None]:
    """Yield the sections of a changelog from last to first, keeping only one in memory.

    Raises:
        ObjectMissingError, FormatError: a part is missing or damaged.
    """
    yield changelog.section
    for part in reversed(changelog.parts):
        data = (await store.get(part.key, changelog_codec.PART_ENCODED_BYTES_MAX)).data
        yield await in_thread(changelog_codec.decode_part, part, data, keyring)


async def bytes_of(store: ObjectStore, txg: Txg) -> bytes:
    """Return the bytes of a txg's changelog object. Raises ObjectMissingError."""
    return (await store.get(key_of(txg), ENCODED_BYTES_MAX)).data


async def append(store: ObjectStore, txg: Txg, data: bytes) -> bool:
    """Append a changelog to the chain; return False if a different object already has its key.

    *data* contains a nonce, so an object with the same bytes is an earlier attempt by this writer.
    """
    key = key_of(txg)
    with contextlib.suppress(PreconditionError):
        await store.create(key, data)
        return True
    try:
        return (await store.get(key, len(data))).data == data
    except ObjectTooLargeError:
        return False


def link_of(txg: Txg, data: bytes, keyring: Keyring) -> Link:
    """Return the chain position of an encoded changelog. Blocks for a few milliseconds."""
    return _link(changelog_codec.decode(key_of(txg), data, keyring), data)


def _link(changelog: Changelog, data: bytes) -> Link:
    return Link(changelog.txg, content_hash(data), changelog.created_ns, changelog.floor)
