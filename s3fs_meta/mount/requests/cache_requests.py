"""The client side of requests to a running mount about its cache and its limits.

Owns: the commands ``set``, ``dropcache``, ``warm``, ``pins`` and ``unpin`` of the control socket.
Does not know: their effect (``cache_handlers``).

    set       {"values": {name: text}} → {"settings": [{"name", "value", "mounted_with", and "bytes"
                or "bytes_per_s" (null: unlimited)}], "evicted_bytes", "over_bytes"}
    dropcache {"inodes": [number] or null, "pinned": bool} → {"dropped": {"blocks", "bytes"},
                "kept": {reason: bytes}}
    warm      {"inodes": [number], "pin": bool} → {"total_bytes", "cached_bytes", "fetched_bytes",
                "missing_bytes", "missing_files", "paths" of the first missing files, "error":
                null or {"kind", "message"}, "pinned"}, with progress in bytes; stops if the
                client disconnects
    pins      → {"pins": [{"path", "total_bytes", "cached_bytes"}], "left_out": number,
                "pinned_bytes", "pinned_bytes_max", "over_bytes", "last_error"}
    unpin     {"inodes": [number]} → {}
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from s3fs_meta.console.ui import Front
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import ask

SET: Final = "set"
DROP: Final = "dropcache"
WARM: Final = "warm"
PINS: Final = "pins"
UNPIN: Final = "unpin"


async def request_set(place: Target, values: Mapping[str, str]) -> dict[str, Any]:
    """Change settings of a running mount; return all settings.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: a name or value is invalid, or too small for the pins; nothing was changed.
    """
    return await ask(place, SET, {"values": dict(values)})


async def request_drop(
    place: Target, inodes: Sequence[int] | None, *, pinned: bool
) -> dict[str, Any]:
    """Make a mount drop the clean blocks of trees, or all clean blocks if *inodes* is None.

    Raises:
        NotMountedError: the filesystem is not mounted.
    """
    wanted = None if inodes is None else list(inodes)
    return await ask(place, DROP, {"inodes": wanted, "pinned": pinned})


async def request_warm(
    place: Target, inodes: Sequence[int], front: Front, *, pin: bool
) -> dict[str, Any]:
    """Make a mount download the content of trees into its cache.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the trees do not fit into the cache, or cannot be pinned; nothing was changed.
    """
    return await ask(place, WARM, {"inodes": list(inodes), "pin": pin}, front)


async def request_pins(place: Target) -> dict[str, Any]:
    """Return the pinned trees of a mount.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the list of pins cannot be read.
    """
    return await ask(place, PINS)


async def request_unpin(place: Target, inodes: Sequence[int]) -> None:
    """Make a mount unpin trees.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: a tree is not pinned; nothing was changed.
    """
    await ask(place, UNPIN, {"inodes": list(inodes)})
