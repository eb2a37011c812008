"""The filesystem on which suites run: s3fs-meta, the do-nothing filesystem, or a directory."""

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
    """Move this process into a new mount namespace, so that no other process copies its mounts.

    Raises:
        OSError: the kernel refuses the new namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    private = _MS_REC | _MS_PRIVATE
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, private, None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "mount namespace")


class Place(NamedTuple):
    """An empty directory for one suite, and a scratch directory on another filesystem."""

    directory: Path
    scratch: Path  # Directory for configuration and artifacts, outside the target.
    own_mount: bool  # True if tests may remount the directory read-only.


@contextmanager
def prepared(subject: Subject, suite: str, scratch: Path) -> Iterator[Place]:
    """Create the directories for one suite: on a mounted filesystem and in *scratch*."""
    directory = subject.mountpoint / suite
    directory.mkdir()
    directory.chmod(0o755)
    beside = scratch / f"{suite}-scratch"
    beside.mkdir()
    yield Place(directory, beside, isinstance(subject, DaemonSubject))


def choose(kind: str, scratch: Path, directory: Path | None, options: dict[str, str]) -> Subject:
    """Create the filesystem under test, but do not mount it; return it."""
    if directory is not None:
        return PlainDirectory("directory", directory)
    if kind == "null":
        return NullSubject("null", scratch / "null", plain_files=True)
    subject = S3fsSubject("s3fs-meta", scratch / "subject", options=options)
    subject.make()
    return subject


def afterwards(subject: Subject) -> Iterator[Case]:
    """Unmount; yield cases that check the daemon's exit status, its log, and fsck."""
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
