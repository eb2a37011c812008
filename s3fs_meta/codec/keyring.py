"""The keys for hashing and encryption of one filesystem.

Owns: derivation of every key from the master key, the keyed block hash, keyed checksums.
Does not know: where the master key comes from (``superblock``), the format of objects.
Keeps: each encryption key is used for only one object, so a number that is unique within the object
is a safe nonce.

Nonces. AES-GCM is broken if two different messages use the same key and the same nonce. So

1. every object has its own key: HKDF of the master key, a random salt of the object,
   and a purpose that differs between kinds of objects;
2. within an object the nonce is a number that cannot repeat: 0 if the object is one message, or the
   offset of the record if the object has several records (records do not overlap).

So nonces are neither random nor stored. ``pack`` and ``envelope`` describe how they generate
salts.

Tasks: any thread may use a keyring, because it never changes after construction.
Source: RFC 5869 (HKDF); NIST SP 800-38D, section 8.2.1 (deterministic construction).
"""

from typing import Final

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
HASH_BYTES: Final = 32
TAG_BYTES: Final = 16  # length of the AES-GCM tag that follows the ciphertext
NONCE_BYTES: Final = 12

_HASH_PURPOSE: Final = b"s3fs-meta block hash 1"
_CHECKSUM_CONTEXT: Final = "s3fs-meta 2025 checksum of a stored object 1"


class Keyring:
    """The keys of one filesystem; without a master key, they can hash but not encrypt."""

    __slots__ = ("_checksum_key", "_hash_key", "_master_key")

    def __init__(self, master_key: bytes | None, hash_key: bytes) -> None:
        assert master_key is None or len(master_key) == KEY_BYTES, "a master key has 32 bytes"
        assert len(hash_key) == KEY_BYTES, "a hash key has 32 bytes"
        self._master_key = master_key
        self._hash_key = hash_key
        self._checksum_key = blake3(hash_key, derive_key_context=_CHECKSUM_CONTEXT).digest()

    @classmethod
    def from_master(cls, master_key: bytes) -> "Keyring":
        """Return the keys of an encrypted filesystem, which are derived from the master key."""
        return cls(master_key, derive_key(master_key, b"", _HASH_PURPOSE))

    @property
    def encrypted(self) -> bool:
        """Return whether the filesystem's objects are encrypted."""
        return self._master_key is not None

    @property
    def master_key(self) -> bytes:
        """Return the master key of an encrypted filesystem, for a key slot or another process."""
        assert self._master_key is not None, "a plain filesystem has no master key"
        return self._master_key

    @property
    def hash_key(self) -> bytes:
        """Return the hash key, for example to pass it to another process of this program."""
        return self._hash_key

    def block_hash(self, data: bytes | memoryview) -> bytes:
        """Return the keyed 32-byte hash of a block's content; it differs between filesystems.

        Without the key, an attacker cannot test whether the filesystem contains a known file.
        """
        return blake3(data, key=self._hash_key).digest()

    @property
    def check_value(self) -> str:
        """Return a text that identifies the keys without revealing them."""
        return self.checksum(b"key check").hex()

    def checksum(self, purpose: bytes, *parts: bytes | memoryview) -> bytes:
        """Return a 32-byte checksum of *purpose* and *parts*, including the length of each part.

        On an encrypted filesystem an attacker cannot forge the checksum without the key. On a plain
        filesystem the checksum detects corruption, and objects of another filesystem.
        """
        hasher = blake3(key=self._checksum_key)
        for part in (purpose, *parts):
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
        return hasher.digest()

    def object_cipher(self, salt: bytes, purpose: bytes) -> AESGCM:
        """Return the cipher of one object; the filesystem must be encrypted.

        Deriving the key takes about 5 us, so callers need not cache the cipher.

        Args:
            salt: generated at random by the writer of the object, and stored in the object.
            purpose: the kind of the object, and also its name if the salt is too short to be
                unique.
        """
        return AESGCM(derive_key(self.master_key, salt, purpose))


def derive_key(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Derive a 32-byte key from *secret*, which must have the entropy of a key."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=purpose).derive(secret)


def nonce(number: int) -> bytes:
    """Return *number* as a nonce; the caller ensures that it is unique within the object."""
    return number.to_bytes(NONCE_BYTES, "big")
