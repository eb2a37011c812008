"""Tests of a complete run of fsck on a database: modes, transaction and report."""

import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.check.fsck import check_database
from s3fs_meta.check.report import Finding, Mode, Report
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, Pragmas
from s3fs_meta.meta.tables import dentries, inodes, packs
from s3fs_meta.model import ROOT_INO, Ino
from tests.check.healthy import PROPERTIES, Healthy
from tests.polling import PROCESS_S_MAX

ROOT = Path(__file__).parents[2]

# The damage requires many kinds of repairs, and some repairs uncover further damage.
DAMAGES = (
    "DELETE FROM dentries WHERE name IN (x'696e6e6572', x'75706c6f61646564')",
    "UPDATE inodes SET nlink = nlink + 1, size_bytes = size_bytes + 1 WHERE ino % 3 = 1",
    "UPDATE dentries SET cookie = cookie + 256 WHERE ino % 4 = 1",
    "DELETE FROM hard_links",
    "DELETE FROM symlinks",
    "UPDATE blocks SET refs = 0",
    "UPDATE packs SET live_bytes = 0",
    "UPDATE inodes SET flags = 0, mapped_blocks = 0",
)


def _damage(healthy: Healthy) -> None:
    for damage in DAMAGES:
        healthy.sql(damage)


def test_fsck_in_report_mode_does_not_change_any_row(healthy: Healthy) -> None:
    _damage(healthy)
    before = healthy.dump()
    healthy.db.changed = False

    report = healthy.check(Mode.REPORT)

    assert (report.exit_status, healthy.dump() == before) == (4, True)
    assert not healthy.db.changed
    assert not healthy.db.in_group


def test_one_run_of_fsck_repairs_all_damage(healthy: Healthy) -> None:
    """fsck repeats its passes until no repair uncovers more damage."""
    _damage(healthy)

    healthy.assert_repaired()
    assert healthy.db.changed


async def test_fsck_in_safe_mode_makes_no_repair_if_damaged_rows_would_remain(
    healthy: Healthy,
) -> None:
    """fsck -p repairs nothing if damaged rows would remain, because an image would publish them."""
    healthy.sql("UPDATE packs SET live_bytes = 0")
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.fifo)
    leftover = healthy.tmp / "image-7.db"
    leftover.write_bytes(b"")
    healthy.db.changed = False
    before = healthy.dump()

    report = await healthy.check_all(Mode.SAFE)

    found = {verdict.invariant: verdict.found for verdict in report.verdicts}
    assert {verdict.invariant: verdict.left for verdict in report.verdicts} == found
    assert found.keys() == {"I26", "I45", "I55", "I63", "I65"}
    assert (report.exit_status, report.is_undone, report.changes_rows) == (4, True, False)
    assert (healthy.dump() == before, healthy.db.changed) == (True, False)
    assert leftover.exists()
    await healthy.assert_all_repaired()


def test_undone_repairs_of_fsck_in_safe_mode_leave_no_notes(healthy: Healthy) -> None:
    """The repair of I23 notes each changed name; the notes are wrong if it is undone."""
    healthy.sql(
        "UPDATE dentries SET name = ?, cookie = 0 WHERE ino = ?", b"fifo", healthy.attributed
    )
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.symlink)

    notes = healthy.check(Mode.SAFE).notes

    assert [note for note in notes if "renamed" in note] == []
    assert [note for note in notes if "(I26): run s3fs-meta fsck -y" in note] == notes != []
    assert [note for note in healthy.check(Mode.ALL).notes if "renamed" in note]


def test_fsck_in_safe_mode_repairs_rows_if_no_damaged_row_remains(healthy: Healthy) -> None:
    """An unlinked inode is removed, so its invalid owner does not prevent the other repairs."""
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.fifo)
    healthy.sql("UPDATE inodes SET nlink = 0, uid = -1 WHERE ino = ?", healthy.fifo)

    assert "I8" in healthy.check().broken
    report = healthy.check(Mode.SAFE)

    assert (report.exit_status, report.notes) == (1, [])
    assert healthy.check().lines() == ["clean"]


async def test_fsck_in_safe_mode_repairs_rows_although_the_bucket_stays_damaged(
    healthy: Healthy,
) -> None:
    """fsck -p repairs rows if a pack is missing, because a restore would also lack the pack."""
    pack = healthy.pack_of(healthy.uploaded, 0)
    del healthy.store.objects[packs.object_key(healthy.db, pack)]
    healthy.sql("UPDATE inodes SET nlink = 7 WHERE ino = ?", healthy.fifo)

    report = await healthy.check_all(Mode.SAFE)

    left = {verdict.invariant for verdict in report.verdicts if verdict.left}
    assert (report.exit_status, left) == (5, {"I46"})
    assert (report.is_undone, report.changes_rows) == (False, True)
    assert (await healthy.check_all()).broken == ["I46"]


