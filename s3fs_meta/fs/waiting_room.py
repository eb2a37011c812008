"""Requests that wait for the store or for room: how many there may be, of all users and of each.

Owns: the bound, and the share of each user. Does not know: what they wait for.
Keeps: metadata requests always find a worker; one user's requests leave room for those of others;
what the kernel writes back is never refused for readers' sake, because it would be lost.

``caller`` is set by who takes a request, in the task that carries it out: the layers between need
not hand it on.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from s3fs_meta.errors import BusyError
from s3fs_meta.limits import WAITING_HANDLERS_MAX, WRITE_BACK_WAITING_MAX

UNKNOWN: Final = -1  # user of a request without a known caller
WRITE_BACK: Final = -2  # not a user: the kernel, writing back data of all users

caller: Final[ContextVar[int]] = ContextVar("caller", default=UNKNOWN)
"""The user ID that the present request is of, UNKNOWN or WRITE_BACK."""


class WaitingRoom:
    """The requests of one mount that wait."""

    def __init__(self, *, is_shared: bool = False) -> None:
        """Make an empty one.

        Args:
            is_shared: several users may have requests here (``allow_other``).
        """
        self.is_shared = is_shared
        self._of: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return how many wait."""
        return self._of.total()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Wait in here while the block runs.

        Raises:
            BusyError: so many wait already, in all or of this user.
        """
        uid = caller.get()
        self._require_place(uid)
        self._of[uid] += 1
        try:
            yield
        finally:
            self._of[uid] -= 1

    def _require_place(self, uid: int) -> None:
        """Refuse a request that finds no place.

        A user may have twice as many as are left: however many come, each finds some left, and
        the first, alone, has two thirds. Source: Choudhury and Hahne, Dynamic Queue Length
        Thresholds, IEEE/ACM Transactions on Networking 6 (2), 1998.
        """
        if uid == WRITE_BACK and self._of[WRITE_BACK] < WRITE_BACK_WAITING_MAX:
            return
        overflow = max(self._of[WRITE_BACK] - WRITE_BACK_WAITING_MAX, 0)
        waiting = len(self) - self._of[WRITE_BACK] + overflow
        left = WAITING_HANDLERS_MAX - waiting
        has_share = not self.is_shared or uid < 0 or self._of[uid] < 2 * left
        if left <= 0 or not has_share:
            raise BusyError(waiting)
