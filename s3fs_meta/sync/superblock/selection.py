"""Selecting the superblock from two objects in the bucket and this host's copy.

Owns: reading the copies, the choice of one copy, the proof that a filesystem exists. Does not know:
how a copy is written again (``changes``), the use of the keys.
Keeps: the decision is made once, and the bytes that were examined are used. The authentic copy of
the highest generation is used. A plain copy is refused if a passphrase is given, or if any copy of
the same uuid is encrypted. If a copy cannot be read now, it is never treated as damaged.

    the bucket has            this host has seen      decision
    a copy, as new as any     nothing, or the same    the bucket's copy is used
    an older copy             a newer one             refused: OlderSuperblockError
    a plain copy              an encrypted one        refused: ExchangedSuperblockError
    no copy that can be used  a copy                  used, if the bucket holds a filesystem
    no copy that can be used  nothing                 refused: LostSuperblockError
    no trace of a filesystem  anything                refused: NotAFilesystemError
    a tombstone               anything                refused: BeingRemovedError

Design: docs/design/durability.md, "The superblock".
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import (
    ExchangedSuperblockError,
    LostSuperblockError,
    OlderSuperblockError,
)
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import COPY_KEY, KEY, Superblock
from s3fs_meta.errors import (
    BeingRemovedError,
    CorruptionError,
    FormatError,
    NewerFormatError,
    NotAFilesystemError,
    ObjectMissingError,
    ObjectTooLargeError,
    PassphraseError,
    SettingsError,
    StoreError,
)
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX, TRACE_KEYS_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, Fetched, ObjectStore
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.proof import opens_an_image, require_own_keys
from s3fs_meta.sync.superblock.unlocking import RecoveryKey, Secret


class SuperblockCopy(NamedTuple):
    """One copy of a superblock, as read from the bucket or from this host's file."""

    key: ObjectKey | None  # key of the copy in the bucket; None for this host's copy
    data: bytes
    etag: ETag
    found: Superblock | None  # the decoded copy, not yet authenticated; None if unusable
    fault: str  # reason why ``found`` is None
    missing: bool = False
    too_large: ObjectTooLargeError | None = None  # set if the object was not read due to its size
    error: StoreError | None = None  # reason why the store could not read the copy
    newer: NewerFormatError | None = None  # set if the copy claims that a newer program wrote it


@dataclass(frozen=True, slots=True)
class Keys:
    """The superblock in use, and its keys."""

    superblock: Superblock
    keyring: Keyring
    data: bytes  # the encoded superblock
    copies: tuple[SuperblockCopy, SuperblockCopy]  # both copies of the superblock in the bucket
    # how each copy in the bucket differs from the copy in use; "" if it is equal or never existed
    faults: tuple[str, str]
    retention_s: int  # if copies differ, the longest retention in any of them
    proven: bool  # True if this host has used the keys, or they decrypted an image

    @property
    def notices(self) -> list[str]:
        """Return a line for each faulty copy in the bucket."""
        return [
            f"the object {copy.key!r}: {fault}; another copy is used"
            for copy, fault in zip(self.copies, self.faults, strict=True)
            if fault
        ]


async def open_keys(
    store: ObjectStore, remembered: Remembered, secret: Secret, *, repairing: bool = False
) -> Keys:
    """Select the superblock and unlock it.

    Args:
        store: the bucket of the filesystem.
        remembered: this host's copy.
        secret: unlocks the superblock; used only if the filesystem is encrypted.
        repairing: accept a bucket whose copies are all older than this host's copy.

    Raises:
        NotAFilesystemError, BeingRemovedError: the bucket has no filesystem, or it is being
            removed.
        LostSuperblockError: the bucket has a filesystem, but no usable copy of its superblock.
        ExchangedSuperblockError: the superblock is plain, but this host's copy is encrypted.
        OlderSuperblockError: all superblocks in the bucket are older than this host's copy.
        PassphraseError: the secret does not unlock the superblock, or unlocks only an older copy.
        FormatError: the fields of the superblock are not authentic.
        NewerFormatError: a newer version of the program wrote the superblock.
        SettingsError: this host's state directory belongs to another filesystem or another user.
        StoreError: the superblock cannot be read now.
    """
    primary, second, local = await _read_all(store, remembered)
    if not repairing:
        _refuse_plain(store, (primary, second), local)
    group, keyring, opened = await _open_group(store, (primary, second, local), secret)
    authentic = _with_block_size_of(local, [one for one in group if _is_authentic(one, keyring)])
    if second.newer is not None and primary not in authentic:
        raise second.newer
    # of several copies with the same generation, max() returns the first
    best = max(authentic, key=_generation)
    in_bucket = [one for one in authentic if one is not local]
    if in_bucket and not repairing and best is local:
        raise OlderSuperblockError(store.url, max(map(_generation, in_bucket)), _generation(local))
    assert best.found is not None, "an authentic copy must exist"
    first_fault, second_fault = (_fault(copy, best, authentic) for copy in (primary, second))
    same = not first_fault and not second_fault and _agrees(local, best)
    retentions = [one.found.retention_s for one in authentic if one.found is not None]
    return Keys(
        superblock=best.found,
        keyring=keyring,
        data=best.data,
        copies=(primary, second),
        faults=(first_fault, second_fault),
        retention_s=best.found.retention_s if same else max(retentions),
        proven=opened or local in authentic,
    )