def test_fsck_of_a_clean_database_reports_no_change(healthy: Healthy) -> None:
    """fsck -y does not mark a clean database as changed, so nothing is uploaded."""
    healthy.db.changed = False
    assert healthy.check(Mode.ALL).lines() == ["clean"]
    assert not healthy.db.changed


@pytest.mark.slow
@pytest.mark.parametrize("repairs", [0, 1, 5, 9])
def test_killed_fsck_leaves_the_database_unchanged(healthy: Healthy, repairs: int) -> None:
    """All repairs are in one transaction, which SQLite rolls back if fsck is killed."""
    _damage(healthy)
    before = healthy.dump()
    path = healthy.db.path
    healthy.db.close()

    program = [sys.executable, "-m", "tests.check.interrupted_fsck", str(path), str(repairs)]
    killed = subprocess.run(program, cwd=ROOT, check=False, timeout=PROCESS_S_MAX)
    assert killed.returncode == -9

    healthy.db = Database.open(path, Pragmas())
    assert healthy.dump() == before
    healthy.assert_repaired()


def test_error_in_a_repair_leaves_the_database_unchanged(healthy: Healthy) -> None:
    """An exception rolls back the transaction with all repairs, and the counters are restored."""
    _damage(healthy)
    before = healthy.dump()

    def interrupt(text: str) -> None:
        if text.startswith("repairing I55"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_database(healthy.db, repair=Mode.ALL, report=Report(on_note=interrupt))

    assert healthy.dump() == before
    assert not healthy.db.in_group


def _with_wrong_counts(tmp_path: Path, journal_mode: str) -> Database:
    """Return a database whose inodes have wrong link counts and sizes."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous="off")
    db = Database.create(tmp_path / "meta.db", pragmas, PROPERTIES)
    db.begin()
    db.inodes.run("UPDATE inodes SET nlink = 7, size_bytes = 9")
    db.commit()
    return db


@pytest.mark.parametrize("journal_mode", JOURNAL_MODES)
def test_failed_repair_leaves_a_change_only_if_sqlite_cannot_undo_it(
    tmp_path: Path, journal_mode: str
) -> None:
    """fsck does not release the lease while the database counts as changed."""
    db = _with_wrong_counts(tmp_path, journal_mode)
    db.mark_changed(False)

    def interrupt(text: str) -> None:
        if text.startswith("repairing I55"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_database(db, repair=Mode.ALL, report=Report(on_note=interrupt))

    assert db.changed == (journal_mode == "off")
    db.close()


def test_snapshot_of_a_mounted_filesystem_has_no_damage(healthy: Healthy, tmp_path: Path) -> None:
    snapshot = healthy.db.open_snapshot()
    healthy.db.begin()
    inodes.delete(healthy.db, healthy.fifo)
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    copy = Database.open(tmp_path / "copy.db", Pragmas(journal_mode="delete"))

    report = check_database(copy, repair=Mode.REPORT, report=Report(), mounted=True)

    assert report.lines() == ["clean"]
    copy.close()
    healthy.db.rollback()


@pytest.mark.parametrize("journal_mode", JOURNAL_MODES)
def test_fsck_repairs_succeed_in_every_sqlite_journal_mode(
    tmp_path: Path, journal_mode: str
) -> None:
    """Repairs do not open a second connection, which some journal modes do not allow."""
    db = _with_wrong_counts(tmp_path, journal_mode)

    assert check_database(db, repair=Mode.ALL, report=Report()).exit_status == 1
    assert check_database(db, repair=Mode.ALL, report=Report()).lines() == ["clean"]
    db.begin()  # The connection is still writable after the check.
    db.close()


def test_fsck_report_counts_all_findings_but_lists_only_100(healthy: Healthy) -> None:
    """The report counts 150 findings and keeps the first 100 of them."""
    healthy.db.begin()
    for number in range(150):
        ino = inodes.create(healthy.db, 0o100644, 0, 0, ROOT_INO, 1).ino
        dentries.add(healthy.db, healthy.inner, b"%d" % number, ino)
    healthy.db.commit()
    reported: list[Finding] = []

    report = check_database(
        healthy.db, repair=Mode.REPORT, report=Report(on_finding=reported.append)
    )

    parents = report.verdicts[0]
    assert (parents.invariant, parents.found, len(parents.examples)) == ("I52", 150, 100)
    assert sum(1 for finding in reported if finding.invariant == "I52") == 150
    assert parents.examples[0].path == "/directory/inner/0"


@pytest.mark.parametrize(("name", "text"), [(b"letter", "'letter'"), (b"\xff", r"b'\xff'")])
def test_fsck_finding_shows_utf8_names_as_text(healthy: Healthy, name: bytes, text: str) -> None:
    """A UTF-8 name is shown as text, any other name as bytes, and a number as digits."""
    healthy.db.begin()
    dentries.add(healthy.db, healthy.inner, name, Ino(1 << 30))
    healthy.db.commit()

    findings = [finding.what for one in healthy.check().verdicts for finding in one.examples]

    assert (
        f"name {text} in directory {healthy.inner} refers to inode {1 << 30}, which does not exist"
    ) in findings
