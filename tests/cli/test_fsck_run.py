"""Tests of databases and superblocks that fsck opens, upgrades or replaces."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
from typing_extensions import override

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import FsckOptions
from s3fs_meta.cli import fsck_run
from s3fs_meta.cli.fsck_run import CheckPlan, run_check
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import CorruptionError, HeldError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import inodes, local_state
from s3fs_meta.model import ROOT_INO, BlockState
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from tests.cli.conftest import Place
from tests.cli.fsck_in_process import changing, check, state_of
from tests.damage import claim_newer
from tests.programs import Program, wait_until_gone
from tests.sync.conftest import write_file

pytestmark = pytest.mark.thorough


def test_fsck_with_option_n_does_not_acquire_the_lease(program: Program, place: Place) -> None:
    """fsck -n changes no object in the bucket."""
    before = {path: path.read_bytes() for path in place.bucket.rglob("*") if path.is_file()}

    assert check(place, program.cachedir, Mode.REPORT).exit_status == 0

    after = {path: path.read_bytes() for path in place.bucket.rglob("*") if path.is_file()}
    assert after == before


def test_fsck_replaces_an_unreadable_database_from_the_last_image(
    program: Program, place: Place
) -> None:
    """Only fsck -y replaces an unreadable database, and it quarantines the old one."""
    check(place, program.cachedir, Mode.REPORT)
    database = state_of(place, program.cachedir).database
    database.write_bytes(b"no database at all" * 1000)

    with pytest.raises(CorruptionError):
        check(place, program.cachedir, Mode.REPORT)
    report = check(place, program.cachedir, Mode.ALL)

    assert report.exit_status == 1
    kept = list(database.parent.glob("kept-*/meta.db"))
    assert [path.read_bytes()[:2] for path in kept] == [b"no"]
    assert check(place, program.cachedir, Mode.REPORT).exit_status == 0


def test_fsck_replaces_a_database_with_a_damaged_page(program: Program, place: Place) -> None:
    """fsck replaces a database that SQLite can open but that has a damaged page."""
    check(place, program.cachedir, Mode.ALL)
    database = state_of(place, program.cachedir).database
    db = Database.open(database, Pragmas())
    row = db.one("SELECT rootpage FROM sqlite_master WHERE name = 'cached_blocks'")
    size = db.one("PRAGMA page_size")
    db.close()
    assert row is not None
    assert size is not None
    with database.open("r+b") as file:
        file.seek((row[0] - 1) * size[0])
        file.write(b"\xff" * size[0])

    with pytest.raises(CorruptionError, match=r"fsck -y --cachedir \S+ local:\S+ quarantines"):
        check(place, program.cachedir, Mode.REPORT)
    assert check(place, program.cachedir, Mode.ALL).exit_status == 1

    assert len(list(database.parent.glob("kept-*/meta.db"))) == 1
    assert check(place, program.cachedir, Mode.REPORT).exit_status == 0


@pytest.mark.mount
@pytest.mark.parametrize("option", ["-p", "-y"])
def test_fsck_does_not_publish_a_database_that_it_cannot_repair(
    program: Program, mounted: Place, tmp_path: Path, option: str
) -> None:
    """If the database cannot be repaired, the report advises a restore from the bucket."""
    (mounted.mountpoint / "f").write_bytes(b"content")
    program.ok("umount", mounted.mountpoint)
    with changing(state_of(mounted, program.cachedir).database) as database:
        database.execute("DELETE FROM dentries")
        database.execute("CREATE TABLE notes (text TEXT)")
        version = database.pragma("schema_version")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("DELETE FROM sqlite_schema WHERE name = 'notes'")
        database.execute(f"PRAGMA schema_version = {version + 1}")

    report = program.run("fsck", option, mounted.url)

    assert (report.returncode, "the bucket has an intact copy" in report.stdout) == (4, True)
    other = type(program)(tmp_path / "other")
    assert other.status(mounted.url)["holder"]["released"]
    other.ok("restore", "--to", tmp_path / "restored", mounted.url)
    assert (tmp_path / "restored" / "f").read_bytes() == b"content"


@pytest.mark.mount
@pytest.mark.parametrize(
    "cause",
    [
        "safe repair",
        "superblock repair",
        "superblock damage",
        "killed daemon",
        "killed read-only daemon",
        "late image",
    ],
)
def test_fsck_with_option_p_does_not_publish_damaged_rows(
    program: Program, mounted: Place, tmp_path: Path, cause: str
) -> None:
    """fsck -p publishes no image while damaged rows remain, even if other changes need one.

    fsck releases the lease that it acquired, unless this host may have changes to upload.
    """
    (mounted.mountpoint / "f").write_bytes(b"content")
    program.ok("flush", mounted.mountpoint)
    if cause != "killed daemon":
        program.ok("umount", mounted.mountpoint)
    if cause == "killed read-only daemon":
        program.ok("mount", "-o", "ro", mounted.url, mounted.mountpoint)
    if cause.startswith("killed"):
        program.kill(mounted.mountpoint)
        subprocess.run(["umount", "-l", mounted.mountpoint], check=True)
    with changing(state_of(mounted, program.cachedir).database) as database:
        database.execute("DELETE FROM dentries")
        if cause == "safe repair":
            database.execute("UPDATE inodes SET nlink = 7 WHERE ino = 1")
        if cause == "late image":  # A changed page size also requests an image.
            database.execute("INSERT INTO local_state VALUES ('image_wanted', '1')")
    if cause == "superblock repair":
        (mounted.bucket / "superblock-copy").unlink()
    if cause == "superblock damage":
        (mounted.bucket / "superblock-copy").write_bytes(b"rotten")
    before = set(mounted.bucket.glob("image/*"))

    report = program.run("fsck", "-p", mounted.url)

    assert set(mounted.bucket.glob("image/*")) == before
    other = type(program)(tmp_path / "other")
    other.ok("restore", "--to", tmp_path / "restored", mounted.url)
    assert (tmp_path / "restored" / "f").read_bytes() == b"content"
    assert (report.returncode & 4, "damaged rows (I26): run" in report.stdout) == (4, True)
    is_released = cause != "killed daemon"
    lease = lease_codec.decode(lease_codec.KEY, (mounted.bucket / "lease").read_bytes())
    assert lease.released == is_released
    assert ("the lease is not released" in report.stdout) == (not is_released)
    assert [program.run("fsck", how, mounted.url).returncode for how in ("-y", "-n")] == [1, 0]


def test_fsck_that_changes_no_row_makes_no_image(program: Program, place: Place) -> None:
    """An image that is published as a txg would spread damage that fsck -p cannot repair."""
    check(place, program.cachedir, Mode.REPORT)
    with changing(state_of(place, program.cachedir).database) as database:
        database.execute("UPDATE inodes SET uid = -1 WHERE ino = 1")
    before = set(place.bucket.glob("image/*"))

    report = check(place, program.cachedir, Mode.SAFE)

    assert (report.broken, [note for note in report.notes if "uploaded" in note]) == (["I8"], [])
    assert set(place.bucket.glob("image/*")) == before

    assert check(place, program.cachedir, Mode.ALL).exit_status == 1
    assert set(place.bucket.glob("image/*")) > before


@pytest.mark.mount
def test_fsck_publishes_new_damage_marks_once(program: Program, mounted: Place) -> None:
    (mounted.mountpoint / "f").write_bytes(b"content")
    program.ok("umount", mounted.mountpoint)
    for pack in [path for path in mounted.bucket.rglob("pack/**/*") if path.is_file()]:
        pack.unlink()
    images = [set(mounted.bucket.glob("image/*"))]
    for _ in range(2):
        assert check(mounted, program.cachedir, Mode.SAFE).broken == ["I46"]
        images.append(set(mounted.bucket.glob("image/*")))

    assert images[0] < images[1] == images[2]


@pytest.mark.parametrize("damage", ["missing", "rotten"])
def test_fsck_recreates_a_lost_lease(program: Program, place: Place, damage: str) -> None:
    """For a lost lease fsck -n exits with 4 and fsck -y with 1. The local state stays in use."""
    check(place, program.cachedir, Mode.ALL)
    if damage == "missing":
        (place.bucket / "lease").unlink()
    else:
        (place.bucket / "lease").write_bytes(b"rotten")

    images = set(place.bucket.glob("image/*"))

    assert program.run("fsck", "-n", place.url).returncode == 4
    assert set(place.bucket.glob("image/*")) == images
    repaired = program.run("fsck", "-y", place.url)
    assert (repaired.returncode, "lease" in repaired.stdout) == (1, True)
    # The image to which the new lease refers may be older than the last image.
    assert set(place.bucket.glob("image/*")) > images

    assert check(place, program.cachedir, Mode.REPORT).lines() == ["clean"]
    assert list(state_of(place, program.cachedir).path.glob("kept-*")) == []


@pytest.mark.parametrize("damage", ["missing", "rotten"])
@pytest.mark.parametrize("name", ["superblock", "superblock-copy"])
def test_fsck_repairs_the_superblock_from_its_copy(
    program: Program, place: Place, damage: str, name: str
) -> None:
    """fsck -p uploads a missing superblock, but only fsck -y replaces a damaged superblock."""
    healthy = (place.bucket / name).read_bytes()
    if damage == "missing":
        (place.bucket / name).unlink()
    else:
        (place.bucket / name).write_bytes(b"rotten")

    assert program.run("fsck", "-n", place.url).returncode == 4
    assert program.run("fsck", "-p", place.url).returncode == (1 if damage == "missing" else 4)
    assert program.run("fsck", "-y", place.url).returncode == (0 if damage == "missing" else 1)

    assert (place.bucket / name).read_bytes() == healthy
    assert check(place, program.cachedir, Mode.REPORT).lines() == ["clean"]


def test_fsck_with_option_p_reports_that_a_damaged_superblock_remains(
    program: Program, place: Place
) -> None:
    """A repair of rows succeeds, but only fsck -y replaces the damaged superblock."""
    (place.bucket / "superblock-copy").write_bytes(b"rotten")
    check(place, program.cachedir, Mode.REPORT)
    db = Database.open(state_of(place, program.cachedir).database, Pragmas())
    db.begin()
    db.inodes.run("UPDATE inodes SET nlink = 7 WHERE ino = ?", (ROOT_INO,))
    db.commit()
    db.close()

    report = check(place, program.cachedir, Mode.SAFE)

    assert report.exit_status == 5
    assert {one.invariant: one.left for one in report.verdicts} == {"I0": 1, "I54": 0}


@pytest.mark.parametrize("damage", ["missing", "rotten"])
def test_fsck_repairs_the_superblock_from_the_copy_in_the_local_state(
    program: Program, place: Place, damage: str
) -> None:
    """A host stores a copy of the superblock when it first checks the filesystem.

    On other hosts fsck fails, and advises fsck -y on a host that has mounted the filesystem.
    """
    program.ok("fsck", "-n", place.url)
    paths = [place.bucket / name for name in ("superblock", "superblock-copy")]
    healthy = paths[0].read_bytes()
    for path in paths:
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"rotten")

    elsewhere = Program(program.cachedir.with_name("elsewhere"))
    for words in (["fsck", "-y"], ["fsck", "-n"], ["log"], ["reclaim"], ["retention"], ["status"]):
        refused = elsewhere.run(*words, place.url)
        assert refused.returncode not in {0, 1}
        assert f"fsck -y {place.url} on a host that has mounted it" in refused.stderr
        assert "mkfs" not in refused.stderr
    assert program.run("fsck", "-n", place.url).returncode == 4
    assert program.run("fsck", "-y", place.url).returncode == 1

    assert [path.read_bytes() for path in paths] == [healthy] * 2
    assert check(place, program.cachedir, Mode.REPORT).lines() == ["clean"]


def test_fsck_can_replace_an_older_superblock_or_accept_it(program: Program, place: Place) -> None:
    """fsck -y uploads the newer superblock; --accept-superblock keeps the one in the bucket."""
    program.ok("fsck", "-n", place.url)
    paths = [place.bucket / name for name in ("superblock", "superblock-copy")]
    old = paths[0].read_bytes()
    program.ok("retention", place.url, "1d")
    for words in ([], ["--accept-superblock"]):
        for path in paths:
            path.write_bytes(old)
        refused = program.run("fsck", "-n", place.url)
        assert (refused.returncode, "generation" in refused.stderr) == (4, True)

        assert program.run("fsck", "-y", *words, place.url).returncode in {0, 1}

        assert program.ok("retention", place.url) == ("7d\n" if words else "1d\n")
        assert program.run("fsck", "-n", place.url).returncode == 0
    assert program.run("fsck", "-n", "--accept-superblock", place.url).returncode == 16


def test_fsck_replaces_an_incomplete_image(program: Program, place: Place) -> None:
    """For an incomplete image fsck -n exits with 4 and fsck -p with 1. Then a restore succeeds."""
    check(place, program.cachedir, Mode.REPORT)
    [piece] = place.bucket.glob("image/*/000000")
    piece.unlink()

    assert program.run("fsck", "-n", place.url).returncode == 4
    assert program.run("fsck", "-p", place.url).returncode == 1

    assert check(place, program.cachedir, Mode.REPORT).lines() == ["clean"]
    assert check(place, program.cachedir.with_name("elsewhere"), Mode.REPORT).lines() == ["clean"]


@pytest.mark.parametrize(("mode", "fact"), [(Mode.REPORT, "power_lost"), (Mode.SAFE, "suspect")])
def test_fsck_after_a_power_loss_leaves_the_verification_of_blocks_to_the_next_mount(
    program: Program, place: Place, mode: Mode, fact: str
) -> None:
    """After an unclean shutdown, fsck keeps the flag that makes the next mount verify blocks."""
    check(place, program.cachedir, Mode.REPORT)
    path = state_of(place, program.cachedir).database
    db = Database.open(path, Pragmas())
    db.begin_local()
    local_state.put(db, "clean", "0")
    local_state.put(db, "boot_id", "another boot")
    db.commit_durable()
    db.close()

    check(place, program.cachedir, mode)

    db = Database.open(path, Pragmas())
    assert local_state.get(db, "clean") == "0"
    assert local_state.get(db, fact) == "1"
    db.close()


@pytest.mark.mount
def test_fsck_with_option_p_reports_a_lost_block_without_repair(
    program: Program, unsent: Place
) -> None:
    """fsck -p reports a dirty block that has no cache file. fsck -y records the block as lost."""
    pid = program.status(unsent.mountpoint)["pid"]
    (unsent.mountpoint / "lost").write_bytes(b"content")
    fd = os.open(unsent.mountpoint / "lost", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    subprocess.run(["fusermount3", "-u", "-z", unsent.mountpoint], check=True)
    for path in program.cachedir.glob("*/blocks/*/*"):
        path.unlink()

    assert check(unsent, program.cachedir, Mode.SAFE).exit_status == 4
    assert check(unsent, program.cachedir, Mode.ALL).exit_status == 1
    assert check(unsent, program.cachedir, Mode.REPORT).exit_status == 0


def _make_former(database: Path) -> None:
    """Convert a database to the tables of schema version 1."""
    with changing(database) as connection:
        connection.execute("ALTER TABLE inodes DROP COLUMN btime_delta_ns")
        connection.execute("UPDATE properties SET value = x'31' WHERE name = 'schema_version'")


def test_fsck_upgrades_tables_of_an_older_schema_version(program: Program, place: Place) -> None:
    """Every fsck mode upgrades tables of schema version 1."""
    database = state_of(place, program.cachedir).database
    for mode in Mode:
        check(place, program.cachedir, Mode.REPORT)
        _make_former(database)
        assert check(place, program.cachedir, mode).exit_status == 0
        with changing(database) as upgraded:
            assert upgraded.execute("SELECT btime_delta_ns FROM inodes").fetchall()


def test_fsck_is_refused_while_a_mount_of_an_older_program_runs(
    program: Program, place: Place
) -> None:
    """If an older version of the program runs the mount, fsck says so and changes nothing."""
    check(place, program.cachedir, Mode.REPORT)
    database = state_of(place, program.cachedir).database
    _make_former(database)
    before = database.read_bytes()
    plan = CheckPlan(
        targets.of_url(place.url, program.cachedir), S3Options(), OpenOptions(), FsckOptions()
    )

    async def check_beside() -> None:
        async with opened_store(place.url, plan.s3) as store:
            front = TerminalFront(quiet=True)
            await fsck_run.check_beside(plan, store, Passphrase(bytes), Report(), front)

    with pytest.raises(HeldError, match="mounted on this host by an older s3fs-meta"):
        trio.run(check_beside)
    assert database.read_bytes() == before


def test_rebuild_is_refused_while_an_image_can_be_restored(program: Program, place: Place) -> None:
    """With damaged changelogs fsck --rebuild advises --end-at, which keeps all names."""
    for _ in range(2):
        check(place, program.cachedir, Mode.SAFE)
    for path in sorted(place.bucket.glob("changelog/*")):
        path.write_bytes(b"rotten")
    for path in sorted(place.bucket.glob("image/*/manifest"))[1:]:
        path.write_bytes(b"rotten")
    before = {path: path.read_bytes() for path in place.bucket.rglob("*") if path.is_file()}

    refused = program.run("fsck", "--rebuild", "-y", place.url)

    assert refused.returncode == 16
    assert "can be restored up to txg 0" in refused.stderr
    assert "--end-at=0" in refused.stderr
    after = {path: path.read_bytes() for path in place.bucket.rglob("*") if path.is_file()}
    assert after == before
    elsewhere = Program(program.cachedir.with_name("elsewhere"))
    assert elsewhere.run("fsck", "-y", place.url).returncode == 8
    assert elsewhere.run("fsck", "-y", "--end-at=0", place.url).returncode == 1
    assert elsewhere.run("fsck", "-n", place.url).returncode == 0


def test_rebuild_uses_the_changelogs_if_images_have_a_forged_version(
    program: Program, place: Place
) -> None:
    """Images with a forged version do not stop a rebuild if the chain of changelogs is complete."""
    program.ok("fsck", "-y", "--publish-local", place.url)
    for path in place.bucket.glob("image/*/*"):
        path.write_bytes(claim_newer(path.read_bytes()))
    elsewhere = Program(program.cachedir.with_name("elsewhere"))

    refused = elsewhere.run("fsck", "-y", place.url)
    made = elsewhere.run("fsck", "--rebuild", "-y", place.url)

    assert "upgrade s3fs-meta" in refused.stderr
    assert made.returncode == 1, made.stderr
    assert elsewhere.run("fsck", "-n", place.url).returncode == 0


def test_rebuild_is_refused_if_images_need_a_newer_program(program: Program, place: Place) -> None:
    """If images have a newer version number, fsck --rebuild advises an upgrade."""
    program.ok("fsck", "-y", "--publish-local", place.url)
    for path in place.bucket.glob("image/*/*"):
        path.write_bytes(claim_newer(path.read_bytes()))
    for path in place.bucket.glob("changelog/*"):
        path.write_bytes(b"rotten")
    before = {path: path.read_bytes() for path in place.bucket.rglob("*") if path.is_file()}
    elsewhere = Program(program.cachedir.with_name("elsewhere"))

    refused = elsewhere.run("fsck", "--rebuild", "-y", place.url)

    assert refused.returncode not in {0, 1}
    assert "upgrade s3fs-meta" in refused.stderr
    after = {path: path.read_bytes() for path in place.bucket.rglob("*") if path.is_file()}
    assert after == before


class _InterruptedFront(TerminalFront):
    """A stand-in for the terminal, whose user presses Ctrl-C when a step of fsck begins."""

    def __init__(self, step: str) -> None:
        super().__init__(quiet=True)
        self._step = step

    @override
    def notice(self, text: str) -> None:
        """Interrupt the command if the text announces the step."""
        if text.startswith(self._step):
            raise KeyboardInterrupt


def _interrupt(program: Program, place: Place, step: str) -> None:
    """Run fsck -y until it reports a step, and interrupt it there."""
    plan = CheckPlan(
        targets.of_url(place.url, program.cachedir),
        S3Options(),
        OpenOptions(),
        FsckOptions(repair=Mode.ALL),
        verbose=True,
    )
    with pytest.raises(KeyboardInterrupt):
        trio.run(run_check, plan, Passphrase(bytes), _InterruptedFront(step))


@pytest.mark.parametrize("step", ["listing the cache", "checking the invariants"])
def test_interrupted_fsck_releases_the_lease_that_it_acquired(
    program: Program, place: Place, step: str
) -> None:
    """An interrupted fsck that changed nothing must not force other hosts to use --takeover."""
    check(place, program.cachedir, Mode.SAFE)
    with changing(state_of(place, program.cachedir).database) as database:
        database.execute("UPDATE inodes SET nlink = 7 WHERE ino = 1")
    _interrupt(program, place, step)

    assert program.status(place.url)["holder"]["released"]
    assert check(place, program.cachedir, Mode.ALL).exit_status == 1


class _SecondInterruption:
    """A trace function that interrupts fsck just before fsck rolls its repairs back."""

    is_unwinding = False

    def __call__(self, frame: FrameType, event: str, _value: object) -> Any:
        if frame.f_code.co_name != "_judge_and_repair":
            return None
        if self.is_unwinding and event == "line":
            raise KeyboardInterrupt
        self.is_unwinding = event == "exception"
        return self


def test_second_interruption_of_fsck_does_not_commit_a_part_of_the_repairs(
    program: Program, place: Place
) -> None:
    """A second signal arrives before the rollback. fsck must not commit its repairs at the end."""
    check(place, program.cachedir, Mode.SAFE)
    with changing(state_of(place, program.cachedir).database) as database:
        database.execute("UPDATE inodes SET nlink = 7; UPDATE counters SET next_ino = 1")
    with contextlib.ExitStack() as stack:
        stack.callback(sys.settrace, sys.gettrace())
        sys.settrace(second := _SecondInterruption())
        _interrupt(program, place, "repairing I54")  # fsck has repaired the counters (I6) before.

    assert second.is_unwinding
    with changing(state_of(place, program.cachedir).database) as database:
        assert database.execute("SELECT next_ino FROM counters").fetchall() == [(1,)]


@pytest.mark.parametrize("is_dirty", [False, True])
def test_interrupted_fsck_keeps_the_lease_while_a_block_is_not_uploaded(
    program: Program, place: Place, *, is_dirty: bool
) -> None:
    """If fsck released the lease, another host could continue without the block."""
    trio.run(_write_file, place, targets.of_url(place.url, program.cachedir).state)
    with changing(state_of(place, program.cachedir).database) as database:
        if is_dirty:
            database.execute("UPDATE cached_blocks SET state = ?", (BlockState.DIRTY,))
    _interrupt(program, place, "checking the invariants")

    assert program.status(place.url)["holder"]["released"] != is_dirty


async def _write_file(place: Place, state: Path) -> None:
    store = LocalStore(place.bucket)
    opened = await open_filesystem(
        store, StateDir(state), Passphrase(bytes), SystemClock(), OpenOptions()
    )
    session = Session(opened, SessionOptions(), SystemClock())
    session.recover()
    write_file(session, b"content")
    await session.flush()
    await session.close()
    await store.close()


class _Ahead(LocalStore):
    """A store whose clock is ten years ahead, on a host with the same clock."""

    @override
    async def now_ns(self) -> int | None:
        """Return a time ten years in the future."""
        return time.time_ns() + 10 * 365 * 86_400 * 10**9


async def _write_in_the_future(place: Place, state: Path) -> None:
    store = _Ahead(place.bucket)
    opened = await open_filesystem(
        store, StateDir(state), Passphrase(bytes), SystemClock(), OpenOptions()
    )
    session = Session(opened, SessionOptions(), SystemClock())
    session.recover()
    opened.db.begin()
    inodes.touch(opened.db, ROOT_INO, ctime_ns=10**18)
    await session.flush()
    await session.close()
    await store.close()


def test_fsck_corrects_times_in_the_future(program: Program, place: Place, tmp_path: Path) -> None:
    """fsck reports txgs whose times are in the future, and fsck -y corrects these times."""
    trio.run(_write_in_the_future, place, tmp_path / "wrong")

    report = check(place, program.cachedir, Mode.REPORT)
    assert report.exit_status == 4
    assert "times" in report.broken
    assert check(place, program.cachedir, Mode.ALL).exit_status == 1
    assert check(place, program.cachedir, Mode.REPORT).exit_status == 0
