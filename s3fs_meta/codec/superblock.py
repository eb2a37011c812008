"""The superblock: the properties of a filesystem, and its wrapped master key.

Owns: the fields, their authentication, versions, features and the generation; the tombstone.
Does not know: stores, the source of the passphrase, the encryption of a key slot (``key_slots``),
how one of several copies is selected (``sync.superblock.selection``).
Keeps: unlocking an encrypted filesystem authenticates the fields; a program refuses a
filesystem with an unknown feature; every change raises the generation.
Design: docs/design/format.md, "Superblock".

Two key slots contain the same 32-byte master key: the passphrase opens one, the recovery key the
other. A new passphrase replaces the first slot and rewrites no data. An authenticator, under a key
derived from the master key, covers every field and both slots. A slot does not depend on the
fields, so the label and the passphrase can be changed without the recovery key.
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
    KIB,
    LABEL_CHARS_MAX,
    MIB,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    RETENTION_S_DEFAULT,
    RETENTION_S_MAX,
)
from s3fs_meta.model import ObjectKey

KEY: Final = ObjectKey("superblock")
# key of the second copy, which is used if the superblock is lost
COPY_KEY: Final = ObjectKey("superblock-copy")
COPIED_SINCE: Final = 3  # first format version with a second superblock at COPY_KEY
FORMAT_VERSION: Final = 3
# the first format version with a retention; earlier versions imply RETENTION_S_DEFAULT
_RETENTION_SINCE: Final = 2
# the first format version with a generation; earlier versions imply generation 0
_GENERATION_SINCE: Final = 3
_TOMBSTONE: Final = "tombstone"
_TOMBSTONE_VERSION: Final = 1
# Feature that locks out older programs, which would delete objects of kept points.
KEPT_POINTS: Final = "kept-points"
# docs/design/format.md explains when a feature is added to a superblock.
KNOWN_FEATURES: Final[frozenset[str]] = frozenset({KEPT_POINTS})
FEATURES_MAX: Final = 32

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_FEATURE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


@dataclass(frozen=True)
class Superblock:
    """The properties of a filesystem; key slots and authenticator exist only with encryption."""

    uuid: str
    label: str
    block_bytes: int
    page_size: int
    unsafe_single_writer: bool  # True if the user accepts a store that cannot fence a second writer
    features: tuple[str, ...]  # names of features, sorted, without duplicates
    hash_key: str | None  # key of 32 bytes, in hexadecimal
    wrapped_by_passphrase: PassphraseLock | None
    wrapped_by_recovery: str | None  # wrapped key of 48 bytes, in hexadecimal
    authenticator: str | None  # authentication code of all other fields: 32 bytes, in hexadecimal
    # Number of seconds for which old states are retained; kept points are retained longer.
    retention_s: int = RETENTION_S_DEFAULT
    format_version: int = FORMAT_VERSION
    # number that every change increments; the authentic copy with the highest number is used
    generation: int = 1

    @property
    def encrypted(self) -> bool:
        """Return whether the filesystem is encrypted; if so, unlocking it requires a secret."""
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

    Without a *passphrase* nothing is encrypted. The recovery key is not stored, so the caller must
    show it to the user.

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

    With STANDARD_COST this takes 0.2 s of processor time in four threads, and 64 MiB of memory.

    Raises:
        PassphraseError: the passphrase is wrong.
        FormatError: the fields of the superblock are not authentic.
    """
    lock = superblock.wrapped_by_passphrase
    assert lock is not None, "a plain filesystem has no passphrase"
    master_key = key_slots.open_with_passphrase(superblock.uuid, lock, passphrase)
    return _verified(superblock, Keyring.from_master(master_key))


def unlock_with_recovery(superblock: Superblock, recovery_key: str) -> Keyring:
    """Return the keys of an encrypted filesystem, unlocked with a recovery key in any letter case.

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
    """Return the superblock of the next generation with a new passphrase; keep the recovery key.

    Raises:
        UsageError: the passphrase is empty.
    """
    lock = key_slots.lock_with_passphrase(superblock.uuid, keyring.master_key, new_passphrase, cost)
    return _authenticated(replace(_next(superblock), wrapped_by_passphrase=lock), keyring)


def renew_recovery_key(superblock: Superblock, keyring: Keyring) -> tuple[Superblock, str]:
    """Return the superblock of the next generation with a new recovery key, and that key.

    The old recovery key opens only superblocks of earlier generations.
    """
    return _with_recovery_key(_next(superblock), keyring)


def _with_recovery_key(superblock: Superblock, keyring: Keyring) -> tuple[Superblock, str]:
    wrapped, recovery_key = key_slots.lock_with_new_recovery_key(
        superblock.uuid, keyring.master_key
    )
    changed = _authenticated(replace(superblock, wrapped_by_recovery=wrapped), keyring)
    return changed, recovery_key


def _next(superblock: Superblock) -> Superblock:
    """Return a superblock of the next generation, which the caller must authenticate."""
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
    """Return the superblock of the next generation with a different label, page size or retention.

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
    return _authenticated(changed, keyring)


