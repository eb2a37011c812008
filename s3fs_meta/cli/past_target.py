"""The argument of a command that reads history: a path in a mount, or a URL and a path.

Owns: the distinction between paths and URLs. Does not know: the commands.
"""

import os
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError
from s3fs_meta.export.from_snapshot import names_of
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.model import ROOT_INO
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.requests.history_requests import PastPath, past_path

_WANTED: Final = "a path in a mounted filesystem, or the URL with both slashes"


def is_url(target: str) -> bool:
    """Return whether an argument is the URL of a bucket."""
    return "://" in target


def past_target(target: str, path: str | None, cachedir: Path | None) -> PastPath:
    """Return the filesystem, and the path in the filesystem, that the arguments name.

    A path below .snapshots, such as .snapshots/TIME/file, names the file without the time.

    Args:
        target: a path in a mounted filesystem, or the URL of a bucket.
        path: with a URL, a path relative to the root; None means the root.
        cachedir: directory of local state, None for the default.

    Raises:
        UsageError: *path* was given although *target* is a path, *path* contains "..", or *target*
            is a URL with a missing slash.
        NotMountedError: the path is not on a filesystem of s3fs-meta.
    """
    if is_url(target):
        names = names_of(os.fsencode(path or ""))
        return PastPath(targets.of_url(target, cachedir), ROOT_INO, names)
    if (text := targets.given_a_url(target, _WANTED)) and not os.path.lexists(target):
        raise UsageError(text)
    if path is not None:
        raise UsageError(
            f"{target!r} is not a URL; to give a path in a mount, join both arguments: "
            f"{os.path.join(target, path)!r}"
        )
    found = past_path(Path(target), cachedir)
    if found.top < PAST_INO_MIN and _is_in_the_past(target):
        return found._replace(names=found.names[2:])
    return found


def _is_in_the_past(target: str) -> bool:
    """Return whether a path, or its nearest existing parent, is below ``.snapshots``."""
    existing = os.path.abspath(target)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    return os.lstat(existing).st_ino >= PAST_INO_MIN
