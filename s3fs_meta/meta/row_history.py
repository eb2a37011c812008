"""The changes of inodes and names that a changeset records, for the history of files.

Owns: the inodes and names that a changeset changes, and one inode's state before and after it.
Does not know: the storage of changesets, times, paths.
Tasks: any thread.

Some changes do not create a new version of a file, and are ignored. A read may change only the
access time. Deduplication may replace a block with an older block that has the same content, or a
block of zeros with a hole. A write creates a new block. Every other change of content also changes
the size or the mtime.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import apsw

from s3fs_meta.errors import FormatError
from s3fs_meta.meta import changesets
from s3fs_meta.meta.changesets import NEXT_BLOCK, require_identifiers, require_numbers
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import INODE_COLUMNS
from s3fs_meta.model import Cookie, Ino

_SIZE_BYTES: Final = INODE_COLUMNS.index("size_bytes")
_CTIME: Final = INODE_COLUMNS.index("ctime_ns")
_MTIME_DELTA: Final = INODE_COLUMNS.index("mtime_delta_ns")
_NO_CHANGES: Final = frozenset(map(INODE_COLUMNS.index, ("ino", "mapped_blocks", "atime_delta_ns")))
_ATTRIBUTE_TABLES: Final = frozenset({"hard_links", "symlinks", "xattrs"})
_LOST_NAME_TYPES: Final = (int, bytes, int, int)

_NO_BLOCK: Final = 1 << 63  # a number above every block number

_Row = tuple[Any, ...]


class LostName(NamedTuple):
    """A name that was removed, or that now refers to another inode."""

    parent: Ino
    # Empty if the changeset has only the cookie, because the name now refers to another inode.
    name: bytes
    cookie: Cookie  # cookie of the name, or 0 if the name is known
    ino: Ino  # inode that lost the name


class ChangedRows(NamedTuple):
    """The inodes and names that a changeset changes; *content* and *other* may share inodes."""

    content: set[
        Ino
    ]  # inodes that were created or removed, or whose size, block map or mtime changed
    other: set[Ino]  # inodes whose attributes, xattrs, links or symlink target changed
    names: set[LostName]


def changed_rows(changeset: bytes, *, is_complete: bool) -> ChangedRows:
    """Return the inodes and names that a changeset changes.

    Args:
        changeset: changes of one txg.
        is_complete: the changeset contains all changes of the txg. Otherwise the number of the
            first new block may be missing; then each block is treated as new.

    Raises:
        FormatError: the changeset is damaged.
    """
    found = ChangedRows(set(), set(), set())
    content, other, _ = found
    mapped = _Mapped(_NO_BLOCK if is_complete else 0)
    for table, old, new in changesets.rows(changeset):
        row = new if old is None else old
        assert row is not None, "a change has old values, new values, or both"
        if table == "inodes":
            if old is None or new is None or _is_new_content(old, new):
                content.add(row[0])
            elif _is_new_attribute(old):
                other.add(row[0])
        elif table == "block_map":
            mapped.add(row[0], new)
        elif table == "dentries":
            _add_entry(found, old, new)
        elif table == "counters":
            mapped.set_next_block(old)
        elif table in _ATTRIBUTE_TABLES:
            other.add(row[0])
    content.update(mapped.changed())
    require_identifiers({*content, *other, *(name.parent for name in found.names)})
    return found


def _add_entry(found: ChangedRows, old: _Row | None, new: _Row | None) -> None:
    """Add a changed dentry, the inode that lost the name, and the inode that received it."""
    lost = None if old is None else _lost_name(old)
    if lost is not None:
        found.names.add(lost)
        found.other.add(lost.ino)
    if new is not None and new[3] is not apsw.no_change:
        found.other.add(new[3])


class _Mapped:
    """The rows of block_map that refer to a new block after a changeset."""

    def __init__(self, next_block: int) -> None:
        """Create an empty object; *next_block* applies unless a changeset records the number."""
        self._rows: list[tuple[Ino, int]] = []
        self._next_block = next_block

    def set_next_block(self, old: _Row | None) -> None:
        """Read the number of the first new block from the old values of ``counters``."""
        if old is not None:
            known = old[NEXT_BLOCK]
            self._next_block = _NO_BLOCK if known is apsw.no_change else known

    def add(self, ino: Ino, new: _Row | None) -> None:
        """Add one changed row of an inode; None means that the row was deleted."""
        if new is not None:
            self._rows.append((ino, new[2]))

    def changed(self) -> list[Ino]:
        """Return the inode of each row that refers to a new block; inodes may occur repeatedly."""
        require_numbers([self._next_block, *(block for _, block in self._rows)])
        return [ino for ino, block in self._rows if block >= self._next_block]


def _is_new_content(old: _Row, new: _Row) -> bool:
    """Return whether an UPDATE of an inode changes its size or its mtime."""
    if old[_SIZE_BYTES] is not apsw.no_change:
        return True
    later = 0
    for column in (_CTIME, _MTIME_DELTA):  # the mtime is the sum of ctime and mtime_delta
        if old[column] is not apsw.no_change:
            require_numbers([old[column], new[column]])
            later += new[column] - old[column]
    return later != 0


def _is_new_attribute(old: _Row) -> bool:
    """Return whether an UPDATE changes an attribute in a way that creates a new version."""
    return any(
        value is not apsw.no_change for column, value in enumerate(old) if column not in _NO_CHANGES
    )


def _lost_name(old: _Row) -> LostName | None:
    """Return the name that an inode lost when a dentry changed; None if the dentry keeps the inode.

    A changed dentry can keep its inode: the inode was renamed to a name with the same hash.
    """
    parent, cookie, name, ino = old
    if ino is apsw.no_change:
        return None
    known = name is not apsw.no_change
    lost = LostName(parent, name if known else b"", Cookie(0) if known else cookie, ino)
    if tuple(map(type, lost)) != _LOST_NAME_TYPES or (known and not name):
        raise FormatError("changeset", "a directory entry has a value of the wrong type")
    return lost


def inode_row(db: Database, ino: Ino) -> dict[str, int] | None:
    """Return the columns of an inode, or None if it does not exist."""
    row = db.inodes.one(f"SELECT {', '.join(INODE_COLUMNS)} FROM inodes WHERE ino = ?", (ino,))
    return None if row is None else _columns(row)


# --- changes of one inode ----------------------------------------------------------------------


@dataclass(slots=True)
class InodeChange:
    """The changes of one inode. The dictionaries map columns of ``inodes`` to values."""

    # Old values of the changed columns; all values for a removed inode, None for a created inode.
    before: dict[str, int] | None = field(default_factory=dict)
    # New values of the changed columns; all values for a created inode, None for a removed inode.
    after: dict[str, int] | None = field(default_factory=dict)
    blocks: int = 0  # number of block map rows that now refer to another block
    gained: list[tuple[Ino, bytes]] = field(default_factory=list)  # new names as (parent, name)
    replaced: list[tuple[Ino, Cookie]] = field(
        default_factory=list
    )  # names that referred to a different inode before
    lost: list[LostName] = field(default_factory=list)
    xattrs: set[bytes] = field(default_factory=set)  # names of the changed extended attributes
    is_target_changed: bool = False

    @property
    def is_content_changed(self) -> bool:
        """Return whether the inode was created or removed, or its size, blocks or mtime changed."""
        if self.before is None or self.after is None or self.blocks or "size_bytes" in self.before:
            return True
        return _mtime_part(self.before) != _mtime_part(self.after)

    def with_earlier(self, earlier: "InodeChange") -> "InodeChange":
        """Merge these changes with the changes of an earlier section of the same txg."""
        before, after = self.before, self.after
        if before is not None:
            before = None if earlier.before is None else before | earlier.before
        if after is not None:
            after = (earlier.after or {}) | after
        return InodeChange(
            before,
            after,
            self.blocks + earlier.blocks,
            earlier.gained + self.gained,
            earlier.replaced + self.replaced,
            earlier.lost + self.lost,
            self.xattrs | earlier.xattrs,
            self.is_target_changed or earlier.is_target_changed,
        )


def _mtime_part(columns: dict[str, int]) -> int:
    return columns.get("ctime_ns", 0) + columns.get("mtime_delta_ns", 0)


def changes_of(
    changeset: bytes, inos: Iterable[Ino], *, is_complete: bool
) -> dict[Ino, InodeChange]:
    """Return the changes of some inodes in a changeset; unchanged inodes are not in the result.

    Args:
        changeset: changes of one txg.
        inos: the inodes.
        is_complete: the changeset contains all changes of the txg; see ``changed_rows``.

    Raises:
        FormatError: the changeset is damaged.
    """
    wanted = frozenset(inos)
    found: dict[Ino, InodeChange] = {}
    mapped = _Mapped(_NO_BLOCK if is_complete else 0)
    for table, old, new in changesets.rows(changeset):
        row = new if old is None else old
        assert row is not None, "a change has old values, new values, or both"
        if table == "dentries":
            _add_names(found, wanted, old, new)
            continue
        if table == "counters":
            mapped.set_next_block(old)
        if row[0] not in wanted or table in {"counters", "properties"}:
            continue
        if table == "block_map":
            mapped.add(row[0], new)
            continue
        change = found.setdefault(row[0], InodeChange())
        if table == "inodes":
            change.before, change.after = _columns(old), _columns(new)
        elif table == "xattrs":
            change.xattrs.add(_bytes(row[1]))
        elif table == "symlinks":
            change.is_target_changed = True
    for ino in mapped.changed():
        found.setdefault(ino, InodeChange()).blocks += 1
    return found


def _columns(row: _Row | None) -> dict[str, int] | None:
    if row is None:
        return None
    # Changesets of schema version 1 do not have the last column.
    values = zip(INODE_COLUMNS, row, strict=False)
    known = {name: value for name, value in values if value is not apsw.no_change}
    require_numbers(known.values())
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
            require_numbers([new[0]])
            change.gained.append((new[0], _bytes(new[2])))
        else:
            require_numbers([old[0], old[1]])
            change.replaced.append((old[0], old[1]))


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise FormatError("changeset", "the name of a directory entry has the wrong type")
    return value
