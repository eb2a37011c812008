"""Tests of the formats and destinations of log lines."""

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.console import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the handlers and the level of the root logger after each test.

    A command that an earlier test ran in this process has switched the capture of warnings on. The
    end of that test restored `warnings.showwarning`, but not the switch, so that switching it on
    again would have no effect.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logging.captureWarnings(False)
    yield
    logging.captureWarnings(False)
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_journal_lines_begin_with_their_priority() -> None:
    """Each line of a message begins with its priority, as systemd's journal requires."""
    record = logging.LogRecord("a", logging.ERROR, "f", 1, "one\ntwo", None, None)

    assert logs.JournalFormatter("%(message)s").format(record) == "<3>one\n<3>two"


def test_full_log_file_is_rotated_and_one_old_log_file_is_kept(tmp_path: Path) -> None:
    logs.to_file(tmp_path / "mount.log", logging.INFO, bytes_max=1000)

    for number in range(100):
        logging.getLogger("x").info("line %d", number)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["mount.log", "mount.log.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "line 99" in (tmp_path / "mount.log").read_text()


def test_log_escapes_the_bytes_of_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    logs.to_file(tmp_path / "mount.log", logging.INFO)

    logging.getLogger("x").info("mounted on %s, with %r", "/a\udcff", "/b\udcfe")

    assert r"mounted on /a\xff, with '/b\xfe'" in (tmp_path / "mount.log").read_text()


def test_standard_streams_of_a_daemon_follow_its_log_file_when_the_file_is_rotated(
    tmp_path: Path,
) -> None:
    """Stacks after a fatal signal and messages of libfuse go into the current log file."""
    code = (
        "import faulthandler, logging, os, pathlib, sys\n"
        "from s3fs_meta.console import logs\n"
        "log = pathlib.Path('mount.log')\n"
        "log.touch()\n"
        "fd = os.open(log, os.O_WRONLY | os.O_APPEND)\n"
        "os.dup2(fd, 2)\n"
        "faulthandler.enable()\n"
        "logs.to_file(log, logging.INFO, bytes_max=1000)\n"
        "for number in range(100):\n"
        "    logging.getLogger('x').info('line %d', number)\n"
        "os.write(1, b'unrelated')\n"
        "os.write(2, b'message of a library')\n"
        "os.abort()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False
    )

    log = (tmp_path / "mount.log").read_text()
    assert "message of a library" in log
    assert "Fatal Python error: Aborted" in log
    assert done.stdout == b"unrelated"


def test_debug_messages_of_libraries_are_not_logged() -> None:
    """At level DEBUG, the S3 library would log the headers of requests."""
    logs.to_stderr(logging.DEBUG)

    assert not logging.getLogger("botocore").isEnabledFor(logging.INFO)
    assert logging.getLogger("s3fs_meta").isEnabledFor(logging.DEBUG)


def test_warning_issued_by_python_code_becomes_a_log_line(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.to_file(tmp_path / "mount.log", logging.INFO)
        warnings.warn_explicit("no longer\nsupported", FutureWarning, "library.py", 7)

    (line,) = (tmp_path / "mount.log").read_text().splitlines()
    assert line.endswith(" WARNING py.warnings: library.py:7: FutureWarning: no longer supported")


def test_traceback_of_a_library_is_logged_as_one_line(tmp_path: Path) -> None:
    """botocore logs a traceback each time that it fails to refresh credentials."""
    logs.to_file(tmp_path / "mount.log", logging.INFO)

    error = ValueError("no\ntoken")
    logging.getLogger("botocore.credentials").warning("refresh failed.", exc_info=error)

    (line,) = (tmp_path / "mount.log").read_text().splitlines()
    assert line.endswith(" WARNING botocore.credentials: refresh failed. ValueError: no token")


def test_warning_of_a_command_has_the_prefix_of_the_program_and_its_level() -> None:
    code = (
        "import logging, warnings\n"
        "from functools import partial\n"
        "from s3fs_meta.console import boundary, logs\n"
        "logs.to_lines(partial(boundary.print_line, 's3fs-meta'))\n"
        "logging.getLogger('urllib3.connection').warning('bad header')\n"
        "logging.getLogger('s3fs_meta.objects').warning('parts remain')\n"
        "logging.getLogger('s3fs_meta.objects').info('hidden')\n"
        "warnings.warn('old', FutureWarning)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert done.stderr.splitlines() == [
        "s3fs-meta: warning: bad header",
        "s3fs-meta: warning: parts remain",
        "s3fs-meta: warning: <string>:8: FutureWarning: old",
    ]


def test_log_adds_the_bucket_url_to_suggested_commands(tmp_path: Path) -> None:
    """Many modules do not know the URL, so the log adds it to commands that they suggest."""
    logs.to_file(tmp_path / "mount.log", logging.INFO, lambda text: text.replace("fsck", "fsck x"))

    logging.getLogger("x").info("unmount, and run %s", "fsck")

    assert "unmount, and run fsck x\n" in (tmp_path / "mount.log").read_text()
