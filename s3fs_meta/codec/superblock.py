"""The superblock: the properties of a filesystem, and its wrapped master key.

Owns: the fields, their authenticity, versions, features and generations; the tombstone.
Does not know: stores, where a passphrase comes from, how a lock works (``key_slots``), which of
several copies counts (``sync.superblock.selection``).
Keeps: the fields of an encrypted filesystem are authentic once it is unlocked; a program refuses a
filesystem with an unknown feature; every change raises the generation.
Design: docs/design/format.md, "Superblock".

Two locks hold the same 32-byte master key: one opens with the passphrase, one with the recovery
key. Changing the passphrase makes a new first lock and rewrites no data. An authenticator, under a
key derived from the master key, covers every field and both locks. The associated data of the locks
does not, so label and passphrase can change without the recovery key.
"""

import os
import re
from dataclasses import dataclass, replace
from typing import Final

from s3fs_meta.codec import key_slots, text_object
from s3fs_meta.codec.fields import INTEGER_MAX, Fields, dump
from s3fs_meta.codec.key_slots import STANDARD_COST, KdfCost, PassphraseLock
from s3fs_meta.codec.keyring import HASH_BYTES, KEY_BYTES, Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, UsageError
from s3fs_meta.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    LABEL_CHARS_MAX,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    RETENTION_S_DEFAULT,
    RETENTION_S_MAX,
)
from s3fs_meta.model import ObjectKey

KEY: Final = ObjectKey("superblock")
COPY_KEY: Final = ObjectKey("superblock-copy")  # second copy of the superblock, in case KEY is lost
COPIED_SINCE: Final = 3  # format version; filesystems of earlier versions have no COPY_KEY
FORMAT_VERSION: Final = 3
_RETENTION_SINCE: Final = 2  # format version; earlier ones retain for RETENTION_S_DEFAULT
_GENERATION_SINCE: Final = 3  # format version; earlier ones have generation 0
_TOMBSTONE: Final = "tombstone"
_TOMBSTONE_VERSION: Final = 1
# No feature is defined yet; docs/design/format.md defines when to add one.
KNOWN_FEATURES: Final[frozenset[str]] = frozenset()
FEATURES_MAX: Final = 32

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_FEATURE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


@dataclass(frozen=True)
class Superblock:
    """The properties of one filesystem; only an encrypted one has locks and an authenticator."""

    uuid: str
    label: str
    block_bytes: int
    page_size: int
    unsafe_single_writer: bool  # the store cannot fence a second writer, and the user accepted that
    features: tuple[str, ...]  # ascending, no duplicates
    hash_key: str | None  # 32 bytes, hexadecimal
    wrapped_by_passphrase: PassphraseLock | None
    wrapped_by_recovery: str | None  # 48 bytes, hexadecimal
    authenticator: str | None  # 32 bytes, hexadecimal; covers all other fields
    # Points in time stay available for this many seconds; 0: only the newest state.
    retention_s: int = RETENTION_S_DEFAULT
    format_version: int = FORMAT_VERSION
    generation: int = 1  # raised by every change; of several authentic copies the highest counts

    @property
    def encrypted(self) -> bool:
        """Return whether the filesystem is encrypted, so that its unlocking requires a secret."""
        return self.hash_key is None


