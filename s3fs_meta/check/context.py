"""The class of an invariant, and the state of one fsck run over one database.

Owns: the class ``Invariant``, the order of steps (derive, count, list), the state of derived sums.
Does not know: any single invariant.
Reading needs a stable view: a read transaction, or no other user of the database. Repairs need an
open commit group. No function yields to other tasks.

An invariant has a query over the complete database for the rows that break the invariant. The query
has two parts: ``source`` selects the rows to check, and the condition ``damaged`` is true for rows
that break the invariant. One scan of a source checks all invariants with that source.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check import sums
from s3fs_meta.check.inode_paths import Paths
from s3fs_meta.check.name_hashes import NameHashes, any_misplaced
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Report, Severity
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Arguments, Row
from s3fs_meta.meta.tables import properties
from s3fs_meta.model import BlockId, Epoch, ObjectKey
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.progress import Progress, no_progress

NO_EPOCH: Final = Epoch(0)  # a number below every epoch
ID_MAX: Final = (1 << 32) - 1  # largest user ID or group ID

_NOTE_SYNCED: Final = (
    "UPDATE cached_blocks SET synced_bytes = (SELECT b.plain_bytes FROM blocks AS b"
    " WHERE b.block = cached_blocks.block) WHERE block = ?1"
    " AND EXISTS (SELECT 1 FROM blocks AS b WHERE b.block = ?1 AND b.pack IS NULL)"
)

BlockHash = Callable[[bytes], bytes]
Repair = Callable[["Examination", "Invariant"], None]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A numbered rule that must always hold, a query for the rows that break it, and a repair.

    Attributes:
        title: the rule, as a sentence.
        text: the text of a finding; ``{0}`` is the value of the first column.
        source: an SQL FROM clause with the rows to check; not needed with ``scan``.
        damaged: an SQL condition that is true for the rows that break the invariant.
        columns: the columns of a finding; the first is an inode number if ``about_inode``.
        repair: corrects damaged rows, but perhaps not all; None if the program cannot repair them.
        safe: fsck -p may run the repair, which only recomputes rows or removes garbage.
        listing: a query for the findings, if these differ from the damaged rows.
        scan: finds the damaged rows if SQL alone cannot.
        advice: what the user can do about findings that were not repaired.
    """

    number: int
    title: str
    text: str
    source: str = ""
    damaged: str = "TRUE"
    columns: str = ""
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
        """Return the invariant's name in reports and documents."""
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
        """Return a query for the given columns of the damaged rows."""
        return f"SELECT {columns} FROM {self.source} WHERE ({self.damaged})"


