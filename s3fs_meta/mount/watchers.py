"""The clients of a mount that wait until its changes are in the bucket.

Owns: the list of clients that get reports of progress and outages. Does not know: the uploads, the
control socket.
"""

import contextlib
from collections.abc import Iterator

from s3fs_meta.control.protocol import Report


class Watchers:
    """Clients that wait for the last upload, and those that wait for a flush."""

    def __init__(self) -> None:
        self._of_the_end: set[Report] = set()
        self._of_a_flush: set[Report] = set()

    @contextlib.contextmanager
    def until_the_end(self, report: Report) -> Iterator[None]:
        """Report the progress of the last upload to a client, and outages."""
        self._of_the_end.add(report)
        try:
            yield
        finally:
            self._of_the_end.discard(report)

    @contextlib.contextmanager
    def during_a_flush(self, report: Report) -> Iterator[None]:
        """Report outages to a client, which gets the progress of its flush itself."""
        self._of_a_flush.add(report)
        try:
            yield
        finally:
            self._of_a_flush.discard(report)

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of the last upload."""
        for report in self._of_the_end:
            report({"what": what, "done": done, "total": total})

    def waiting(self, why: str) -> None:
        """Report that the bucket takes no uploads."""
        for report in self._of_the_end | self._of_a_flush:
            report({"waits": why})