def create(
    uuid: str,
    label: str,
    block_bytes: int,
    page_size: int,
    unsafe: bool,
    passphrase: bytes | None,
    *,
    cost: KdfCost = STANDARD_COST,
) -> tuple[Superblock, Keyring, str | None]:
    """Return the superblock of a new filesystem, its keys, and its recovery key (None if plain).

    Without a *passphrase* nothing is encrypted. The recovery key is stored nowhere: the caller
    shows it once.

    Raises:
        UsageError: an argument is out of range.
    """
    _check_arguments(label, block_bytes, page_size, RETENTION_S_DEFAULT)
    plain = Superblock(
        uuid=uuid,
        label=label,
        block_bytes=block_bytes,
        page_size=page_size,
        unsafe_single_writer=unsafe,
        features=(),
        hash_key=os.urandom(KEY_BYTES).hex(),
        wrapped_by_passphrase=None,
        wrapped_by_recovery=None,
        authenticator=None,
    )
    if passphrase is None:
        return plain, unlock_plain(plain), None
    keyring = Keyring.from_master(os.urandom(KEY_BYTES))
    locked = replace(
        plain,
        hash_key=None,
        wrapped_by_passphrase=key_slots.lock_with_passphrase(
            uuid, keyring.master_key, passphrase, cost
        ),
    )
    superblock, recovery_key = _with_recovery_key(locked, keyring)
    return superblock, keyring, recovery_key


def unlock_plain(superblock: Superblock) -> Keyring:
    """Return the keys of a filesystem that is not encrypted."""
    assert superblock.hash_key is not None, "an encrypted filesystem needs a passphrase"
    return Keyring(None, bytes.fromhex(superblock.hash_key))


def unlock(superblock: Superblock, passphrase: bytes) -> Keyring:
    """Return the keys of an encrypted filesystem.

    Takes 0.2 s of all cores and 64 MiB of memory with STANDARD_COST.

    Raises:
        PassphraseError: the passphrase is wrong.
        FormatError: the fields of the superblock are not authentic.
    """
    lock = superblock.wrapped_by_passphrase
    assert lock is not None, "a plain filesystem has no passphrase"
    master_key = key_slots.open_with_passphrase(superblock.uuid, lock, passphrase)
    return _verified(superblock, Keyring.from_master(master_key))


def unlock_with_recovery(superblock: Superblock, recovery_key: str) -> Keyring:
    """Return the keys of an encrypted filesystem; the case of *recovery_key* does not matter.

    Raises:
        PassphraseError: the recovery key is mistyped or wrong.
        FormatError: the fields of the superblock are not authentic.
    """
    wrapped = superblock.wrapped_by_recovery
    assert wrapped is not None, "a plain filesystem has no recovery key"
    master_key = key_slots.open_with_recovery_key(superblock.uuid, wrapped, recovery_key)
    return _verified(superblock, Keyring.from_master(master_key))


def rewrap(
    superblock: Superblock,
    keyring: Keyring,
    new_passphrase: bytes,
    *,
    cost: KdfCost = STANDARD_COST,
) -> Superblock:
    """Return the next superblock, with another passphrase and the old recovery key.

    Raises:
        UsageError: the passphrase is empty.
    """
    lock = key_slots.lock_with_passphrase(superblock.uuid, keyring.master_key, new_passphrase, cost)
    return _authenticated(replace(_next(superblock), wrapped_by_passphrase=lock), keyring)


def renew_recovery_key(superblock: Superblock, keyring: Keyring) -> tuple[Superblock, str]:
    """Return the next superblock, with a new recovery key, and the new recovery key.

    The old recovery key opens only older superblocks.
    """
    return _with_recovery_key(_next(superblock), keyring)


def _with_recovery_key(superblock: Superblock, keyring: Keyring) -> tuple[Superblock, str]:
    wrapped, recovery_key = key_slots.lock_with_new_recovery_key(
        superblock.uuid, keyring.master_key
    )
    changed = _authenticated(replace(superblock, wrapped_by_recovery=wrapped), keyring)
    return changed, recovery_key


def _next(superblock: Superblock) -> Superblock:
    """Return the superblock with the next generation; the caller changes and authenticates it."""
    generation = min(superblock.generation + 1, INTEGER_MAX)
    return replace(superblock, generation=generation, format_version=FORMAT_VERSION)


