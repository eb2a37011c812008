"""Requests to a running mount about its cache and its limits: the client side.

Owns: the commands ``set`` and ``dropcache`` of the control socket.
Does not know: their effect (``cache_handlers``).

    set       {"values": {name: text}} → {"settings": [{"name", "value", "mounted_with", and "bytes"
                or "bytes_per_s" (null: unlimited)}], "evicted_bytes", "over_bytes"}
    dropcache → {"dropped": {"blocks", "bytes"}, "kept": {reason: bytes}}
"""

from collections.abc import Mapping
from typing import Any, Final

from s3fs_meta.control import client
from s3fs_meta.mount.targets import Target, named

SET: Final = "set"
DROP: Final = "dropcache"


async def request_set(place: Target, values: Mapping[str, str]) -> dict[str, Any]:
    """Change settings of a mount until it ends; return all settings.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: a name or value is wrong; nothing was changed.
    """
    with named(place):
        return await client.call(place.state, SET, {"values": dict(values)})


async def request_drop(place: Target) -> dict[str, Any]:
    """Make a mount drop its clean cached blocks.

    Raises:
        NotMountedError: the filesystem is not mounted.
    """
    with named(place):
        return await client.call(place.state, DROP)
