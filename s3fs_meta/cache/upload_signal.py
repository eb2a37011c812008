"""The signal that wakes the uploader: writers wait for room in the cache.

Owns: when the uploader wakes early. Does not know: how room is made.
"""

import trio


class UploadSignal:
    """A signal that is forgotten once it was waited for."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the task that waits, or the next one that would."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether it was set and no task has waited for it since."""
        return self._event.is_set()

    async def wait(self, limit_s: float) -> None:
        """Return once it is set, or after a time."""
        with trio.move_on_after(limit_s):
            await self._event.wait()
        self._event = trio.Event()
