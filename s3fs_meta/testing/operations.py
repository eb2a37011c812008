"""Filesystem operations as values; tests build random programs from them.

Owns: the operations, choosing an operation by a few small numbers, and applying it to the model and
to the filesystem. Does not know: comparisons, crashes.
A *wish* is an act with small numbers, which select among the inodes and names that exist when the
wish is performed. So Hypothesis can shrink a failing program to a readable program.
"""

import enum
import hashlib
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from typing_extensions import override

from s3fs_meta.errors import FsError
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.limits import KIB
from s3fs_meta.model import Caller, Ino
from s3fs_meta.testing.model_fs import RENAME_EXCHANGE, RENAME_NOREPLACE, ModelFilesystem

BLOCK_BYTES: Final = 64 * KIB
# The umask is 0, because the model applies no umask.
ROOT: Final = Caller(0, 0, 0, 1)
USER: Final = Caller(1000, 100, 0, 1)

Outcome = type[FsError] | None  # class of the error that an operation raised


class Act(enum.Enum):
    """The kinds of filesystem operations that tests perform."""

    MAKE_DIRECTORY = "mkdir"
    MAKE_FILE = "create"
    MAKE_SYMLINK = "symlink"
    MAKE_FIFO = "mkfifo"
    WRITE = "write"
    APPEND = "append"
    TRUNCATE = "truncate"
    COPY_RANGE = "copy_file_range"
    LINK = "link"
    UNLINK = "unlink"
    REMOVE_DIRECTORY = "rmdir"
    REMOVE_TREE = "rm"
    CLONE = "clone"
    RENAME = "rename"
    CHMOD = "chmod"
    CHOWN = "chown"
    SET_XATTR = "setxattr"
    REMOVE_XATTR = "removexattr"
    OPEN = "open"
    RELEASE = "release"
    FSYNC = "fsync"


class Wish(NamedTuple):
    """A kind of operation, and the numbers that select its arguments."""

    act: Act
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0


class Operation(NamedTuple):
    """One operation with its arguments; its kind decides which arguments apply."""

    act: Act
    ino: Ino  # the inode, or the directory that contains the name
    name: bytes = b""
    new_parent: Ino = Ino(0)
    new_name: bytes = b""
    number: int = 0  # mode, size, offset, flags or uid, depending on the operation
    data: bytes = b""  # content, link target or xattr value, depending on the operation
    source: Ino = Ino(0)  # source inode of a copied range
    start: int = 0  # offset of the copied range in the source
    length: int = 0  # length of the copied range

    @override
    def __repr__(self) -> str:
        data = f"{len(self.data)} bytes {self.data[:6]!r}"
        return (
            f"{self.act.value}({self.ino}, {self.name!r}, {self.new_parent}, {self.new_name!r},"
            f" {self.number:#x}, {data}, {self.source}, {self.start}, {self.length})"
        )


_TYPES: Final[Mapping[Act, int]] = {
    Act.MAKE_DIRECTORY: stat.S_IFDIR,
    Act.MAKE_FILE: stat.S_IFREG,
    Act.MAKE_FIFO: stat.S_IFIFO,
    Act.MAKE_SYMLINK: stat.S_IFLNK,
}
_OF_NAMES: Final = frozenset(
    {
        *_TYPES,
        Act.LINK,
        Act.UNLINK,
        Act.REMOVE_DIRECTORY,
        Act.REMOVE_TREE,
        Act.CLONE,
        Act.RENAME,
    },
)
_FROM_TO: Final = frozenset({Act.RENAME, Act.CLONE})
_OF_FILES: Final = frozenset(
    {Act.WRITE, Act.APPEND, Act.TRUNCATE, Act.COPY_RANGE, Act.FSYNC, Act.OPEN}
)