class Examination:
    """The database that fsck checks, together with the observations of the surveys."""

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
        """Prepare a run of fsck. No row is read yet.

        Args:
            db: an open database, without unwritten counters.
            evidence: the observations of surveys.
            report: receives the findings and notes about repairs.
            now_ns: the time for new rows.
            mounted: processes may have files open, so inodes without a name are valid.
            facts: the settings of mkfs according to the superblock.
        """
        self.facts = facts or {}
        db.inodes.write_through()  # queries and repairs bypass the inode cache and read the table
        self.db = db
        self.evidence = evidence
        self.report = report
        self.now_ns = now_ns
        # The cache directory; None if no repair may use it.
        self.files: BlockFiles | None = None
        # Function that hashes the content of cache files; None if cache files are not verified.
        self.block_hash: BlockHash | None = None
        self.mounted = mounted
        self.changed = False  # True if a repair changed a row
        self._unsynced: set[BlockId] = set()  # blocks whose files ``commit`` syncs
        self._derived = False
        self._paths: Paths | None = None
        self._name_hashes: NameHashes | None = None

    @property
    def block_bytes(self) -> int:
        """Return the size of a block, which mkfs has set."""
        return int(properties.get(self.db, "block_bytes"))

    @property
    def uuid(self) -> str:
        """Return the uuid in the superblock, because the database may lack it (I5).

        Raises:
            FormatError: neither the superblock's facts nor the database have a uuid.
        """
        uuid = self.facts.get("uuid") or properties.get(self.db, "uuid")
        return uuid.decode("ascii", "replace")

    def note_new_files(self, made: Iterable[tuple[BlockId, int]]) -> None:
        """Record the block files that a repair created. ``commit`` syncs the files."""
        rows = list(made)
        self.evidence.note_files(rows)
        self._unsynced.update(block for block, _ in rows)

    def note_dirty(self, block: BlockId) -> None:
        """Record that a repair made a block dirty. ``commit`` syncs the block's file."""
        self._unsynced.add(block)

    def commit(self) -> None:
        """Make all repairs durable: first block files, then the rows that refer to them.

        The rows record that the files are durable. Otherwise a power cut before the upload would
        make the next mount truncate the files.

        Raises:
            OSError, DatabaseError: the disk failed; the caller undoes an open transaction.
        """
        if self.files is not None and self._unsynced:
            synced = sorted(self._unsynced)
            self.files.sync(synced)
            self.db.run_many(_NOTE_SYNCED, [(block,) for block in synced])
        self.db.commit_durable()
        self.db.sync_wal()
        self._unsynced.clear()

    def can_judge(self, invariant: Invariant) -> bool:
        """Return whether this run of fsck fulfils the preconditions for checking an invariant."""
        available = self.evidence.surveyed
        if not self.mounted:
            available |= Need.UNMOUNTED
        return invariant.needs in available

    @property
    def quarantine(self) -> Path:
        """Return the path of the directory to which unknown cache files are moved."""
        assert self.files is not None, "only files of the cache directory are quarantined"
        return self.files.root.parent / f"kept-{self.now_ns}"

    def use_files(self, files: BlockFiles) -> None:
        """Allow repairs to use the cache directory, whose files ``survey.cache`` has recorded."""
        self.files = files
        self.evidence.surveyed |= Need.FILES

    # --- query the database --------------------------------------------------------------------

    def derive(self) -> None:
        """Fill the temporary tables of ``sums``, unless they are up to date."""
        if not self._derived:
            sums.make_tables(self.db)
            sums.fill_tables(self.db)
            self._derived = True
            self._paths = None

    def broken(self, invariants: Iterable[Invariant]) -> dict[int, int]:
        """Return the number of findings for each broken invariant, by invariant number.

        One scan serves all invariants with the same source.
        """
        by_source: defaultdict[str, list[Invariant]] = defaultdict(list)
        for one in invariants:
            if self.can_judge(one):
                by_source[one.source].append(one)
        counts: dict[int, int] = {}
        scans = by_source.pop("", [])
        for source, group in by_source.items():
            counts.update(self._count(source, group))
        # Names are checked last, because a thread hashes them while other queries run.
        counts.update((one.number, sum(1 for _ in self.rows(one))) for one in scans)
        return {number: count for number, count in sorted(counts.items()) if count}

    def _count(self, source: str, group: Sequence[Invariant]) -> Iterator[tuple[int, int]]:
        if any(one.uses_sums for one in group):
            self.derive()
        counts = ", ".join(f"count(*) FILTER (WHERE {one.damaged})" for one in group)
        row = self.db.one(f"SELECT {counts} FROM {source}")
        assert row is not None, "an aggregate query returns one row"
        for one, count in zip(group, row, strict=True):
            if count and one.listing:
                [(listed,)] = self.db.all(f"SELECT count(*) FROM ({one.listing})")
                yield one.number, listed
                continue
            yield one.number, count

    @contextmanager
    def hashing_names(self) -> Iterator[None]:
        """Hash names in a thread while the caller runs queries; the caller must not change rows."""
        self._name_hashes = NameHashes(self.db, beside=not self.changed)
        try:
            yield
        finally:
            self._name_hashes.close()
            self._name_hashes = None

    def any_name_misplaced(self) -> bool:
        """Return whether any dentry has a cookie that does not match the hash of its name."""
        if self._name_hashes is None:
            return any_misplaced(self.db)
        return self._name_hashes.any_misplaced()

    def rows(self, invariant: Invariant) -> Iterator[Row]:
        """Yield the rows that break an invariant, with the columns for the invariant's message."""
        if invariant.uses_sums:
            self.derive()
        if invariant.scan is not None:
            return invariant.scan(self)
        return self.db.iterate(invariant.query)

    def collected(self, sql: str) -> Iterator[Row]:
        """Copy the rows of a query and yield the copies; the caller may change the tables.

        Calls must not be nested, because the next call replaces the copy.
        """
        self.db.all("DROP TABLE IF EXISTS temp.check_collected")
        self.db.all(f"CREATE TEMP TABLE check_collected AS {sql}")
        yield from self.db.iterate("SELECT * FROM temp.check_collected")

    # --- change the database -------------------------------------------------------------------

    def run(self, sql: str, arguments: Arguments = ()) -> int:
        """Change rows for a repair; return the number of changed rows. Needs a transaction.

        The tables of ``sums`` are computed again only when the next query needs them.
        """
        count = self.db.run(sql, arguments)
        if count:
            self.touched()
        return count

    def touched(self) -> None:
        """Note that the tables of ``sums`` are outdated: rows were changed without ``run``."""
        self._derived = False
        self.changed = True
        self.report.row_changed()

    def set_counter(self, name: str, value: int) -> None:
        """Set one counter, in memory and in its row. Requires an open transaction."""
        self.db.counters.put(name, value)
        self.flush_counters()
        self.touched()

    def flush_counters(self) -> None:
        """Write the counters to their row, so that queries see them. Needs a transaction."""
        for sql, row in self.db.counters.updates(()).statements:
            self.db.run(sql, row)

    def owner(self) -> tuple[int, int]:
        """Return uid and gid of the root directory, for new inodes; 0 replaces an invalid ID."""
        row = self.db.one("SELECT uid, gid FROM inodes WHERE ino = 1") or (0, 0)
        uid, gid = (one if 0 <= one <= ID_MAX else 0 for one in row)
        return uid, gid

    def found(self, invariant: Invariant) -> Iterator[tuple[Row, str | None]]:
        """Yield the rows that break an invariant, each with the path of its inode."""
        if invariant.scan is not None:
            for row in self.rows(invariant):
                about = invariant.about_inode and isinstance(row[0], int)
                yield row, self._known_paths().of(row[0]) if about else None
            return
        self.derive()
        paths = self._known_paths() if invariant.about_inode else None
        self.db.all("DROP TABLE IF EXISTS temp.check_found")
        self.db.all(f"CREATE TEMP TABLE check_found AS {invariant.query}")
        columns = [
            row[0] for row in self.db.all("SELECT name FROM pragma_table_info('check_found')")
        ]
        for one in columns:  # read text as bytes, because damaged text may not be UTF-8
            is_text = f"typeof(\"{one}\") = 'text'"
            self.db.all(
                f'UPDATE temp.check_found SET "{one}" = CAST("{one}" AS BLOB) WHERE {is_text}'
            )
        if paths is not None:
            paths.look_up(f'SELECT "{columns[0]}" FROM temp.check_found')
        for row in self.db.iterate("SELECT * FROM temp.check_found"):
            yield row, None if paths is None else paths.of(row[0])
        self.db.all("DROP TABLE IF EXISTS temp.check_found")

    def indexed_by(self, index: str) -> str:
        """Return the SQL clause that selects an index, or "" if it is missing (I2 reports this)."""
        sql = "SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?"
        return "" if self.db.one(sql, (index,)) is None else f"INDEXED BY {index}"

    def _known_paths(self) -> Paths:
        self.derive()
        if self._paths is None:
            self._paths = Paths(self.db)
        return self._paths

    def close(self) -> None:
        """Drop the temporary tables of the run."""
        sums.drop_tables(self.db)
        self.forget()

    def undone(self, invariants: Container[str]) -> None:
        """Report that a rollback has undone the repairs of the given invariants."""
        self.changed = False
        self.report.undo(invariants)
        self.forget()

    def forget(self) -> None:
        """Note that ``close`` or a rollback has removed the tables of ``sums``."""
        self._derived = False
        self._paths = None