async def open_first(
    store: ObjectStore, remembered: Remembered, secret: Secret
) -> tuple[Keys, int]:
    """Unlock the first superblock object in the bucket, even if another copy is newer.

    Returns:
        The superblock with its keys, and the highest generation of any copy.

    Raises:
        LostSuperblockError: the first object is missing or damaged.
        The same errors as ``open_keys``.
    """
    copies = await _read_all(store, remembered)
    first, second, local = copies
    if first.found is None:
        raise LostSuperblockError(store.url, f"{KEY!r}: {first.fault}")
    _require_encrypted(store, [first], secret)
    keyring = await _unlock(store, [first], secret)
    seen = [one for one in copies if one is local or _is_authentic(one, keyring)]
    keys = Keys(
        superblock=first.found,
        keyring=keyring,
        data=first.data,
        copies=(first, second),
        faults=("", _fault(second, first, seen)),
        retention_s=first.found.retention_s,
        proven=_is_authentic(local, keyring),
    )
    return keys, max(map(_generation, seen))


async def require_proof(store: ObjectStore, keys: Keys) -> None:
    """Raise an error if the keys were not verified with another object in the bucket.

    Raises:
        The same errors as ``require_own_keys``.
    """
    if not keys.proven:
        await require_own_keys(store, keys.keyring, keys.superblock.uuid)


async def peek(store: ObjectStore, remembered: Remembered) -> Superblock:
    """Return a superblock without verifying its authenticity, for display only.

    Raises:
        The same errors as ``open_keys``, except for errors that only unlocking finds.
    """
    primary, second, local = copies = await _read_all(store, remembered)
    first = next(one.found for one in copies if one.found is not None)
    same = _encrypted_first([one for one in copies if one.found and one.found.uuid == first.uuid])
    _refuse_plain(store, (primary, second), local)
    best = max(same, key=_generation)
    assert best.found is not None, "only copies that were found are chosen"
    return best.found


# --- read the superblock copies ----------------------------------------------------------------


async def _read_all(
    store: ObjectStore, remembered: Remembered
) -> tuple[SuperblockCopy, SuperblockCopy, SuperblockCopy]:
    """Read all copies; check that one is usable and that the bucket holds a filesystem."""
    fetched: dict[ObjectKey, Fetched | StoreError | ObjectTooLargeError] = {}

    async def fetch(key: ObjectKey) -> None:
        try:
            fetched[key] = await store.get(key, TEXT_OBJECT_BYTES_MAX)
        except (StoreError, ObjectTooLargeError) as exc:
            fetched[key] = exc

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, KEY)
        nursery.start_soon(fetch, COPY_KEY)
    first = fetched[KEY]
    if isinstance(first, Fetched) and superblock_codec.tombstone_label(first.data) is not None:
        raise BeingRemovedError(store.url)
    primary, second = _judged(KEY, first), _judged(COPY_KEY, fetched[COPY_KEY])
    if primary.error is not None:
        raise primary.error
    if primary.missing and await find_trace(store) is None:
        raise NotAFilesystemError(store.url)
    data = await in_thread(remembered.read)
    local = _parsed(None, data or b"", "") if data is not None else _missing(None)
    copies = primary, second, local
    if second.newer is not None and primary.found is None:
        raise second.newer
    if all(one.found is None for one in copies):
        if second.error is not None:
            raise second.error
        names = (KEY, COPY_KEY, str(remembered.path))
        what = (f"{name!r}: {one.fault}" for name, one in zip(names, copies, strict=True))
        raise LostSuperblockError(store.url, ", ".join(what))
    return copies


