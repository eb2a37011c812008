"""The earlier states of a filesystem, and the states that must still exist.

The soak test adds a state after each operation, and numbers the states. A takeover or a kill may
undo a state: the state is then *dead*, and no mount may show it again. A *point* is a txg whose
state is known exactly.
"""

import copy
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from contrib.soak.commands import FindingError
from contrib.soak.states import (
    BLOCK_BYTES,
    Observed,
    Operation,
    Path,
    Seen,
    State,
    is_between,
    state_of,
)

# Maximum time until a commit group ends, with a reserve for a busy machine.
COMMIT_S_MAX: Final = 3.0
_SHOWN_MAX: Final = 8


@dataclass
class Step:
    """One state of the filesystem, and the operation that produced it."""

    state: State
    operation: Operation | None
    ended_s: float | None  # End time of the operation; None if the operation was not acknowledged.
    dead: bool = False


class History:
    """The history of one filesystem."""

    def __init__(self) -> None:
        self.steps = [Step(State(), None, time.monotonic())]
        self.remote = False  # True if fsync waits for the upload.
        self.local_floor = 0  # Index of the newest state that a kill must not lose.
        self.bucket_floor = 0  # Index of the newest state that the bucket must contain.
        self.points: dict[int, int] = {}  # Index of each txg's state.
        self.tainted: set[bytes] = set()  # Blocks of the pack that is currently damaged.
        self.past_tainted: set[bytes] = set()  # Blocks of all packs that were ever damaged.
        self.holes: list[tuple[int, int]] = []  # Ranges of txgs that damage made unreachable.

    @property
    def now(self) -> State:
        """Return the expected current state."""
        return self.steps[-1].state

    @property
    def last(self) -> int:
        """Return the number of the expected current state."""
        return len(self.steps) - 1

    def begin(self, operation: Operation) -> None:
        """Record an operation when it is sent, and the state that it should produce."""
        self.steps.append(Step(self.now.after(operation), operation, None))

    def ended(self, operation: Operation) -> None:
        """Record that the last operation succeeded."""
        self.steps[-1].ended_s = time.monotonic()
        if operation.sync:
            self.local_floor = self.last
        if operation.sync and self.remote:
            self.bucket_floor = self.last

    def refused(self) -> None:
        """Record that the last operation was refused and changed nothing."""
        self.steps.pop()

    def reached_bucket(self) -> None:
        """Record that the bucket contains the current state."""
        self.local_floor = self.bucket_floor = self.last

    def floor_before(self, seconds: float) -> int:
        """Return the number of the newest state that was complete at a given monotonic time."""
        number = self.bucket_floor
        for at in range(self.bucket_floor, len(self.steps)):
            ended_s = self.steps[at].ended_s
            if ended_s is not None and ended_s <= seconds and not self.steps[at].dead:
                number = at
        return number

    def fork(self) -> "History":
        """Return an independent copy of the history."""
        other = copy.copy(self)
        other.steps = [copy.copy(step) for step in self.steps]
        other.points = dict(self.points)
        return other

    # --- comparison with the history -------------------------------------------------------------

    def require_now(self, observed: Observed, what: str) -> None:
        """Require that a tree matches the current state."""
        self.require(observed, what, self.last, self.last, partly=False)

    def require(
        self, observed: Observed, what: str, low: int, high: int, *, partly: bool = True
    ) -> int:
        """Return the number of the state that matches an observed tree.

        Args:
            observed: the tree as it was read.
            what: a description for the finding.
            low: the earliest allowed state.
            high: the latest allowed state.
            partly: the operation after the returned state may be partly visible.

        Raises:
            FindingError: no allowed state matches the tree.
        """
        self._require_tainted(observed.failed, self.tainted, what)
        return self._find(observed, what, low, high, partly=partly)

    def require_past(self, observed: Observed, what: str, low: int, high: int) -> int:
        """Return the state that matches the tree of a past txg; damaged content may be missing."""
        self._require_tainted(observed.failed, self.past_tainted, what)
        return self._find(observed, what, low, high, partly=True)

    def _find(self, observed: Observed, what: str, low: int, high: int, *, partly: bool) -> int:
        for number in range(high, low - 1, -1):
            step = self.steps[number]
            if not step.dead and same(observed, step.state.view(), step.state):
                return number
            operation = step.operation
            if not partly or step.dead or operation is None or number == low:
                continue
            if is_between(observed, self.steps[number - 1].state, operation, step.state):
                return number - 1
        raise FindingError(self._mismatch(observed, what, low, high))

    def _mismatch(self, observed: Observed, what: str, low: int, high: int) -> str:
        best = min(
            (number for number in range(low, high + 1) if not self.steps[number].dead),
            key=lambda number: len(differing(observed, self.steps[number].state)),
            default=high,
        )
        state = self.steps[best].state
        wrong = differing(observed, state)
        lines = [f"{what}: none of the states {low} to {high} is equal; state {best} differs in:"]
        lines += [f"  {path}: {_difference(observed, state, path)}" for path in wrong[:_SHOWN_MAX]]
        lines.append(f"  {len(wrong)} differences")
        elsewhere = [
            number
            for number, step in enumerate(self.steps)
            if same(observed, step.state.view(), step.state)
        ]
        lines.append(f"  states that match: {elsewhere}")
        return "\n".join(lines)

    def _require_tainted(
        self, lost: Mapping[Path, Iterable[tuple[int, int]]], tainted: set[bytes], what: str
    ) -> None:
        """Require that only blocks of damaged objects were lost.

        Raises:
            FindingError: another block was lost.
        """
        for path, ranges in lost.items():
            for first, last in ranges:
                for at in range(first - first % BLOCK_BYTES, last, BLOCK_BYTES):
                    if not self._was_tainted(path, at, tainted):
                        raise FindingError(
                            f"{what}: {path} lost the block at byte {at} (of the lost bytes {first} to"
                            f" {last}), but no damaged object contained this block"
                        )

    def _was_tainted(self, path: Path, at: int, tainted: set[bytes]) -> bool:
        """Return whether a path had a damaged block at an offset, in any state of the history."""
        for step in reversed(self.steps):
            name = step.state.names.get(path)
            if name is not None and name.kind == "f":
                block = step.state.files[name.file].data[at : at + BLOCK_BYTES]
                if trimmed(block) in tainted:
                    return True
        return False

    # --- continuing from an observed tree --------------------------------------------------------

    def adopt(self, number: int, observed: Observed) -> None:
        """Continue the history from the observed tree; mark the states after *number* as undone."""
        for step in self.steps[number + 1 :]:
            step.dead = True
        self.steps.append(Step(state_of(observed), None, time.monotonic()))

    def go_on_from(self, observed: Observed) -> None:
        """Continue the history from the observed tree, without marking earlier states as undone."""
        self.steps.append(Step(state_of(observed), None, time.monotonic()))
        self.reached_bucket()

    def range_of(self, txg: int) -> tuple[int, int]:
        """Return the earliest and the latest state that a txg may have."""
        before = [number for known, number in self.points.items() if known <= txg]
        after = [number for known, number in self.points.items() if known >= txg]
        return max(before, default=0), min(after, default=self.last)

    def forget_points(self, first: int) -> None:
        """Drop the states of all txgs from *first* on, because these numbers may be reused."""
        self.points = {txg: number for txg, number in self.points.items() if txg < first}

    def in_hole(self, txg: int) -> bool:
        """Return whether damage may have made a txg unreachable."""
        return any(first <= txg <= last for first, last in self.holes)


