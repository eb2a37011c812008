"""The last results of a slow computation, such as the folder sizes at a point in time.

Owns: the cache. Does not know: the computation.
Keeps: only one computation runs at a time, so that open pages do not delay the next request.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cached(Generic[K, V]):
    """The results for the most recently used keys."""

    def __init__(self, count_max: int, fits: Callable[[V], bool] = lambda _result: True) -> None:
        """Create an empty cache.

        Args:
            count_max: maximum number of results in memory.
            fits: returns whether a result is small enough for the cache.
        """
        self._count_max = count_max
        self._fits = fits
        self._known: OrderedDict[K, V] = OrderedDict()
        self._lock = trio.Lock()

    async def of(self, key: K, compute: Callable[[], Awaitable[V]]) -> V:
        """Return the result for a key, possibly from the cache; raise the errors of *compute*."""
        async with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            found = await compute()
            if self._fits(found):
                self._known[key] = found
                if len(self._known) > self._count_max:
                    self._known.popitem(last=False)
            return found