@dataclass(frozen=True, slots=True)
class SurveyContext:
    """The store, the keys and the options of the surveys of one fsck run.

    Attributes:
        exam: the run of fsck, which receives the observations.
        store: the bucket.
        keyring: the keys of the filesystem.
        progress: called with the number of objects or bytes that were read.
        deep: read every object completely.
        rescue: copy readable blocks of damaged packs to the cache directory, for the repair.
        epoch: the current epoch. Fenced writers of earlier epochs can add no more rows.
    """

    exam: Examination
    store: ObjectStore
    keyring: Keyring
    progress: Progress = no_progress
    deep: bool = False
    rescue: bool = False
    epoch: Epoch = NO_EPOCH

    @property
    def rescue_files(self) -> BlockFiles | None:
        """Return the cache directory to which blocks are copied, or None if none are copied."""
        return self.exam.files if self.rescue else None

    async def require(self, key: ObjectKey) -> None:
        """Request an object that is not in the listing.

        A listing may omit an object, and a running mount may have stored it after the listing.

        Raises:
            ObjectMissingError: there is no such object.
            FormatError: the object is empty.
        """
        sql = "SELECT 1 FROM temp.seen_objects WHERE object_key = ?"
        if self.exam.db.one(sql, (key,)) is None:
            await self.store.get_range(key, 0, 1)
