"""The daemon's handlers of control requests about uploads and unreferenced objects.

Owns: converting messages to calls. Does not know: clients (``control_api``), how uploads are made.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import trio

from s3fs_meta.control.protocol import Handler, Message, Report, progress_to
from s3fs_meta.errors import ReadOnlyStateError
from s3fs_meta.mount.handlers.change_requests import ChangeRequests
from s3fs_meta.mount.limits import UNSHIPPED_PATHS_MAX
from s3fs_meta.mount.requests import control_api
from s3fs_meta.sync.session import Session

NOT_UPLOADED: Final = (
    "this host has changes of an earlier mount that are not in the bucket, and a read-only mount"
    " uploads nothing: mount the filesystem for writing, then unmount it"
)
_NO_IMAGE: Final = "only a mount for writing uploads an image"


class UploadHandlers:
    """The handlers of requests to one mount about uploads and unreferenced objects."""

    def __init__(
        self,
        session: Session,
        changes: ChangeRequests,
        why_uncollected: Callable[[float], str],
    ) -> None:
        """Create the handlers of one mount.

        Args:
            session: the session of the mount.
            changes: carries out the upload of an image, unless the mount is ending.
            why_uncollected: returns why the kernel may have data older than an age in seconds, or
                "" if it has none.
        """
        self._session = session
        self._changes = changes
        self._why_uncollected = why_uncollected

    @property
    def uploads_nothing(self) -> bool:
        """Return whether the mount is read-only and has no changes of earlier mounts to upload."""
        session = self._session
        return session.status.read_only and not session.db.changed and not session.uploader.pending

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the commands that are served until the mount has ended."""
        return {control_api.FLUSH: self._on_flush, control_api.UNSHIPPED: self._on_unshipped}

    async def _on_flush(self, arguments: Message, report: Report) -> Message:
        image = bool(arguments.get("image"))
        done: dict[str, Any] = {"published": False, "uncollected": ""}
        if not self.uploads_nothing or image:
            if self._session.status.read_only:
                raise ReadOnlyStateError(_NO_IMAGE if self.uploads_nothing else NOT_UPLOADED)
            began_s = trio.current_time()
            with self._session.throttles.upload.lifted():
                link = await self._session.flush_now(progress_to(report))
                if image:
                    done |= await self._changes.carry_out(self._on_image, arguments, report)
            done["published"] = link is not None
            done["uncollected"] = self._why_uncollected(trio.current_time() - began_s)
        return {**done, "txg": self._session.link.txg}

    async def _on_image(self, _arguments: Message, report: Report) -> Message:
        return {"image_txg": (await self._session.make_image(progress_to(report))).txg}

    async def _on_unshipped(self, _arguments: Message, _report: Report) -> Message:
        found = await self._session.unshipped.paths(UNSHIPPED_PATHS_MAX)
        return {"paths": found.paths, "complete": found.complete}

    async def on_reclaim(self, arguments: Message, report: Report) -> Message:
        """Delete unreferenced objects, or list them."""
        if arguments.get("dry_run") is not False:
            return (await self._session.reclaimer.plan_all()).as_json(deleted=False)
        if self._session.status.read_only:
            raise ReadOnlyStateError("mounted read-only")
        with self._session.throttles.upload.lifted():
            reclaimed = await self._session.reclaimer.reclaim_all(progress_to(report))
        return reclaimed.as_json(deleted=True)


class EndWatchers:
    """The clients that wait for the last upload of one mount."""

    def __init__(self) -> None:
        self._reports: set[Report] = set()

    @contextlib.contextmanager
    def added(self, report: Report) -> Iterator[None]:
        """Report the last upload's progress to a client for the duration of a context."""
        self._reports.add(report)
        try:
            yield
        finally:
            self._reports.discard(report)

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of the last upload to the clients."""
        for report in self._reports:
            progress_to(report)(what, done, total)
