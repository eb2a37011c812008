"""The report of fsck: findings, and the exit status computed from them.

Owns: the modes, findings, their counts, the JSON form and the exit status of fsck(8).
Does not know: SQL, stores, terminals.
Bounds: at most FSCK_EXAMPLES_MAX findings of each invariant are kept. All findings are counted and
passed to ``on_finding``.
"""

import enum
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from s3fs_meta.counted import counted
from s3fs_meta.limits import FSCK_EXAMPLES_MAX

EXIT_CLEAN: Final = 0
EXIT_CORRECTED: Final = 1
EXIT_LEFT: Final = 4


class Mode(enum.Enum):
    """The mode of fsck: how much it may change."""

    REPORT = "n"  # report findings, and change nothing
    SAFE = "p"  # recompute derived values, and delete leftovers of a crash
    ALL = "y"  # make every possible repair


class Severity(enum.Enum):
    """The severity of a broken invariant."""

    DAMAGE = "damage"  # an error, which changes the exit status of fsck
    LEFTOVER = "leftover"  # harmless for the current files; does not change the exit status


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: one damaged row, file or object."""

    invariant: str  # name of the broken invariant, for example I12
    what: str  # description of the finding: one line, lower case, without a full stop
    ino: int | None = None
    path: str | None = None  # path of the inode, or None for an inode without a name

    def as_json(self) -> dict[str, Any]:
        """Return the finding for --json."""
        return {"what": self.what, "ino": self.ino, "path": self.path}

    @override
    def __str__(self) -> str:
        place = "" if self.path is None else f" [{self.path}]"
        return f"{self.invariant}: {self.what}{place}"


@dataclass(slots=True)
class Verdict:
    """The number of findings about one invariant, and some findings as examples."""

    invariant: str
    title: str
    severity: Severity
    found: int = 0
    left: int = 0  # number of findings that were not repaired
    advice: str = ""  # advice about findings that were not repaired
    examples: list[Finding] = field(default_factory=list)

    @property
    def corrected(self) -> int:
        """Return the number of repaired findings."""
        return max(self.found - self.left, 0)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict for --json."""
        return {
            "invariant": self.invariant,
            "title": self.title,
            "severity": self.severity.value,
            "found": self.found,
            "corrected": self.corrected,
            "left": self.left,
            "advice": self.advice if self.left else "",
            "findings": [finding.as_json() for finding in self.examples],
        }


def _ignore_finding(finding: Finding) -> None:
    """Ignore a finding; the default of ``on_finding``."""


def _ignore_note(text: str) -> None:
    """Ignore a note; the default of ``on_note``."""


class Report:
    """Collects the findings of one run."""

    def __init__(
        self,
        *,
        on_finding: Callable[[Finding], None] = _ignore_finding,
        on_note: Callable[[str], None] = _ignore_note,
    ) -> None:
        """Create an empty report.

        Args:
            on_finding: called for every finding, even if it is only counted.
            on_note: called with one line of text at the start of each step and for each repair.
        """
        self._on_finding = on_finding
        self._on_note = on_note
        self._verdicts: dict[str, Verdict] = {}
        self.notes: list[str] = []
        self.changes_rows = False  # True if a repair changed a row, so that fsck uploads an image
        self.is_undone = False  # True if all repairs were undone, because damaged rows remained
        self.foreign_count = 0
        self.foreign_keys: list[str] = []

    def note(self, text: str) -> None:
        """Send a line about the progress of the run to ``on_note``."""
        self._on_note(text)

    def row_changed(self) -> None:
        """Record that a repair changed a row."""
        self.changes_rows = True

    def remember(self, text: str) -> None:
        """Add a line to the report that informs the user about an effect of a repair."""
        if len(self.notes) < FSCK_EXAMPLES_MAX:
            self.notes.append(text)
        self._on_note(text)

    def foreign(self, count: int, keys: list[str]) -> None:
        """Report the number of objects that are not of this filesystem, and some of their keys."""
        self.foreign_count, self.foreign_keys = count, keys
        if count:
            shown = ", ".join(repr(key) for key in keys) + (", …" if count > len(keys) else "")
            objects = f"{counted(count, 'object')} that {'does' if count == 1 else 'do'} not belong"
            self.remember(f"kept {objects} to this filesystem: {shown}")

    def open(self, verdict: Verdict) -> Verdict:
        """Add the verdict of an invariant before its first finding; return the stored verdict."""
        return self._verdicts.setdefault(verdict.invariant, verdict)

    def add(self, verdict: Verdict, finding: Finding) -> None:
        """Count a finding; store it as an example if fewer than FSCK_EXAMPLES_MAX are stored."""
        verdict.found += 1
        verdict.left += 1
        if len(verdict.examples) < FSCK_EXAMPLES_MAX:
            verdict.examples.append(finding)
        self._on_finding(finding)

    def forget_all_but(self, invariant: str) -> None:
        """Keep only the findings about one invariant, because the database was replaced."""
        self._verdicts = {
            name: verdict for name, verdict in self._verdicts.items() if name == invariant
        }

    def settle(self, invariant: str, left: int) -> None:
        """Record how many findings of an invariant were not repaired."""
        if invariant in self._verdicts:
            self._verdicts[invariant].left = left

    def undo(self, invariants: Container[str]) -> None:
        """Record that the findings of invariants are not repaired, because repairs were undone."""
        self.changes_rows = False
        self.is_undone = True
        for verdict in self.verdicts:
            if verdict.invariant in invariants:
                verdict.left = verdict.found

    @property
    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on the broken invariants, in the order of their numbers."""
        return [verdict for verdict in self._verdicts.values() if verdict.found or verdict.left]

    @property
    def broken(self) -> list[str]:
        """Return the names of the broken invariants, including harmless leftovers."""
        return [verdict.invariant for verdict in self.verdicts]

    @property
    def exit_status(self) -> int:
        """Return the exit status of fsck(8), a sum of bits; leftovers set no bit."""
        damage = [one for one in self.verdicts if one.severity is Severity.DAMAGE]
        left = EXIT_LEFT if any(one.left for one in damage) else EXIT_CLEAN
        return left + (EXIT_CORRECTED if any(one.corrected for one in damage) else EXIT_CLEAN)

    def as_json(self) -> dict[str, Any]:
        """Return the complete report for --json."""
        return {
            "exit_status": self.exit_status,
            "invariants": [verdict.as_json() for verdict in self.verdicts],
            "notes": self.notes,
            "foreign": {"count": self.foreign_count, "keys": self.foreign_keys},
        }

    def lines(self) -> list[str]:
        """Return the report as text: a line per broken invariant, or the line ``clean``."""
        lines = [_line(verdict) for verdict in self.verdicts]
        return lines or ["clean"]


def _line(verdict: Verdict) -> str:
    done = []
    if verdict.corrected:
        done.append(f"{verdict.corrected} corrected")
    if verdict.left:
        done.append(f"{verdict.left} left")
    advice = f"; {verdict.advice}" if verdict.left and verdict.advice else ""
    kind = (
        "" if verdict.severity is Severity.DAMAGE else " (leftover, harmless for the present files)"
    )
    return f"{verdict.invariant}{kind}: {verdict.title}: broken {verdict.found} times, {', '.join(done)}{advice}"
