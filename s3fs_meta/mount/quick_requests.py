"""Control requests of commands that must start fast and only send one request.

Owns: the request that removes. Does not know: the other requests (``control_api``).
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from s3fs_meta.control import plain_call
from s3fs_meta.errors import NotMountedError
from s3fs_meta.mount.mount_paths import Entry
from s3fs_meta.mount.targets import Target

REMOVE: Final = "remove"


def remove(entry: Entry) -> None:
    """Have a mount remove a name and all that is below it, unless it is locked.

    Raises:
        NotMountedError: there is none.
        ControlError: it refused; nothing was changed.
    """
    with named(entry.place):
        plain_call.call(entry.place.state, REMOVE, removal(entry))


def removal(entry: Entry, *, locked: bool = False, wait: bool = False) -> dict[str, int | str]:
    """Return the arguments of a removal."""
    return {**told(entry), "locked": locked, "wait": wait}


def told(entry: Entry) -> dict[str, int | str]:
    """Return an entry as control messages have it."""
    return {"parent": entry.parent, "name": os.fsdecode(entry.name), "ino": entry.ino}


@contextlib.contextmanager
def named(place: Target) -> Iterator[None]:
    """Name the filesystem as the user does if no mount answers."""
    try:
        yield
    except NotMountedError as exc:
        raise NotMountedError(place.mountpoint or place.url) from exc
