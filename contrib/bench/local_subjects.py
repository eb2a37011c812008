"""The filesystems that benchmarks compare, with their data on the local disk.

``ext4`` is the disk itself. ``do-nothing`` is a FUSE filesystem that only forwards to plain files
or memory. ``passthrough_hp`` is an example program of libfuse in C++ that forwards each request to
a directory. ``passthrough_hp``, JuiceFS and S3QL (without compression) are measured only if they
are installed.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from contrib.bench import machine
from contrib.bench.names import CEILING, DISK, JUICEFS, OURS, PASSTHROUGH, S3QL
from contrib.bench.subjects import (
    DaemonSubject,
    NullSubject,
    PlainDirectory,
    S3fsSubject,
    Subject,
    call,
)


class JuiceSubject(DaemonSubject):
    """JuiceFS with SQLite metadata and a local directory as its store.

    JuiceFS sets its own priority to -19. The benchmark sets the priority back to 0, the priority of
    all other filesystems.
    """

    @override
    def start(self) -> None:
        """Mount, and set the priority of all JuiceFS threads to 0."""
        super().start()
        assert self.pid is not None, "the filesystem is not mounted"
        for each in machine.family(self.pid):
            for thread in Path(f"/proc/{each}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)

    @property
    def _metadata(self) -> str:
        return f"sqlite3://{self.root / 'meta.db'}"

    @property
    def cache(self) -> Path:
        """Return the directory of the cache."""
        return self.root / "cache"

    def store(self) -> list[str]:
        """Return the options that select the store."""
        return ["--storage", "file", "--bucket", f"{self.root / 'store'}/"]

    def make(self) -> None:
        """Make the filesystem."""
        options = [*self.store(), "--trash-days", "0"]
        call(str(juicefs()), "format", *options, self._metadata, "bench")

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        options = ["--no-usage-report", "--cache-dir", str(self.cache), "--metrics", "127.0.0.1:0"]
        return [str(juicefs()), "mount", *options, self._metadata, str(self.mountpoint)]


class S3qlSubject(DaemonSubject):
    """S3QL with a local directory as its store."""

    def __init__(self, root: Path, programs: Path) -> None:
        super().__init__(S3QL, root)
        self._programs = programs
        self._options = ["--cachedir", str(root / "cache")]

    @property
    def _url(self) -> str:
        return f"local://{self.root / 'store'}"

    def make(self) -> None:
        """Make the filesystem, unencrypted."""
        (self.root / "store").mkdir()
        command = [str(self._programs / "mkfs.s3ql"), "--plain", *self._options, self._url]
        call(*command)

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        options = [*self._options, "--fg", "--log", "none", "--compress", "none", "--allow-other"]
        return [str(self._programs / "mount.s3ql"), *options, self._url, str(self.mountpoint)]

    @override
    def settle(self) -> None:
        """Upload the cache and wait until the daemon is idle."""
        command = [str(self._programs / "s3qlctrl"), "flushcache", str(self.mountpoint)]
        call(*command)
        super().settle()


class PassthroughSubject(DaemonSubject):
    """libfuse's passthrough_hp over a directory of the disk: the upper limit for C++ daemons."""

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        source = self.root / "data"
        source.mkdir(exist_ok=True)
        return [PASSTHROUGH, "--foreground", str(source), str(self.mountpoint)]


def juicefs() -> str | None:
    """Return the path of JuiceFS, from PATH or ``~/go/bin``; None if it is not installed."""
    beside = Path.home() / "go" / "bin" / "juicefs"
    return shutil.which("juicefs") or (str(beside) if os.access(beside, os.X_OK) else None)


def available(
    scratch: Path, wanted: Sequence[str], *, plain_files: bool = True
) -> tuple[list[Subject], list[str]]:
    """Make the *wanted* filesystems; return them, and the names of programs that are missing.

    Args: plain_files: True if the do-nothing filesystem keeps content in files, not in memory.
    """
    here: list[Subject] = []
    absent = []
    for name in wanted:
        root = scratch / name
        if name == DISK:
            here.append(PlainDirectory(name, root))
        elif name == CEILING:
            here.append(NullSubject(name, root, plain_files=plain_files))
        elif name == PASSTHROUGH and shutil.which(PASSTHROUGH):
            here.append(PassthroughSubject(name, root))
        elif made := _made(name, root):
            here.append(made)
        else:
            absent.append(name)
    return here, absent


def _made(name: str, root: Path) -> Subject | None:
    """Make the filesystem *name*; return None if its program is not installed."""
    subject: S3fsSubject | JuiceSubject | S3qlSubject
    if name == OURS:
        subject = S3fsSubject(name, root)
    elif name == JUICEFS and juicefs():
        subject = JuiceSubject(name, root)
    elif name == S3QL and (program := shutil.which("mount.s3ql")):
        subject = S3qlSubject(root, Path(program).resolve().parent)
    else:
        return None
    subject.make()
    return subject
