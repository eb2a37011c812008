"""The history index: which txgs changed an inode or removed a name.

Owns: the fields and columns of an index object. Does not know: changesets, when objects are
written.
Keeps: an index object records the hashes of the last changelog of its run and of the changelog
before the run, so that a reader detects an index of other changelogs. An index object can be
decoded only under its own name.
Design: docs/design/format.md, "History index".

    history/<n>/<first txg>-<last txg>   32^n txgs; the last txg is a multiple of 32^n; create-only

An object of level 1 has one bit for each txg of its run. An object of level n has one bit for each
run of level n - 1. So a search for one inode reads only the index objects of runs that changed it.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from operator import or_
from typing import Final, NamedTuple, cast

from s3fs_meta.codec import envelope
from s3fs_meta.codec.changelog import (
    COUNTED_HEADER_BYTES_MAX,
    NUMBER_MAX,
    counted_header,
    split_header,
)
from s3fs_meta.codec.fields import dump
from s3fs_meta.codec.image import UUID
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring
from s3fs_meta.codec.txg_runs import TxgRuns
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    HISTORY_FAN_OUT,
    HISTORY_INODES_MAX,
    HISTORY_LEVELS_MAX,
    HISTORY_NAME_BYTES_MAX,
    HISTORY_NAMES_MAX,
    NAME_BYTES_MAX,
)
from s3fs_meta.model import Cookie, Ino, ObjectKey, Txg

VERSION: Final = 1
PREFIX: Final = "history/"
RUNS: Final = TxgRuns(PREFIX, HISTORY_FAN_OUT, HISTORY_LEVELS_MAX)
ALL_BITS: Final = (1 << HISTORY_FAN_OUT) - 1

_KIND: Final = b"history"
_INODE_BYTES: Final = 8 + 4 + 4
_NAME_COLUMNS_BYTES: Final = 8 + 8 + 8 + 4 + 1
_COOKIE_MIN: Final = 256
_U64_MASK: Final = (1 << 64) - 1
_ROWS_AT_ONCE: Final = 1000  # number of rows that are converted from columns in one step
PAYLOAD_BYTES_MAX: Final = (
    COUNTED_HEADER_BYTES_MAX
    + HISTORY_INODES_MAX * _INODE_BYTES
    + HISTORY_NAMES_MAX * _NAME_COLUMNS_BYTES
    + HISTORY_NAME_BYTES_MAX
)

assert 8 * array("I").itemsize == HISTORY_FAN_OUT, "a mask is an unsigned 32-bit integer"


class ChangedInode(NamedTuple):
    """An inode that a run of txgs changed, and bit masks of the parts that changed it.

    A part is one txg, or one run of the level below. Bit 0 is the first part of the run.
    """

    ino: Ino
    content: int  # mask of parts that created, removed or resized the inode, or changed its blocks
    other: int  # mask of parts that changed attributes, xattrs, hard links or the symlink target


class RemovedName(NamedTuple):
    """A name that was removed or given to another inode in a run of txgs.

    The mask has a bit for each part of the run that removed or reassigned the name.
    """

    parent: Ino
    name: bytes  # b"" if the name is unknown, because another inode has taken the name
    cookie: Cookie  # cookie of an unknown name; 0 if the name is known
    ino: Ino  # the inode that lost the name
    mask: int


# parent, name, cookie and inode of a removed name
NameKey = tuple[Ino, bytes, Cookie, Ino]


@dataclass(frozen=True)
class Inodes:
    """The changed inodes in ascending order, stored as columns of equal length."""

    inos: "array[int]"
    content: "array[int]"
    other: "array[int]"

    @classmethod
    def of(cls, rows: Iterable[ChangedInode]) -> "Inodes":
        """Convert rows, which must be sorted by inode, to columns."""
        made = cls(array("Q"), array("I"), array("I"))
        for ino, content, other in rows:
            made.inos.append(ino)
            made.content.append(content)
            made.other.append(other)
        return made

    def __len__(self) -> int:
        return len(self.inos)

    def __iter__(self) -> Iterator[ChangedInode]:
        return map(ChangedInode._make, zip(self.inos, self.content, self.other, strict=True))

    def marked(self, mask: int) -> "Inodes":
        """Return the same inodes with each nonzero mask replaced by *mask*."""
        content = array("I", (mask if one else 0 for one in self.content))
        other = array("I", (mask if one else 0 for one in self.other))
        return Inodes(self.inos, content, other)

    def find(self, ino: Ino) -> ChangedInode | None:
        """Return the row of an inode, or None if the run of txgs did not change the inode."""
        at = bisect_left(self.inos, ino)
        if at == len(self.inos) or self.inos[at] != ino:
            return None
        return ChangedInode(ino, self.content[at], self.other[at])


@dataclass(frozen=True)
class RemovedNames:
    """The removed names sorted by parent, name, cookie and inode, stored as columns.

    A row takes 32 bytes and its name; as a tuple, it would take about 300 bytes.
    """

    parents: "array[int]"
    inos: "array[int]"
    cookies: "array[int]"
    masks: "array[int]"
    ends: "array[int]"  # end position of each row's name in *text*
    text: bytes  # all names, without separators between them

    @classmethod
    def of(cls, rows: Iterable[RemovedName]) -> "RemovedNames":
        """Convert sorted rows to columns."""
        text = bytearray()
        parents, inos, cookies = array("Q"), array("Q"), array("Q")
        masks, ends = array("I"), array("I")
        for parent, name, cookie, ino, mask in rows:
            text += name
            parents.append(parent)
            inos.append(ino)
            cookies.append(cookie)
            masks.append(mask)
            ends.append(len(text))
        return cls(parents, inos, cookies, masks, ends, bytes(text))

    def __len__(self) -> int:
        return len(self.parents)

    def __getitem__(self, at: int) -> RemovedName:
        return RemovedName(
            Ino(self.parents[at]),
            self.text[self.ends[at - 1] if at else 0 : self.ends[at]],
            Cookie(self.cookies[at]),
            Ino(self.inos[at]),
            self.masks[at],
        )

    def __iter__(self) -> Iterator[RemovedName]:
        return (RemovedName(*key, mask) for key, mask in self.keys_and_masks())

    def keys_and_masks(self, rows: slice = slice(None)) -> Iterator[tuple[NameKey, int]]:
        """Yield the sort key and the mask of each row, or of the rows in a range."""
        first, last, _ = rows.indices(len(self))
        for start in range(first, last, _ROWS_AT_ONCE):
            some = slice(start, min(start + _ROWS_AT_ONCE, last))
            ends = pairwise((self.ends[start - 1] if start else 0, *self.ends[some]))
            names = [self.text[start:end] for start, end in ends]
            keys = zip(self.parents[some], names, self.cookies[some], self.inos[some], strict=True)
            yield from zip(cast("Iterator[NameKey]", keys), self.masks[some], strict=True)

    def marked(self, mask: int) -> "RemovedNames":
        """Return the same names with every mask replaced by *mask*."""
        return replace(self, masks=array("I", [mask]) * len(self))

    def lengths(self) -> Iterator[int]:
        """Yield the length of each name."""
        return (end - start for start, end in pairwise((0, *self.ends)))

    def beginning_at(self, parent: Ino, name: bytes = b"") -> Iterator[RemovedName]:
        """Yield all rows from *name* in the directory *parent* onwards."""
        wanted: tuple[int, bytes] = (parent, name)
        return map(self.__getitem__, range(bisect_left(self, wanted), len(self)))

    def of_name(self, parent: Ino, name: bytes) -> Iterator[RemovedName]:
        """Yield the rows of *name* in a directory; b"" selects rows whose name is unknown."""
        return takewhile(lambda row: row[:2] == (parent, name), self.beginning_at(parent, name))


@dataclass(frozen=True)
class HistoryIndex:
    """An index of the changes in one txg run."""

    level: int  # level of the run; a run has HISTORY_FAN_OUT ** level txgs
    last: Txg
    uuid: str  # identifier of the filesystem
    first_ns: int  # time at which the first txg of the run was cut
    created_ns: int  # time at which the last txg of the run was cut
    previous: str  # content_hash of the changelog before the run
    hash: str  # content_hash of the last changelog in the run
    # Bit mask of the parts of the run whose changes the index does not list: images, unreadable
    # changelogs, and shorter runs without an index.
    unknown: int
    inodes: Inodes
    names: RemovedNames

    @property
    def first(self) -> Txg:
        """Return the first txg of the run."""
        return RUNS.first_of(self.level, self.last)

    @property
    def key(self) -> ObjectKey:
        """Return the object key of this index object."""
        return RUNS.key_of(self.level, self.last)


def encode(index: HistoryIndex, keyring: Keyring) -> bytes:
    """Encode an index; return the bytes of the object ``index.key``.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    header = counted_header(dump_header(index))
    payload = b"".join((header, *_inode_columns(index), *_name_columns(index)))
    if _parse(index.key, payload) != index:
        raise FormatError(
            index.key, "bug: the encoded index object decodes to other values, so it was not stored"
        )
    return envelope.encode(_KIND, index.key, payload, keyring)


