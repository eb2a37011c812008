"""The paths of local state and of notes about running mounts.

Owns: the paths. Does not know: the files in these directories.
Keeps: no slow imports, so that commands that only send a control request start fast.

    <cachedir>/<label>-<hash of the URL>                               state (``sync.host_state.state_dir``)
    <cachedir>/<label>-<hash of the URL>-at-<hash of the mountpoint>   state of a point in time
"""

import os
import pwd
import re
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
