"""The clients of a mount that wait until its changes are in the bucket.

Owns: the lists of clients to which progress and outages are reported. Does not know: uploads, the
control socket.
"""

import contextlib
from collections.abc import Iterator

from s3fs_meta.control.protocol import Report


class Watchers:
    """Clients that wait for the last upload, and clients that wait for a flush."""

    def __init__(self) -> None:
        self._of_the_end: set[Report] = set()
        self._of_a_flush: set[Report] = set()

    @contextlib.contextmanager
    def until_the_end(self, report: Report) -> Iterator[None]:
        """Report progress of the last upload, and outages, to a client during a context."""
        self._of_the_end.add(report)
        try:
            yield
        finally:
            self._of_the_end.discard(report)

    @contextlib.contextmanager
    def during_a_flush(self, report: Report) -> Iterator[None]:
        """Report outages to a client during a context; its flush reports progress otherwise."""
        self._of_a_flush.add(report)
        try:
            yield
        finally:
            self._of_a_flush.discard(report)

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of the last upload to its clients."""
        for report in self._of_the_end:
            report({"what": what, "done": done, "total": total})

    def waiting(self, why: str) -> None:
        """Report to all clients that the bucket accepts no uploads."""
        for report in self._of_the_end | self._of_a_flush:
            report({"waits": why})