def _judged(key: ObjectKey, fetched: Fetched | StoreError | ObjectTooLargeError) -> SuperblockCopy:
    if isinstance(fetched, ObjectMissingError):
        return _missing(key)
    if isinstance(fetched, ObjectTooLargeError):
        return SuperblockCopy(key, b"", fetched.etag, None, fetched.what, too_large=fetched)
    if isinstance(fetched, StoreError):
        return SuperblockCopy(
            key, b"", "", None, f"the object cannot be read: {fetched}", error=fetched
        )
    return _parsed(key, fetched.data, fetched.etag)


def _missing(key: ObjectKey | None) -> SuperblockCopy:
    return SuperblockCopy(key, b"", "", None, "the object is missing", missing=True)


def _parsed(key: ObjectKey | None, data: bytes, etag: ETag) -> SuperblockCopy:
    """Decode a copy of the superblock; a fault becomes a field of the result.

    Every version writes the first object before the second. If the first is authentic and of this
    version, a second one that claims a newer version is therefore treated as damaged.

    Raises:
        NewerFormatError: a newer version of the program wrote the first object or this host's copy.
    """
    try:
        return SuperblockCopy(key, data, etag, superblock_codec.decode(key or KEY, data), "")
    except NewerFormatError as exc:
        if key != COPY_KEY:
            raise
        return SuperblockCopy(key, data, etag, None, exc.message, newer=exc)
    except FormatError as exc:
        return SuperblockCopy(key, data, etag, None, exc.what)


async def find_trace(store: ObjectStore) -> ObjectKey | None:
    """Return the key of an object that proves the existence of a filesystem, or None.

    The command ``destroy`` deletes the superblock after all other objects, so the superblock by
    itself proves nothing.
    """
    try:
        await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)
    except ObjectMissingError:
        pass
    except ObjectTooLargeError:
        return lease_codec.KEY
    else:
        return lease_codec.KEY
    parsers = {
        "image/": image_codec.parse_manifest_key,
        "changelog/": changelog_codec.parse_key,
        "pack/": pack_codec.parse_key,
    }
    for prefix, parse in parsers.items():
        examined = 0
        async with aclosing(store.list(prefix)) as listing:
            async for info in listing:
                if parse(info.key) is not None:
                    return info.key
                examined += 1
                if examined == TRACE_KEYS_MAX:
                    break
    return None


# --- choose the superblock copy ----------------------------------------------------------------


def _generation(copy: SuperblockCopy) -> int:
    return -1 if copy.found is None else copy.found.generation


def _is_authentic(copy: SuperblockCopy, keyring: Keyring) -> bool:
    return copy.found is not None and superblock_codec.is_authentic(copy.found, keyring)


def _with_block_size_of(
    local: SuperblockCopy, authentic: list[SuperblockCopy]
) -> list[SuperblockCopy]:
    """Remove copies whose block size, which never changes, differs from this host's copy.

    On a plain filesystem any user of the bucket can forge a copy with another block size.
    """
    if local not in authentic or local.found is None:
        return authentic
    block_bytes = local.found.block_bytes
    return [one for one in authentic if one.found and one.found.block_bytes == block_bytes]


def _fault(copy: SuperblockCopy, best: SuperblockCopy, authentic: Sequence[SuperblockCopy]) -> str:
    """Return how a copy in the bucket differs from the one in use; "" if equal or never created."""
    assert best.found is not None, "an authentic copy must exist"
    if copy.found is None:
        never_made = best.found.format_version < superblock_codec.COPIED_SINCE
        return "" if copy.key == COPY_KEY and copy.missing and never_made else copy.fault
    if copy.found.uuid != best.found.uuid:
        return f"the superblock belongs to another filesystem, {copy.found.uuid}"
    if best.found.encrypted and not copy.found.encrypted:
        return "the superblock is not encrypted, although the filesystem is"
    if copy not in authentic:
        return "the fields of the superblock are not authentic"
    if copy.data != best.data:
        return (
            f"the superblock has generation {_generation(copy)}, the newest has {_generation(best)}"
        )
    return ""


def _agrees(local: SuperblockCopy, best: SuperblockCopy) -> bool:
    """Return whether this host's copy is missing, identical or of an earlier generation."""
    return local.found is None or local.data == best.data or _generation(local) < _generation(best)


