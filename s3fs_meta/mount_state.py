"""The state of a mount: the values, and the table of transitions between them.

    STARTING ──► FOLLOWING ──► SERVING ──► STOPPING
        │            │          │  │  ▲        ▲
        │            │          ▼  ▼  └─(never)│
        ├────────────┴──► DEGRADED FENCED ─────┤
        └──────────────────────────────────────┘

STARTING: background tasks already run, so every other state may follow. FOLLOWING: the mount shows
the changes of another host; its promotion makes it SERVING. SERVING: the mount accepts changes,
unless it was mounted read-only. DEGRADED, FENCED: the mount answers reads and refuses changes until
it is unmounted; it ships nothing more, not even at the unmount.
"""

import enum
import logging
from collections.abc import Callable, Mapping
from typing import Final

from s3fs_meta.errors import ReadOnlyStateError

_log = logging.getLogger(__name__)


class MountState(enum.Enum):
    """The possible states of a mount."""

    STARTING = "starting"
    FOLLOWING = "following"
    SERVING = "serving"
    DEGRADED = "degraded"
    FENCED = "fenced"
    STOPPING = "stopping"


NEXT: Final[Mapping[MountState, frozenset[MountState]]] = {
    MountState.STARTING: frozenset(set(MountState) - {MountState.STARTING}),
    MountState.FOLLOWING: frozenset(
        {MountState.SERVING, MountState.DEGRADED, MountState.FENCED, MountState.STOPPING}
    ),
    MountState.SERVING: frozenset({MountState.DEGRADED, MountState.FENCED, MountState.STOPPING}),
    MountState.DEGRADED: frozenset({MountState.FENCED, MountState.STOPPING}),
    MountState.FENCED: frozenset({MountState.STOPPING}),
    MountState.STOPPING: frozenset(),
}


_SHIPS_NOT: Final = frozenset({MountState.FOLLOWING, MountState.DEGRADED, MountState.FENCED})


class MountStatus:
    """The state of one mount; every component may read and change it."""

    def __init__(
        self,
        *,
        read_only: bool = False,
        rows_changed: Callable[[], int] | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Start in state STARTING.

        Args:
            read_only: True to refuse changes until ``promote``.
            rows_changed: returns the number of changed rows; None to assume one row per change.
            undo: rolls back changes that are not committed.
        """
        self.state = MountState.STARTING
        self.writable = False  # True if the mount accepts changes
        # True if uploads are allowed; otherwise, changes stay on this host
        self.ships = True
        self.read_only = read_only
        self.kernel_read_only = False  # True if the mount table lists the mount as read-only
        self.why = ""
        self._troubled = False
        self.changes_begun = 0  # number of changes that operations have started since the mount
        self._rows_changed = rows_changed or (lambda: self.changes_begun)
        self._undo = undo or _nothing

    def enter(self, state: MountState, why: str = "") -> None:
        """Change the state; a transition that is not in the table is a bug."""
        if state is self.state:
            return
        assert state in NEXT[self.state], f"{self.state} cannot become {state}"
        if state in {MountState.DEGRADED, MountState.FENCED}:
            _log.error("the mount is %s and read-only: %s", state.value, why)
            self._troubled = True
        self.state, self.why = state, why or self.why
        self.ships = state not in _SHIPS_NOT and not self._troubled
        self.writable = state is MountState.SERVING and not self.read_only

    def degrade(self, why: str) -> None:
        """Make the mount read-only after an unexpected error, unless it is fenced or stopping."""
        if self.state in {MountState.STARTING, MountState.FOLLOWING, MountState.SERVING}:
            self.enter(MountState.DEGRADED, why)

    def break_off(self, why: str) -> None:
        """Make the mount read-only like ``degrade``, and roll back an incomplete change."""
        self.degrade(why)
        self._undo()

    def fence(self, why: str) -> None:
        """Make the mount read-only after a takeover; in state STOPPING only stop uploads."""
        if self.state is MountState.STOPPING:
            self.ships = False
        else:
            self.enter(MountState.FENCED, why)

    @property
    def progress(self) -> tuple[int, int]:
        """Return two counters: the changes started so far, and the rows changed so far."""
        return self.changes_begun, self._rows_changed()

    def is_half_done(self, since: tuple[int, int]) -> bool:
        """Return whether a change has started and changed rows since ``progress`` returned *since*."""
        return all(now != then for now, then in zip(self.progress, since, strict=True))

    def promote(self) -> None:
        """Make a follower the writer; a degraded, fenced or stopping mount rejects changes."""
        self.read_only = False
        if self.state is MountState.FOLLOWING:
            self.enter(MountState.SERVING)

    def remount(self, *, read_only: bool) -> None:
        """Record that the kernel has remounted the filesystem as read-only or writable."""
        self.kernel_read_only = read_only

    def require_kernel_writable(self) -> None:
        """Refuse a change by a control request if the kernel's mount is read-only.

        FUSE requests skip this check, because the kernel may still write back earlier changes.

        Raises:
            ReadOnlyStateError: the filesystem was mounted or remounted read-only.
        """
        if self.kernel_read_only:
            raise ReadOnlyStateError(
                "mounted read-only" if self.read_only else "remounted read-only"
            )

    def require_writable(self) -> None:
        """Count the start of a change, or refuse the change.

        Raises:
            ReadOnlyStateError: the mount is read-only, degraded, fenced or stopping.
        """
        if not self.writable:
            raise ReadOnlyStateError(
                self.why or ("mounted read-only" if self.read_only else self.state.value)
            )
        self.changes_begun += 1


def _nothing() -> None:
    """Roll back nothing; the default value of *undo*."""
