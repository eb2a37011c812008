"""The reference model: a minimal filesystem that tests compare with the real filesystem.

Owns: the correct behaviour of operations. A filesystem is a set of nodes, and the entries of
directories are the only links between nodes. Fields of stat(2) such as nlink are computed on
request.
Does not know: blocks, rows, commits, caches, stores, times.
Nodes are immutable values, so a copy of the model copies only one dictionary. Operations raise the
error classes of the program, so that a test can compare them.
"""

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from s3fs_meta.errors import (
    AttributeExistsError,
    DirectoryInUseError,
    EntryExistsError,
    InvalidRequestError,
    NameTooLongError,
    NeedsDirectoryError,
    NoAttributeError,
    NoEntryError,
    NoInodeError,
    NotPermittedError,
    RefusesDirectoryError,
)
from s3fs_meta.limits import NAME_BYTES_MAX
from s3fs_meta.model import ROOT_INO, Ino

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2


@dataclass(frozen=True, slots=True)
class ModelInode:
    """One inode; the file type in its mode decides which other fields apply."""

    mode: int
    uid: int = 0
    gid: int = 0
    content: bytes = b""  # content of a regular file
    target: bytes = b""  # target of a symbolic link
    entries: Mapping[bytes, Ino] = field(default_factory=dict)  # entries of a directory, by name
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        """Return whether the inode is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Return whether the inode is a regular file."""
        return stat.S_ISREG(self.mode)


class Seen(NamedTuple):
    """The state of the inode at one path, as programs see it."""

    ino: Ino
    mode: int
    nlink: int
    uid: int
    gid: int
    size_bytes: int  # size of a file; 0 for a directory, whose size is not compared
    content: bytes | None  # content of a regular file; None if it was not read
    target: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]


