"""The daemon's handlers of control requests about kept points.

Owns: converting messages to calls. Does not know: clients (``keep_requests``), how points are kept.
"""

from collections.abc import Awaitable, Callable

import trio

from s3fs_meta.control.protocol import Handler, Message, Report, progress_to
from s3fs_meta.errors import UsageError
from s3fs_meta.mount.requests import keep_requests
from s3fs_meta.options.option_syntax import point_in_time
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.session import Session


class KeepHandlers:
    """The handlers of requests to one mount about kept points."""

    def __init__(
        self, session: Session, changed: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    ) -> None:
        """Create the handlers of one mount.

        Args:
            session: the session of the mount.
            changed: called after each change and each listing of the kept points.
        """
        self._session = session
        self._changed = changed
        self._keeper = PointKeeper(session)

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each control command about kept points."""
        return {
            keep_requests.KEEP: self._on_keep,
            keep_requests.DROP: self._on_drop,
            keep_requests.LIST: self._on_list,
        }

    async def _on_keep(self, arguments: Message, report: Report) -> Message:
        name, at = arguments.get("name"), arguments.get("at")
        if not isinstance(name, str) or not (at is None or isinstance(at, str)):
            raise UsageError(
                "a request to keep a point needs a name; its time must be a string or null"
            )
        wanted = None if at is None else point_in_time("--at", at)
        auto = arguments.get("auto") is True
        with self._session.throttles.upload.lifted():
            point = await self._keeper.keep(name, wanted, progress_to(report), auto=auto)
        await self._changed()
        return {"point": keep_requests.message_of(point)}

    async def _on_drop(self, arguments: Message, _report: Report) -> Message:
        names = arguments.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError("the names of kept points must be a list of strings")
        dropped = await self._keeper.drop(names)
        await self._changed()
        return {"objects": len(dropped)}

    async def _on_list(self, _arguments: Message, _report: Report) -> Message:
        kept = await self._session.reclaimer.kept_points()
        await self._changed()
        return await keep_requests.listed(kept, self._session.db, self._session.link.floor)
