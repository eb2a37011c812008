"""One run of fsck: check the invariants, and make the allowed repairs of rows, in one transaction.

Owns: the order of a run and its transaction. Does not know: any single invariant.
Keeps: Mode.REPORT changes nothing. The other modes commit all repairs of rows or none, so a run
that is killed before its commit leaves the database unchanged. No repair is committed if an
invariant of FOUNDATION stays broken, or if Mode.SAFE would leave damaged rows.
``judge`` opens and ends its own transaction, so no group may be open when it is called. It never
yields to other tasks, and takes seconds for a million files.
Design: docs/design/invariants.md, docs/guide/checking.md.
"""

from collections.abc import Sequence
from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.invariants import FOUNDATION, INVARIANTS
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Finding, Mode, Report, Severity, Verdict
from s3fs_meta.check.rules.bucket import UNREADABLE_BLOCKS
from s3fs_meta.check.rules.cache import map_again, note_unmapped
from s3fs_meta.check.rules.packs import LIVES
from s3fs_meta.clock import Clock, SystemClock
from s3fs_meta.limits import FSCK_ROUNDS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row

_BY_NUMBER: Final = {one.number: one for one in INVARIANTS}
_BY_NAME: Final = {one.name: one.number for one in INVARIANTS}
NO_BLOCK_ROW: Final = "I30"  # a block map refers to a block without a row in the table blocks
_WITHOUT_ROW: Final = (
    "SELECT DISTINCT m.block FROM block_map AS m LEFT JOIN blocks AS b ON b.block = m.block"
    " WHERE b.block IS NULL"
)
# Invariants about damaged rows, which are repaired only in Mode.ALL.
ROW_DAMAGE: Final = tuple(
    one
    for one in INVARIANTS
    if one.needs is Need.ROWS and not one.safe and one.severity is Severity.DAMAGE
)


def check_database(
    db: Database,
    *,
    repair: Mode,
    report: Report,
    mounted: bool = False,
    searched: bool = False,
    clock: Clock | None = None,
) -> Report:
    """Check and repair the rows of one database, but not the cache directory or the bucket.

    Args:
        db: a database without an open group. For Mode.REPORT it may be open read-only, even while
            another process writes.
        repair: the repairs that are allowed.
        report: receives the findings, and is returned.
        mounted: processes may have files open, so inodes without a name are valid.
        searched: the caller has searched every pack of the bucket for the blocks that have no row,
            so their content is lost.
        clock: supplies the times for new rows.

    Raises:
        CorruptionError: SQLite cannot read the database; nothing was changed.
        DatabaseError: SQLite failed; nothing was changed.
    """
    now_ns = (clock or SystemClock()).now_ns()
    evidence = Evidence(db)
    if searched:
        evidence.note_searched(_WITHOUT_ROW)
    exam = Examination(db, evidence, report, now_ns=now_ns, mounted=mounted)
    judge(exam, repair)
    return report


def judge(exam: Examination, repair: Mode) -> bool:
    """Check the invariants whose surveys were made, and repair them as *repair* allows.

    Returns:
        False if not all invariants could be checked, or if all repairs were undone.

    Raises:
        The errors of ``check_database``.
    """
    assert not exam.db.in_group, "fsck opens its own transaction"
    return _judge_only(exam) if repair is Mode.REPORT else _judge_and_repair(exam, repair)


def _judge_only(exam: Examination) -> bool:
    # All queries read one snapshot, even while another process writes to the database.
    exam.db.all("BEGIN")
    try:
        holds = _foundation_holds(exam, Mode.REPORT)
        if holds:
            note_unmapped(exam)
            _find_all(exam)
    finally:
        exam.db.all("ROLLBACK")  # the rollback also drops the temporary tables of the run
        exam.forget()
    return holds


def _judge_and_repair(exam: Examination, mode: Mode) -> bool:
    db = exam.db
    changed_before = db.changed
    db.begin()
    try:
        if not (_foundation_holds(exam, mode) and _rows_are_repaired(exam, mode)):
            # After repairs, fsck would upload an image, which would contain the remaining damage.
            db.undo()
            db.mark_changed(changed_before)
            exam.undone(_BY_NAME)
            return False
        exam.close()
        if exam.changed:
            exam.commit()
        else:
            db.commit()
            db.mark_changed(changed_before)
    finally:
        is_undone = db.connection.in_transaction and db.pragmas.can_undo
        db.rollback()  # undoes the repairs after an error; has no effect after the commit
        if is_undone:
            db.mark_changed(changed_before)
    return True


def _foundation_holds(exam: Examination, mode: Mode) -> bool:
    """Check and repair the invariants of FOUNDATION; return False if one remains broken."""
    for invariant in FOUNDATION:
        if not _find(exam, [invariant]):
            continue
        if _may_repair(invariant, mode):
            _repair_one(exam, invariant)
        left = exam.broken([invariant])
        exam.report.settle(invariant.name, left.get(invariant.number, 0))
        if left:
            exam.report.note(f"stopped: all other invariants rely on {invariant.name}")
            return False
    return True