NAMES: Final = (b"a", b"b", b"c", b"d", b"e\xff", b"n" * 255)
_MODES: Final = (0o644, 0o600, 0o755, 0o2775, 0o1777, 0o4711, 0)
_LENGTHS: Final = (
    1,
    100,
    4096,
    5000,
    BLOCK_BYTES - 1,
    BLOCK_BYTES,
    BLOCK_BYTES + 1,
    2 * BLOCK_BYTES + 3,
)
_OFFSETS: Final = (
    0,
    1,
    50,
    4095,
    4096,
    BLOCK_BYTES - 1,
    BLOCK_BYTES,
    BLOCK_BYTES + 77,
    2 * BLOCK_BYTES,
    3 * BLOCK_BYTES - 1,
)
_STARTS: Final = (0, 0, 0, 50, BLOCK_BYTES)  # offsets of copied ranges; most are 0
_XATTR_NAMES: Final = (b"user.a", b"user.b", b"trusted.c", b"security.d")
_FLAGS: Final = (0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE)
_XATTR_CREATE: Final = 1  # from sys/xattr.h
_XATTR_REPLACE: Final = 2
_WISHES_PER_ABSENT_NAME: Final = 8  # of this many chosen names, one may be missing
_PATTERN_BYTES: Final = 61  # a prime period, so that blocks start at different bytes


