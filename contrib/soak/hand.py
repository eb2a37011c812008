"""A process that accesses mounts for the run, so that a hanging mount does not block the run.

Requests arrive on standard input, and replies go to standard output. Each message consists of a
length and a pickle of this length.
"""

import contextlib
import errno
import os
import pickle
import stat
import struct
import sys
from collections.abc import Callable
from typing import IO, Any, Final

from contrib.soak.states import BLOCK_BYTES, Observed, Operation, Seen, seen_file

LENGTH: Final = struct.Struct(">I")
MARK: Final = "user.soak"
LOST: Final = "user.s3fs-meta.lost"
IGNORED: Final = frozenset({"lost+found"})
HELD: Final = "held-"  # Prefix of files that stay open and are compared separately.


def receive(stream: IO[bytes]) -> Any:
    """Read the next message; return None at the end of the stream."""
    length = stream.read(LENGTH.size)
    if len(length) < LENGTH.size:
        return None
    return pickle.loads(stream.read(LENGTH.unpack(length)[0]))


def send(stream: IO[bytes], message: object) -> None:
    """Send one message to the run."""
    data = pickle.dumps(message)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


# --- operations on files -------------------------------------------------------------------------


def _write(path: str, operation: Operation, flags: int) -> None:
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        if operation.act == "truncate":
            os.ftruncate(fd, operation.offset)
        at, data = operation.offset, memoryview(operation.data)
        while data:
            written = os.pwrite(fd, data, at)
            at, data = at + written, data[written:]
        if operation.sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def do(root: str, operation: Operation) -> None:
    """Perform one operation on the mount.

    Raises: OSError: the operation is refused.
    """
    path, other = f"{root}/{operation.path}", f"{root}/{operation.other}"
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: _write(path, operation, os.O_CREAT | os.O_TRUNC),
        "write": lambda: _write(path, operation, 0),
        "append": lambda: _write(path, operation, 0),
        "truncate": lambda: _write(path, operation, 0),
        "mkdir": lambda: os.mkdir(path, 0o755),
        "rmdir": lambda: os.rmdir(path),
        "unlink": lambda: os.unlink(path),
        "link": lambda: os.link(path, other),
        "symlink": lambda: os.symlink(operation.other, path),
        "rename": lambda: os.rename(path, other),
        "chmod": lambda: os.chmod(path, operation.offset),
        "mark": lambda: os.setxattr(path, MARK, operation.data),
    }
    acts[operation.act]()


class _Held:
    """A file that stays open, like the log of a program."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self, path: str) -> None:
        """Create a file and keep it open."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: bytes) -> None:
        """Append a line to the open file."""
        os.write(self._fd, line)

    def close(self) -> None:
        """Close the file. Ignore an error, because the daemon may have been killed."""
        with contextlib.suppress(OSError):
            os.close(self._fd)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# --- observation of the tree ---------------------------------------------------------------------


def see(root: str) -> Observed:
    """Return all entries below a directory, with their content.

    Raises: OSError: an entry cannot be read. An EIO while reading content is recorded instead.
    """
    found = Observed()
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for name in os.listdir(f"{root}/{above}"):
            path = f"{above}/{name}".lstrip("/")
            if path.startswith(HELD):
                continue
            if path in IGNORED and not os.listdir(f"{root}/{path}"):
                continue
            _see_one(root, path, found)
            if found.entries[path].kind == "d":
                waiting.append(path)
    return found


def _names(root: str) -> set[str]:
    """Return every path below a directory, without reading content."""
    found: set[str] = set()
    for above, folders, files in os.walk(root):
        found |= {os.path.relpath(f"{above}/{name}", root) for name in (*folders, *files)}
    return {path for path in found if path not in IGNORED and not path.startswith(HELD)}


def _see_one(root: str, path: str, found: Observed) -> None:
    whole = f"{root}/{path}"
    info = os.lstat(whole)
    found.inodes[path] = info.st_ino
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISDIR(info.st_mode):
        found.entries[path] = Seen("d", mode)
    elif stat.S_ISLNK(info.st_mode):
        target = os.readlink(whole).encode()
        found.data[path] = target
        found.entries[path] = seen_file(0, 0, b"", target)._replace(kind="l", size=0)
    else:
        found.data[path] = data = _read(whole, info.st_size, path, found)
        lost = _attribute(whole, LOST)
        if lost:
            found.lost[path] = [
                (int(first), int(last) + 1)
                for first, _, last in (line.partition("-") for line in lost.decode().split())
            ]
        mark = _attribute(whole, MARK)
        found.entries[path] = seen_file(mode, info.st_nlink, mark, data)


def _attribute(path: str, name: str) -> bytes:
    try:
        return os.getxattr(path, name)
    except OSError as exc:
        if exc.errno not in {errno.ENODATA, errno.ENOTSUP}:
            raise
        return b""


def _read(path: str, size: int, name: str, found: Observed) -> bytes:
    """Return the content of a file, which is read from the daemon after the page cache is dropped.

    A block whose read fails with EIO is recorded as failed, and replaced by zeros.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        parts = []
        for at in range(0, size, BLOCK_BYTES):
            width = min(BLOCK_BYTES, size - at)
            try:
                part = os.pread(fd, width, at)
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
                found.failed.setdefault(name, []).append((at, at + width))
                part = bytes(width)
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def main() -> None:
    """Process requests until the run ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    held = _Held()
    work: dict[str, Callable[..., object]] = {
        "do": do,
        "see": see,
        "names": _names,
        "hold": held.open,
        "line": held.write,
        "release": held.close,
        "content": _content,
        "unlink": os.unlink,
    }
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        while (message := receive(source)) is not None:
            kind, *arguments = message
            try:
                send(target, ("done", work[kind](*arguments)))
            except OSError as exc:
                send(target, ("error", exc.errno))


if __name__ == "__main__":
    main()
