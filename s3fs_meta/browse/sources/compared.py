"""The cached differences between the last viewed point in time and the newest txg.

Owns: the cache. Does not know: how states are compared (``comparison``).
Keeps: only one comparison runs at a time, so that open pages do not delay the next request.
"""

from collections.abc import Awaitable, Callable

import trio

from s3fs_meta.browse.limits import BROWSE_CHANGED_MAX
from s3fs_meta.meta.trees.tree_diff import Difference
from s3fs_meta.model import Txg
from s3fs_meta.sync.chain.chain import Link

_Points = tuple[Txg, Link]  # an earlier txg, and the newest txg
_Found = list[Difference] | None


class Compared:
    """The last comparison of two points in time, with at most BROWSE_CHANGED_MAX differences."""

    def __init__(self) -> None:
        self._points: _Points | None = None
        self._found: _Found = None
        self._lock = trio.Lock()

    async def of(self, points: _Points, compare: Callable[[], Awaitable[_Found]]) -> _Found:
        """Return the result of *compare* for two points in time, possibly from the cache.

        Raises the same errors as *compare*.
        """
        async with self._lock:
            if points == self._points:
                return self._found
            found = await compare()
            if found is None or len(found) <= BROWSE_CHANGED_MAX:
                self._points, self._found = points, found
            return found
