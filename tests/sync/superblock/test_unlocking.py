"""Unlocking a superblock with a passphrase, a recovery key or keys that are known already."""

import pytest

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import FormatError, PassphraseError
from s3fs_meta.sync.superblock.unlocking import HeldKeys, Passphrase, RecoveryKey

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def _make(passphrase: bytes | None) -> tuple[Superblock, Keyring, str]:
    made, keyring, key = superblock_codec.create(
        UUID, "", 1 << 20, 4096, False, passphrase, cost=CHEAPEST_COST
    )
    return made, keyring, key or ""


def _never() -> bytes:
    raise AssertionError("a secret was requested although none is needed")


async def test_passphrase_or_recovery_key_or_known_keys_open_the_superblock() -> None:
    """Each secret is requested once; the case of a recovery key does not matter."""
    made, keyring, key = _make(b"secret")
    asked = []

    def ask() -> bytes:
        asked.append(1)
        return b"secret"

    passphrase = Passphrase(ask)
    passphrase.ask()
    for secret in (passphrase, RecoveryKey(lambda: key.lower().encode()), HeldKeys(keyring)):
        assert (await secret.open(made)).check_value == keyring.check_value
    assert (await passphrase.open(made)).check_value == keyring.check_value
    assert asked == [1]


async def test_unencrypted_filesystem_is_opened_without_a_secret() -> None:
    made, keyring, _key = _make(None)

    for secret in (Passphrase(_never), RecoveryKey(_never), HeldKeys(keyring)):
        assert (await secret.open(made)).check_value == keyring.check_value


async def test_wrong_secrets_and_keys_of_another_filesystem_are_refused() -> None:
    made, _keyring, _key = _make(b"secret")
    _other, its_keys, its_key = _make(b"secret")

    with pytest.raises(PassphraseError):
        await Passphrase(lambda: b"wrong").open(made)
    with pytest.raises(PassphraseError):
        await RecoveryKey(its_key.encode).open(made)
    with pytest.raises(FormatError, match="not authentic"):
        await HeldKeys(its_keys).open(made)
