"""The superblock: its fields, unlocking and detection of forgery."""

from base64 import b64encode
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import envelope, text_object
from s3fs_meta.codec.fields import INTEGER_MAX
from s3fs_meta.codec.key_slots import CHEAPEST_COST, STANDARD_COST
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import (
    KEY,
    Superblock,
    amend,
    create,
    decode,
    encode,
    encode_tombstone,
    fields_of,
    is_authentic,
    renew_recovery_key,
    rewrap,
    tombstone_label,
    unlock,
    unlock_plain,
    unlock_with_recovery,
)
from s3fs_meta.errors import FormatError, NewerFormatError, PassphraseError, UsageError
from s3fs_meta.limits import RETENTION_S_DEFAULT
from s3fs_meta.model import ObjectKey
from tests.codec.json_values import json_values
from tests.codec.superblocks import SUPERBLOCK_1, SUPERBLOCK_2
from tests.damage import flipped

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def make(
    passphrase: bytes | None = b"secret", *, label: str = "büro", block_bytes: int = 1 << 20
) -> tuple[Superblock, Keyring, str]:
    """Return a new superblock with a cheap passphrase hash, its keyring and its recovery key."""
    made, keyring, recovery_key = create(
        UUID, label, block_bytes, 4096, False, passphrase, cost=CHEAPEST_COST
    )
    return made, keyring, recovery_key or ""


def same_keys(first: Keyring, second: Keyring) -> bool:
    """Return whether two keyrings contain the same keys."""
    return (first.encrypted, first.block_hash(b"x")) == (second.encrypted, second.block_hash(b"x"))


def test_encrypted_superblock_opens_with_its_passphrase_or_recovery_key() -> None:
    made, keyring, recovery_key = make()
    read = decode(KEY, encode(made))

    assert read == made
    assert read.encrypted
    assert keyring.encrypted
    assert same_keys(unlock(read, b"secret"), keyring)
    assert same_keys(unlock_with_recovery(read, recovery_key), keyring)


def test_plain_superblock_opens_without_a_passphrase() -> None:
    """A plain superblock contains a random hash key and no recovery key."""
    made, keyring, recovery_key = make(None)
    read = decode(KEY, encode(made))

    assert (read, recovery_key, read.encrypted) == (made, "", False)
    assert same_keys(unlock_plain(read), keyring)
    assert not same_keys(make(None)[1], keyring)


def test_filesystems_with_equal_passphrases_have_different_master_keys() -> None:
    """The master key is random and not derived from the passphrase."""
    assert not same_keys(make()[1], make()[1])


def test_superblock_contains_only_the_wrapped_master_key() -> None:
    """The superblock contains the master key only in two wrapped forms."""
    made, keyring, _ = make()
    text = encode(made)

    assert keyring.master_key not in text
    assert keyring.master_key.hex().encode() not in text
    assert b64encode(keyring.master_key) not in text
    assert (made.hash_key, made.wrapped_by_passphrase is None) == (None, False)
    # A wrapped key consists of the 32-byte master key and an authentication tag.
    assert len(bytes.fromhex(made.wrapped_by_recovery or "")) == 32 + 16


def test_old_superblock_with_its_old_passphrase_unlocks_the_current_master_key() -> None:
    """A copy of an old superblock can be opened with its old passphrase (see SECURITY.md)."""
    made, keyring, recovery_key = make()
    renewed, _ = renew_recovery_key(rewrap(made, keyring, b"new", cost=CHEAPEST_COST), keyring)
    now = unlock(renewed, b"new")

    assert same_keys(unlock(made, b"secret"), now)
    assert same_keys(unlock_with_recovery(made, recovery_key), now)


def test_owner_of_a_plain_superblock_can_forge_objects_of_the_filesystem() -> None:
    """The superblock of a plain filesystem contains all keys (see SECURITY.md)."""
    made, keyring, _ = make(None)
    forger = unlock_plain(decode(KEY, encode(made)))
    name = ObjectKey("changelog/000000000001")

    assert (
        envelope.decode(b"kind", name, envelope.encode(b"kind", name, b"x", forger), keyring)
        == b"x"
    )


def test_superblock_refuses_a_wrong_passphrase_or_recovery_key() -> None:
    made, _, _ = make()

    with pytest.raises(PassphraseError, match="the passphrase does not open"):
        unlock(made, b"Secret")
    with pytest.raises(PassphraseError, match="the recovery key does not open"):
        unlock_with_recovery(made, make()[2])