def decode(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> HistoryIndex:
    """Return the index in the object *key*.

    Raises:
        NewerFormatError: the object has a version that this program does not know.
        FormatError: the object is corrupt, or is the index of a different run than *key* names.
    """
    return _parse(key, envelope.decode(_KIND, key, data, keyring))


def dump_header(index: HistoryIndex) -> bytes:
    """Return the JSON header of an index object."""
    return dump(
        {
            "version": VERSION,
            "level": index.level,
            "last": index.last,
            "uuid": index.uuid,
            "first_ns": index.first_ns,
            "created_ns": index.created_ns,
            "previous": index.previous,
            "hash": index.hash,
            "unknown": index.unknown,
            "inodes": len(index.inodes),
            "names": len(index.names),
        }
    )


# --- encode and decode columns -----------------------------------------------------------------


def _inode_columns(index: HistoryIndex) -> Iterator[bytes]:
    yield _stored(array("Q", _differences(index.inodes.inos)))
    yield _stored(index.inodes.content)
    yield _stored(index.inodes.other)


def _name_columns(index: HistoryIndex) -> Iterator[bytes]:
    names = index.names
    yield _stored(array("Q", _differences(names.parents)))
    yield _stored(array("Q", _differences(names.inos)))
    yield _stored(names.cookies)
    yield _stored(names.masks)
    yield bytes(names.lengths())
    yield names.text


def _differences(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the differences between successive numbers, modulo 2^64."""
    return ((after - before) & _U64_MASK for before, after in pairwise((0, *numbers)))


def _stored(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


class _Columns:
    """A reader of columns from a payload whose length was checked."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data

    def numbers(self, code: str, count: int) -> "array[int]":
        column = array(code)
        column.frombytes(self.bytes(count * column.itemsize))
        if sys.byteorder == "little":
            column.byteswap()
        return column

    def bytes(self, count: int) -> memoryview:
        found, self._rest = self._rest[:count], self._rest[count:]
        return found


def _parse(key: str, payload: bytes) -> HistoryIndex:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise FormatError(key, "the payload is too long for an index object")
    fields, body = split_header(key, payload, "index object")
    version = fields.integer("version", 1)
    if version != VERSION:
        raise NewerFormatError(key, f"the history index version {version} is unknown")
    inodes, names = fields.integer("inodes"), fields.integer("names")
    if inodes > HISTORY_INODES_MAX or names > HISTORY_NAMES_MAX:
        raise FormatError(key, "the index object has more changes than the format allows")
    if len(body) < inodes * _INODE_BYTES + names * _NAME_COLUMNS_BYTES:
        raise FormatError(key, "the index object ends within its columns")
    columns = _Columns(body)
    index = HistoryIndex(
        level=fields.integer("level", 1, HISTORY_LEVELS_MAX),
        last=Txg(fields.integer("last", 1, NUMBER_MAX)),
        uuid=fields.matching("uuid", UUID),
        first_ns=fields.integer("first_ns"),
        created_ns=fields.integer("created_ns"),
        previous=fields.hexadecimal("previous", HASH_BYTES),
        hash=fields.hexadecimal("hash", HASH_BYTES),
        unknown=fields.integer("unknown", 0, ALL_BITS),
        inodes=_inodes(key, columns, inodes),
        names=_names(key, columns, names),
    )
    fields.finish()
    if RUNS.parse_key(key) != (index.level, index.last):
        raise FormatError(key, "the level or the last txg in the object differs from its name")
    return index


def _inodes(key: str, columns: _Columns, count: int) -> Inodes:
    differences = columns.numbers("Q", count)
    if sum(differences) > NUMBER_MAX or not all(differences):
        raise FormatError(key, "the inodes in the index object are not in ascending order")
    inos = array("Q", accumulate(differences))
    found = Inodes(inos, columns.numbers("I", count), columns.numbers("I", count))
    if not all(map(or_, found.content, found.other)):
        raise FormatError(key, "the index object lists an inode, but no change of this inode")
    return found


def _names(key: str, columns: _Columns, count: int) -> RemovedNames:
    parents = array("Q", _summed(columns.numbers("Q", count)))
    inos = array("Q", _summed(columns.numbers("Q", count)))
    cookies = columns.numbers("Q", count)
    masks = columns.numbers("I", count)
    lengths = bytes(columns.bytes(count))
    text = bytes(columns.bytes(HISTORY_NAME_BYTES_MAX + 1))
    if sum(lengths) != len(text):
        raise FormatError(
            key, "the lengths of names in the index object do not match the bytes of the names"
        )
    if b"/" in text or b"\0" in text or len(text) > HISTORY_NAME_BYTES_MAX:
        raise FormatError(key, "the index object has an invalid name")
    assert max(lengths, default=0) <= NAME_BYTES_MAX, "the length of a name must fit into one byte"
    found = RemovedNames(parents, inos, cookies, masks, array("I", accumulate(lengths)), text)
    before: NameKey | None = None
    for row, mask in found.keys_and_masks():
        parent, name, cookie, ino = row
        if not (mask and 0 < parent <= NUMBER_MAX and 0 < ino <= NUMBER_MAX):
            raise FormatError(
                key, "a removed name in the index object has no txg, or an invalid inode number"
            )
        if bool(name) == bool(cookie) or (not name and not _COOKIE_MIN <= cookie <= NUMBER_MAX):
            raise FormatError(key, "a removed name in the index object has a wrong cookie")
        if before is not None and before >= row:
            raise FormatError(
                key, "the removed names in the index object are not in ascending order"
            )
        before = row
    return found


def _summed(differences: "array[int]") -> Iterator[int]:
    return accumulate(differences, lambda total, one: (total + one) & _U64_MASK)
