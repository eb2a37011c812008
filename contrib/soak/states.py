"""The states of a filesystem, the effects of operations, and results of interrupted operations."""

import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from typing_extensions import override

BLOCK_BYTES: Final = 64 << 10
FILE_BYTES_MAX: Final = 5 * BLOCK_BYTES
NAMES_MAX: Final = 60
_DIRECTORY_MODE: Final = 0o755
_FILE_MODE: Final = 0o644

Path = str  # Path relative to the root, without a leading slash.


class Operation(NamedTuple):
    """One change that a program makes."""

    act: str
    path: Path
    other: str = ""  # Second path, or target of a symbolic link.
    offset: int = 0
    data: bytes = b""
    sync: bool = False

    @override
    def __str__(self) -> str:
        """Return the operation as one short line."""
        more = f" {self.other}" if self.other else ""
        size = f" {len(self.data)} bytes at {self.offset}" if self.data or self.offset else ""
        return f"{self.act} {self.path}{more}{size}{' fsync' if self.sync else ''}"


SIZED: Final = frozenset({"put", "write", "append", "truncate"})


class Seen(NamedTuple):
    """The properties of one path that a program can read."""

    kind: str  # d for a directory, f for a file, l for a symbolic link.
    mode: int = 0
    links: int = 0
    mark: bytes = b""  # Value of an extended attribute.
    size: int = 0
    digest: bytes = b""  # Digest of the content or the link target.


@dataclass
class Observed:
    """A tree of names and content as it was read from a mount."""

    entries: dict[Path, Seen] = field(default_factory=dict)
    # The contents of files, with zeros in unreadable ranges.
    data: dict[Path, bytes] = field(default_factory=dict)
    # Byte ranges whose reads fail with EIO.
    failed: dict[Path, list[tuple[int, int]]] = field(default_factory=dict)
    # Byte ranges that fsck has marked as lost.
    lost: dict[Path, list[tuple[int, int]]] = field(default_factory=dict)
    inodes: dict[Path, int] = field(default_factory=dict)


def seen_file(mode: int, links: int, mark: bytes, data: bytes) -> Seen:
    """Return the properties of a regular file."""
    return Seen("f", mode, links, mark, len(data), hashlib.sha256(data).digest())


class Name(NamedTuple):
    """The object that a name refers to."""

    kind: str
    file: int = 0  # Number of the file that a name refers to.
    target: str = ""  # Target of a symbolic link.
    mode: int = _DIRECTORY_MODE  # Mode of a directory.


class File(NamedTuple):
    """A file, independent of its names."""

    data: bytes = b""
    mode: int = _FILE_MODE
    mark: bytes = b""


@dataclass(frozen=True)
class State:
    """A tree of names, and its files."""

    names: dict[Path, Name] = field(default_factory=dict)
    files: dict[int, File] = field(default_factory=dict)
    next_file: int = 1

    def view(self) -> dict[Path, Seen]:
        """Return the properties of all paths, as a program reads them."""
        if not hasattr(self, "_view"):
            links: dict[int, int] = {}
            for name in self.names.values():
                links[name.file] = links.get(name.file, 0) + 1
            view = {path: self._seen(name, links) for path, name in self.names.items()}
            object.__setattr__(self, "_view", view)
        view = self._view  # type: ignore[attr-defined]
        return dict(view)

    def _seen(self, name: Name, links: dict[int, int]) -> Seen:
        if name.kind == "d":
            return Seen("d", name.mode)
        if name.kind == "l":
            return Seen("l", digest=hashlib.sha256(name.target.encode()).digest())
        file = self.files[name.file]
        return seen_file(file.mode, links[name.file], file.mark, file.data)

    def data(self, path: Path) -> bytes:
        """Return the content of a file."""
        return self.files[self.names[path].file].data

    def after(self, operation: Operation) -> "State":
        """Return the state after an operation that is possible in this state."""
        names, files = dict(self.names), dict(self.files)
        state = replace(self, names=names, files=files)
        result = _ACTS[operation.act](state, operation)
        used = {name.file for name in names.values()}
        for file in [number for number in files if number not in used]:
            del files[file]
        return result or state


# --- effects of operations ------------------------------------------------------------------------


def _put(state: State, operation: Operation) -> State | None:
    there = state.names.get(operation.path)
    if there is not None:
        state.files[there.file] = state.files[there.file]._replace(data=operation.data)
        return None
    state.names[operation.path] = Name("f", state.next_file)
    state.files[state.next_file] = File(operation.data)
    return replace(state, next_file=state.next_file + 1)


