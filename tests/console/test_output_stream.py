"""Tests of results that standard output does not accept."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.programs import Program

pytestmark = pytest.mark.thorough

_PRINT = """
import sys
from s3fs_meta.cli import entry
from s3fs_meta.console import boundary, output
text = "x" * int(sys.argv[1])
entry.main = lambda: int(boundary.run(lambda: output.print_json({"text": text})))
entry.program()
"""


def _printed(
    program: Program, size: int, stdout: int, *before: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command that prints a text; the arguments *before* precede its command line."""
    return subprocess.run(
        [*before, sys.executable, "-c", _PRINT, str(size)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=program.environment,
        check=False,
    )


def _full_pipe() -> tuple[int, int]:
    """Return the ends of a pipe that is full and does not block its writer."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    return reader, writer


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_result_that_a_full_disk_or_pipe_does_not_accept_is_an_error(
    program: Program, size: int, unbuffered: str
) -> None:
    """Python's buffer keeps a short text after a failed write, but not a long one."""
    program.environment["PYTHONUNBUFFERED"] = unbuffered
    reader, full_pipe = _full_pipe()
    streams = {
        "No space left on device": os.open("/dev/full", os.O_WRONLY),
        "Resource temporarily unavailable": full_pipe,
    }

    done = {why: _printed(program, size, stream) for why, stream in streams.items()}
    for fd in (reader, *streams.values()):
        os.close(fd)

    assert {why: (one.returncode, one.stderr) for why, one in done.items()} == {
        why: (
            ExitStatus.LOCAL,
            f"s3fs-meta: the result cannot be written to standard output: {why}\n",
        )
        for why in streams
    }


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_result_that_is_written_only_in_part_is_an_error(
    program: Program, tmp_path: Path, unbuffered: str
) -> None:
    """On a disk that is almost full, write(2) writes a part of the text and reports no error."""
    program.environment["PYTHONUNBUFFERED"] = unbuffered
    limited = ("sh", "-c", 'ulimit -f 8 && exec "$@"', "sh")
    with open(tmp_path / "result", "wb") as file:
        done = _printed(program, 100_000, file.fileno(), *limited)

    assert (done.returncode, done.stderr) == (
        ExitStatus.LOCAL,
        "s3fs-meta: the result cannot be written to standard output: File too large\n",
    )
    assert 0 < (tmp_path / "result").stat().st_size < 100_000


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_long_result_is_written_in_full(program: Program, tmp_path: Path, unbuffered: str) -> None:
    program.environment["PYTHONUNBUFFERED"] = unbuffered
    with open(tmp_path / "result", "wb") as file:
        done = _printed(program, 100_000, file.fileno())

    assert (done.returncode, done.stderr) == (ExitStatus.DONE, "")
    assert (tmp_path / "result").read_text() == '{\n  "text": "' + "x" * 100_000 + '"\n}\n'


def test_characters_that_the_encoding_lacks_are_escaped(program: Program, tmp_path: Path) -> None:
    """The bytes of a path that is not UTF-8 are unchanged."""
    program.environment["PYTHONIOENCODING"] = "ascii"
    command = _PRINT.replace("output.print_json", "output.print_text").replace(
        '{"text": text}', "chr(0xB5) + chr(0xDCFF) + chr(0x2026)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, "0"],
        capture_output=True,
        env=program.environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (ExitStatus.DONE, b"")
    assert done.stdout == b"\\xb5\xff\\u2026\n"
