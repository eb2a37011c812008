"""The recorders and listeners that a database calls when a commit group starts, commits or is lost.

Owns: the order in which listeners are notified of a lost group. Does not know: groups, rows.
"""

import enum
import operator
from collections.abc import Callable
from typing import Protocol

from s3fs_meta.errors import S3fsError


class LossStep(enum.IntEnum):
    """The order in which listeners are notified of a lost commit group."""

    REFUSE = 1  # refuse changes and syncs while it is unknown which operations are durable
    RELOAD = 2  # reload the rows that are cached in memory
    REPORT = 3  # invalidate the kernel's caches


class Recorder(Protocol):
    """Records the changes of each commit group, from its BEGIN to its COMMIT."""

    def group_opened(self) -> None:
        """Start recording a new commit group. The database calls this before the first change."""
        ...

    def group_committing(self) -> None:
        """Store the recorded changes of the group. The database calls this before the COMMIT."""
        ...


class BulkRecorder(Recorder, Protocol):
    """A recorder that also accepts a changeset made by its caller."""

    def pause(self) -> None:
        """Stop recording, because the caller makes a changeset of the next changes itself."""
        ...

    def go_on(self, changeset: bytes) -> None:
        """Resume recording; *changeset* contains the changes made since ``pause``."""
        ...


class GroupListeners:
    """The functions to call when a commit group is opened or lost."""

    def __init__(self) -> None:
        self.of_opening: list[Callable[[], object]] = []
        self._of_loss: list[tuple[LossStep, Callable[[], None]]] = []

    def when_opened(self, listener: Callable[[], object]) -> None:
        """Register a function to call after each commit group is opened."""
        self.of_opening.append(listener)

    def when_lost(self, step: LossStep, listener: Callable[[], None]) -> None:
        """Register a function to call when a commit group is lost, in the order of the steps."""
        self._of_loss.append((step, listener))
        self._of_loss.sort(key=operator.itemgetter(0))

    def lost(self, first: LossStep = LossStep.REFUSE) -> None:
        """Call the functions that are registered for a lost commit group, starting at a given step.

        Raises:
            S3fsError: a function could not read the database. All functions were called.
        """
        failed: list[S3fsError] = []
        for step, listener in self._of_loss:
            if step < first:
                continue
            try:
                listener()
            except S3fsError as exc:
                failed.append(exc)
        if failed:
            raise failed[0]
