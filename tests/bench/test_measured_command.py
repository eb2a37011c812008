"""Tests of measuring the run of one command."""

import sys

import pytest

from contrib.bench import measured_command
from contrib.bench.subjects import SubjectError

MB = 10**6


def test_memory_of_a_command_excludes_the_memory_of_the_benchmark() -> None:
    """The peak memory of the command does not include the memory of the benchmark's process."""
    ballast = bytearray(300 * MB)
    ballast[::4096] = b"x" * len(ballast[::4096])

    found = measured_command.run(sys.executable, "-c", f"print(len(bytes(b'x' * {50 * MB})))")

    assert found.output == f"{50 * MB}\n"
    assert 50 < found.peak_mb < 200
    assert 0 < found.cpu_s
    assert 0 < found.seconds


def test_failed_command_is_reported_with_its_status_and_errors() -> None:
    with pytest.raises(SubjectError, match="status 3: the reason"):
        measured_command.run(
            sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)"
        )
