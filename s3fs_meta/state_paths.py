"""The paths of local state and of notes about running mounts, and opening files at such paths.

Owns: the paths, and the check that an entry is a regular file. Does not know: the content of files.
Keeps: no slow imports, so that commands that only send a control request start fast. Opening a file
never waits. open(2) of a FIFO would wait for another process, and open(2) of a device can have side
effects, so the type is checked before the entry is opened, and again afterwards.

    <cachedir>/<label>-<hash of the URL>                               state (``sync.host_state.state_dir``)
    <cachedir>/<label>-<hash of the URL>-at-<hash of the mountpoint>   state of a point in time
"""

import errno
import os
import pwd
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError

SNAPSHOT_INFIX: Final = "-at-"
# Names in ``tmp`` of a state directory: files of blocks, and database copies with SQLite's files.
_UNFINISHED: Final = re.compile(
    r"fetch-[0-9a-f]+-[0-9]+|again-[0-9a-f]+|again-meta\.db(-journal|-wal)?"
    r"|(image-[0-9]+|anew|chain|damaged|gone|kept|newest|rebuilt|restorable|restored)\.db"
    r"(\.restoring)?(-journal|-wal|-shm)?",
    re.ASCII,
)
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_TYPES: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def default_cachedir(environment: Mapping[str, str], uid: int) -> Path:
    """Return the default directory of all state directories.

    If $HOME is unset, the home directory in the user database is used. mount(8) removes $HOME when
    a user mounts an fstab entry with the option ``user``.

    Source: XDG Base Directory Specification 0.8, which ignores a relative $XDG_STATE_HOME;
    util-linux, ``sanitize_env`` in lib/env.c.
    """
    if uid == 0:
        return Path("/var/lib/s3fs-meta")
    state_home = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(state_home):
        return Path(state_home) / "s3fs-meta"
    home = environment.get("HOME") or _home_in_user_database(uid)
    return Path(home).joinpath(".local", "state", "s3fs-meta")


def _home_in_user_database(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"


def runtime_dir(environment: Mapping[str, str], uid: int) -> Path:
    """Return the directory of notes about running mounts, which a reboot may delete.

    Source: XDG Base Directory Specification 0.8, $XDG_RUNTIME_DIR; file-hierarchy(7), /run.
    """
    if uid == 0:
        return Path("/run/s3fs-meta")
    given = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given):
        return Path(given) / "s3fs-meta"
    return default_cachedir(environment, uid) / "run"


def locate(url: str, cachedir: Path) -> Path:
    """Return the path of the state directory for a URL; the directory may be missing.

    The name consists of a readable part and a hash, so that two URLs never share a directory.

    Raises:
        UsageError: the URL is not UTF-8.
    """
    import hashlib  # a slow import, which loads OpenSSL

    try:
        encoded = url.rstrip("/").encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"the URL {url!r} is not UTF-8; rename its directory") from exc
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    label = re.sub(r"[^A-Za-z0-9]+", "-", url.split("://", 1)[-1]).strip("-")[-40:]
    return Path(os.path.realpath(cachedir)) / f"{label}-{digest}"


def unfinished(tmp: Path, name: str) -> Path:
    """Return the path of an unfinished file in ``tmp``, which the next mount removes."""
    assert is_unfinished(name), f"no mount removes {name!r} after a crash"
    return tmp / name


def is_unfinished(name: str) -> bool:
    """Return whether the program makes files of this name in ``tmp``."""
    return _UNFINISHED.fullmatch(name) is not None


def locate_snapshot_state(state: Path, mountpoint: str) -> Path:
    """Return the state directory of a point in time that is mounted on a mountpoint.

    Args:
        state: the state directory of the filesystem.
        mountpoint: the absolute path.
    """
    import hashlib  # a slow import, which loads OpenSSL

    digest = hashlib.blake2b(os.fsencode(mountpoint), digest_size=6).hexdigest()
    return state.with_name(f"{state.name}{SNAPSHOT_INFIX}{digest}")


class NotRegularFileError(OSError):
    """A path that must be a regular file is an entry of another type."""

    def __init__(self, path: str | Path, mode: int) -> None:
        found = _TYPES.get(stat.S_IFMT(mode), "a special file")
        super().__init__(
            errno.EINVAL, f"the entry is {found}, not a regular file; remove it", str(path)
        )


def open_regular(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor; never wait, and follow no symbolic link.

    Raises:
        FileNotFoundError: the file does not exist.
        NotRegularFileError: the entry is not a regular file.
        OSError: the file cannot be opened; the error has the path.
    """
    require_regular(path)
    fd = os.open(path, flags | _FLAGS, mode)
    found = os.fstat(fd).st_mode
    if stat.S_ISREG(found):
        return fd
    os.close(fd)
    raise NotRegularFileError(path, found)  # the entry was replaced after the first check


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """Return the first bytes of a regular file, at most *bytes_max*. Raises as ``open_regular``."""
    with open(open_regular(path), "rb") as file:
        return file.read(bytes_max)


def require_regular(path: str | Path) -> None:
    """Raise NotRegularFileError if an entry exists and is not a regular file.

    Raises:
        OSError: the entry cannot be examined.
    """
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found):
        raise NotRegularFileError(path, found)