def test_new_passphrase_replaces_the_old_passphrase() -> None:
    """A new passphrase changes neither the master key nor the recovery key."""
    made, keyring, recovery_key = make()
    changed = decode(KEY, encode(rewrap(made, keyring, b"new", cost=CHEAPEST_COST)))

    assert same_keys(unlock(changed, b"new"), keyring)
    assert same_keys(unlock_with_recovery(changed, recovery_key), keyring)
    with pytest.raises(PassphraseError):
        unlock(changed, b"secret")


def test_new_recovery_key_replaces_the_old_recovery_key() -> None:
    """A new recovery key changes neither the master key nor the passphrase."""
    made, keyring, old = make()
    changed, new = renew_recovery_key(made, keyring)

    assert same_keys(unlock_with_recovery(changed, new), keyring)
    assert same_keys(unlock(changed, b"secret"), keyring)
    with pytest.raises(PassphraseError):
        unlock_with_recovery(changed, old)


@pytest.mark.parametrize("passphrase", [b"secret", None], ids=["encrypted", "plain"])
def test_label_and_page_size_of_a_superblock_can_be_changed(passphrase: bytes | None) -> None:
    made, keyring, recovery_key = make(passphrase)
    changed = decode(KEY, encode(amend(made, keyring, label="new", page_size=8192)))

    assert (changed.label, changed.page_size, changed.uuid) == ("new", 8192, UUID)
    back = amend(changed, keyring, label="büro", page_size=4096)
    assert fields_but_signature(back) == {**fields_but_signature(made), "generation": 3}
    if passphrase:
        assert same_keys(unlock(changed, passphrase), keyring)
        assert same_keys(unlock_with_recovery(changed, recovery_key), keyring)
    with pytest.raises(UsageError):
        amend(made, keyring, page_size=4095)


@pytest.mark.parametrize("passphrase", [b"secret", None], ids=["encrypted", "plain"])
def test_retention_in_a_superblock_can_be_changed(passphrase: bytes | None) -> None:
    made, keyring, _ = make(passphrase)
    assert made.retention_s == RETENTION_S_DEFAULT
    changed = decode(KEY, encode(amend(made, keyring, retention_s=0)))

    assert (changed.retention_s, changed.format_version) == (0, 3)
    assert is_authentic(changed, keyring)
    with pytest.raises(UsageError):
        amend(made, keyring, retention_s=-1)


@pytest.mark.parametrize(
    ("data", "version", "retention_s"),
    [("1", 1, RETENTION_S_DEFAULT), ("2", 2, 3600)],
)
def test_superblock_of_an_older_version_has_generation_0_until_a_change(
    data: str, version: int, retention_s: int
) -> None:
    """Superblocks of versions 1 and 2 stay unchanged until a change rewrites them as version 3."""
    old = decode(KEY, SUPERBLOCKS[data])
    keyring = unlock(old, b"secret")

    assert (old.format_version, old.generation, old.retention_s) == (version, 0, retention_s)
    assert encode(old) == SUPERBLOCKS[data]
    changed = decode(KEY, encode(rewrap(old, keyring, b"new", cost=CHEAPEST_COST)))
    assert (changed.format_version, changed.generation) == (3, 1)
    assert changed.retention_s == retention_s
    assert same_keys(unlock(changed, b"new"), keyring)


def test_change_raises_the_generation_of_a_superblock_up_to_the_largest_integer() -> None:
    """The copy of a superblock with the higher generation is the newer copy."""
    made, keyring, _ = make()

    assert made.generation == 1
    assert rewrap(made, keyring, b"new", cost=CHEAPEST_COST).generation == 2
    assert renew_recovery_key(made, keyring)[0].generation == 2
    assert amend(made, keyring, label="x").generation == 2
    last = amend(replace(made, generation=INTEGER_MAX), keyring, label="x")
    assert decode(KEY, encode(last)).generation == INTEGER_MAX


def test_process_that_has_the_keys_detects_a_forged_superblock() -> None:
    """A running mount accepts a changed superblock only if its writer had the keys."""
    made, keyring, _ = make()
    plain, its_keys, _ = make(None)

    assert is_authentic(made, keyring)
    assert not is_authentic(replace(made, retention_s=0), keyring)
    assert not is_authentic(replace(made, generation=2), keyring)
    assert not is_authentic(plain, keyring)
    assert not is_authentic(made, its_keys)
    # An unencrypted filesystem has no secret, so its superblock can be forged.
    assert is_authentic(replace(plain, retention_s=0), its_keys)
    assert not is_authentic(make(None)[0], its_keys)


def test_tombstone_is_not_decoded_as_a_superblock() -> None:
    """A tombstone replaces the superblock while the filesystem is being destroyed."""
    data = encode_tombstone("büro")

    assert tombstone_label(data) == "büro"
    assert tombstone_label(encode(make()[0])) is None
    with pytest.raises(FormatError):
        decode(KEY, data)
    for at in range(len(data)):
        assert tombstone_label(flipped(data, at, at % 8)) is None