def _resize(state: State, operation: Operation) -> None:
    number = state.names[operation.path].file
    old = state.files[number].data
    if operation.act == "truncate":
        data = old[: operation.offset].ljust(operation.offset, b"\0")
    else:
        begin = old[: operation.offset].ljust(operation.offset, b"\0")
        data = begin + operation.data + old[operation.offset + len(operation.data) :]
    state.files[number] = state.files[number]._replace(data=data)


def _make_directory(state: State, operation: Operation) -> None:
    state.names[operation.path] = Name("d")


def _remove(state: State, operation: Operation) -> None:
    del state.names[operation.path]


def _link(state: State, operation: Operation) -> None:
    state.names[operation.other] = state.names[operation.path]


def _symlink(state: State, operation: Operation) -> None:
    state.names[operation.path] = Name("l", target=operation.other)


def _rename(state: State, operation: Operation) -> None:
    source, target = operation.path, operation.other
    if state.names[source].kind == "f" and state.names.get(target) == state.names[source]:
        return  # rename(2) does nothing if the two names refer to the same file.
    for path in [one for one in state.names if one == source or one.startswith(source + "/")]:
        state.names[target + path[len(source) :]] = state.names.pop(path)


def _mode(state: State, operation: Operation) -> None:
    name = state.names[operation.path]
    if name.kind == "d":
        state.names[operation.path] = name._replace(mode=operation.offset)
    else:
        state.files[name.file] = state.files[name.file]._replace(mode=operation.offset)


def _mark(state: State, operation: Operation) -> None:
    number = state.names[operation.path].file
    state.files[number] = state.files[number]._replace(mark=operation.data)


_ACTS: Final = {
    "put": _put,
    "write": _resize,
    "append": _resize,
    "truncate": _resize,
    "mkdir": _make_directory,
    "rmdir": _remove,
    "unlink": _remove,
    "link": _link,
    "symlink": _symlink,
    "rename": _rename,
    "chmod": _mode,
    "mark": _mark,
}


def state_of(observed: Observed) -> State:
    """Return an observed tree as a state."""
    names: dict[Path, Name] = {}
    files: dict[int, File] = {}
    for path, seen in observed.entries.items():
        if seen.kind == "d":
            names[path] = Name("d", mode=seen.mode)
        elif seen.kind == "l":
            names[path] = Name("l", target=observed.data[path].decode())
        else:
            names[path] = Name("f", observed.inodes[path])
            files[observed.inodes[path]] = File(observed.data[path], seen.mode, seen.mark)
    return State(names, files, max(files, default=0) + 1)


# --- results of interrupted operations -----------------------------------------------------------


def is_between(observed: Observed, before: State, operation: Operation, after: State) -> bool:
    """Return whether a tree may be the result of an interrupted operation.

    Only the file that the operation changes may differ from both states. Each byte of this file
    must be the old byte or the new byte. Beyond the old end of the file, a zero is also allowed,
    because the kernel may write a later page first.
    """
    if operation.act not in SIZED:
        return False
    entries, old, new = observed.entries, before.view(), after.view()
    number = after.names[operation.path].file
    paths = {path for path, name in after.names.items() if name.file == number}
    others = {path: seen for path, seen in entries.items() if path not in paths}
    if others != {path: seen for path, seen in old.items() if path not in paths}:
        return False
    if not paths <= entries.keys():
        return False
    for path in paths:
        seen, wanted = entries[path], new[path]
        if (seen.kind, seen.links) != (wanted.kind, wanted.links):
            return False
        if seen.mode not in {wanted.mode, old[path].mode if path in old else wanted.mode}:
            return False
        data = before.data(path) if path in old else b""
        if not _is_partly(observed.data[path], data, after.data(path), operation):
            return False
    return True


def _is_partly(found: bytes, old: bytes, new: bytes, operation: Operation) -> bool:
    shortest = 0 if operation.act == "put" else min(len(old), len(new))
    if not shortest <= len(found) <= max(len(old), len(new)):
        return False
    if operation.act == "put":
        old = b""  # The put operation truncates the file first.
    begin, width = len(old), len(found)  # Pages beyond the file's old end may be missing.
    wanted_old, wanted_new = old[:width].ljust(width, b"\0"), new[:width].ljust(width, b"\0")
    return all(
        byte in {first, second} or (byte == 0 and at >= begin)
        for at, (byte, first, second) in enumerate(zip(found, wanted_old, wanted_new, strict=True))
        if byte != second
    )


# --- random choice of operations -----------------------------------------------------------------


