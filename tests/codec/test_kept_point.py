"""Objects of kept points (named txgs that retention does not delete)."""

from dataclasses import replace

import pytest

from s3fs_meta.codec import envelope, kept_point
from s3fs_meta.codec.fields import dump
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import KEPT_NAME_CHARS_MAX, KEPT_PAYLOAD_BYTES_MAX
from s3fs_meta.model import ObjectKey, Txg, is_kept_name
from tests.codec.kept_points import point_of

PLAIN = Keyring(None, bytes(range(32)))
ENCRYPTED = Keyring.from_master(bytes(range(32)))
OTHER = Keyring.from_master(bytes(32))


@pytest.mark.parametrize("keyring", [PLAIN, ENCRYPTED], ids=["plain", "encrypted"])
def test_decoded_kept_point_equals_the_encoded_kept_point(keyring: Keyring) -> None:
    point = replace(point_of(keyring), auto=True)
    data = kept_point.encode(point, keyring)
    assert kept_point.decode(point.key, data, keyring) == point
    assert point.image_txg == 40
    assert len(data) <= kept_point.ENCODED_BYTES_MAX


def test_kept_point_at_the_txg_of_its_image_is_valid() -> None:
    point = point_of(PLAIN, txg=40, image=40)
    assert kept_point.decode(point.key, kept_point.encode(point, PLAIN), PLAIN) == point


def test_name_of_a_kept_point_is_secret_in_an_encrypted_bucket() -> None:
    """The object key contains a keyed hash, so that the name of a kept point stays secret."""
    point = point_of(ENCRYPTED)
    assert b"upgrade" not in kept_point.encode(point, ENCRYPTED)
    assert "upgrade" not in point.key
    assert kept_point.name_hash(point.name, OTHER) not in point.key


def test_kept_point_can_be_decoded_only_with_its_name_and_keys() -> None:
    point = point_of(ENCRYPTED)
    data = kept_point.encode(point, ENCRYPTED)
    elsewhere = kept_point.new_key(Txg(43), point.name, ENCRYPTED, bytes(8))
    for key, keyring in ((elsewhere, ENCRYPTED), (point.key, OTHER), (point.key, PLAIN)):
        with pytest.raises(FormatError):
            kept_point.decode(key, data, keyring)
    for at in range(len(data)):
        with pytest.raises(FormatError):
            kept_point.decode(point.key, data[:at], ENCRYPTED)
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(FormatError):
            kept_point.decode(point.key, damaged, ENCRYPTED)


def _fields() -> dict[str, object]:
    point = point_of(PLAIN)
    return {
        "version": 1,
        "name": point.name,
        "uuid": point.uuid,
        "txg": point.txg,
        "hash": point.hash,
        "created_ns": point.created_ns,
        "kept_ns": point.kept_ns,
        "epoch": point.epoch,
        "next_pack": point.next_pack,
        "image": list(point.image),
        "auto": False,
    }


def _stored(fields: dict[str, object], kind: bytes = b"kept") -> bytes:
    return envelope.encode(kind, point_of(PLAIN).key, dump(fields), PLAIN)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"name": "txg=4"},
        {"name": "a/b"},
        {"name": "x" * (KEPT_NAME_CHARS_MAX + 1)},
        {"uuid": "?"},
        {"txg": 41},
        {"txg": True},
        {"hash": "ab"},
        {"created_ns": -1},
        {"next_pack": 0},
        {"image": []},
        {"image": ["image/x/manifest", "cd" * 32]},
        {"image": ["image/000000000043-3-0000000000000000/manifest", "cd" * 32]},
        {"image": ["image/000000000040-3-0000000000000000/manifest", "?"]},
        {"image": [1, 2]},
        {"auto": 0},
        {"more": 1},
        {"more": "x" * KEPT_PAYLOAD_BYTES_MAX},
    ],
    ids=str,
)
def test_authentic_kept_point_with_invalid_fields_is_refused(change: dict[str, object]) -> None:
    """Any writer of a plain bucket can forge a kept point, so all fields are checked."""
    key = point_of(PLAIN).key
    assert kept_point.decode(key, _stored(_fields()), PLAIN) == point_of(PLAIN)
    with pytest.raises(FormatError) as refused:
        kept_point.decode(key, _stored(_fields() | change), PLAIN)
    assert not isinstance(refused.value, NewerFormatError)


def test_kept_point_with_a_missing_field_or_another_kind_is_refused() -> None:
    key = point_of(PLAIN).key
    for name in _fields():
        with pytest.raises(FormatError):
            kept_point.decode(
                key, _stored({k: v for k, v in _fields().items() if k != name}), PLAIN
            )
    with pytest.raises(FormatError):
        kept_point.decode(key, _stored(_fields(), b"level"), PLAIN)


def test_error_about_a_newer_kept_point_advises_an_upgrade() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        kept_point.decode(point_of(PLAIN).key, _stored(_fields() | {"version": 2}), PLAIN)


def test_kept_point_older_than_its_image_is_not_encoded() -> None:
    image = ManifestRef(ObjectKey("image/000000000043-3-0000000000000000/manifest"), "cd" * 32)
    with pytest.raises(FormatError):
        kept_point.encode(replace(point_of(PLAIN), image=image), PLAIN)


@pytest.mark.parametrize(
    "key",
    [
        "kept/",
        "kept/readme.txt",
        "kept/42-" + "a" * 32 + "-" + "0" * 16,
        "kept/000000000000-" + "a" * 32 + "-" + "0" * 16,
        "kept/000000000042-" + "A" * 32 + "-" + "0" * 16,
        "kept/000000000042-" + "a" * 32 + "-" + "0" * 16 + "/",
        "kept/9999999999999999999-" + "a" * 32 + "-" + "0" * 16,
    ],
)
def test_malformed_key_is_not_parsed_as_a_kept_point(key: str) -> None:
    assert kept_point.parse_key(key) is None


def test_key_of_a_kept_point_contains_its_txg() -> None:
    point = point_of(PLAIN)
    name = kept_point.parse_key(point.key)
    assert name == (42, kept_point.name_hash(point.name, PLAIN))
    assert point.key.startswith(kept_point.prefix_of(Txg(42)))


@pytest.mark.parametrize(
    "name", ["a", "before-upgrade", "auto-2026-11-20T02:00:00", "größe", "v1.2+x"]
)
def test_valid_names_of_kept_points_are_accepted(name: str) -> None:
    assert is_kept_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "1a", "2026-11-20", "_x", "-x", ".x", "a b", "a/b", "a=b", "a,b", "a\n", "newest"),
        *("Now", "x" * 65, "a\u202e", "a\ud800", "10m", "txg=4"),
    ],
)
def test_ambiguous_or_unprintable_names_of_kept_points_are_refused(name: str) -> None:
    assert not is_kept_name(name)
