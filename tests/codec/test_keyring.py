"""Keys: different where required, equal where required."""

import pytest
from cryptography.exceptions import InvalidTag

from s3fs_meta.codec.keyring import Keyring, derive_key, nonce

MASTER = bytes(range(32))


def test_block_hash_differs_between_filesystems() -> None:
    """The same content has a different hash with another key, encrypted or not."""
    keyrings = [
        Keyring(None, bytes(32)),
        Keyring(None, bytes([1]) * 32),
        Keyring.from_master(MASTER),
        Keyring.from_master(MASTER[::-1]),
    ]

    assert len({keyring.block_hash(b"content") for keyring in keyrings}) == 4


def test_block_hash_is_the_same_for_equal_keys_and_buffers() -> None:
    """A hash can be computed from any buffer and after a remount."""
    first, second = Keyring.from_master(MASTER), Keyring.from_master(MASTER)

    assert first.block_hash(b"content") == second.block_hash(memoryview(b"content"))


def test_the_format_of_derived_keys_is_fixed() -> None:
    """Existing buckets have these values: a change makes old filesystems unreadable."""
    keyring = Keyring.from_master(MASTER)

    assert (
        keyring.block_hash(b"content").hex(),
        keyring.checksum(b"purpose", b"part").hex(),
        keyring.object_cipher(b"salt", b"purpose").encrypt(nonce(7), b"text", b"context").hex(),
    ) == (
        "41ba33a65ce1292a25595edb79fbf684c1bbf352eb572b567489ae8f55d832fb",
        "a1d7944bc3a0d8e0fd041633a59bd5b7c98a05d5395ff51847467bced163e053",
        "44f663124c4b61666b048a297c7546a92ae2d57d",
    )


def test_ciphers_differ_by_salt_purpose_and_master() -> None:
    """A ciphertext opens only with the key of its own object."""
    text = Keyring.from_master(MASTER).object_cipher(b"a", b"b").encrypt(nonce(0), b"text", None)
    others = [
        Keyring.from_master(MASTER).object_cipher(b"x", b"b"),
        Keyring.from_master(MASTER).object_cipher(b"a", b"x"),
        Keyring.from_master(MASTER[::-1]).object_cipher(b"a", b"b"),
    ]

    for cipher in others:
        with pytest.raises(InvalidTag):
            cipher.decrypt(nonce(0), text, None)


def test_checksum_depends_on_part_boundaries() -> None:
    """Moving a byte from one part to the next changes the checksum."""
    keyring = Keyring(None, bytes(32))

    assert keyring.checksum(b"p", b"ab", b"c") != keyring.checksum(b"p", b"a", b"bc")
    assert keyring.checksum(b"p", b"ab") != keyring.checksum(b"p", b"ab", b"")


def test_derived_keys_reveal_no_secret() -> None:
    """A derived key reveals nothing about its source."""
    assert derive_key(MASTER, b"", b"one") not in {MASTER, derive_key(MASTER, b"", b"two")}


def test_plain_keyring_refuses_to_encrypt() -> None:
    """Without a master key there is no cipher: a call would be a bug."""
    keyring = Keyring(None, bytes(32))

    assert not keyring.encrypted
    with pytest.raises(AssertionError):
        keyring.object_cipher(b"salt", b"purpose")


def test_repr_of_a_keyring_reveals_no_key() -> None:
    """A keyring in a log line or traceback reveals nothing."""
    assert MASTER.hex() not in repr(Keyring.from_master(MASTER))
    assert repr(MASTER) not in repr(Keyring.from_master(MASTER))