def trimmed(block: bytes) -> bytes:
    """Return a block without its trailing zeros, which a store may omit."""
    return block.rstrip(b"\0")


def same(observed: Observed, view: Mapping[Path, Seen], state: State) -> bool:
    """Return whether a tree matches a state, except for unreadable content."""
    if observed.entries.keys() != view.keys():
        return False
    return all(
        seen == view[path] or (path in observed.failed and _readable(observed, state, path))
        for path, seen in observed.entries.items()
    )


def _readable(observed: Observed, state: State, path: Path) -> bool:
    """Return whether all readable bytes of a file are correct."""
    name = state.names[path]
    data, found = state.files[name.file].data if name.kind == "f" else b"", observed.data[path]
    if len(data) != len(found):
        return False
    with_holes = bytearray(data)
    for first, last in observed.failed[path]:
        with_holes[first:last] = bytes(last - first)
    view, seen = state.view()[path], observed.entries[path]
    return bytes(with_holes) == found and view._replace(digest=b"") == seen._replace(digest=b"")


def differing(observed: Observed, state: State) -> list[Path]:
    """Return the paths at which a tree differs from a state."""
    view = state.view()
    paths: Collection[Path] = {*observed.entries, *view}
    return sorted(path for path in paths if observed.entries.get(path) != view.get(path))


def _difference(observed: Observed, state: State, path: Path) -> str:
    seen, wanted = observed.entries.get(path), state.view().get(path)
    if seen is None or wanted is None or seen.kind != "f" or wanted.kind != "f":
        return f"{_short(seen)}, should be {_short(wanted)}"
    found, data = observed.data[path], state.data(path)
    first = next(
        (at for at, (a, b) in enumerate(zip(found, data, strict=False)) if a != b),
        min(len(found), len(data)),
    )
    around = f"{found[first : first + 8].hex()} instead of {data[first : first + 8].hex()}"
    return f"{_short(seen)}, should be {_short(wanted)}; from byte {first} on {around}"


def _short(seen: Seen | None) -> str:
    if seen is None:
        return "nothing"
    return f"{seen.kind} {seen.mode:o} links {seen.links} {seen.size} bytes {seen.digest.hex()[:8]}"
