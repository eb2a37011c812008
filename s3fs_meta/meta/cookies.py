"""Readdir positions from names.

Owns: the keyed hash. Which of the names with one hash gets which position is ``dentries``'.
The hash is keyed with a secret of the filesystem, so that nobody can choose names that collide.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from s3fs_meta.limits import COOKIE_HASH_BITS

NameHash = Callable[[bytes], int]

_DIGEST_BYTES: Final = 8
_SHIFT: Final = 8 * _DIGEST_BYTES - COOKIE_HASH_BITS


def cookie_hash(key: bytes, name: bytes) -> int:
    """Return the hash of a name, ``1 <= hash < 1 << COOKIE_HASH_BITS``."""
    digest = hashlib.blake2b(name, digest_size=_DIGEST_BYTES, key=key).digest()
    return (int.from_bytes(digest, "big") >> _SHIFT) or 1


def name_hash(key: bytes) -> NameHash:
    """Return ``cookie_hash`` for one key; copying a keyed state costs 0.4 us instead of 0.6."""
    keyed = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=key)
    from_bytes = int.from_bytes

    def hash_name(name: bytes) -> int:
        state = keyed.copy()
        state.update(name)
        return (from_bytes(state.digest(), "big") >> _SHIFT) or 1

    return hash_name
