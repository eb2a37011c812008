"""The state of a mount: an enumeration and the table of its transitions.

    STARTING ──► FOLLOWING ──► SERVING ──► STOPPING
        │            │          │  │  ▲        ▲
        │            │          ▼  ▼  └─(never)│
        ├────────────┴──► DEGRADED FENCED ─────┤
        └──────────────────────────────────────┘

Background tasks run while a mount is STARTING, so it may go to any other state. FOLLOWING shows
what another host writes, and becomes SERVING when it is promoted. SERVING takes changes (unless
mounted read-only). DEGRADED and FENCED answer reads, refuse changes and ship nothing more. Neither
returns to SERVING: a new mount does.
"""

import enum
import logging
from collections.abc import Callable, Mapping
from typing import Final

from s3fs_meta.errors import ReadOnlyStateError

_log = logging.getLogger(__name__)


class MountState(enum.Enum):
    """The state of a mount."""

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
    """The one holder of a mount's state: any component may change it, and all read it."""

    def __init__(
        self,
        *,
        read_only: bool = False,
        rows_changed: Callable[[], int] | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Begin as STARTING.

        Args:
            read_only: no changes are taken until ``promote``.
            rows_changed: returns how many rows of the database changed; None: each change may.
            undo: takes back what no commit holds yet.
        """
        self._state = MountState.STARTING
        self.read_only = read_only
        self.kernel_read_only = False  # remounted: the kernel passes on no change
        self.why = ""
        self._writable = False
        self._troubled = False
        self.changes_begun = 0  # number of changes begun; a failed request may leave one incomplete
        self._rows_changed = rows_changed or (lambda: self.changes_begun)
        self._undo = undo or _nothing

    @property
    def state(self) -> MountState:
        """Return the present state."""
        return self._state

    @property
    def writable(self) -> bool:
        """Return whether changes are taken."""
        return self._writable

    @property
    def ships(self) -> bool:
        """Return whether uploads are allowed: not once degraded or fenced; changes then stay local."""
        return self._state not in _SHIPS_NOT and not self._troubled

    def enter(self, state: MountState, why: str = "") -> None:
        """Move to *state*; staying in it is allowed, leaving the table is a bug."""
        if state is self._state:
            return
        assert state in NEXT[self._state], f"{self._state} cannot become {state}"
        if state in {MountState.DEGRADED, MountState.FENCED}:
            _log.error("mount is %s and read-only: %s", state.value, why)
            self._troubled = True
        self._state, self.why = state, why or self.why
        self._writable = state is MountState.SERVING and not self.read_only

    def degrade(self, why: str) -> None:
        """Turn read-only after something that must not happen, if not worse already."""
        if self._state in {MountState.STARTING, MountState.FOLLOWING, MountState.SERVING}:
            self.enter(MountState.DEGRADED, why)

    def break_off(self, why: str) -> None:
        """As ``degrade``, when a change failed half-way: no reader may ever see half of it."""
        self.degrade(why)
        self._undo()

    def fence(self, why: str) -> None:
        """Turn read-only because another host took over; a mount that is stopping only stops uploads."""
        if self._state is MountState.STOPPING:
            self._troubled = True
        else:
            self.enter(MountState.FENCED, why)

    @property
    def progress(self) -> tuple[int, int]:
        """Return counters that grow when a change begins and when a row changes."""
        return self.changes_begun, self._rows_changed()

    def is_half_done(self, since: tuple[int, int]) -> bool:
        """Return whether a change that fails may have left half of itself: rows changed, too."""
        return all(now != then for now, then in zip(self.progress, since, strict=True))

    def promote(self) -> None:
        """Take changes from now on: the follower becomes the writer."""
        assert self._state is MountState.FOLLOWING, f"{self._state} cannot be promoted"
        self.read_only = False
        self.enter(MountState.SERVING)

    def remount(self, *, read_only: bool) -> None:
        """Note whether the kernel passes on changes: it was remounted."""
        self.kernel_read_only = read_only

    def require_kernel_writable(self) -> None:
        """Raise if the kernel takes no changes; for changes that do not come through the kernel.

        Requests do not need it: what the kernel took before is still handed over.

        Raises:
            ReadOnlyStateError: remounted read-only.
        """
        if self.kernel_read_only:
            raise ReadOnlyStateError("remounted read-only")

    def require_writable(self) -> None:
        """Raise unless changes are taken.

        Raises:
            ReadOnlyStateError: mounted read-only, degraded, fenced or stopping.
        """
        if not self._writable:
            raise ReadOnlyStateError(
                self.why or ("mounted read-only" if self.read_only else self._state.value)
            )
        self.changes_begun += 1


def _nothing() -> None:
    """Take back nothing: no operation can have begun."""
