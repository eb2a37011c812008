"""A store that becomes unavailable in the middle of an operation."""

from collections.abc import Callable

from typing_extensions import override

from s3fs_meta.errors import TransientStoreError
from s3fs_meta.testing.faulty_store import WRITES, Fault, FaultKind, FaultyStore


class Outages(FaultyStore):
    """A faulty store that becomes unavailable after a number of calls."""

    _calls_left = -1
    _lose_reply = False
    _patience = 0
    _give_up: Callable[[], None] | None = None

    def go_away_after(
        self, calls: int, *, lose_reply: bool, patience: int, give_up: Callable[[], None]
    ) -> None:
        """Answer *calls* more calls, and refuse all later calls.

        With *lose_reply*, the first refused call is executed if it is a write, but not answered.
        *give_up* is called after *patience* failed calls.
        """
        self._calls_left, self._lose_reply = calls, lose_reply
        self._patience, self._give_up = patience, give_up

    def come_back(self) -> None:
        """End the outage and clear all faults."""
        self._calls_left = -1
        self._give_up = None
        self.down = None
        self.clear()

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        if self._calls_left == 0:
            self._calls_left = -1
            self.down = TransientStoreError(key, "the network of the store is unreachable")
            if self._lose_reply and method in WRITES:
                return Fault(FaultKind.LOSE_REPLY)
        self._calls_left -= self._calls_left > 0
        if self.down is not None and self._give_up is not None:
            self._patience -= 1
            if self._patience <= 0:
                self._give_up()
        return await super().enter(method, key)
