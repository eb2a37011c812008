"""The signal that wakes the uploader early, because writers wait for room in the cache.

Owns: the signal. Does not know: what the uploader does to make room.
"""

import trio


class UploadSignal:
    """A signal between tasks, which is cleared when a wait ends."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the waiting task, or let the next wait return immediately."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether the signal was set after the last wait."""
        return self._event.is_set()

    async def wait(self, limit_s: float) -> None:
        """Wait until the signal is set, at most *limit_s* seconds; then clear it."""
        with trio.move_on_after(limit_s):
            await self._event.wait()
        self._event = trio.Event()