def _find_all(exam: Examination) -> bool:
    with exam.hashing_names():
        return _find(exam, INVARIANTS)


def _find(exam: Examination, invariants: Sequence[Invariant]) -> bool:
    names = invariants[0].name if len(invariants) == 1 else "the invariants"
    exam.report.note(f"checking {names}")
    broken = exam.broken(invariants)
    for number in broken:
        _list(exam, _BY_NUMBER[number])
    return bool(broken)


def _list(exam: Examination, invariant: Invariant) -> None:
    """Report each row that violates one invariant."""
    verdict = exam.report.open(
        Verdict(invariant.name, invariant.title, invariant.severity, advice=invariant.advice)
    )
    for row, path in exam.found(invariant):
        exam.report.add(verdict, _finding(invariant, row, path))


def _finding(invariant: Invariant, row: Row, path: str | None) -> Finding:
    ino = row[0] if invariant.about_inode and isinstance(row[0], int) else None
    return Finding(invariant.name, invariant.text.format(*map(_shown, row)), ino, path)


def _shown(value: object) -> object:
    """Return a value as a message shows it; bytes that are UTF-8, such as names, become text."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


# --- repair the findings -----------------------------------------------------------------------


def _may_repair(invariant: Invariant, mode: Mode) -> bool:
    if invariant.repair is None or mode is Mode.REPORT:
        return False
    return invariant.safe or mode is Mode.ALL


def _rows_are_repaired(exam: Examination, mode: Mode) -> bool:
    """Find and repair damage; return False if Mode.SAFE leaves damaged rows."""
    note_unmapped(exam)
    if not _find_all(exam):
        return True
    allowed = _allowed(exam, mode)
    if mode is Mode.SAFE and not _is_repairable(exam, allowed):
        return False
    _repair(exam, allowed)
    return True


def _allowed(exam: Examination, mode: Mode) -> list[Invariant]:
    """Return the invariants that a mode repairs.

    Mode.SAFE keeps wrong sums of packs while a block is unreadable. Without --deep, fsck finds the
    block again only by the wrong sum, and a pack whose sum is corrected to 0 is deleted as garbage.
    """
    allowed = [one for one in INVARIANTS if _may_repair(one, mode)]
    if mode is Mode.SAFE and exam.broken([UNREADABLE_BLOCKS]):
        return [one for one in allowed if one not in LIVES]
    return allowed


def _is_repairable(exam: Examination, allowed: Sequence[Invariant]) -> bool:
    """Make the allowed repairs of rows; return whether no row remains damaged.

    A repair may reveal damage, so the repairs are made even if no row is damaged before them.
    The caller may undo the repairs. So the cache directory is not repaired here, because a rollback
    cannot undo repairs of files.
    """
    noted = len(exam.report.notes)
    _repeat(exam, [one for one in allowed if one.needs in Need.UNMOUNTED])
    left = exam.broken(ROW_DAMAGE)
    if left:
        del exam.report.notes[noted:]
        names = ", ".join(_BY_NUMBER[number].name for number in left)
        exam.report.remember(
            f"-p changed no metadata, because it cannot repair all damaged rows ({names}): run"
            " s3fs-meta fsck -y"
        )
    return not left


def _repair(exam: Examination, allowed: Sequence[Invariant]) -> None:
    """Repair the allowed invariants; report the damage that remains."""
    _repeat(exam, allowed)
    exam.flush_counters()
    left = exam.broken(INVARIANTS)
    is_damaged = any(_BY_NUMBER[number].severity is Severity.DAMAGE for number in left)
    if not is_damaged and exam.evidence.forget_searched():
        # Cache files of searched blocks that no repair has used are strays (I45).
        _repeat(exam, [one for one in allowed if one.needs is Need.FILES])
        left = exam.broken(INVARIANTS)
    for verdict in exam.report.verdicts:
        number = _BY_NAME.get(verdict.invariant)
        if number is None:
            continue  # the finding is from the opening of the filesystem, and has no repair
        exam.report.settle(verdict.invariant, left.pop(number, 0))
    for number in left:  # these invariants were broken by the repairs of others
        _list(exam, _BY_NUMBER[number])


def _repeat(exam: Examination, allowed: Sequence[Invariant]) -> None:
    """Repair the allowed invariants in order until all hold, but at most FSCK_ROUNDS_MAX times."""
    map_again(exam)
    for _ in range(FSCK_ROUNDS_MAX):
        for invariant in allowed:
            _repair_one(exam, invariant)
        if not exam.broken(allowed):
            break


def _repair_one(exam: Examination, invariant: Invariant) -> None:
    exam.flush_counters()
    if not exam.broken([invariant]):
        return
    exam.report.note(f"repairing {invariant.name}: {invariant.title}")
    if invariant.uses_sums:
        exam.derive()
    assert invariant.repair is not None, "an invariant to be repaired must have a repair"
    invariant.repair(exam, invariant)
