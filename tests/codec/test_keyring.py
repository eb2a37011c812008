"""Keyrings: keys that are derived from a master key, and their hashes, ciphers and checksums."""

import pytest
from cryptography.exceptions import InvalidTag

from s3fs_meta.codec.keyring import Keyring, derive_key, nonce

MASTER = bytes(range(32))


def test_hash_of_a_block_differs_between_filesystems() -> None:
    keyrings = [
        Keyring(None, bytes(32)),
        Keyring(None, bytes([1]) * 32),
        Keyring.from_master(MASTER),
        Keyring.from_master(MASTER[::-1]),
    ]

    assert len({keyring.block_hash(b"content") for keyring in keyrings}) == 4


def test_hash_of_a_block_does_not_depend_on_the_type_of_buffer() -> None:
    first, second = Keyring.from_master(MASTER), Keyring.from_master(MASTER)

    assert first.block_hash(b"content") == second.block_hash(memoryview(b"content"))


def test_derived_keys_equal_those_of_earlier_program_versions() -> None:
    """If a derived key changed, existing buckets could not be read any more."""
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


def test_cipher_depends_on_its_salt_and_purpose_and_master_key() -> None:
    text = Keyring.from_master(MASTER).object_cipher(b"a", b"b").encrypt(nonce(0), b"text", None)
    others = [
        Keyring.from_master(MASTER).object_cipher(b"x", b"b"),
        Keyring.from_master(MASTER).object_cipher(b"a", b"x"),
        Keyring.from_master(MASTER[::-1]).object_cipher(b"a", b"b"),
    ]

    for cipher in others:
        with pytest.raises(InvalidTag):
            cipher.decrypt(nonce(0), text, None)


def test_checksum_depends_on_the_boundaries_between_its_arguments() -> None:
    """The checksum of two arguments changes if a byte moves from the first to the second."""
    keyring = Keyring(None, bytes(32))

    assert keyring.checksum(b"p", b"ab", b"c") != keyring.checksum(b"p", b"a", b"bc")
    assert keyring.checksum(b"p", b"ab") != keyring.checksum(b"p", b"ab", b"")


def test_derived_keys_differ_from_the_master_key_and_from_each_other() -> None:
    assert derive_key(MASTER, b"", b"one") not in {MASTER, derive_key(MASTER, b"", b"two")}


def test_keyring_of_a_plain_filesystem_refuses_to_encrypt() -> None:
    keyring = Keyring(None, bytes(32))

    assert not keyring.encrypted
    with pytest.raises(AssertionError):
        keyring.object_cipher(b"salt", b"purpose")


def test_repr_of_a_keyring_reveals_no_key() -> None:
    assert MASTER.hex() not in repr(Keyring.from_master(MASTER))
    assert repr(MASTER) not in repr(Keyring.from_master(MASTER))
