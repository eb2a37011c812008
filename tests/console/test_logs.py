"""The formats and destinations of log lines."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.console import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the handlers and the level of the root logger after each test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
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


def test_debug_messages_of_libraries_are_not_logged() -> None:
    """At debug level, the S3 library would log the headers of requests."""
    logs.to_stderr(logging.DEBUG)

    assert not logging.getLogger("botocore").isEnabledFor(logging.INFO)
    assert logging.getLogger("s3fs_meta").isEnabledFor(logging.DEBUG)


def test_log_adds_the_bucket_url_to_suggested_commands(tmp_path: Path) -> None:
    """The log adds the URL to suggested commands, because many modules do not know the URL."""
    logs.to_file(tmp_path / "mount.log", logging.INFO, lambda text: text.replace("fsck", "fsck x"))

    logging.getLogger("x").info("unmount, and run %s", "fsck")

    assert "unmount, and run fsck x\n" in (tmp_path / "mount.log").read_text()
