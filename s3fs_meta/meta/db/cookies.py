"""Hashes of names, which form the main part of the cookies (readdir positions) of dentries.

Owns: the keyed hash. ``dentries`` assigns different cookies to names with the same hash. The key is
secret, so that a user cannot choose names with the same hash.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from s3fs_meta.limits import COOKIE_HASH_BITS, RECENT_NAMES_MAX

NameHash = Callable[[bytes], int]

_DIGEST_BYTES: Final = 8
_SHIFT: Final = 8 * _DIGEST_BYTES - COOKIE_HASH_BITS


def name_hash(key: bytes) -> NameHash:
    """Return the function that hashes names with one key: ``1 <= hash < 1 << COOKIE_HASH_BITS``.

    Copying a keyed hash state takes 0.4 us, creating one takes 0.6 us. A few results are cached,
    because creat(2) and unlink(2) look up a name before they insert or delete it.
    """
    keyed = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=key)
    from_bytes = int.from_bytes
    recent: dict[bytes, int] = {}

    def hash_name(name: bytes) -> int:
        value = recent.get(name)
        if value is None:
            state = keyed.copy()
            state.update(name)
            value = (from_bytes(state.digest(), "big") >> _SHIFT) or 1
            if len(recent) >= RECENT_NAMES_MAX:
                recent.clear()
            recent[name] = value
        return value

    return hash_name
