"""One run of fsck over one database, and the form of the invariants that it judges.

Owns: the form of an invariant; the order *derive, count, list*; whether derived sums are up to date.
Does not know: which invariants there are.
Transaction: reading needs a stable view (a read transaction, or no other user of the database);
repairs need a group. Schedule point: never.

An invariant is a query over the complete database that yields the rows that break it. It has two
parts, ``source`` (the rows it is about) and ``damaged`` (the condition of those that break it), so
that one scan of a source serves all invariants about it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.check import sums
from s3fs_meta.check.inode_paths import Paths
from s3fs_meta.check.name_hashes import NameHashes, any_misplaced
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Report, Severity
from s3fs_meta.meta.db import counters
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Arguments, Row
from s3fs_meta.meta.tables import properties
from s3fs_meta.model import BlockId

BlockHash = Callable[[bytes], bytes]
Repair = Callable[["Examination", "Invariant"], None]


@dataclass(frozen=True, slots=True)
class Invariant:
    """One numbered sentence that always holds, the query for rows that break it, and the repair.

    Attributes:
        title: the sentence.
        source: an SQL FROM clause.
        damaged: the SQL condition of the rows that break the invariant.
        columns: the values of ``text``; the first is an inode number if ``about_inode``.
        text: of a finding; ``{0}`` is the first column.
        repair: corrects every damaged row, or leaves it; None: only the user can.
        safe: the repair computes rows from other rows, or removes garbage: -p may do it.
        listing: a query for the findings if they are not the damaged rows themselves.
        scan: finds the damaged rows if SQL alone cannot.
        advice: what the user can do about findings that were not repaired.
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
        """Return whether the query needs the tables of ``sums``."""
        return "temp.check_" in self.source + self.query

    def select(self, columns: str) -> str:
        """Return a query for other columns of the damaged rows."""
        return f"SELECT {columns} FROM {self.source} WHERE ({self.damaged})"