class Chooser:
    """A generator of random operations that are possible in a state."""

    def __init__(self, rnd: random.Random) -> None:
        self._rnd = rnd
        # Blocks that many files contain, to test deduplication. One is all zeros, one compressible.
        self._pool = [rnd.randbytes(BLOCK_BYTES) for _ in range(4)]
        self._pool += [bytes(BLOCK_BYTES), b"the same line\n" * (BLOCK_BYTES // 14)]
        self._number = 0
        self.syncs = True  # True if some operations end with an fsync.

    def data(self) -> bytes:
        """Return random content of random length."""
        size = self._rnd.choice((0, 1, 3000, 20_000, BLOCK_BYTES, 70_000, 150_000, 300_000))
        size = self._rnd.randrange(size // 2, size + 1)
        if self._rnd.random() < 0.7:
            return self._rnd.randbytes(size)
        found = b"".join(self._rnd.choice(self._pool) for _ in range(size // BLOCK_BYTES + 1))
        return found[:size] if self._rnd.random() < 0.5 else found[: FILE_BYTES_MAX // 2]

    def choose(self, state: State, *, new: bool = False) -> Operation:
        """Return an operation. If *new* is true, the operation reads no old content."""
        acts = ["put", "put", "mkdir", "symlink", "rename", "unlink", "link", "chmod", "mark"]
        if not new:
            acts += ["put", "write", "write", "append", "append", "truncate", "rmdir"]
        if len(state.names) > NAMES_MAX:
            acts = ["unlink", "rmdir", "truncate", "append"] if not new else ["unlink", "put"]
        while True:
            operation = self._wish(state, self._rnd.choice(acts), new=new)
            if operation is not None:
                return operation

    def _wish(self, state: State, act: str, *, new: bool) -> Operation | None:
        files = [path for path, name in state.names.items() if name.kind == "f"]
        sync = self._rnd.random() < 0.15 and self.syncs
        if act == "put":
            old = bool(files) and not new and self._rnd.random() < 0.4
            path = self._rnd.choice(files) if old else self._fresh(state, "f")
            return Operation("put", path, data=self.data(), sync=sync)
        if act == "mkdir":
            return Operation("mkdir", self._fresh(state, "d"))
        if act == "symlink":
            return Operation("symlink", self._fresh(state, "l"), f"to-{self._number}")
        if act == "rmdir":
            return self._empty_directory(state)
        # Symbolic links are removed too, because they may be most of the names.
        if act == "unlink":
            paths = [path for path, name in state.names.items() if name.kind != "d"]
            return Operation("unlink", self._rnd.choice(paths)) if paths else None
        if not files:
            return None
        return self._on_file(state, act, self._rnd.choice(files), sync=sync)

    def _on_file(self, state: State, act: str, path: Path, *, sync: bool) -> Operation | None:
        size = len(state.data(path))
        if act == "write":
            offset = self._rnd.randrange(size + 1) if size else 0
            data = self.data() or b"x"
            fits = offset + len(data) <= FILE_BYTES_MAX
            return Operation("write", path, offset=offset, data=data, sync=sync) if fits else None
        if act == "append":
            fits = size < FILE_BYTES_MAX // 2
            data = self.data() or b"y"
            return Operation("append", path, offset=size, data=data, sync=sync) if fits else None
        if act == "truncate":
            to = self._rnd.randrange(min(2 * size, FILE_BYTES_MAX) + 1)
            return Operation("truncate", path, offset=to, sync=sync)
        if act == "rename":
            files = [one for one, name in state.names.items() if name.kind == "f"]
            over = self._rnd.random() < 0.3
            target = self._rnd.choice(files) if over else self._fresh(state, "f")
            return Operation("rename", path, target) if target != path else None
        if act == "link":
            return Operation("link", path, self._fresh(state, "f"))
        if act == "chmod":
            return Operation("chmod", path, offset=self._rnd.choice((0o600, 0o644, 0o755)))
        assert act == "mark"
        return Operation("mark", path, data=self._rnd.randbytes(20))

    def _empty_directory(self, state: State) -> Operation | None:
        parents = {path.rpartition("/")[0] for path in state.names}
        empty = [
            path for path, name in state.names.items() if name.kind == "d" and path not in parents
        ]
        return Operation("rmdir", self._rnd.choice(empty)) if empty else None

    def _fresh(self, state: State, kind: str) -> Path:
        self._number += 1
        directories = [path for path, name in state.names.items() if name.kind == "d"]
        above = [""] if not directories or self._rnd.random() < 0.5 else directories
        return f"{self._rnd.choice(above)}/{kind}{self._number}".lstrip("/")