class ModelFilesystem:
    """A filesystem in memory, with which tests compare the real filesystem."""

    def __init__(self, *, uid: int = 0, gid: int = 0) -> None:
        self.nodes: dict[Ino, ModelInode] = {ROOT_INO: ModelInode(stat.S_IFDIR | 0o755, uid, gid)}
        self.next_ino = Ino(ROOT_INO + 1)
        self.opens: dict[Ino, int] = {}

    def copy(self) -> "ModelFilesystem":
        """Return an independent copy of the model."""
        other = ModelFilesystem()
        other.nodes = dict(self.nodes)
        other.next_ino = self.next_ino
        other.opens = dict(self.opens)
        return other

    def crashed(self) -> "ModelFilesystem":
        """Return the state after a crash, which removes unlinked files that were open."""
        left = self.copy()
        for ino in list(left.opens):
            left.opens.pop(ino)
            left.purge(ino)
        return left

    # --- look up inodes ------------------------------------------------------------------------

    def tree(self) -> dict[bytes, Seen]:
        """Return the visible state of each inode by path; the root is ``/``."""
        return {path: self.seen(ino) for path, ino in self.paths()}

    def paths(self) -> Iterator[tuple[bytes, Ino]]:
        """Yield every path with its inode; a directory precedes its entries."""
        waiting = [(b"/", ROOT_INO)]
        while waiting:
            path, ino = waiting.pop()
            yield path, ino
            base = path if path == b"/" else path + b"/"
            waiting += [(base + name, child) for name, child in self.nodes[ino].entries.items()]

    def seen(self, ino: Ino) -> Seen:
        """Return the visible state of one inode."""
        node = self.nodes[ino]
        return Seen(
            ino,
            node.mode,
            self.nlink(ino),
            node.uid,
            node.gid,
            len(node.target or node.content),
            node.content if node.is_file else None,
            node.target,
            tuple(sorted(node.xattrs.items())),
        )

    def nlink(self, ino: Ino) -> int:
        """Return the link count; for a directory, count ``.`` and each subdirectory's ``..``."""
        node = self.nodes[ino]
        if node.is_directory:
            return 2 + sum(self.nodes[child].is_directory for child in node.entries.values())
        return sum(
            child == ino for other in self.nodes.values() for child in other.entries.values()
        )

    def find(self, parent: Ino, name: bytes) -> Ino:
        """Return the inode of a name; raise NoEntryError if the name does not exist."""
        child = self.node(parent).entries.get(name)
        if child is None:
            raise NoEntryError(parent, name)
        return child

    def node(self, ino: Ino) -> ModelInode:
        """Return one inode; raise NoInodeError if it does not exist."""
        node = self.nodes.get(ino)
        if node is None:
            raise NoInodeError(ino)
        return node

    def _directory(self, ino: Ino) -> ModelInode:
        node = self.node(ino)
        if not node.is_directory:
            raise NeedsDirectoryError(ino)
        return node

    def _file(self, ino: Ino) -> ModelInode:
        node = self.node(ino)
        if node.is_directory:
            raise RefusesDirectoryError(ino)
        if not node.is_file:
            raise InvalidRequestError("operation not supported on a special file: inode", ino)
        return node

    # --- operations on names -------------------------------------------------------------------

    def make(
        self, parent: Ino, name: bytes, mode: int, uid: int, gid: int, target: bytes = b""
    ) -> Ino:
        """Create an inode of any type, which inherits the group of a setgid directory."""
        directory = self._directory(parent)
        _check_name(name)
        if name in directory.entries:
            raise EntryExistsError(parent, name)
        if directory.mode & stat.S_ISGID:
            gid = directory.gid
            mode |= stat.S_ISGID if stat.S_ISDIR(mode) else 0
        ino = self.next_ino
        self.next_ino = Ino(ino + 1)
        self.nodes[ino] = ModelInode(mode, uid, gid, target=target)
        self._enter(parent, name, ino)
        return ino

    def link(self, ino: Ino, parent: Ino, name: bytes) -> None:
        """Create a hard link to an inode."""
        node = self.node(ino)
        if node.is_directory:
            raise NotPermittedError("a directory cannot have hard links")
        if not self.nlink(ino):
            raise NoEntryError(parent, name)
        directory = self._directory(parent)
        _check_name(name)
        if name in directory.entries:
            raise EntryExistsError(parent, name)
        self._enter(parent, name, ino)

    def unlink(self, parent: Ino, name: bytes) -> None:
        """Remove a name of an inode that is not a directory."""
        ino = self.find(parent, name)
        if self.nodes[ino].is_directory:
            raise RefusesDirectoryError(ino)
        self._drop_name(parent, name)

    def remove_directory(self, parent: Ino, name: bytes) -> None:
        """Remove an empty directory."""
        ino = self.find(parent, name)
        if not self.nodes[ino].is_directory:
            raise NeedsDirectoryError(ino)
        if self.nodes[ino].entries:
            raise DirectoryInUseError(ino)
        self._drop_name(parent, name)

    def remove_tree(self, parent: Ino, name: bytes) -> None:
        """Remove a name and the tree below it."""
        ino = self.find(parent, name)
        for directory in reversed(list(self._below(ino))):
            for child in list(self.nodes[directory].entries):
                self._drop_name(directory, child)
        self._drop_name(parent, name)

    def clone(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        past: "ModelFilesystem | None" = None,
    ) -> None:
        """Copy a name and the tree below it; hard links within the tree are hard links in the copy.

        *past* is an earlier state of the filesystem that contains the source; None for the present.

        The inode numbers of the copy are unspecified, so ``renumber`` changes them later.
        """
        origin = self if past is None else past
        source = origin.find(parent, name)
        _check_name(new_name)
        if new_name in self._directory(new_parent).entries:
            raise EntryExistsError(new_parent, new_name)
        inos = dict.fromkeys(origin.all_below(source))
        new = {ino: Ino(self.next_ino + number) for number, ino in enumerate(inos)}
        self.next_ino = Ino(self.next_ino + len(new))
        for ino, copy in new.items():
            node = origin.nodes[ino]
            entries = {child: new[below] for child, below in node.entries.items()}
            self.nodes[copy] = replace(node, entries=entries)
        self._enter(new_parent, new_name, new[source])

    def all_below(self, ino: Ino) -> Iterator[Ino]:
        """Yield an inode and all inodes below it; a hard-linked inode occurs once for each name."""
        yield ino
        for child in self.nodes[ino].entries.values():
            yield from self.all_below(child)

    def renumber(self, numbers: Mapping[Ino, Ino], next_ino: Ino) -> None:
        """Replace inode numbers with unused inode numbers."""
        assert len(set(numbers.values())) == len(numbers), "the new numbers must be distinct"
        assert not set(numbers.values()) & (self.nodes.keys() - numbers.keys()), (
            "the new numbers must be unused"
        )
        self.nodes = {
            numbers.get(ino, ino): replace(
                node,
                entries={name: numbers.get(child, child) for name, child in node.entries.items()},
            )
            for ino, node in self.nodes.items()
        }
        self.next_ino = next_ino

    def rename(
        self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int = 0
    ) -> None:
        """Rename an entry, or exchange two entries, according to *flags*."""
        _check_name(new_name)
        moved = self.find(parent, name)
        target = self._directory(new_parent).entries.get(new_name)
        if target is None and flags == RENAME_EXCHANGE:
            raise NoEntryError(new_parent, new_name)
        if target is not None and flags == RENAME_NOREPLACE:
            raise EntryExistsError(new_parent, new_name)
        if target == moved:
            return
        self._refuse_loop(moved, new_parent)
        if flags == RENAME_EXCHANGE:
            assert target is not None, "checked above"
            self._refuse_loop(target, parent)
            self._enter(parent, name, target)
            self._enter(new_parent, new_name, moved)
            return
        if target is not None:
            self._refuse_replacing(moved, target)
            self._drop_name(new_parent, new_name)
        self._enter(new_parent, new_name, moved)
        self._drop_name(parent, name)

    def _refuse_loop(self, moved: Ino, new_parent: Ino) -> None:
        if any(ino == new_parent for ino in self._below(moved)):
            raise InvalidRequestError("cannot move a directory into its own subtree: inode", moved)

    def _below(self, ino: Ino) -> Iterator[Ino]:
        if self.nodes[ino].is_directory:
            yield ino
            for child in self.nodes[ino].entries.values():
                yield from self._below(child)

    def _refuse_replacing(self, moved: Ino, target: Ino) -> None:
        before, after = self.nodes[target], self.nodes[moved]
        if after.is_directory and not before.is_directory:
            raise NeedsDirectoryError(target)
        if before.is_directory and not after.is_directory:
            raise RefusesDirectoryError(target)
        if before.entries:
            raise DirectoryInUseError(target)

    def _enter(self, parent: Ino, name: bytes, ino: Ino) -> None:
        directory = self.nodes[parent]
        self.nodes[parent] = replace(directory, entries={**directory.entries, name: ino})

    def _drop_name(self, parent: Ino, name: bytes) -> None:
        directory = self.nodes[parent]
        ino = directory.entries[name]
        rest = {other: child for other, child in directory.entries.items() if other != name}
        self.nodes[parent] = replace(directory, entries=rest)
        self.purge(ino)

    def purge(self, ino: Ino) -> None:
        """Delete an inode if it has no name and is not open."""
        named = any(ino in node.entries.values() for node in self.nodes.values())
        if ino != ROOT_INO and not named and not self.opens.get(ino):
            self.nodes.pop(ino, None)

    # --- operations on inodes ------------------------------------------------------------------

    def open(self, ino: Ino) -> None:
        """Open an inode, which then exists until ``release``, even without a name."""
        self.node(ino)
        self.opens[ino] = self.opens.get(ino, 0) + 1

    def release(self, ino: Ino) -> None:
        """Undo one ``open`` of an inode."""
        self.opens[ino] -= 1
        if not self.opens[ino]:
            del self.opens[ino]
            self.purge(ino)

    def write(self, ino: Ino, offset: int, data: bytes) -> None:
        """Write bytes to a file; a gap between the end of the file and *offset* reads as zeros."""
        node = self._file(ino)
        before = node.content.ljust(offset, b"\0")
        content = before[:offset] + data + before[offset + len(data) :]
        self.nodes[ino] = replace(node, content=content)

    def copy_range(self, source: Ino, start: int, target: Ino, at: int, length: int) -> None:
        """Copy a byte range of one file into another, up to the end of *source*."""
        self._file(target)
        data = self._file(source).content[start : start + length]
        if data:
            self.write(target, at, data)

    def truncate(self, ino: Ino, size_bytes: int) -> None:
        """Set the size of a file; added bytes are zeros."""
        node = self._file(ino)
        content = node.content[:size_bytes].ljust(size_bytes, b"\0")
        self.nodes[ino] = replace(node, content=content)

    def set_content(self, ino: Ino, content: bytes) -> None:
        """Replace a file's content with the content found after a crash."""
        self.nodes[ino] = replace(self._file(ino), content=content)

    def chmod(self, ino: Ino, mode: int) -> None:
        """Set the permission bits of an inode."""
        node = self.node(ino)
        self.nodes[ino] = replace(node, mode=stat.S_IFMT(node.mode) | mode)

    def chown(self, ino: Ino, uid: int, gid: int) -> None:
        """Set owner and group; a regular file loses suid, and sgid if its group may execute it."""
        node = self.node(ino)
        mode = node.mode
        if node.is_file:
            mode &= ~(stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0))
        self.nodes[ino] = replace(node, mode=mode, uid=uid, gid=gid)

    def set_xattr(
        self,
        ino: Ino,
        name: bytes,
        value: bytes,
        *,
        must_be_new: bool = False,
        must_exist: bool = False,
    ) -> None:
        """Set an extended attribute of an inode."""
        node = self.node(ino)
        if must_be_new and name in node.xattrs:
            raise AttributeExistsError(ino, name)
        if must_exist and name not in node.xattrs:
            raise NoAttributeError(ino, name)
        self.nodes[ino] = replace(node, xattrs={**node.xattrs, name: value})

    def remove_xattr(self, ino: Ino, name: bytes) -> None:
        """Remove an extended attribute of an inode."""
        node = self.node(ino)
        if name not in node.xattrs:
            raise NoAttributeError(ino, name)
        rest = {other: value for other, value in node.xattrs.items() if other != name}
        self.nodes[ino] = replace(node, xattrs=rest)


def _check_name(name: bytes) -> None:
    if len(name) > NAME_BYTES_MAX:
        raise NameTooLongError(len(name))
