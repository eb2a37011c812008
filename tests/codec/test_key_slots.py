"""Key slots: the master key, wrapped with a passphrase or a recovery key."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec.fields import Fields
from s3fs_meta.codec.key_slots import (
    CHEAPEST_COST,
    PassphraseLock,
    lock_fields,
    lock_with_new_recovery_key,
    lock_with_passphrase,
    open_with_passphrase,
    open_with_recovery_key,
    parse_lock,
)
from s3fs_meta.errors import FormatError, NewerFormatError, PassphraseError, UsageError

UUID = "01234567-89ab-cdef-0123-456789abcdef"
MASTER = bytes(range(32))


@pytest.fixture
def lock() -> PassphraseLock:
    """Return a key slot that the passphrase ``secret`` opens."""
    return lock_with_passphrase(UUID, MASTER, b"secret", CHEAPEST_COST)


def test_slightly_different_passphrase_does_not_open_a_key_slot(lock: PassphraseLock) -> None:
    assert open_with_passphrase(UUID, lock, b"secret") == MASTER
    for wrong in (b"", b"Secret", b"secret ", b"secret\n", b"secret\0"):
        with pytest.raises(PassphraseError, match="does not open"):
            open_with_passphrase(UUID, lock, wrong)


def test_key_slot_can_be_opened_only_in_its_own_filesystem(lock: PassphraseLock) -> None:
    other = UUID.replace("0", "1")

    with pytest.raises(PassphraseError):
        open_with_passphrase(other, lock, b"secret")


def test_key_slots_with_equal_passphrases_differ(lock: PassphraseLock) -> None:
    """The random salt of a key slot ensures that each key encrypts only one message."""
    again = lock_with_passphrase(UUID, MASTER, b"secret", CHEAPEST_COST)

    assert (again.salt, again.wrapped) != (lock.salt, lock.wrapped)
    assert again.salt != lock.salt


def test_empty_passphrases_are_refused() -> None:
    """An empty passphrase, such as from an empty file, must not disable the encryption."""
    with pytest.raises(UsageError, match="--plain"):
        lock_with_passphrase(UUID, MASTER, b"", CHEAPEST_COST)


def test_flipped_bit_in_every_byte_of_a_wrapped_master_key_is_refused(lock: PassphraseLock) -> None:
    for at in range(0, len(lock.wrapped), 2):
        digit = format(int(lock.wrapped[at], 16) ^ 1, "x")
        damaged = lock.wrapped[:at] + digit + lock.wrapped[at + 1 :]
        with pytest.raises(PassphraseError):
            open_with_passphrase(UUID, PassphraseLock(lock.salt, lock.cost, damaged), b"secret")


def test_recovery_key_can_be_typed_with_or_without_separators() -> None:
    """A recovery key may be typed with hyphens, spaces or no separators, and in any letter case."""
    wrapped, recovery_key = lock_with_new_recovery_key(UUID, MASTER)

    assert re.fullmatch(r"([A-Z2-7]{6}-){5}[A-Z2-7]{6}", recovery_key)
    for typed in (
        recovery_key,
        recovery_key.lower(),
        recovery_key.replace("-", ""),
        f"  {recovery_key.replace('-', ' ')}\n",
    ):
        assert open_with_recovery_key(UUID, wrapped, typed) == MASTER


def test_error_about_a_recovery_key_reports_a_typing_mistake() -> None:
    """The error about a recovery key distinguishes a typing mistake from a wrong key."""
    wrapped, recovery_key = lock_with_new_recovery_key(UUID, MASTER)
    changed = "A" if recovery_key[3] != "A" else "B"

    for typed in (
        "",
        "x",
        "1" * 36,
        "ü" * 36,
        recovery_key[:-1],
        recovery_key + "A",
        recovery_key[:3] + changed + recovery_key[4:],
    ):
        with pytest.raises(PassphraseError, match="typing error"):
            open_with_recovery_key(UUID, wrapped, typed)


def test_wrong_recovery_key_does_not_open_a_key_slot() -> None:
    """A valid recovery key opens only the key slot for which it was generated."""
    wrapped, _ = lock_with_new_recovery_key(UUID, MASTER)
    _, other = lock_with_new_recovery_key(UUID, MASTER)

    with pytest.raises(PassphraseError, match="does not open"):
        open_with_recovery_key(UUID, wrapped, other)


def test_decoded_key_slot_fields_equal_the_encoded_fields(lock: PassphraseLock) -> None:
    assert parse_lock("superblock", Fields("superblock", lock_fields(lock))) == lock


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"iterations": 1000},
        {"memory_kib": 7},
        {"memory_kib": 1 << 40},
        {"lanes": 0},
        {"lanes": 2},
        {"lanes": 1 << 20, "memory_kib": 1 << 23},
        {"salt": "00"},
        {"wrapped": "00"},
        {"more": 1},
    ],
    ids=str,
)
def test_key_slot_with_an_invalid_field_or_kdf_cost_is_refused(
    lock: PassphraseLock, wrong: dict[str, object]
) -> None:
    """A forged superblock must not make the key derivation use unbounded memory or time."""
    with pytest.raises(FormatError):
        parse_lock("superblock", Fields("superblock", {**lock_fields(lock), **wrong}))


def test_error_about_an_unknown_kdf_advises_an_upgrade(lock: PassphraseLock) -> None:
    """A key slot with an unknown key derivation function was written by a newer program."""
    with pytest.raises(NewerFormatError, match="upgrade"):
        parse_lock("superblock", Fields("superblock", {**lock_fields(lock), "kdf": "balloon"}))


@settings(derandomize=True, max_examples=80)
@given(st.text(max_size=50) | st.text("ABCDEFGH234567-= ", min_size=30, max_size=45))
def test_arbitrary_text_is_refused_as_a_recovery_key(text: str) -> None:
    """For random text, the parser of recovery keys raises no error but PassphraseError."""
    with pytest.raises(PassphraseError):
        open_with_recovery_key(UUID, "00" * 48, text)
