"""Reading a file that the user names: pipes, devices and files without an end."""

import contextlib
import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from s3fs_meta.console import given_file
from s3fs_meta.console.given_file import PipeLimits


def test_at_most_the_wanted_bytes_of_an_endless_device_are_read() -> None:
    assert given_file.read(Path("/dev/zero"), 5) == bytes(5)
    assert given_file.read(Path("/dev/zero"), 5, is_line=True) == bytes(5)
    assert given_file.read(Path("/dev/null"), 5) == b""


def test_directory_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        given_file.read(tmp_path, 5)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return the path of a named pipe."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_named_pipe_without_a_writer_is_an_error(
    pipe: Path,
) -> None:
    with pytest.raises(TimeoutError) as caught:
        given_file.read(pipe, 5, limits=PipeLimits(0.01, 0.01))
    assert caught.value.errno == errno.ETIMEDOUT
    assert "no process has opened the pipe for writing" in str(caught.value.strerror)


def test_named_pipe_whose_writer_writes_nothing_is_an_error(
    pipe: Path,
) -> None:
    writer = os.open(pipe, os.O_RDWR)
    with pytest.raises(TimeoutError, match="the text in the pipe is incomplete after 0 s"):
        given_file.read(pipe, 5, limits=PipeLimits(0.01, 0.01))
    os.close(writer)


def test_time_limits_include_all_parts_of_a_slow_writer(pipe: Path) -> None:
    """Each part arrives in time, but the writer does not end in time."""
    is_over = threading.Event()

    def write() -> None:
        with pipe.open("wb", buffering=0) as file, contextlib.suppress(BrokenPipeError):
            while not is_over.wait(0.02):
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(TimeoutError, match="incomplete"):
            given_file.read(pipe, 10_000, limits=PipeLimits(1.0, 0.1))
    finally:
        is_over.set()
        writer.join()


def test_pipe_is_read_until_its_writer_closes_it(pipe: Path) -> None:
    """The writer opens the pipe after the reader, and writes twice."""

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(b"one ")
            file.write(b"two")

    writer = threading.Thread(target=write)
    writer.start()
    assert given_file.read(pipe, 100) == b"one two"
    writer.join()


def test_first_line_of_a_pipe_is_returned_while_its_writer_keeps_it_open() -> None:
    """The command ``sleep`` keeps the pipe open, as a shell does with /dev/stdin."""
    with subprocess.Popen(
        ["sh", "-c", "echo line; exec sleep 60"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        pipe = Path(f"/proc/self/fd/{child.stdout.fileno()}")
        assert given_file.read(pipe, 100, is_line=True) == b"line\n"
        child.kill()
