"""From what the user names, a URL or a mountpoint, to the filesystem and its local state.

Owns: that mapping, and a note of each running mount: without it a mount with another ``cachedir``
could only be found by somebody who repeats the option, and one that was unmounted and still
uploads could not be found at all.

    <default cachedir>/mounts/<pid>    JSON: url, state directory, mountpoint, device
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.cli import mount_table
from s3fs_meta.cli.mount_table import Mounted
from s3fs_meta.errors import NotMountedError
from s3fs_meta.settings import default_cachedir
from s3fs_meta.sync.state_dir import locate

_log = logging.getLogger(__name__)

_NOTES: Final = "mounts"


class Place(NamedTuple):
    """One filesystem as this host knows it."""

    url: str
    state: Path  # its state directory, which may not exist
    mountpoint: str | None = None
    mounted: bool = False  # the kernel still has it; not: its daemon still uploads


def own_cachedir() -> Path:
    """Return the default directory of local state for who runs this."""
    return default_cachedir(os.environ, os.geteuid())


def of_url(url: str, cachedir: Path | None) -> Place:
    """Return the place of a filesystem."""
    return Place(url, locate(url, cachedir or own_cachedir()))


def of_mountpoint(mountpoint: Path, cachedir: Path | None) -> Place:
    """Return the place of a filesystem that is mounted, or was and still uploads.

    Raises:
        NotMountedError: neither.
    """
    path = mount_table.resolve(mountpoint)
    mounted = mount_table.find(path)
    for note in _notes():
        if mounted is None:
            if note["mountpoint"] == path:
                return Place(note["url"], Path(note["state"]), path)
        elif cachedir is None and _is_about(note, mounted):
            return Place(mounted.source, Path(note["state"]), path, mounted=True)
    if mounted is None:
        raise NotMountedError(path)
    return Place(mounted.source, of_url(mounted.source, cachedir).state, path, mounted=True)


def of_either(target: str, cachedir: Path | None) -> Place:
    """Return the place of what is a URL if it looks like one, else a mountpoint.

    Raises:
        NotMountedError: it is no URL, and nothing of ours is mounted there.
    """
    if "://" in target:
        return of_url(target, cachedir)
    return of_mountpoint(Path(target), cachedir)


def all_mounted() -> list[Place]:
    """Return every filesystem of ours that is mounted here, or was and still uploads."""
    found = [
        of_mountpoint(Path(one.mountpoint), None)
        for one in mount_table.read()
        if one.fs_type == mount_table.FS_TYPE
    ]
    states = {place.state for place in found}
    ending = [Place(note["url"], Path(note["state"]), note["mountpoint"]) for note in _notes()]
    return found + [place for place in ending if place.state not in states]


@contextlib.contextmanager
def noted(mounted: Mounted, state: Path) -> Iterator[None]:
    """Keep a note of this process's mount until it has ended."""
    path = own_cachedir() / _NOTES / str(os.getpid())
    note = {
        "url": mounted.source,
        "state": str(state),
        "mountpoint": mounted.mountpoint,
        "device": mounted.device,
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(note))
    except OSError as exc:
        _log.warning("commands on %s will need --cachedir: %s", mounted.mountpoint, exc)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _notes() -> list[dict[str, Any]]:
    """Return the notes of mounts whose process lives; others are removed."""
    found = []
    with contextlib.suppress(OSError):
        for path in (own_cachedir() / _NOTES).iterdir():
            if not _lives(path.name):
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
    return found


def _lives(pid: str) -> bool:
    return pid.isdigit() and os.path.exists(f"/proc/{pid}")


def _is_about(note: dict[str, Any], mounted: Mounted) -> bool:
    return bool(note["device"] == mounted.device and note["url"] == mounted.source)