async def _open_group(
    store: ObjectStore,
    copies: tuple[SuperblockCopy, SuperblockCopy, SuperblockCopy],
    secret: Secret,
) -> tuple[list[SuperblockCopy], Keyring, bool]:
    """Return the copies of the bucket's filesystem, its keys, and whether the keys opened an image.

    If the copies are of several filesystems, or are plain with different keys, an object was
    replaced. The bucket's filesystem is then the one whose keys decrypt or verify an image.
    """
    local = copies[2]
    _require_encrypted(store, copies, secret)
    encrypted = {one.found.uuid for one in copies if one.found is not None and _encrypted(one)}
    groups: dict[tuple[str, str | None], list[SuperblockCopy]] = {}
    for one in copies:
        if one.found is not None:
            uuid = one.found.uuid
            groups.setdefault((uuid, None if uuid in encrypted else one.found.hash_key), []).append(
                one
            )
    if len(groups) == 1:
        group = _encrypted_first(*groups.values())
        return group, await _unlock(store, group, secret), False
    refused: list[PassphraseError | CorruptionError] = []
    for (uuid, _), mixed in groups.items():
        group = _encrypted_first(mixed)
        if secret.given and not _encrypted(group[0]):
            continue
        try:
            keyring = await _unlock(store, group, secret)
        except (PassphraseError, CorruptionError) as exc:
            refused.append(exc)
            continue
        if await opens_an_image(store, keyring, uuid):
            break
    else:
        raise (
            refused[0]
            if refused
            else LostSuperblockError(
                store.url,
                "the copies of the superblock have different keys, and no key decrypts an image",
            )
        )
    if local.found is not None and local.found.uuid != uuid:
        raise SettingsError(
            f"the state directory of {store.url!r} on this host holds the state of another "
            "filesystem; move it away, or choose another directory with --cachedir"
        )
    return group, keyring, True


def _require_encrypted(
    store: ObjectStore, copies: Sequence[SuperblockCopy], secret: Secret
) -> None:
    """Raise PassphraseError if a secret is given but no copy is encrypted."""
    if secret.given and not any(map(_encrypted, copies)):
        if isinstance(secret, RecoveryKey):
            raise PassphraseError(
                f"the filesystem {store.url} is not encrypted, so it has neither a recovery key nor"
                " a passphrase; mount it without a passphrase"
            )
        raise PassphraseError(
            f"the filesystem {store.url} is not encrypted, although a passphrase is given"
            f" {secret.given}; leave the passphrase out to use a filesystem without encryption"
        )


def _encrypted(copy: SuperblockCopy) -> bool:
    return copy.found is not None and copy.found.encrypted


def _encrypted_first(group: list[SuperblockCopy]) -> list[SuperblockCopy]:
    """Return the encrypted copies of one filesystem, or all copies if none is encrypted."""
    return [one for one in group if _encrypted(one)] or group


def _refuse_plain(
    store: ObjectStore, in_bucket: Sequence[SuperblockCopy], local: SuperblockCopy
) -> None:
    """Raise ExchangedSuperblockError if only this host's copy of the superblock is encrypted."""
    if local.found is None or not local.found.encrypted:
        return
    uuid = local.found.uuid
    same = [one for one in in_bucket if one.found is not None and one.found.uuid == uuid]
    if same and not any(map(_encrypted, same)):
        raise ExchangedSuperblockError(
            store.url, "is not encrypted, although this host recorded it as encrypted"
        )


async def _unlock(store: ObjectStore, group: list[SuperblockCopy], secret: Secret) -> Keyring:
    """Return the keys that the secret unlocks in the newest authentic copy of a filesystem."""
    newest_first = sorted(group, key=_generation, reverse=True)
    if any(map(_encrypted, group)):
        secret.ask()
    refused: list[tuple[SuperblockCopy, PassphraseError | CorruptionError]] = []
    for one in newest_first:
        assert one.found is not None, "only copies that were found can be unlocked"
        if any(one.data == other.data for other, _ in refused):
            continue
        try:
            keyring = await secret.open(one.found)
        except (PassphraseError, CorruptionError) as exc:
            refused.append((one, exc))
            continue
        newer = [other for other, _ in refused if _is_authentic(other, keyring)]
        if not newer:
            return keyring
        if newer[0].key is None:
            raise OlderSuperblockError(store.url, _generation(one), _generation(newer[0]))
        raise PassphraseError(
            f"the {secret.noun} was changed: the given {secret.noun} unlocks only the superblock of"
            f" generation {_generation(one)}, and the newest generation is {_generation(newer[0])}"
        )
    reasons = [exc for _, exc in refused]
    raise next((exc for exc in reasons if isinstance(exc, PassphraseError)), reasons[0])