@pytest.mark.parametrize(
    "forged",
    [
        {"label": "other"},
        {"block_bytes": 1 << 16},
        {"page_size": 8192},
        {"unsafe_single_writer": True},
        {"wrapped_by_recovery": "00" * 48},
        {"authenticator": "00" * 32},
        {"retention_s": 0},
        {"generation": 2},
        {"format_version": 1, "generation": 0},
        {"format_version": 2, "generation": 0},
    ],
    ids=str,
)
def test_unlock_detects_forged_superblock_fields(forged: dict[str, object]) -> None:
    """An attacker who can write to the bucket cannot change the filesystem's settings."""
    made, _, _ = make()
    # mypy cannot check keyword arguments that come from a dict.
    changed = decode(KEY, encode(replace(made, **forged)))  # type: ignore[arg-type]

    with pytest.raises(FormatError, match="not authentic"):
        unlock(changed, b"secret")


def test_unlock_detects_an_exchanged_key_slot() -> None:
    """The authenticator of the superblock also protects its key slots."""
    made, _, recovery_key = make()
    lock = make()[0].wrapped_by_passphrase
    assert lock is not None
    forged = replace(made, wrapped_by_passphrase=lock)

    with pytest.raises(FormatError, match="not authentic"):
        unlock_with_recovery(forged, recovery_key)
    with pytest.raises(FormatError, match="not authentic"):
        unlock(forged, b"secret")


def test_key_slot_cannot_be_opened_with_another_filesystem_uuid() -> None:
    made, _, recovery_key = make()
    forged = replace(made, uuid=UUID.replace("0", "1"))

    with pytest.raises(PassphraseError):
        unlock(forged, b"secret")
    with pytest.raises(PassphraseError):
        unlock_with_recovery(forged, recovery_key)


def fields_but_signature(made: Superblock) -> dict[str, object]:
    """Return the JSON fields of a superblock with an empty authenticator."""
    return {**fields_of(made), "authenticator": ""}


@pytest.mark.parametrize(
    "wrong",
    [
        {"uuid": "x"},
        {"uuid": UUID.upper()},
        {"label": 5},
        {"label": "x" * 65},
        {"label": "a\x1b[2J"},
        {"block_bytes": 1 << 15},
        {"block_bytes": 1 << 25},
        {"block_bytes": (1 << 20) + 1},
        {"page_size": 256},
        {"page_size": 5000},
        {"unsafe_single_writer": 0},
        {"features": None},
        {"features": [1]},
        {"features": ["Not a word"]},
        {"features": ["x"] * 33},
        {"hash_key": "00" * 32},
        {"hash_key": "00"},
        {"wrapped_by_passphrase": None},
        {"wrapped_by_passphrase": []},
        {"wrapped_by_recovery": None},
        {"wrapped_by_recovery": "00"},
        {"authenticator": None},
        {"authenticator": "00"},
        {"retention_s": -1},
        {"retention_s": 1 << 40},
        {"retention_s": 1.5},
        {"generation": -1},
        {"generation": 1 << 63},
        {"generation": None},
        {"more": 1},
    ],
    ids=str,
)
def test_superblock_with_an_invalid_field_is_refused(wrong: dict[str, object]) -> None:
    fields = fields_of(make()[0])

    assert decode(KEY, text_object.encode("superblock", 3, fields)).uuid == UUID
    with pytest.raises(FormatError):
        decode(KEY, text_object.encode("superblock", 3, {**fields, **wrong}))


@pytest.mark.parametrize("name", list(fields_of(make(None)[0])))
def test_superblock_without_one_of_its_fields_is_refused(name: str) -> None:
    fields = {key: value for key, value in fields_of(make()[0]).items() if key != name}

    with pytest.raises(FormatError, match=name):
        decode(KEY, text_object.encode("superblock", 3, fields))


def test_error_about_a_newer_superblock_or_unknown_feature_advises_an_upgrade() -> None:
    """A superblock of a newer version is not reported as damaged."""
    fields = fields_of(make()[0])

    with pytest.raises(NewerFormatError, match=r"superblock version 4 is unknown; upgrade"):
        decode(KEY, text_object.encode("superblock", 4, fields))
    with pytest.raises(NewerFormatError, match=r"feature 'tiers' is unknown; upgrade"):
        decode(KEY, text_object.encode("superblock", 3, {**fields, "features": ["tiers"]}))


