"""Tests of commands whose caller has closed some standard streams."""

import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.console import standard_streams
from tests.cli.conftest import Place
from tests.programs import Program


def _closed(
    closed: str, program: Program, *words: str | Path
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a shell that closes streams, for example with ``>&-``."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "s3fs_meta", *words],
        capture_output=True,
        text=True,
        check=False,
        env=program.environment,
    )


def test_open_streams_are_not_replaced() -> None:
    before = (sys.stdin, sys.stdout, sys.stderr)
    standard_streams.open_missing()
    assert (sys.stdin, sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_file_opened_next_does_not_get_the_number_of_a_closed_stream(closed: str) -> None:
    code = (
        "import os\n"
        "from s3fs_meta.console import standard_streams\n"
        "standard_streams.open_missing()\n"
        "os._exit(os.open('/dev/null', os.O_RDONLY))"
    )
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    assert subprocess.run(shell, check=False).returncode >= 3


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    [["version"], ["version", "--json"], ["--version"], ["--help"], ["log", "--help"], ["status"]],
)
def test_result_that_cannot_be_printed_is_an_error(
    program: Program, words: list[str], unbuffered: str
) -> None:
    program.environment["PYTHONUNBUFFERED"] = unbuffered
    done = _closed(">&-", program, *words)
    line = "s3fs-meta: the result cannot be written to standard output: it is closed\n"
    assert (done.returncode, done.stderr) == (14, line)


def test_new_recovery_key_that_cannot_be_written_is_not_used(
    program: Program, tmp_path: Path
) -> None:
    program.environment["S3FS_META_PASSPHRASE"] = "a passphrase"
    done = _closed(">&-", program, "mkfs", f"local://{tmp_path}/store")
    assert (done.returncode, done.stderr) == (
        14,
        "s3fs-meta: the recovery key cannot be written to standard output (it is closed); nothing"
        " was created\n",
    )


def test_error_keeps_its_exit_status_if_standard_error_is_closed(
    program: Program, tmp_path: Path
) -> None:
    assert _closed("2>&-", program, "fsck", "-n", f"local://{tmp_path}").returncode == 8


@pytest.mark.mount
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_filesystem_can_be_mounted_if_standard_streams_are_closed(
    program: Program, place: Place, closed: str
) -> None:
    """A service manager may start programs with closed file descriptors."""
    words = ("--cachedir", program.cachedir, place.url, place.mountpoint)
    assert _closed(closed, program, "mount", *words).returncode == 0
    (place.mountpoint / "f").write_bytes(b"content")
    assert (place.mountpoint / "f").read_bytes() == b"content"
    program.ok("umount", place.mountpoint)
