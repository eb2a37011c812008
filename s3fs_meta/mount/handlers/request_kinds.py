"""The control requests that the server of the control socket treats specially.

Owns: the kind of each such command; all other commands are ordinary. Does not know: handlers.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from s3fs_meta.control.server import RequestKind
from s3fs_meta.mount.requests import cache_requests, control_api

KINDS: Final[Mapping[str, RequestKind]] = MappingProxyType(
    {
        # Commands such as status and umount must work while many other requests run.
        control_api.STATUS: RequestKind.PROMPT,
        control_api.REQUESTERS: RequestKind.PROMPT,
        control_api.COUNTS: RequestKind.PROMPT,
        control_api.END: RequestKind.PROMPT,
        # If the client is disconnected, it reads the outcome from the mount's note after the
        # daemon's exit.
        control_api.FINISHED: RequestKind.WAITING,
        # If the user interrupts the command, its client disconnects, and the download is cancelled.
        cache_requests.WARM: RequestKind.BOUND,
    }
)
