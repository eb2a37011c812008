"""What an invariant of the filesystem is.

Owns: the form of one entry of the table in ``invariants``. Does not know: any of them.

An invariant is a query over the whole database that yields the rows that break it. It is given
in two parts, ``source`` (what rows it speaks of) and ``damaged`` (which of them break it), so
that one scan of a source answers for every invariant about it.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from s3fs_meta.check.report import Severity
from s3fs_meta.meta.database import Row

if TYPE_CHECKING:
    from s3fs_meta.check.examination import Examination

Repair = Callable[["Examination", "Invariant"], None]


class Need(enum.Flag):
    """What must have been looked at before an invariant can be judged."""

    ROWS = 0  # the database alone
    UNMOUNTED = enum.auto()  # nobody has files open
    FILES = enum.auto()  # the cache directory: local_cache.survey
    OBJECTS = enum.auto()  # the listing of the bucket: objects.survey
    CONTENT = enum.auto()  # every byte of every pack: deep.survey


@dataclass(frozen=True, slots=True)
class Invariant:
    """One numbered sentence that always holds, how to see that it does not, and what to do then.

    Attributes:
        title: the sentence.
        source: an SQL FROM clause.
        damaged: the SQL condition of the rows that break the invariant.
        columns: what ``text`` speaks of; the first is an inode number if ``about_inode``.
        text: of a finding; ``{0}`` is the first column.
        repair: makes every damaged row good, or leaves it; None: only a person can.
        safe: what is repaired follows from other rows, or is garbage: -p may do it.
        listing: a query for the findings where they are not the damaged rows themselves.
        scan: finds the damaged rows where SQL alone cannot.
        advice: what the user can do about what is left.
    """

    number: int
    title: str
    source: str
    damaged: str
    columns: str
    text: str
    repair: Repair | None = None
    safe: bool = False
    severity: Severity = Severity.DAMAGE
    needs: Need = Need.ROWS
    about_inode: bool = True
    listing: str = ""
    scan: Callable[["Examination"], Iterator[Row]] | None = None
    advice: str = ""

    @property
    def name(self) -> str:
        """Return the name used in reports and documents."""
        return f"I{self.number}"

    @property
    def query(self) -> str:
        """Return the query for the rows that break the invariant."""
        return self.listing or self.select(self.columns)

    @property
    def uses_sums(self) -> bool:
        """Return whether the query needs what ``derived`` computes."""
        return "temp.check_" in self.query

    def select(self, columns: str) -> str:
        """Return a query for other columns of the damaged rows."""
        return f"SELECT {columns} FROM {self.source} WHERE {self.damaged}"
