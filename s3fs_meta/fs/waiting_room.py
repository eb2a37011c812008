"""A limit on the requests that wait for the store or for cache space, in total and per user.

Owns: the maximum number of waiting requests, and the share of each user.
Does not know: why a request waits.
Keeps: a worker is always free for metadata requests. The requests of one user leave room for
requests of other users. Waiting readers never cause the refusal of a write-back, because the kernel
would lose its data.

The code that receives a request sets ``caller`` in the task of the request. So no layer in between
has to pass the user ID as an argument.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from s3fs_meta.errors import BusyError
from s3fs_meta.limits import WAITING_HANDLERS_MAX, WRITE_BACK_WAITING_MAX

UNKNOWN: Final = -1  # user ID of a request without a known caller
WRITE_BACK: Final = -2  # user ID for the kernel, which writes back the data of all users

caller: Final[ContextVar[int]] = ContextVar("caller", default=UNKNOWN)
"""The user ID of the current request, UNKNOWN or WRITE_BACK."""


class WaitingRoom:
    """Counts the waiting requests of one mount, and refuses further requests above a maximum."""

    def __init__(self, *, is_shared: bool = False, most: int = WAITING_HANDLERS_MAX) -> None:
        """Create an empty waiting room.

        Args:
            is_shared: whether several users may send requests (``allow_other``).
            most: maximum number of waiting requests, not counting write-back.
        """
        self.is_shared = is_shared
        self._most = most
        self._of: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return the number of requests that wait for the store or for cache space."""
        return self._of.total()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count the request as waiting during a ``with`` block.

        Raises:
            BusyError: too many requests are waiting, in total or of this user.
        """
        uid = caller.get()
        self._require_place(uid)
        self._of[uid] += 1
        try:
            yield
        finally:
            self._of[uid] -= 1

    def _require_place(self, uid: int) -> None:
        """Raise BusyError if too many requests are waiting.

        If several users may send requests, each may have at most twice as many waiting requests as
        there are free places. So one user can fill only two thirds of all places. Source: Choudhury
        and Hahne, Dynamic Queue Length Thresholds, IEEE/ACM Transactions on Networking 6 (2), 1998.
        """
        if uid == WRITE_BACK and self._of[WRITE_BACK] < WRITE_BACK_WAITING_MAX:
            return
        overflow = max(self._of[WRITE_BACK] - WRITE_BACK_WAITING_MAX, 0)
        waiting = len(self) - self._of[WRITE_BACK] + overflow
        left = self._most - waiting
        has_share = not self.is_shared or uid < 0 or self._of[uid] < 2 * left
        if left <= 0 or not has_share:
            raise BusyError(waiting)