def amend(
    superblock: Superblock,
    keyring: Keyring,
    *,
    label: str | None = None,
    page_size: int | None = None,
    retention_s: int | None = None,
) -> Superblock:
    """Return the next superblock, with another label, page size or retention.

    Raises:
        UsageError: an argument is out of range.
    """
    changed = replace(
        _next(superblock),
        label=superblock.label if label is None else label,
        page_size=superblock.page_size if page_size is None else page_size,
        retention_s=superblock.retention_s if retention_s is None else retention_s,
    )
    _check_arguments(changed.label, changed.block_bytes, changed.page_size, changed.retention_s)
    return _authenticated(changed, keyring) if changed.encrypted else changed


def succeed(superblock: Superblock, keyring: Keyring, generation: int) -> Superblock:
    """Return the superblock with a generation above both its present one and *generation*."""
    base = replace(superblock, generation=max(superblock.generation, generation))
    return _authenticated(_next(base), keyring) if base.encrypted else _next(base)


def is_authentic(superblock: Superblock, keyring: Keyring) -> bool:
    """Return whether a superblock is unchanged since a host with these keys wrote it.

    On a plain filesystem, which has no secrets, return whether it holds the same hash key.
    """
    if superblock.encrypted != keyring.encrypted:
        return False
    if superblock.hash_key is not None:
        return unlock_plain(superblock).check_value == keyring.check_value
    return superblock.authenticator == _authenticator(superblock, keyring)


def encode_tombstone(label: str) -> bytes:
    """Return a tombstone, the bytes that replace the superblock while it is being removed."""
    return text_object.encode(_TOMBSTONE, _TOMBSTONE_VERSION, {"label": label})


def tombstone_label(data: bytes | memoryview) -> str | None:
    """Return the label in a tombstone, None if *data* is no tombstone."""
    try:
        fields = text_object.decode(_TOMBSTONE, _TOMBSTONE_VERSION, KEY, data)
        label = fields.text("label", LABEL_CHARS_MAX)
        fields.finish()
    except FormatError:
        return None
    return label


def encode(superblock: Superblock) -> bytes:
    """Return the bytes of the object KEY that holds a superblock.

    Raises:
        FormatError: a field is out of range: a bug; nothing may be stored.
    """
    data = text_object.encode("superblock", superblock.format_version, _fields(superblock))
    if decode(KEY, data) != superblock:
        raise FormatError(KEY, "the encoded superblock decodes to another one")
    return data