class Examination:
    """The database under examination, and the observations of surveys."""

    def __init__(
        self,
        db: Database,
        evidence: Evidence,
        report: Report,
        *,
        now_ns: int,
        mounted: bool,
        facts: Mapping[str, bytes] | None = None,
    ) -> None:
        """Prepare to examine; nothing is read yet.

        Args:
            db: open; its counters in memory equal their row.
            evidence: the observations of surveys.
            report: takes findings and the notes of repairs.
            now_ns: the time of new rows.
            mounted: processes may have files open, so inodes without a name are valid.
            facts: the settings of mkfs as the superblock has them.
        """
        self.facts = facts or {}
        db.inodes.write_through()  # queries and repairs use every table
        self.db = db
        self.evidence = evidence
        self.report = report
        self.now_ns = now_ns
        self.files: BlockFiles | None = None  # repairs that need local copies work only with it
        # None if local files cannot be compared with packs.
        self.block_hash: BlockHash | None = None
        self.mounted = mounted
        self.changed = False  # a repair changed something
        self._new_files: list[BlockId] = []
        self._derived = False
        self._paths: Paths | None = None
        self._name_hashes: NameHashes | None = None

    @property
    def block_bytes(self) -> int:
        """Return the size of a block, as chosen at mkfs."""
        return int(properties.get(self.db, "block_bytes"))

    def note_new_files(self, made: Iterable[tuple[BlockId, int]]) -> None:
        """Note block files that this run has made: they are evidence, and ``commit`` syncs them."""
        rows = list(made)
        self.evidence.note_files(rows)
        self._new_files.extend(block for block, _ in rows)

    def commit(self) -> None:
        """Make all repairs durable: first new files, then the rows that name them.

        Raises:
            OSError, DatabaseError: the disk failed; the rows are unchanged.
        """
        if self.files is not None and self._new_files:
            self.files.sync(self._new_files)
        self.db.commit_durable()
        self.db.sync_wal()

    def can_judge(self, invariant: Invariant) -> bool:
        """Return whether all surveys were made that an invariant needs."""
        available = self.evidence.surveyed
        if not self.mounted:
            available |= Need.UNMOUNTED
        return invariant.needs in available

    @property
    def quarantine(self) -> Path:
        """Return the directory for unknown files of this host; it may not exist."""
        assert self.files is not None, "only files of the cache directory are quarantined"
        return self.files.root.parent / f"kept-{self.now_ns}"

    def use_files(self, files: BlockFiles) -> None:
        """Allow repairs to use the cache directory, whose files were noted as evidence."""
        self.files = files
        self.evidence.surveyed |= Need.FILES

    # --- queries -------------------------------------------------------------------------------

    def derive(self) -> None:
        """Compute the sums that invariants join, unless they are up to date."""
        if not self._derived:
            sums.make_tables(self.db)
            sums.fill_tables(self.db)
            self._derived = True
            self._paths = None

    def broken(self, invariants: Iterable[Invariant]) -> dict[int, int]:
        """Count the damaged rows of each invariant; leave out invariants without damaged rows.

        One scan serves all invariants about the same source.
        """
        by_source: defaultdict[str, list[Invariant]] = defaultdict(list)
        for one in invariants:
            if self.can_judge(one):
                by_source[one.source].append(one)
        counts: dict[int, int] = {}
        scans = by_source.pop("", [])
        for source, group in by_source.items():
            counts.update(self._count(source, group))
        # Checked last, because a thread hashes the names while the other queries run.
        counts.update((one.number, sum(1 for _ in self.rows(one))) for one in scans)
        return {number: count for number, count in sorted(counts.items()) if count}

    def _count(self, source: str, group: Sequence[Invariant]) -> Iterator[tuple[int, int]]:
        if any(one.uses_sums for one in group):
            self.derive()
        counts = ", ".join(f"count(*) FILTER (WHERE {one.damaged})" for one in group)
        row = self.db.one(f"SELECT {counts} FROM {source}")
        assert row is not None, "an aggregate has one row"
        for one, count in zip(group, row, strict=True):
            listed = count and one.listing
            yield one.number, sum(1 for _ in self.rows(one)) if listed else count

    @contextmanager
    def hashing_names(self) -> Iterator[None]:
        """Hash names in a thread while the context runs queries; it must change no rows."""
        self._name_hashes = NameHashes(self.db, beside=not self.changed)
        try:
            yield
        finally:
            self._name_hashes.close()
            self._name_hashes = None

    def any_name_misplaced(self) -> bool:
        """Return whether a name has another position than its hash gives."""
        if self._name_hashes is None:
            return any_misplaced(self.db)
        return self._name_hashes.any_misplaced()

    def rows(self, invariant: Invariant) -> Iterator[Row]:
        """Yield the rows that break an invariant, with the columns that its text needs."""
        if invariant.uses_sums:
            self.derive()
        if invariant.scan is not None:
            return invariant.scan(self)
        return self.db.iterate(invariant.query)

    def collected(self, sql: str, arguments: Arguments = ()) -> Iterator[Row]:
        """Yield the rows of a query from a copy, so that the tables may change meanwhile.

        Calls must not be nested: there is only one copy, which the next call replaces.
        """
        self.db.all("DROP TABLE IF EXISTS temp.check_collected")
        self.db.all(f"CREATE TEMP TABLE check_collected AS {sql}", arguments)
        yield from self.db.iterate("SELECT * FROM temp.check_collected")

    # --- changes -------------------------------------------------------------------------------

    def run(self, sql: str, arguments: Arguments = ()) -> int:
        """Change rows; return their number. The sums are out of date then. Inside a group.

        The sums are not computed again until the repair ends.
        """
        count = self.db.run(sql, arguments)
        if count:
            self.touched()
        return count

    def touched(self) -> None:
        """Note that a row module changed rows: the sums are out of date."""
        self._derived = False
        self.changed = True

    def set_counter(self, name: str, value: int) -> None:
        """Change one column of the counters' row. Inside a group."""
        self.db.counters.put(name, value)
        self.flush_counters()
        self.touched()

    def flush_counters(self) -> None:
        """Write the counters' row, so that queries see the values in memory. Inside a group."""
        for sql, row in counters.updates(self.db.counters.values(), ()):
            self.db.run(sql, row)

    def owner(self) -> tuple[int, int]:
        """Return uid and gid for new inodes: those of the root directory."""
        row = self.db.one("SELECT uid, gid FROM inodes WHERE ino = 1")
        return (0, 0) if row is None else (row[0], row[1])

    def found(self, invariant: Invariant) -> Iterator[tuple[Row, str | None]]:
        """Yield the rows that break an invariant, each with the path of its inode."""
        if invariant.scan is not None or not invariant.about_inode:
            for row in self.rows(invariant):
                about = invariant.about_inode and isinstance(row[0], int)
                yield row, self._known_paths().of(row[0]) if about else None
            return
        self.derive()
        paths = self._known_paths()
        self.db.all("DROP TABLE IF EXISTS temp.check_found")
        self.db.all(f"CREATE TEMP TABLE check_found AS {invariant.query}")
        column = self.db.all("SELECT name FROM pragma_table_info('check_found')")[0][0]
        paths.look_up(f'SELECT "{column}" FROM temp.check_found')
        for row in self.db.iterate("SELECT * FROM temp.check_found"):
            yield row, paths.of(row[0])
        self.db.all("DROP TABLE IF EXISTS temp.check_found")

    def _known_paths(self) -> Paths:
        self.derive()
        if self._paths is None:
            self._paths = Paths(self.db)
        return self._paths

    def close(self) -> None:
        """Remove the derived tables."""
        sums.drop_tables(self.db)
        self.forget()

    def forget(self) -> None:
        """Note that the derived tables were rolled back with their transaction."""
        self._derived = False
        self._paths = None