def pattern(number: int, length: int) -> bytes:
    """Return *length* bytes that depend on *number*; for the number 0, all bytes are zero.

    For other numbers no byte is zero, so that a test notices lost content.
    """
    if number == 0:
        return bytes(length)
    digest = hashlib.blake2b(b"%d" % number, digest_size=_PATTERN_BYTES).digest()
    unit = digest.replace(b"\0", b"\1")
    return (unit * (length // _PATTERN_BYTES + 1))[:length]


def choose(model: ModelFilesystem, wish: Wish) -> Operation | None:
    """Return the operation for a wish in the current state, or None if no inode is suitable."""
    if wish.act in _OF_NAMES:
        return _choose_name(model, wish)
    if wish.act is Act.RELEASE:
        inos = sorted(model.opens)
    elif wish.act in _OF_FILES:
        inos = sorted(ino for ino, node in model.nodes.items() if node.is_file)
    else:
        inos = sorted(model.nodes)
    return _choose_change(model, wish, inos[wish.a % len(inos)]) if inos else None


def _choose_name(model: ModelFilesystem, wish: Wish) -> Operation:
    act, a, b, c, d = wish
    directories = sorted(ino for ino, node in model.nodes.items() if node.is_directory)
    directory, name = directories[a % len(directories)], NAMES[b % len(NAMES)]
    match act:
        case Act.MAKE_DIRECTORY | Act.MAKE_FILE | Act.MAKE_FIFO:
            return Operation(act, directory, name, number=_TYPES[act] | _MODES[c % len(_MODES)])
        case Act.MAKE_SYMLINK:
            target = b"../" + pattern(1 + d, 1 + d)
            return Operation(act, directory, name, number=_TYPES[act] | 0o777, data=target)
        case Act.LINK:
            inos = sorted(model.nodes)
            return Operation(act, inos[c % len(inos)], new_parent=directory, new_name=name)
        case _:
            return _choose_entry(model, wish, directories)


def _choose_entry(model: ModelFilesystem, wish: Wish, directories: list[Ino]) -> Operation:
    """Choose an existing name for most wishes; for the others, perhaps a missing name."""
    act, a, b, c, d = wish
    directory, name = directories[a % len(directories)], NAMES[b % len(NAMES)]
    entries = [(ino, name) for ino in directories for name in sorted(model.nodes[ino].entries)]
    if entries and d % _WISHES_PER_ABSENT_NAME:
        directory, name = entries[a % len(entries)]
    if act not in _FROM_TO:
        return Operation(act, directory, name)
    new_parent, new_name = directories[b % len(directories)], NAMES[c % len(NAMES)]
    return Operation(act, directory, name, new_parent, new_name, _FLAGS[d % len(_FLAGS)])


def _choose_change(model: ModelFilesystem, wish: Wish, ino: Ino) -> Operation | None:
    act, _, b, c, d = wish
    match act:
        case Act.APPEND:
            offset = len(model.nodes[ino].content)
            return Operation(act, ino, number=offset, data=pattern(d, _LENGTHS[c % 4]))
        case Act.WRITE:
            data = pattern(d, _LENGTHS[c % len(_LENGTHS)])
            return Operation(act, ino, number=_OFFSETS[b % len(_OFFSETS)], data=data)
        case Act.TRUNCATE:
            return Operation(act, ino, number=_OFFSETS[b % len(_OFFSETS)])
        case Act.COPY_RANGE:
            return _choose_range(model, wish, ino)
        case Act.CHMOD:
            return Operation(act, ino, number=_MODES[b % len(_MODES)])
        case Act.CHOWN:
            return Operation(act, ino, number=b % 3)
        case Act.SET_XATTR | Act.REMOVE_XATTR:
            attribute = _XATTR_NAMES[b % len(_XATTR_NAMES)]
            return Operation(act, ino, attribute, number=c % 3, data=pattern(d, d))
        case _:
            return Operation(act, ino)


def _choose_range(model: ModelFilesystem, wish: Wish, target: Ino) -> Operation | None:
    """Choose a range within one block of another file, because a longer copy may stop early.

    Holes are not copied, because a test could not detect lost zeros.
    """
    act, _, b, c, d = wish
    inos = sorted(ino for ino, node in model.nodes.items() if node.is_file and ino != target)
    if not inos:
        return None
    start = _STARTS[b % len(_STARTS)]
    length = min(_LENGTHS[d % len(_LENGTHS)], BLOCK_BYTES - start % BLOCK_BYTES)
    number = _OFFSETS[d % len(_OFFSETS)] if c % 2 else 0
    source = inos[c % len(inos)]
    if 0 in model.nodes[source].content[start : start + length]:
        return None
    return Operation(act, target, number=number, source=source, start=start, length=length)


# --- apply operations --------------------------------------------------------------------------


def apply(model: ModelFilesystem, operation: Operation) -> Outcome:
    """Apply an operation to the model; return the class of its error, or None on success."""
    try:
        _apply(model, operation)
    except FsError as exc:
        return type(exc)
    return None


def _apply(model: ModelFilesystem, operation: Operation) -> None:
    if operation.act in _OF_NAMES:
        _apply_to_names(model, operation)
    else:
        _apply_to_inode(model, operation)


def _apply_to_names(model: ModelFilesystem, operation: Operation) -> None:
    act, ino, name, new_parent, new_name, number, data, *_ = operation
    match act:
        case Act.LINK:
            model.link(ino, new_parent, new_name)
        case Act.UNLINK:
            model.unlink(ino, name)
        case Act.REMOVE_DIRECTORY:
            model.remove_directory(ino, name)
        case Act.REMOVE_TREE:
            model.remove_tree(ino, name)
        case Act.CLONE:
            model.clone(ino, name, new_parent, new_name)
        case Act.RENAME:
            model.rename(ino, name, new_parent, new_name, number)
        case _:
            model.make(ino, name, number, USER.uid, USER.gid, data)


def _apply_to_inode(model: ModelFilesystem, operation: Operation) -> None:
    act, ino, name, _, _, number, data, source, start, length = operation
    match act:
        case Act.WRITE | Act.APPEND:
            model.write(ino, number, data)
        case Act.TRUNCATE:
            model.truncate(ino, number)
        case Act.COPY_RANGE:
            model.copy_range(source, start, ino, number, length)
        case Act.CHMOD:
            model.chmod(ino, number)
        case Act.CHOWN:
            model.chown(ino, number, number + 1)
        case Act.SET_XATTR:
            new, exists = number == _XATTR_CREATE, number == _XATTR_REPLACE
            model.set_xattr(ino, name, data, must_be_new=new, must_exist=exists)
        case Act.REMOVE_XATTR:
            model.remove_xattr(ino, name)
        case Act.OPEN:
            model.open(ino)
        case Act.RELEASE:
            model.release(ino)
        case _:
            model.node(ino)


async def perform(fs: Filesystem, operation: Operation) -> Outcome:
    """Apply an operation to the filesystem; return the class of its FsError, or None on success.

    Raises:
        S3fsError: the store, the database or the disk failed.
    """
    try:
        if operation.act is Act.CLONE:
            await _clone(fs, operation)
        elif operation.act is Act.COPY_RANGE:
            await _copy_range(fs, operation)
        elif operation.act in _OF_NAMES:
            _perform_on_names(fs, operation)
        else:
            await _perform_on_inode(fs, operation)
    except FsError as exc:
        return type(exc)
    return None


def _perform_on_names(fs: Filesystem, operation: Operation) -> None:
    act, ino, name, new_parent, new_name, number, data, *_ = operation
    names = fs.namespace
    match act:
        case Act.MAKE_DIRECTORY:
            names.make_directory(ino, name, number, USER)
        case Act.MAKE_FILE | Act.MAKE_FIFO:
            names.make_node(ino, name, number, USER)
        case Act.MAKE_SYMLINK:
            names.make_symlink(ino, name, data, USER)
        case Act.LINK:
            names.link(ino, new_parent, new_name)
        case Act.UNLINK:
            names.unlink(ino, name)
        case Act.REMOVE_DIRECTORY:
            names.remove_directory(ino, name)
        case Act.REMOVE_TREE:
            _remove_tree(fs, ino, name)
        case _:
            names.rename(ino, name, new_parent, new_name, number)


def _remove_tree(fs: Filesystem, parent: Ino, name: bytes) -> None:
    """Remove an entry with the tree below it, and delete the inodes of the tree immediately."""
    found = fs.lookup(parent, name)
    fs.tree_removal.remove(parent, name, Ino(0) if found is None else found.ino)
    while len(fs.orphans.trees):
        fs.tree_removal.remove_slice()


async def _clone(fs: Filesystem, operation: Operation) -> None:
    source = CloneTarget(operation.ino, operation.name)
    target = CloneTarget(operation.new_parent, operation.new_name)
    found = fs.lookup(*source)
    await fs.tree_clone.clone(source, Ino(0) if found is None else found.ino, target, _hear)


async def _copy_range(fs: Filesystem, operation: Operation) -> None:
    _, target, _, _, _, at, _, source, start, length = operation
    if (
        fs.ranges.try_copy(source, start, target, at, length) is None
    ):  # ``try_copy`` returns None if the copy must wait
        await fs.ranges.copy(source, start, target, at, length)


def _hear(_progress: TreeProgress) -> None:
    """Ignore a report about the progress of an operation."""


async def _perform_on_inode(fs: Filesystem, operation: Operation) -> None:
    act, ino, name, _, _, number, data, *_ = operation
    match act:
        case Act.WRITE | Act.APPEND:
            # Every second write sets no times, like a cached write, whose times the kernel sets.
            from_cache = data[0] % 2 == 1
            assert await fs.write(ino, number, data, sets_times=not from_cache) == len(data)
        case Act.TRUNCATE:
            await fs.setattr(ino, SetAttributes(size_bytes=number), ROOT)
        case Act.CHMOD:
            await fs.setattr(ino, SetAttributes(mode=number), ROOT)
        case Act.CHOWN:
            await fs.setattr(ino, SetAttributes(uid=number, gid=number + 1), ROOT)
        case Act.SET_XATTR:
            new, exists = number == _XATTR_CREATE, number == _XATTR_REPLACE
            fs.xattrs.set(ino, name, data, ROOT, must_be_new=new, must_exist=exists)
        case Act.REMOVE_XATTR:
            fs.xattrs.remove(ino, name)
        case Act.OPEN:
            fs.open(ino)
        case Act.RELEASE:
            fs.release(ino)
        case _:
            await fs.sync_file(ino)
