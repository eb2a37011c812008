"""POSIX access control lists: decoding, checking, inheriting, and keeping the mode consistent.

Owns: the kernel's encoding of an ACL in an extended attribute, and how chmod, setfacl and a default
ACL change an ACL. All functions are pure. Does not know: rows, callers.
The kernel enforces ACLs (FUSE_POSIX_ACL); the filesystem must keep them up to date.
Source: acl(5); linux/posix_acl_xattr.h; the functions of fs/posix_acl.c that are named below.
"""

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from s3fs_meta.errors import InvalidRequestError

ACCESS: Final = b"system.posix_acl_access"
DEFAULT: Final = b"system.posix_acl_default"

USER_OBJ: Final = 0x01
USER: Final = 0x02
GROUP_OBJ: Final = 0x04
GROUP: Final = 0x08
MASK: Final = 0x10
OTHER: Final = 0x20

_VERSION: Final = 2
_HEADER: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HHI")
_MINIMAL_BYTES: Final = _HEADER.size + 3 * _ENTRY.size  # three entries: owner, group and others
_UNDEFINED_ID: Final = 0xFFFFFFFF
_PERMISSIONS: Final = 0o777
_TAGS_IN_ORDER: Final = (USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER)
_NAMED: Final = frozenset({USER, GROUP})
_MINIMAL: Final = frozenset({USER_OBJ, GROUP_OBJ, OTHER})


class AclEntry(NamedTuple):
    """One entry of an ACL; ``id`` has a meaning only for the tags USER and GROUP."""

    tag: int
    perm: int
    id: int = _UNDEFINED_ID


Acl = tuple[AclEntry, ...]


class WithMode(NamedTuple):
    """A mode and an encoded ACL; the ACL is None if the mode alone expresses the permissions."""

    mode: int
    value: bytes | None


def decode(value: bytes) -> Acl:
    """Decode and check an ACL; return its entries.

    Raises:
        InvalidRequestError: the value is not a valid ACL (posix_acl_from_xattr, posix_acl_valid).
    """
    return _decode_minimal(value) if len(value) == _MINIMAL_BYTES else _decode(value)


# cp(1) sets an ACL on each file, but most of these are identical, so a small cache suffices.
@functools.lru_cache(maxsize=512)
def _decode_minimal(value: bytes) -> Acl:
    return _decode(value)


def _decode(value: bytes) -> Acl:
    body = len(value) - _HEADER.size
    if body < 0 or body % _ENTRY.size or _HEADER.unpack_from(value)[0] != _VERSION:
        raise InvalidRequestError("invalid ACL", value)
    rows = _ENTRY.iter_unpack(bytes(value[_HEADER.size :]))
    entries = tuple(AclEntry(*fields) for fields in rows)
    if entries and not _valid(entries):
        raise InvalidRequestError("invalid ACL", value)
    return entries


def encode(entries: Sequence[AclEntry]) -> bytes:
    """Return an ACL as the kernel encodes it."""
    return _HEADER.pack(_VERSION) + b"".join(_ENTRY.pack(*entry) for entry in entries)


def _valid(entries: Acl) -> bool:
    """Return whether an ACL has all required tags in order, and a mask if it has named entries."""
    tags = [entry.tag for entry in entries]
    if any(tag not in _TAGS_IN_ORDER for tag in tags) or any(e.perm & ~0o7 for e in entries):
        return False
    places = [_TAGS_IN_ORDER.index(tag) for tag in tags]
    named = [(entry.tag, entry.id) for entry in entries if entry.tag in _NAMED]
    return (
        places == sorted(places)
        and all(tags.count(tag) == 1 for tag in (USER_OBJ, GROUP_OBJ, OTHER))
        and tags.count(MASK) <= 1
        and (not named or MASK in tags)
        and all(number != _UNDEFINED_ID for _, number in named)
    )


def apply_access(mode: int, entries: Acl) -> WithMode:
    """Return the mode after an access ACL is set, and the ACL (None if the mode suffices).

    Source: posix_acl_update_mode, posix_acl_equiv_mode.
    """
    if not entries:
        return WithMode(mode, None)
    perms = {tag: perm for tag, perm, _ in entries}  # GROUP_OBJ is ignored if the ACL has a mask
    group = perms.get(MASK, perms[GROUP_OBJ])
    permissions = perms[USER_OBJ] << 6 | group << 3 | perms[OTHER]
    is_minimal = perms.keys() == _MINIMAL
    return WithMode(mode & ~_PERMISSIONS | permissions, None if is_minimal else encode(entries))


def _group_class(entries: Acl) -> AclEntry:
    """Return the entry that the mode's group bits represent.

    This is the mask or, in an ACL without a mask, the entry of the owning group.
    """
    masks = [entry for entry in entries if entry.tag == MASK]
    return masks[0] if masks else next(entry for entry in entries if entry.tag == GROUP_OBJ)


def after_chmod(entries: Acl, mode: int) -> Acl:
    """Return an access ACL with the permissions of a new mode (posix_acl_chmod)."""
    group_tag = _group_class(entries).tag
    bits = {USER_OBJ: mode >> 6 & 7, group_tag: mode >> 3 & 7, OTHER: mode & 7}
    return tuple(entry._replace(perm=bits.get(entry.tag, entry.perm)) for entry in entries)


def inherit(default: Acl, mode: int) -> WithMode:
    """Return the mode and access ACL of a new inode, created with *mode* under a default ACL.

    With FUSE_DONT_MASK the daemon applies the umask, unless a default ACL replaces the umask.
    Source: posix_acl_create_masq.
    """
    group_tag = _group_class(default).tag
    asked = {USER_OBJ: mode >> 6 & 7, group_tag: mode >> 3 & 7, OTHER: mode & 7}
    entries = tuple(entry._replace(perm=entry.perm & asked.get(entry.tag, 7)) for entry in default)
    return apply_access(mode, entries)
