"""fsck of local databases with a damaged property or a damaged row of local_state."""

import shutil
from pathlib import Path

import pytest
import trio

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import FsckOptions
from s3fs_meta.cli import fsck_run
from s3fs_meta.cli.fsck_run import CheckPlan
from s3fs_meta.clock import SystemClock
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import CorruptionError, NewerFormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from tests.cli.conftest import Place
from tests.cli.fsck_in_process import changing, check, state_of
from tests.programs import Program

pytestmark = pytest.mark.thorough


def _set_fact(place: Place, program: Program, name: str, value: bytes | str) -> None:
    db = Database.open(state_of(place, program.cachedir).database, Pragmas())
    db.begin()
    db.run("UPDATE properties SET value = ? WHERE name = ?", (value, name))
    db.commit()
    db.close()


async def _open_and_close(place: Place, program: Program) -> None:
    state_dir, secret = state_of(place, program.cachedir), Passphrase(bytes)
    async with opened_store(place.url, S3Options()) as store:
        volume = await open_filesystem(store, state_dir, secret, SystemClock(), OpenOptions())
        await close_filesystem(volume, release=True)


@pytest.mark.parametrize("value", [b"", b"2097152", b"a lot", "1048576"])
def test_fsck_repairs_a_wrong_block_size_in_place(
    program: Program, place: Place, value: bytes | str
) -> None:
    """fsck -y copies the block size from the superblock and does not replace the database.

    A mount refuses a database with a wrong block size, because it would read wrong parts of files.
    """
    check(place, program.cachedir, Mode.REPORT)
    _set_fact(place, program, "block_bytes", value)

    with pytest.raises(CorruptionError, match="run s3fs-meta fsck -y"):
        trio.run(_open_and_close, place, program)
    refused = program.run("fsck", "-n", place.url)
    assert (refused.returncode, "I5" in refused.stdout) == (4, True)
    assert check(place, program.cachedir, Mode.ALL).exit_status == 1

    assert check(place, program.cachedir, Mode.REPORT).exit_status == 0
    assert list(state_of(place, program.cachedir).path.glob("kept-*")) == []


def test_fsck_of_a_mounted_filesystem_compares_the_block_size_with_the_superblock(
    program: Program, place: Place
) -> None:
    check(place, program.cachedir, Mode.REPORT)
    _set_fact(place, program, "block_bytes", b"2097152")
    target = targets.of_url(place.url, program.cachedir)
    plan, report = CheckPlan(target, S3Options(), OpenOptions(), FsckOptions()), Report()

    async def check_mounted() -> None:
        async with opened_store(place.url, plan.s3) as store:
            front = TerminalFront(quiet=True)
            await fsck_run.check_beside(plan, store, Passphrase(bytes), report, front)

    trio.run(check_mounted)
    assert "I5" in report.broken


@pytest.mark.parametrize("value", [b"x", b"", "1"])
def test_fsck_replaces_a_database_with_a_damaged_schema_version(
    program: Program, place: Place, value: bytes | str
) -> None:
    check(place, program.cachedir, Mode.REPORT)
    _set_fact(place, program, "schema_version", value)

    with pytest.raises(
        CorruptionError, match=r"fsck -y (?:--cachedir \S+ )?local:\S+ quarantines it"
    ):
        check(place, program.cachedir, Mode.SAFE)
    assert check(place, program.cachedir, Mode.ALL).exit_status == 1

    assert len(list(state_of(place, program.cachedir).path.glob("kept-*/meta.db"))) == 1


def test_fsck_keeps_a_database_of_a_newer_version(program: Program, place: Place) -> None:
    """fsck does not quarantine a database that only a newer program can read."""
    check(place, program.cachedir, Mode.REPORT)
    _set_fact(place, program, "schema_version", b"999")

    with pytest.raises(NewerFormatError):
        check(place, program.cachedir, Mode.ALL)

    assert list(state_of(place, program.cachedir).path.glob("kept-*")) == []


@pytest.mark.parametrize(
    "fact",
    [
        "attempt",
        "block_floor",
        "chain",
        "epoch",
        "floor",
        "head",
        "intent_log",
        "own_txg",
        "shipped_seq",
    ],
)
def test_fsck_replaces_a_database_with_a_damaged_row_of_local_state(
    program: Program, place: Place, tmp_path: Path, fact: str
) -> None:
    """Without its position in the chain, the database cannot be compared with the bucket.

    A mount refuses the database, even if it would read the row only much later.
    """
    check(place, program.cachedir, Mode.ALL)
    state = state_of(place, program.cachedir)
    with changing(state.database) as database:
        database.execute("INSERT OR REPLACE INTO local_state VALUES (?, 'junk')", (fact,))

    with pytest.raises(CorruptionError, match=r"damaged|not a number|not valid JSON"):
        trio.run(_open_and_close, place, program)
    with pytest.raises(
        CorruptionError, match=r"fsck -y (?:--cachedir \S+ )?local:\S+ quarantines it"
    ):
        check(place, program.cachedir, Mode.SAFE)
    assert check(place, program.cachedir, Mode.ALL).exit_status == 1

    assert len(list(state.path.glob("kept-*/meta.db"))) == 1
    assert check(place, program.cachedir, Mode.REPORT).exit_status == 0
    recover = "recover-state", "--to", tmp_path / "out"
    assert program.run(*recover, place.url).returncode == (3 if fact == "chain" else 0)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    program.ok(*recover, "--everything", place.url)
