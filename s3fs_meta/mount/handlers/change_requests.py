"""The control requests that change a filesystem; all of them end before the last upload.

Owns: refusing such requests once the mount is ending, and cancelling or awaiting running requests.
Does not know: how requests are carried out.
Keeps: once ``end`` has returned, no request changes the filesystem. So the last upload contains the
changes of every request, including cancelled requests.
Tasks: one per control request; the task of the mount calls ``end`` once.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from s3fs_meta.control.protocol import Handler, Message, Report
from s3fs_meta.errors import ReadOnlyStateError
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.mount.requests import cache_requests, control_api

# Long requests, cancelled when the mount ends. Even then the filesystem remains consistent.
LONG: Final = frozenset(
    {
        cache_requests.WARM,
        control_api.CLONE,
        control_api.CLONE_PAST,
        control_api.LOCK,
        control_api.RECLAIM,
        mount_paths.REMOVE,
    }
)
_REFUSED: Final = "the filesystem is being unmounted"
_CANCELLED: Final = "the filesystem was unmounted before the request was complete"


class ChangeRequests:
    """The running control requests that change the filesystem of one mount."""

    def __init__(self) -> None:
        self._running = 0
        self._cancellable: set[trio.CancelScope] = set()
        self._is_ending = False
        self._all_ended = trio.Event()

    def guarded(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Return the given handlers, changed so that they refuse requests after ``end``.

        The end of the mount cancels the commands in LONG. All others run to completion: they are
        short, except for a promotion, which would leave its lease behind if cancelled.
        """
        return {
            command: partial(self.carry_out, handler, is_long=command in LONG)
            for command, handler in handlers.items()
        }

    async def carry_out(
        self, handler: Handler, arguments: Message, report: Report, *, is_long: bool = False
    ) -> Message:
        """Carry out one request, unless the mount is ending.

        Raises:
            ReadOnlyStateError: the mount is ending; if the request was already running, a part of
                its changes may remain.
            The errors of *handler*.
        """
        if self._is_ending:
            raise ReadOnlyStateError(_REFUSED)
        self._running += 1
        scope = trio.CancelScope()
        try:
            with scope:
                if is_long:
                    self._cancellable.add(scope)
                return await handler(arguments, report)
            raise ReadOnlyStateError(_CANCELLED)
        finally:
            self._cancellable.discard(scope)
            self._running -= 1
            self._report_end()

    async def end(self) -> None:
        """Refuse further requests; cancel running requests, or wait for requests that must finish.

        Yields to other tasks only if a request is running.
        """
        self._is_ending = True
        for scope in self._cancellable:
            scope.cancel()
        if self._running:
            await self._all_ended.wait()

    def _report_end(self) -> None:
        if self._is_ending and not self._running:
            self._all_ended.set()
