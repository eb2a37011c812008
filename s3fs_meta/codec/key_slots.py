"""Key slots: the master key, encrypted with a passphrase or a recovery key.

Owns: key derivation from passphrases, the spelling of recovery keys, wrapping and unwrapping.
Does not know: the superblock's other fields.

Nonces. Each key slot (a *lock* in format.md and in the code) has its own key. The key of a
passphrase slot depends on a new random salt, and the key of a recovery slot on a new recovery key.
Each key encrypts one message, so the nonce is always 0. The uuid of the filesystem is the
associated data.

Source: RFC 9106 (Argon2), section 4, for the cost: the second recommended option.
"""

import base64
import os
from dataclasses import dataclass
from typing import Final, NamedTuple

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from s3fs_meta.codec.fields import Fields
from s3fs_meta.codec.keyring import KEY_BYTES, TAG_BYTES, derive_key, nonce
from s3fs_meta.errors import NewerFormatError, PassphraseError, UsageError
from s3fs_meta.limits import KDF_ITERATIONS_MAX, KDF_LANES_MAX, KDF_MEMORY_KIB_MAX

WRAPPED_BYTES: Final = KEY_BYTES + TAG_BYTES

_SALT_BYTES: Final = 16
_RECOVERY_BYTES: Final = 20
_CHECK_CHARS: Final = 4
_GROUP_CHARS: Final = 6
_KDF: Final = "argon2id"
_KDF_CHARS_MAX: Final = 32
_MEMORY_KIB_PER_LANE: Final = 8  # minimum memory per lane that argon2 accepts, in KiB


class KdfCost(NamedTuple):
    """The parameters of argon2id, which determine the cost of one guess at a passphrase."""

    iterations: int
    memory_kib: int
    lanes: int


STANDARD_COST: Final = KdfCost(iterations=3, memory_kib=64 * 1024, lanes=4)
CHEAPEST_COST: Final = KdfCost(iterations=1, memory_kib=8, lanes=1)  # insecure cost, only for tests


@dataclass(frozen=True)
class PassphraseLock:
    """The master key, encrypted with a key that argon2id derives from the passphrase."""

    salt: str  # salt of 16 bytes, in hexadecimal
    cost: KdfCost
    wrapped: str  # the wrapped key of WRAPPED_BYTES bytes, in hexadecimal


def lock_with_passphrase(
    uuid: str, master_key: bytes, passphrase: bytes, cost: KdfCost
) -> PassphraseLock:
    """Encrypt the master key with a passphrase; return the new key slot.

    Raises:
        UsageError: the passphrase is empty.
    """
    if not passphrase:
        raise UsageError("the passphrase is empty; use --plain for a filesystem without encryption")
    salt = os.urandom(_SALT_BYTES)
    cipher = _cipher(_stretch(passphrase, salt, cost), b"passphrase")
    return PassphraseLock(salt.hex(), cost, _wrap(cipher, uuid, master_key))


def open_with_passphrase(uuid: str, lock: PassphraseLock, passphrase: bytes) -> bytes:
    """Decrypt the key slot of the passphrase; return the master key.

    Raises:
        PassphraseError: the passphrase is wrong, or the key slot was changed.
    """
    secret = _stretch(passphrase, bytes.fromhex(lock.salt), lock.cost)
    return _unwrap(_cipher(secret, b"passphrase"), uuid, lock.wrapped, "passphrase")


def lock_with_new_recovery_key(uuid: str, master_key: bytes) -> tuple[str, str]:
    """Return the wrapped master key, in hexadecimal, and a new recovery key that unwraps it."""
    secret = os.urandom(_RECOVERY_BYTES)
    wrapped = _wrap(_cipher(secret, b"recovery"), uuid, master_key)
    return wrapped, _format_recovery_key(secret)


def open_with_recovery_key(uuid: str, wrapped: str, recovery_key: str) -> bytes:
    """Decrypt *wrapped* with the recovery key; return the master key.

    Raises:
        PassphraseError: the recovery key is mistyped or wrong, or the key slot was changed.
    """
    secret = _parse_recovery_key(recovery_key)
    return _unwrap(_cipher(secret, b"recovery"), uuid, wrapped, "recovery key")


def lock_fields(lock: PassphraseLock) -> dict[str, object]:
    """Return the fields of the passphrase's key slot for JSON."""
    return {"kdf": _KDF, "salt": lock.salt, **lock.cost._asdict(), "wrapped": lock.wrapped}


def parse_lock(key: str, fields: Fields) -> PassphraseLock:
    """Return the passphrase's key slot in the *fields* of the object *key*.

    Raises:
        NewerFormatError: the key slot uses a key derivation other than argon2id.
        FormatError: the fields are corrupt, or the cost is above the limits.
    """
    kdf = fields.text("kdf", _KDF_CHARS_MAX)
    if kdf != _KDF:
        raise NewerFormatError(key, f"the key derivation {kdf!r} is unknown")
    lanes = fields.integer("lanes", 1, KDF_LANES_MAX)
    memory_kib_min = lanes * _MEMORY_KIB_PER_LANE
    lock = PassphraseLock(
        salt=fields.hexadecimal("salt", _SALT_BYTES),
        cost=KdfCost(
            iterations=fields.integer("iterations", 1, KDF_ITERATIONS_MAX),
            memory_kib=fields.integer("memory_kib", memory_kib_min, KDF_MEMORY_KIB_MAX),
            lanes=lanes,
        ),
        wrapped=fields.hexadecimal("wrapped", WRAPPED_BYTES),
    )
    fields.finish()
    return lock


def _stretch(passphrase: bytes, salt: bytes, cost: KdfCost) -> bytes:
    return Argon2id(
        salt=salt,
        length=KEY_BYTES,
        iterations=cost.iterations,
        lanes=cost.lanes,
        memory_cost=cost.memory_kib,
    ).derive(passphrase)


def _cipher(secret: bytes, purpose: bytes) -> AESGCM:
    return AESGCM(derive_key(secret, b"", b"s3fs-meta lock 1 " + purpose))


def _wrap(cipher: AESGCM, uuid: str, master_key: bytes) -> str:
    return cipher.encrypt(nonce(0), master_key, uuid.encode("ascii")).hex()


def _unwrap(cipher: AESGCM, uuid: str, wrapped: str, what: str) -> bytes:
    try:
        return cipher.decrypt(nonce(0), bytes.fromhex(wrapped), uuid.encode("ascii"))
    except InvalidTag as exc:
        raise PassphraseError(f"the {what} does not open this filesystem") from exc


def _format_recovery_key(secret: bytes) -> str:
    """Return the text of a recovery key: 32 characters for 160 bits, and 4 check characters."""
    digits = base64.b32encode(secret).decode("ascii") + _check(secret)
    groups = range(0, len(digits), _GROUP_CHARS)
    return "-".join(digits[at : at + _GROUP_CHARS] for at in groups)


def _parse_recovery_key(text: str) -> bytes:
    """Decode a recovery key that a user typed; ignore letter case, spaces and dashes."""
    digits = "".join(text.replace("-", "").split()).upper()
    try:
        secret = base64.b32decode(digits[:-_CHECK_CHARS])
    except ValueError:
        secret = b""
    if len(secret) != _RECOVERY_BYTES or digits[-_CHECK_CHARS:] != _check(secret):
        raise PassphraseError("the recovery key contains a typing error")
    return secret


def _check(secret: bytes) -> str:
    """Return the check characters, which detect typing mistakes in a recovery key."""
    digest = blake3(b"s3fs-meta recovery key" + secret).digest()
    return base64.b32encode(digest).decode("ascii")[:_CHECK_CHARS]
