"""Where the suites run: on s3fs-meta, on the do-nothing filesystem, or in a directory for comparison."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from contrib.bench import subjects
from contrib.bench.subjects import DaemonSubject, NullSubject, PlainDirectory, S3fsSubject, Subject
from contrib.conformance.cases import Case, Outcome

COMPLAINT: Final = re.compile(r"\b(ERROR|CRITICAL|Traceback|\w+Error)\b")


_CLONE_NEWNS: Final = 0x20000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18


def own_mounts() -> None:
    """Give this process a mount namespace: a copy of a mount elsewhere would keep it in use.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    private = _MS_REC | _MS_PRIVATE
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, private, None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "mount namespace")


class Place(NamedTuple):
    """A directory for one suite, empty, with a second one on another filesystem beside it."""

    directory: Path
    scratch: Path  # directory for configuration, artifacts and other files outside the target
    own_mount: bool  # whether the directory lies on a mount that may be made read-only


@contextmanager
def prepared(subject: Subject, suite: str, scratch: Path) -> Iterator[Place]:
    """Prepare a directory for one suite on a mounted subject."""
    directory = subject.mountpoint / suite
    directory.mkdir()
    directory.chmod(0o755)
    beside = scratch / f"{suite}-scratch"
    beside.mkdir()
    yield Place(directory, beside, isinstance(subject, DaemonSubject))


def choose(kind: str, scratch: Path, directory: Path | None, options: dict[str, str]) -> Subject:
    """Return the subject of the test, made and not yet mounted."""
    if directory is not None:
        return PlainDirectory("directory", directory)
    if kind == "null":
        return NullSubject("null", scratch / "null", plain_files=True)
    subject = S3fsSubject("s3fs-meta", scratch / "subject", options=options)
    subject.make()
    return subject


def afterwards(subject: Subject) -> Iterator[Case]:
    """Unmount, and yield whether the daemon ended successfully and fsck finds nothing."""
    subject.stop()
    if isinstance(subject, DaemonSubject):
        ended = Outcome.FAILED if subject.exit_status else Outcome.PASSED
        yield Case("after", "exit-status", ended, f"status {subject.exit_status}")
        complaints = [line for line in subject.log_lines() if COMPLAINT.search(line)]
        quiet = Outcome.FAILED if complaints else Outcome.PASSED
        yield Case("after", "log", quiet, "\n".join(complaints[:20]))
    if isinstance(subject, S3fsSubject):
        try:
            subjects.run(["fsck", "-n", subject.url, "--cachedir", str(subject.state)])
        except subjects.SubjectError as exc:
            yield Case("after", "fsck", Outcome.FAILED, str(exc))
        else:
            yield Case("after", "fsck", Outcome.PASSED)
