"""The meaning of recorded changes for the history of inodes and names.

Owns: which inodes and names a changeset changes, and how one inode was before and after it.
Does not know: where changesets are stored, times, paths.
Tasks: any thread.

A change of only the access time is left out: reading a file does not make a new version of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import apsw

from s3fs_meta.errors import FormatError
from s3fs_meta.meta import changesets
from s3fs_meta.model import Cookie, Ino

# The columns of inodes, in the order of schema.sql.
INODE_COLUMNS: Final = (
    "ino",
    "mode",
    "nlink",
    "uid",
    "gid",
    "size_bytes",
    "mapped_blocks",
    "ctime_ns",
    "mtime_delta_ns",
    "atime_delta_ns",
    "rdev",
    "parent",
    "flags",
    "btime_delta_ns",
)
_SIZE_BYTES: Final = INODE_COLUMNS.index("size_bytes")
_ACCESS_TIME: Final = INODE_COLUMNS.index("atime_delta_ns")
_ATTRIBUTE_TABLES: Final = frozenset({"hard_links", "symlinks", "xattrs"})

_Row = tuple[Any, ...]


class LostName(NamedTuple):
    """A name that was removed, or that refers to another inode now."""

    parent: Ino
    name: bytes  # b"" if the name refers to another inode: then a changeset has only the cookie
    cookie: Cookie  # 0 if the name is known
    ino: Ino  # the inode that lost the name


class ChangedRows(NamedTuple):
    """The inodes and names that changes concern; the sets may overlap."""

    content: set[Ino]  # created or removed inodes, and those with a changed size or block map
    other: set[Ino]  # inodes with changed attributes, xattrs, links, or target of a symlink
    names: set[LostName]


def changed_rows(changeset: bytes) -> ChangedRows:
    """Return the inodes and names that a changeset changes.

    Raises:
        FormatError: the changeset is damaged.
    """
    found = ChangedRows(set(), set(), set())
    content, other, names = found
    for table, old, new in changesets.rows(changeset):
        row = new if old is None else old
        assert row is not None, "a change has old values, new values, or both"
        if table == "inodes":
            if old is None or new is None or old[_SIZE_BYTES] is not apsw.no_change:
                content.add(row[0])
            elif _is_more_than_access_time(old):
                other.add(row[0])
        elif table == "block_map":
            content.add(row[0])
        elif table in _ATTRIBUTE_TABLES:
            other.add(row[0])
        elif table == "dentries" and old is not None:
            lost = _lost_name(old)
            if lost is not None:
                names.add(lost)
    _require_inodes(content | other)
    return found


def _is_more_than_access_time(old: _Row) -> bool:
    """Return whether an UPDATE changes another column than the access time."""
    return any(
        value is not apsw.no_change
        for column, value in enumerate(old)
        if column not in (0, _ACCESS_TIME)
    )


def _lost_name(old: _Row) -> LostName | None:
    """Return the name in the old values of a dentry; None if its inode keeps the cookie.

    An inode keeps the cookie if it got another name whose hash is equal.
    """
    parent, cookie, name, ino = old
    if ino is apsw.no_change:
        return None
    known = name is not apsw.no_change
    lost = LostName(parent, name if known else b"", Cookie(0) if known else cookie, ino)
    if [type(value) for value in lost] != [int, bytes, int, int] or (known and not name):
        raise FormatError("changeset", "a directory entry has a value of a wrong type")
    return lost


# --- one inode ---------------------------------------------------------------------------------


@dataclass(slots=True)
class InodeChange:
    """How changes altered one inode; the dictionaries are by column of ``inodes``."""

    # None: the inode was created. All columns if it was removed, else those that changed.
    before: dict[str, int] | None = field(default_factory=dict)
    # None: the inode was removed. All columns if it was created, else those that changed.
    after: dict[str, int] | None = field(default_factory=dict)
    blocks: int = 0  # changed rows of block_map
    gained: list[tuple[Ino, bytes]] = field(default_factory=list)  # (parent, name)
    replaced: list[tuple[Ino, Cookie]] = field(
        default_factory=list
    )  # names taken from other inodes
    lost: list[LostName] = field(default_factory=list)
    xattrs: set[bytes] = field(default_factory=set)  # their names
    is_target_changed: bool = False

    @property
    def is_content_changed(self) -> bool:
        """Return whether the inode was created or removed, or its size or block map changed."""
        return (
            self.before is None
            or self.after is None
            or bool(self.blocks)
            or "size_bytes" in self.before
        )

    def add_earlier(self, earlier: "InodeChange") -> None:
        """Add the changes of a section that precedes this one in the same txg."""
        if self.before is not None:
            self.before = None if earlier.before is None else self.before | earlier.before
        if self.after is not None:
            self.after = (earlier.after or {}) | self.after
        self.blocks += earlier.blocks
        self.gained = earlier.gained + self.gained
        self.replaced = earlier.replaced + self.replaced
        self.lost = earlier.lost + self.lost
        self.xattrs |= earlier.xattrs
        self.is_target_changed |= earlier.is_target_changed


def changes_of(changeset: bytes, inos: Iterable[Ino]) -> dict[Ino, InodeChange]:
    """Return the changes of some inodes in a changeset, without those that it does not change.

    Raises:
        FormatError: the changeset is damaged.
    """
    wanted = frozenset(inos)
    found: dict[Ino, InodeChange] = {}
    for table, old, new in changesets.rows(changeset):
        if table == "dentries":
            _add_names(found, wanted, old, new)
            continue
        row = new if old is None else old
        assert row is not None, "a change has old values, new values, or both"
        if row[0] not in wanted or table in {"counters", "properties"}:
            continue
        change = found.setdefault(row[0], InodeChange())
        if table == "inodes":
            change.before, change.after = _columns(old), _columns(new)
        elif table == "block_map":
            change.blocks += 1
        elif table == "xattrs":
            change.xattrs.add(_bytes(row[1]))
        elif table == "symlinks":
            change.is_target_changed = True
    return found


def _columns(row: _Row | None) -> dict[str, int] | None:
    if row is None:
        return None
    # Changes of schema version 1 lack the last column.
    values = zip(INODE_COLUMNS, row, strict=False)
    known = {name: value for name, value in values if value is not apsw.no_change}
    _require_inodes(known.values())
    return known


def _add_names(
    found: dict[Ino, InodeChange], wanted: frozenset[Ino], old: _Row | None, new: _Row | None
) -> None:
    if old is not None and old[3] in wanted:
        lost = _lost_name(old)
        if lost is not None:
            found.setdefault(lost.ino, InodeChange()).lost.append(lost)
    if new is not None and new[3] in wanted:
        change = found.setdefault(new[3], InodeChange())
        if old is None:
            _require_inodes([new[0]])
            change.gained.append((new[0], _bytes(new[2])))
        else:
            _require_inodes([old[0], old[1]])
            change.replaced.append((old[0], old[1]))


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise FormatError("changeset", "a name has a value of a wrong type")
    return value


def _require_inodes(values: Iterable[object]) -> None:
    if not {*map(type, values)} <= {int}:
        raise FormatError("changeset", "a column of numbers has a value of another type")
