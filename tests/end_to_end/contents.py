"""Functions that write files, and that compare files on a mount with expected contents."""

import errno
import os
from pathlib import Path

from tests.end_to_end.system_calls import refused

MIB = 1 << 20


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and fsync it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_until_refused(folder: Path, files_max: int) -> dict[str, bytes]:
    """Write synced files of 1 MiB until no space is left; return the synced contents by name.

    The refused file is removed, which must succeed even on a full disk.
    """
    taken: dict[str, bytes] = {}
    with refused(errno.ENOSPC):
        for number in range(files_max):
            data = os.urandom(MIB)
            write_synced(folder / f"full-{number}", data)
            taken[f"full-{number}"] = data
    (folder / f"full-{len(taken)}").unlink(missing_ok=True)
    return taken


def contents(root: Path) -> dict[str, bytes]:
    """Return the contents of all regular files below a directory."""
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def differing(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Return the names of files that are missing, unexpected, or different from *expected*."""
    names = found.keys() | expected.keys()
    return sorted(name for name in names if found.get(name) != expected.get(name))


def facts(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the properties of each path that a copy must keep.

    The first path of an inode stands for its inode number.
    """
    found: dict[str, tuple[object, ...]] = {}
    firsts: dict[int, str] = {}
    for path in sorted(root.rglob("*")):
        name, at = str(path.relative_to(root)), path.lstat()
        first = name if path.is_dir() else firsts.setdefault(at.st_ino, name)
        names = sorted(os.listxattr(path, follow_symlinks=False))
        found[name] = (
            first,  # The first path of the inode in sorted order.
            at.st_mode,
            (at.st_uid, at.st_gid),
            at.st_nlink,
            at.st_rdev,
            at.st_mtime_ns,
            _content(path),
            {one: os.getxattr(path, one, follow_symlinks=False) for one in names},
        )
    return found


def _content(path: Path) -> str | bytes | None:
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes() if path.is_file() else None
