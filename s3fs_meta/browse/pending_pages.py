"""Slow pages: generated in the background while the browser waits.

Owns: the pages that are being generated, and their bounds. Does not know: URLs, HTML.
Keeps: a page that is no longer requested is cancelled, and its memory is freed.
Tasks: one for each page that is being generated.
"""

from collections.abc import Awaitable, Callable

import trio

from s3fs_meta.browse.limits import (
    BROWSE_ABANDONED_S,
    BROWSE_ANSWER_S,
    BROWSE_PENDING_MAX,
    BROWSE_PENDING_S,
)
from s3fs_meta.errors import BusyError
from s3fs_meta.mount.http_server import Reply

Make = Callable[[], Awaitable[Reply]]


class _Pending:
    """One page that is being generated, or waits until a request fetches it."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.made = trio.Event()
        self.scope = trio.CancelScope()


class PendingPages:
    """The slow pages that are being generated in the background."""

    def __init__(self, nursery: trio.Nursery) -> None:
        """Store the nursery in which pages are generated."""
        self._nursery = nursery
        self._pages: dict[bytes, _Pending] = {}

    async def get(
        self, target: bytes, make: Make, pending_max: int = BROWSE_PENDING_MAX
    ) -> Reply | None:
        """Return a page, or None if the page is not ready in time; a later call can fetch the page.

        Args:
            target: the address of the page.
            make: generates the page; raises only Cancelled.
            pending_max: a new page is refused while this many pages are being generated.

        Raises:
            BusyError: too many pages are being generated.
        """
        page, wait_s = self._pages.get(target), BROWSE_PENDING_S
        if page is None:
            if len(self._pages) >= pending_max:
                raise BusyError(len(self._pages))
            page, wait_s = _Pending(), BROWSE_ANSWER_S
            self._pages[target] = page
            self._nursery.start_soon(self._make, target, page, make)
        page.scope.deadline = trio.current_time() + wait_s + BROWSE_ABANDONED_S
        with trio.move_on_after(wait_s):
            await page.made.wait()
        if page.reply is not None:
            page.scope.cancel()
        return page.reply

    async def _make(self, target: bytes, page: _Pending, make: Make) -> None:
        try:
            with page.scope:
                page.reply = await make()
                page.made.set()
                # Wait until a request fetches the page or the deadline passes.
                await trio.sleep_forever()
        finally:
            del self._pages[target]
