"""Cookies: positions in readdir that are computed from names."""

from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.limits import COOKIE_HASH_BITS, RECENT_NAMES_MAX
from s3fs_meta.meta.db.cookies import name_hash


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=1, max_size=255))
def test_hash_of_a_name_fits_into_a_cookie_and_is_never_zero(key: bytes, name: bytes) -> None:
    """A cookie consists of the hash and 8 collision bits, and is a positive 63-bit number."""
    value = name_hash(key)(name)
    assert 1 <= value < 1 << COOKIE_HASH_BITS
    assert 256 <= value << 8 < 1 << 63


def test_hash_of_a_name_depends_on_the_key() -> None:
    """An attacker without the filesystem's key cannot find names with equal hashes."""
    assert name_hash(b"a" * 16)(b"name") != name_hash(b"b" * 16)(b"name")


def test_hash_of_a_known_name_equals_a_recorded_value() -> None:
    """Cookies are stored in the database, so the hash function is part of the format."""
    assert name_hash(bytes(range(16)))(b"hello") == 0x38D6B03607F079


def test_hashes_of_names_are_correct_after_the_cache_of_hashes_overflows() -> None:
    """The test hashes more names than the cache can hold, each name twice."""
    key = bytes(16)
    hash_name = name_hash(key)
    names = [b"%d" % number for number in range(2 * RECENT_NAMES_MAX)]
    assert [hash_name(name) for name in names + names] == [
        name_hash(key)(name) for name in names + names
    ]
