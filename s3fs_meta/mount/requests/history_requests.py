"""The client side of requests to a running mount about the history of its files.

Owns: the command ``versions`` of the control socket, and finding the mount of a path, even if the
file was removed. Does not know: how versions are found (``history_handlers``).

    versions  {"top": inode, "names": [text], "count": number, "attributes": bool, "pattern": bool}
                → {"files": [{"path", "versions": [{"txg", "created_ns", "ino", "changes": [text],
                "name", "size_bytes", "mtime_ns", "mode", "unknown", "uploaded"}], "complete":
                bool}], "notices": [text]}
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.errors import UsageError
from s3fs_meta.model import Ino
from s3fs_meta.mount.existing import mount_paths, mount_table, targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.existing.unanswered import of_closed_path
from s3fs_meta.mount.limits import PATTERN_NAMES_MAX
from s3fs_meta.mount.requests.control_api import ask
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.sync.history.versions.path_versions import PathVersions, Version, Versions

VERSIONS: Final = "versions"


class PastPath(NamedTuple):
    """A path in a mounted filesystem; the file at the path may have been removed."""

    place: Target
    top: Ino  # inode of the directory at the mountpoint
    names: list[bytes]  # components of the path below the mountpoint


def past_path(path: Path, cachedir: Path | None) -> PastPath:
    """Return a path's mounted filesystem; symbolic links before the last component are followed.

    Raises:
        NotMountedError: the path is not on a filesystem of s3fs-meta.
        OtherUserError: the path is in a mount of another user, and only that user may access it.
        SilentDaemonError: the daemon of the path's filesystem does not answer.
    """
    targets.require_answers([path])
    above, name = os.path.split(os.path.abspath(path))
    absolute = os.path.join(os.path.realpath(above), name)
    closed = of_closed_path(absolute)
    if closed is not None:
        raise closed
    existing = absolute
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    mountpoints = {one.mountpoint for one in mount_table.read()}
    top = existing if os.path.isdir(existing) else os.path.dirname(existing)
    while top not in mountpoints and top != os.path.dirname(top):
        top = os.path.dirname(top)
    try:
        place = mount_paths.place_of(top, cachedir)
    except NotMountedError as exc:  # show the path in the error as the user typed it
        if mount_table.find(top) is None:
            raise NotMountedError(absolute, mount_paths.outside(path)) from exc
        raise
    names = os.path.relpath(absolute, top).split(os.sep)
    return PastPath(
        place, Ino(os.stat(top).st_ino), [os.fsencode(one) for one in names if one != os.curdir]
    )


@dataclass(frozen=True)
class Shape:
    """The options that select the versions to list."""

    count: int  # maximum number of versions per file
    attributes: bool = False  # include versions in which only attributes changed
    pattern: bool = False  # treat the last component of the path as a shell pattern


async def found_by(finder: PathVersions, names: Sequence[bytes], shape: Shape) -> dict[str, Any]:
    """Return the versions of a path or pattern as control messages.

    Raises:
        UsageError: no retained txg has such a path.
        StoreError: the bucket cannot be read.
    """
    if not shape.pattern:
        found = await finder.of_path(names, shape.count, attributes=shape.attributes)
        return {"files": [_file(names, found)], "notices": []}
    if not names:
        raise UsageError("PATH must end with a pattern for names, such as '*.pdf'")
    *above, pattern = names
    matching, are_all = await finder.names_like(above, pattern, PATTERN_NAMES_MAX)
    if not matching:
        raise UsageError("no file matches the pattern at any retained point in time")
    notice = "not all names that match are listed; use a narrower pattern"
    listed = await finder.of_names(above, matching, shape.count, attributes=shape.attributes)
    files = [
        _file([*above, name], versions) for name, versions in zip(matching, listed, strict=True)
    ]
    return {"files": files, "notices": [] if are_all else [notice]}


def _file(path: Sequence[bytes], versions: Versions) -> dict[str, Any]:
    """Return the versions of a path as a JSON object."""
    return {
        "path": os.fsdecode(b"/".join(path)),
        "versions": [message_of(version) for version in versions.found],
        "complete": versions.is_complete,
    }


async def request_versions(path: PastPath, shape: Shape) -> dict[str, Any]:
    """Return the versions of a path or pattern in a mount.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: no retained point in time has the path, or the bucket cannot be read.
    """
    arguments = {
        "top": path.top,
        "names": [os.fsdecode(name) for name in path.names],
        **asdict(shape),
    }
    return await ask(path.place, VERSIONS, arguments)


def message_of(version: Version) -> dict[str, Any]:
    """Return a version of a file as a JSON object."""
    return {
        "txg": version.txg,
        "created_ns": version.created_ns if version.is_uploaded else None,
        "ino": version.ino,
        "changes": list(version.changes),
        "name": None if version.name is None else os.fsdecode(version.name),
        "size_bytes": version.size_bytes,
        "mtime_ns": version.mtime_ns,
        "mode": version.mode,
        "unknown": version.why or None,
        "uploaded": version.is_uploaded,
    }
