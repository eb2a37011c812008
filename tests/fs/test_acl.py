"""Tests of the encoding and inheritance of ACLs, as in fs/posix_acl.c of Linux."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.errors import InvalidRequestError
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, AclEntry

MINIMAL = (AclEntry(USER_OBJ, 6), AclEntry(GROUP_OBJ, 4), AclEntry(OTHER, 0))
NAMED = (
    AclEntry(USER_OBJ, 7),
    AclEntry(USER, 5, 1000),
    AclEntry(GROUP_OBJ, 6),
    AclEntry(GROUP, 7, 50),
    AclEntry(MASK, 5),
    AclEntry(OTHER, 4),
)


@pytest.mark.parametrize("entries", [MINIMAL, NAMED, ()])
def test_decoded_acl_equals_the_encoded_acl(entries: acl.Acl) -> None:
    assert acl.decode(acl.encode(entries)) == entries


def test_acl_is_encoded_in_the_format_of_the_kernel() -> None:
    """An encoded ACL is version 2, followed by the tag, permissions and id of each entry."""
    assert acl.encode((AclEntry(USER, 6, 1000),)).hex() == "02000000" + "0200" + "0600" + "e8030000"


@pytest.mark.parametrize(
    "entries",
    [
        MINIMAL[:2],
        (*MINIMAL, AclEntry(OTHER, 0)),
        (MINIMAL[1], MINIMAL[0], MINIMAL[2]),
        (MINIMAL[0], AclEntry(USER, 7, 1), *MINIMAL[1:]),
        (MINIMAL[0], AclEntry(USER, 7), MINIMAL[1], AclEntry(MASK, 7), MINIMAL[2]),
        (AclEntry(USER_OBJ, 8), *MINIMAL[1:]),
        (*MINIMAL, AclEntry(0x40, 0)),
        (*MINIMAL[:2], AclEntry(MASK, 1), AclEntry(MASK, 1), MINIMAL[2]),
    ],
    ids=["no other", "two others", "order", "no mask", "no id", "perm", "tag", "two masks"],
)
def test_decoder_refuses_an_acl_that_the_kernel_would_refuse(entries: acl.Acl) -> None:
    """The function posix_acl_valid() in Linux refuses these ACLs."""
    with pytest.raises(InvalidRequestError):
        acl.decode(acl.encode(entries))


@pytest.mark.parametrize("value", [b"", b"\2\0\0", b"\1\0\0\0", acl.encode(MINIMAL)[:-1]])
def test_decoder_refuses_malformed_acls(value: bytes) -> None:
    """Decoding fails if a value is too short, has another version or ends inside an entry."""
    with pytest.raises(InvalidRequestError):
        acl.decode(value)


@given(st.binary(max_size=64))
def test_decoder_of_arbitrary_bytes_returns_an_acl_or_raises_an_error(value: bytes) -> None:
    try:
        assert acl.encode(acl.decode(value)) == value
    except InvalidRequestError:
        pass


def test_minimal_acl_changes_only_the_mode_bits() -> None:
    """An ACL that contains only the permissions of the mode is not stored."""
    assert acl.apply_access(0o104777, MINIMAL) == (0o104640, None)


def test_setting_an_acl_copies_its_mask_to_the_group_bits() -> None:
    """If an ACL has a mask, the group bits of the mode equal this mask."""
    assert acl.apply_access(0o100600, NAMED) == (0o100754, acl.encode(NAMED))


def test_chmod_changes_the_acl_mask_instead_of_the_group_entry() -> None:
    """Chmod of a file whose ACL has a mask sets the mask, as posix_acl_chmod() in Linux does."""
    after = acl.after_chmod(NAMED, 0o100610)
    assert [entry.perm for entry in after] == [6, 5, 6, 7, 1, 0]


def test_chmod_changes_the_group_entry_of_an_acl_without_a_mask() -> None:
    assert [entry.perm for entry in acl.after_chmod(MINIMAL, 0o123)] == [1, 2, 3]


def test_inherited_acl_is_limited_by_the_requested_mode() -> None:
    """The ACL entries owner, mask and other are combined (AND) with the requested mode.

    Source: Linux, posix_acl_create_masq().
    """
    mode, value = acl.inherit(NAMED, 0o100640)
    assert mode == 0o100640
    assert value is not None
    assert [entry.perm for entry in acl.decode(value)] == [6, 5, 6, 7, 4, 0]


def test_inheriting_a_minimal_default_acl_changes_only_the_mode() -> None:
    """A default ACL without named entries acts like a umask."""
    assert acl.inherit(MINIMAL, 0o100777) == (0o100640, None)