def test_decoder_of_superblocks_detects_any_flipped_bit() -> None:
    """A damaged superblock is not reported as a different passphrase or version."""
    data = encode(make()[0])

    for at in range(8 * len(data)):
        with pytest.raises(FormatError) as refused:
            decode(KEY, flipped(data, at // 8, at % 8))
        assert not isinstance(refused.value, NewerFormatError)


@pytest.mark.parametrize(
    ("label", "block_bytes", "page_size"),
    [
        ("x" * 65, 1 << 20, 4096),
        ("a\nb", 1 << 20, 4096),
        ("", 1 << 15, 4096),
        ("", 1 << 25, 4096),
        ("", 1_000_000, 4096),
        ("", 1 << 20, 256),
        ("", 1 << 20, 1 << 17),
        ("", 1 << 20, 3000),
    ],
)
def test_superblock_that_cannot_be_decoded_is_not_created(
    label: str, block_bytes: int, page_size: int
) -> None:
    with pytest.raises(UsageError):
        create(UUID, label, block_bytes, page_size, False, None)


def test_superblock_with_an_invalid_uuid_is_not_encoded() -> None:
    with pytest.raises(FormatError):
        encode(replace(make()[0], uuid="x"))


@pytest.mark.slow
def test_superblock_with_the_default_kdf_cost_of_mkfs_can_be_opened() -> None:
    made, keyring, _ = create(UUID, "", 1 << 20, 4096, True, b"secret")
    assert made.wrapped_by_passphrase is not None

    assert made.wrapped_by_passphrase.cost == STANDARD_COST
    assert same_keys(unlock(decode(KEY, encode(made)), b"secret"), keyring)


SOUND = fields_of(make()[0])
LOCK_NAMES = ("kdf", "salt", "iterations", "memory_kib", "lanes", "wrapped", "x")


@settings(derandomize=True, max_examples=80)
@given(st.sampled_from(sorted([*SOUND, "x"])), json_values)
def test_arbitrary_value_in_a_superblock_is_refused_or_stays_unchanged(
    name: str, value: object
) -> None:
    """For a random value, the parser of superblocks raises no error but FormatError."""
    try:
        read = decode(KEY, text_object.encode("superblock", 3, {**SOUND, name: value}))
    except FormatError:
        return
    assert fields_of(read) == {**SOUND, name: value}


@settings(derandomize=True, max_examples=80)
@given(st.sampled_from(LOCK_NAMES), json_values)
def test_arbitrary_value_in_a_key_slot_is_refused_or_does_not_unlock_the_filesystem(
    name: str, value: object
) -> None:
    """A changed key slot raises no error but PassphraseError or FormatError."""
    lock = SOUND["wrapped_by_passphrase"]
    assert isinstance(lock, dict)
    fields = {**SOUND, "wrapped_by_passphrase": {**lock, name: value}}
    try:
        read = decode(KEY, text_object.encode("superblock", 3, fields))
        if read.wrapped_by_passphrase and max(read.wrapped_by_passphrase.cost) > 100:
            return  # The valid key slot is skipped, because opening it takes too long in a test.
        unlock(read, b"secret")
    except (FormatError, PassphraseError):
        return
    assert fields == SOUND


@settings(derandomize=True, max_examples=30)
@given(
    st.text(max_size=64).filter(str.isprintable),
    st.integers(16, 24),
    st.integers(9, 16),
    st.booleans(),
    st.none() | st.binary(min_size=1, max_size=100),
)
def test_decoded_superblock_has_the_options_given_to_mkfs(
    label: str, block_bits: int, page_bits: int, unsafe: bool, passphrase: bytes | None
) -> None:
    made, keyring, _ = create(
        UUID, label, 1 << block_bits, 1 << page_bits, unsafe, passphrase, cost=CHEAPEST_COST
    )
    read = decode(KEY, encode(made))

    assert read == made
    opened = unlock_plain(read) if passphrase is None else unlock(read, passphrase)
    assert same_keys(opened, keyring)


SUPERBLOCKS = {"1": SUPERBLOCK_1, "2": SUPERBLOCK_2}
RECOVERY_KEY_1 = "AQCAIB-AEAQCA-IBAEAQ-CAIBAE-AQCAIB-AERD2Y"
BLOCK_HASH_1 = "2fe273040873b53b94a5775ebf8daa64f835dff39a765c64a4e2d92cfd9192d3"


@pytest.mark.parametrize("version", SUPERBLOCKS)
def test_superblocks_of_earlier_versions_can_still_be_read(version: str) -> None:
    """Superblocks of earlier versions open with their passphrase and their recovery key."""
    read = decode(KEY, SUPERBLOCKS[version])

    assert (read.uuid, read.label, read.block_bytes) == (UUID, "büro", 1 << 20)
    assert unlock(read, b"secret").block_hash(b"x").hex() == BLOCK_HASH_1
    assert unlock_with_recovery(read, RECOVERY_KEY_1).block_hash(b"x").hex() == BLOCK_HASH_1