def decode(key: ObjectKey, data: bytes | memoryview) -> Superblock:
    """Return the superblock in the object *key*; its authenticity is verified only by unlocking it.

    Raises:
        NewerFormatError: the superblock has a version or a feature that this program does not know.
        FormatError: the object is corrupt.
    """
    version = min(text_object.version_of("superblock", key, data), FORMAT_VERSION)
    fields = text_object.decode("superblock", version, key, data)
    features = _parse_features(key, fields)
    superblock = Superblock(
        uuid=fields.matching("uuid", _UUID),
        label=fields.text("label", LABEL_CHARS_MAX),
        block_bytes=fields.integer("block_bytes", BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
        page_size=fields.integer("page_size", PAGE_BYTES_MIN, PAGE_BYTES_MAX),
        unsafe_single_writer=fields.boolean("unsafe_single_writer"),
        features=features,
        hash_key=fields.optional("hash_key", lambda name: fields.hexadecimal(name, KEY_BYTES)),
        wrapped_by_passphrase=fields.optional(
            "wrapped_by_passphrase", lambda name: key_slots.parse_lock(key, fields.inner(name))
        ),
        wrapped_by_recovery=fields.optional(
            "wrapped_by_recovery", lambda name: fields.hexadecimal(name, key_slots.WRAPPED_BYTES)
        ),
        authenticator=fields.optional(
            "authenticator", lambda name: fields.hexadecimal(name, HASH_BYTES)
        ),
        retention_s=fields.integer("retention_s", 0, RETENTION_S_MAX)
        if version >= _RETENTION_SINCE
        else RETENTION_S_DEFAULT,
        format_version=version,
        generation=fields.integer("generation") if version >= _GENERATION_SINCE else 0,
    )
    fields.finish()
    _check(key, superblock)
    return superblock


def _parse_features(key: ObjectKey, fields: Fields) -> tuple[str, ...]:
    """Return the features; refuse an unknown one before the fields that it may have added."""
    features = []
    for item in fields.array("features", FEATURES_MAX):
        if not isinstance(item, str) or _FEATURE.fullmatch(item) is None:
            raise FormatError(key, "a feature has an invalid name")
        if item not in KNOWN_FEATURES:
            raise NewerFormatError(key, f"feature {item!r}")
        features.append(item)
    if features != sorted(set(features)):
        raise FormatError(key, "the features are not sorted, or one occurs twice")
    return tuple(features)


def _check(key: ObjectKey, superblock: Superblock) -> None:
    """Refuse fields that contradict each other."""
    secrets = (
        superblock.wrapped_by_passphrase,
        superblock.wrapped_by_recovery,
        superblock.authenticator,
    )
    if [secret is not None for secret in secrets] != [superblock.encrypted] * len(secrets):
        raise FormatError(
            key, "the superblock has only some of the fields of an encrypted filesystem"
        )
    if not _is_power_of_two(superblock.block_bytes) or not _is_power_of_two(superblock.page_size):
        raise FormatError(key, "the block size or the page size is not a power of two")


def _check_arguments(label: str, block_bytes: int, page_size: int, retention_s: int) -> None:
    if not 0 <= retention_s <= RETENTION_S_MAX:
        raise UsageError(f"the retention must be from 0 to 100 years, not {retention_s} seconds")
    if len(label) > LABEL_CHARS_MAX or not label.isprintable():
        raise UsageError(f"a label must have at most {LABEL_CHARS_MAX} characters, all printable")
    if not BLOCK_BYTES_MIN <= block_bytes <= BLOCK_BYTES_MAX or not _is_power_of_two(block_bytes):
        raise UsageError(
            f"block size {block_bytes} is not a power of two from {BLOCK_BYTES_MIN} "
            f"to {BLOCK_BYTES_MAX}"
        )
    if not PAGE_BYTES_MIN <= page_size <= PAGE_BYTES_MAX or not _is_power_of_two(page_size):
        raise UsageError(
            f"page size {page_size} is not a power of two from {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX}"
        )


def _fields(superblock: Superblock) -> dict[str, object]:
    lock = superblock.wrapped_by_passphrase
    version = superblock.format_version
    return {
        **({"retention_s": superblock.retention_s} if version >= _RETENTION_SINCE else {}),
        **({"generation": superblock.generation} if version >= _GENERATION_SINCE else {}),
        "uuid": superblock.uuid,
        "label": superblock.label,
        "block_bytes": superblock.block_bytes,
        "page_size": superblock.page_size,
        "unsafe_single_writer": superblock.unsafe_single_writer,
        "features": list(superblock.features),
        "hash_key": superblock.hash_key,
        "wrapped_by_passphrase": lock and key_slots.lock_fields(lock),
        "wrapped_by_recovery": superblock.wrapped_by_recovery,
        "authenticator": superblock.authenticator,
    }


def _authenticator(superblock: Superblock, keyring: Keyring) -> str:
    fields = dump(_fields(replace(superblock, authenticator=None)))
    version = str(superblock.format_version).encode("ascii")
    return keyring.checksum(b"superblock", version, fields).hex()


def _authenticated(superblock: Superblock, keyring: Keyring) -> Superblock:
    return replace(superblock, authenticator=_authenticator(superblock, keyring))


def _verified(superblock: Superblock, keyring: Keyring) -> Keyring:
    if not is_authentic(superblock, keyring):
        raise FormatError(KEY, "the fields of the superblock are not authentic")
    return keyring


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
