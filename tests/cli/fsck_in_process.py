"""Functions that run fsck in this process, or change a database that is not mounted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import trio

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import FsckOptions
from s3fs_meta.cli.fsck_run import CheckPlan, run_check
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount.existing import targets
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from tests.cli.conftest import Place


def check(place: Place, cachedir: Path, mode: Mode) -> Report:
    """Run fsck in this process, and return its report."""
    plan = CheckPlan(
        targets.of_url(place.url, cachedir), S3Options(), OpenOptions(), FsckOptions(repair=mode)
    )
    return trio.run(run_check, plan, Passphrase(bytes), TerminalFront(quiet=True))


def state_of(place: Place, cachedir: Path) -> StateDir:
    """Return the state directory of a filesystem."""
    return StateDir(targets.of_url(place.url, cachedir).state)


@contextlib.contextmanager
def changing(database: Path) -> Iterator[apsw.Connection]:
    """Open a database for changes that SQLite refuses by default."""
    with contextlib.closing(apsw.Connection(str(database))) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        yield connection