def with_feature(superblock: Superblock, keyring: Keyring, feature: str) -> Superblock:
    """Return the superblock of the next generation with one more required feature."""
    assert feature in KNOWN_FEATURES, "the feature must be in KNOWN_FEATURES"
    features = tuple(sorted({*superblock.features, feature}))
    changed = replace(_next(superblock), features=features)
    return _authenticated(changed, keyring)


def succeed(superblock: Superblock, keyring: Keyring, generation: int) -> Superblock:
    """Return a copy of the superblock with a generation above its own and above *generation*."""
    base = replace(superblock, generation=max(superblock.generation, generation))
    return _authenticated(_next(base), keyring)


def is_authentic(superblock: Superblock, keyring: Keyring) -> bool:
    """Return whether a host with these keys wrote the superblock exactly as it is.

    On a plain filesystem, which has no secrets, return whether the hash key is the same.
    """
    if superblock.encrypted != keyring.encrypted:
        return False
    if superblock.hash_key is not None:
        return unlock_plain(superblock).check_value == keyring.check_value
    return superblock.authenticator == _authenticator(superblock, keyring)


def encode_tombstone(label: str) -> bytes:
    """Return a tombstone: the bytes that replace the superblock while the filesystem is deleted."""
    return text_object.encode(_TOMBSTONE, _TOMBSTONE_VERSION, {"label": label})


def tombstone_label(data: bytes | memoryview) -> str | None:
    """Return the label in a tombstone, or None if *data* is not a tombstone."""
    try:
        fields = text_object.decode(_TOMBSTONE, _TOMBSTONE_VERSION, KEY, data)
        label = fields.text("label", LABEL_CHARS_MAX)
        fields.finish()
    except FormatError:
        return None
    return label


def encode(superblock: Superblock) -> bytes:
    """Encode a superblock; return the bytes to store under KEY and COPY_KEY.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    data = text_object.encode("superblock", superblock.format_version, fields_of(superblock))
    if decode(KEY, data) != superblock:
        raise FormatError(
            KEY, "bug: the encoded superblock decodes to other values, so it was not stored"
        )
    return data


def fields_of(superblock: Superblock) -> dict[str, object]:
    """Return the JSON fields of a superblock, in the format version that it declares."""
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


def decode(key: ObjectKey, data: bytes | memoryview) -> Superblock:
    """Return the superblock in the object *key*; only unlocking verifies its authenticity.

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
    """Return the features; call this first, because an unknown feature may change other fields."""
    features = []
    for item in fields.array("features", FEATURES_MAX):
        if not isinstance(item, str) or _FEATURE.fullmatch(item) is None:
            raise FormatError(key, "a feature of the superblock has an invalid name")
        if item not in KNOWN_FEATURES:
            raise NewerFormatError(key, f"the feature {item!r} is unknown")
        features.append(item)
    if features != sorted(set(features)):
        raise FormatError(
            key, "the features of the superblock are not sorted, or a feature occurs twice"
        )
    return tuple(features)


def _check(key: ObjectKey, superblock: Superblock) -> None:
    """Raise FormatError if the fields of a superblock contradict each other."""
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
        raise UsageError(f"the retention is not from 0 to 100 years: {retention_s} seconds")
    if len(label) > LABEL_CHARS_MAX or not label.isprintable():
        raise UsageError(f"a label must have at most {LABEL_CHARS_MAX} characters, all printable")
    if not BLOCK_BYTES_MIN <= block_bytes <= BLOCK_BYTES_MAX or not _is_power_of_two(block_bytes):
        raise UsageError(
            f"block size {block_bytes} is not a power of two between {BLOCK_BYTES_MIN // KIB}K "
            f"and {BLOCK_BYTES_MAX // MIB}M"
        )
    if not PAGE_BYTES_MIN <= page_size <= PAGE_BYTES_MAX or not _is_power_of_two(page_size):
        raise UsageError(
            f"page size {page_size} is not a power of two between {PAGE_BYTES_MIN} "
            f"and {PAGE_BYTES_MAX // KIB}K"
        )


def _authenticator(superblock: Superblock, keyring: Keyring) -> str:
    fields = dump(fields_of(replace(superblock, authenticator=None)))
    version = str(superblock.format_version).encode("ascii")
    return keyring.checksum(b"superblock", version, fields).hex()


def _authenticated(superblock: Superblock, keyring: Keyring) -> Superblock:
    """Return the superblock with the authenticator of its fields; it has none without encryption."""
    if not superblock.encrypted:
        return superblock
    return replace(superblock, authenticator=_authenticator(superblock, keyring))


def _verified(superblock: Superblock, keyring: Keyring) -> Keyring:
    if not is_authentic(superblock, keyring):
        raise FormatError(KEY, "the fields of the superblock are not authentic")
    return keyring


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def superblock_facts(superblock: Superblock) -> dict[str, bytes]:
    """Return the fields that every database also contains, keyed by their names in the database."""
    return {
        "uuid": superblock.uuid.encode(),
        "block_bytes": str(superblock.block_bytes).encode(),
    }
