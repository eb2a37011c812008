"""The clients that wait for the last upload of a mount.

Owns: the list of clients that receive progress. Does not know: uploads, the control socket.
"""

import contextlib
from collections.abc import Iterator

from s3fs_meta.control.protocol import Report


class Watchers:
    """The clients that wait for the last upload of one mount."""

    def __init__(self) -> None:
        self._of_the_end: set[Report] = set()

    @contextlib.contextmanager
    def until_the_end(self, report: Report) -> Iterator[None]:
        """Report the last upload's progress to a client for the duration of a context."""
        self._of_the_end.add(report)
        try:
            yield
        finally:
            self._of_the_end.discard(report)

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of the last upload to the clients."""
        for report in self._of_the_end:
            report({"what": what, "done": done, "total": total})
