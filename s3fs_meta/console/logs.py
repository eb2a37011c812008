"""The destinations of log lines: the journal, a terminal, or the log file of a daemon.

Owns: handlers and formats; the warnings of Python and of libraries, which become log lines. Does not
know: the modules that log.
"""

import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from typing_extensions import override

from s3fs_meta.console.printable import with_bytes

LOG_BYTES_MAX: Final = 10 << 20  # size at which the log is rotated; one old log is kept

_CHATTY: Final = ("boto3", "botocore", "urllib3", "s3transfer")
_LIBRARIES: Final = (*_CHATTY, "py")  # Python's warnings have the logger py.warnings
_OUTPUTS: Final = (1, 2)  # descriptors of standard output and standard error

# Prefixes that set the journal priority of a line on standard error; see sd-daemon(3).
_PRIORITIES: Final = {
    logging.CRITICAL: "<2>",
    logging.ERROR: "<3>",
    logging.WARNING: "<4>",
    logging.INFO: "<6>",
    logging.DEBUG: "<7>",
}


# A function that adds options to the commands that a message suggests.
Complete = Callable[[str], str]


class CompletingFormatter(logging.Formatter):
    """Formats log records, and adds the user's options to commands in messages.

    Bytes that are not UTF-8, for example in a file name, are escaped, because a log must be UTF-8.
    """

    def __init__(self, text: str, complete: Complete = str) -> None:
        super().__init__(text)
        self._complete = complete

    @override
    def format(self, record: logging.LogRecord) -> str:
        return with_bytes(self._complete(super().format(_in_one_line(record))))


class JournalFormatter(CompletingFormatter):
    """Formats log records for the journal, with a priority on each line and no timestamp."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        prefix = _PRIORITIES.get(record.levelno, "<6>")
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def to_stderr(level: int, complete: Complete = str) -> None:
    """Log to standard error, with priorities if the journal reads standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if _is_journal():
        handler.setFormatter(JournalFormatter("%(name)s: %(message)s", complete))
    else:
        text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(CompletingFormatter(text, complete))
    _use(handler, level)


class _DaemonLogHandler(logging.handlers.RotatingFileHandler):
    """Writes a log that also receives the standard output and standard error of the process."""

    @override
    def doRollover(self) -> None:
        """Rotate the log, and redirect the standard streams from the old to the new file.

        Otherwise the old file would receive the messages of libraries and the stacks after a fatal
        signal. They would be lost with the old file.
        """
        directed = [fd for fd in _OUTPUTS if _is_same_file(fd, self.baseFilename)]
        super().doRollover()
        assert self.stream is not None, "the rotation opens the new file"
        for fd in directed:
            os.dup2(self.stream.fileno(), fd)


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def to_file(
    path: Path, level: int, complete: Complete = str, *, bytes_max: int = LOG_BYTES_MAX
) -> None:
    """Log to a file, which is rotated at *bytes_max*, together with streams redirected to it."""
    handler = _DaemonLogHandler(path, maxBytes=bytes_max, backupCount=1)
    text = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(CompletingFormatter(text, complete))
    _use(handler, level)


class _LineHandler(logging.Handler):
    """A handler that passes each log record to a function as one line."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        super().__init__()
        self.setFormatter(CompletingFormatter("%(message)s"))
        self._print_line = print_line

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._print_line(f"{record.levelname.lower()}: {self.format(record)}")


def to_lines(print_line: Callable[[str], None]) -> None:
    """Pass warnings to a function as lines, for a command that has no log of its own.

    If a handler is already set, only the warnings of Python are redirected to it.
    """
    if logging.getLogger().handlers:
        logging.captureWarnings(True)
    else:
        _use(_LineHandler(print_line), logging.WARNING)


def _in_one_line(record: logging.LogRecord) -> logging.LogRecord:
    """Reduce a record of a library, or a warning of Python, to one line without a traceback.

    All other records are returned unchanged.
    """
    if record.name.partition(".")[0] not in _LIBRARIES:
        return record
    text = record.getMessage()
    if record.name == "py.warnings":
        text = text.strip().rpartition("\n  ")[0] or text  # removes the line of source code
    if record.exc_info:
        text = f"{text} {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    changed = {"msg": " ".join(text.split()), "args": None, "exc_info": None, "exc_text": None}
    return logging.makeLogRecord({**vars(record), **changed})


def _use(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    root.setLevel(level)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def _is_journal() -> bool:
    """Return whether standard error is connected to the journal. Source: systemd.exec(5)."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (str(status.st_dev), str(status.st_ino)) == (device, inode)
