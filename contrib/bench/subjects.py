"""The filesystems under test, which are mounted in the foreground and always unmounted.

Owns: the daemons that this module starts, and their mountpoints. The module sends signals only to
these daemons.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from typing_extensions import override

from contrib.bench import machine, memory
from s3fs_meta.limits import KERNEL_READAHEAD_KIB

MOUNT_S_MAX: Final = 120.0
UNMOUNT_S_MAX: Final = 900.0  # Maximum time of an unmount that uploads dirty data.
TERMINATE_S_MAX: Final = 60.0
COMMAND_S_MAX: Final = 3600.0
UNNOTICED_S_MAX: Final = 10.0  # Maximum time from the unmount until the daemon exits.
BUSY_S_MAX: Final = 10.0
POLL_S: Final = 0.02
BUSY_POLL_S: Final = 0.2
PROJECT: Final = Path(__file__).resolve().parents[2]
# Mount options that change SQLite's memory use. The target for peak memory assumes their defaults.
MEMORY_OPTIONS: Final = frozenset({"cache_size", "mmap_size", "temp_store"})


class SubjectError(Exception):
    """A filesystem could not be created, mounted or unmounted."""


def program() -> list[str]:
    """Return the command of s3fs-meta: $S3FS_META, a script beside the interpreter, or PATH."""
    if "S3FS_META" in os.environ:
        return os.environ["S3FS_META"].split()
    beside = Path(sys.executable).parent / "s3fs-meta"
    if beside.exists():
        return [str(beside)]
    found = shutil.which("s3fs-meta")
    return [found] if found else [sys.executable, "-m", "s3fs_meta"]


def environment() -> dict[str, str]:
    """Return an environment in which Python imports the modules of the source tree.

    PYTHONDONTWRITEBYTECODE is removed, so that Python compiles each module only once, as for an
    installed program.
    """
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def call(*command: str | Path) -> str:
    """Run a program to completion and return its output."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd=PROJECT, check=False,
        timeout=COMMAND_S_MAX,
    )  # fmt: skip
    if done.returncode:
        words = " ".join(map(str, command))
        raise SubjectError(
            f"the command {words} failed with status {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


def call_s(*command: str | Path) -> float:
    """Run a program to completion; return its duration in seconds."""
    began_s = time.perf_counter()
    call(*command)
    return time.perf_counter() - began_s


def begin(*command: str | Path, stdin: int | None = None) -> "subprocess.Popen[str]":
    """Start a program; the caller must wait until the process exits."""
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment(), cwd=PROJECT
    )


def run(arguments: Sequence[str]) -> str:
    """Run s3fs-meta with *arguments* to completion and return its output."""
    return call(*program(), *arguments)


class Subject:
    """A filesystem to measure; this base class has no daemon."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def mountpoint(self) -> Path:
        """Return the directory in which the filesystem is visible."""
        return self.root

    @property
    def pid(self) -> int | None:
        """Return the PID of the daemon; None for a filesystem without a daemon."""
        return None

    @property
    def alive(self) -> bool:
        """Return whether the daemon still runs; always true for a filesystem without a daemon."""
        return True

    def settle(self) -> None:
        """Wait until background work is complete."""
        self.rest()

    def rest(self) -> None:
        """Wait until the daemon is idle; do nothing for a filesystem without a daemon."""
        if self.pid is not None:
            machine.settle(self.pid)

    def cpu_s(self) -> float:
        """Return the CPU time of the daemon and its children since their start."""
        return machine.cpu_s(self.pid) if self.pid else 0.0

    def memory(self) -> dict[str, int]:
        """Return the memory of the daemon and its children, in bytes."""
        assert self.pid is not None, "no daemon serves the mount"
        return machine.memory_bytes(self.pid)

    def peak_pss_bytes(self) -> int:
        """Return the largest PSS of the daemon since the last call, or 0 if it is not sampled."""
        sampler = memory.sampler()
        return sampler.peak_bytes(self.pid) if sampler and self.pid else 0

    def start(self) -> None:
        """Mount the filesystem."""

    def stop(self) -> None:
        """Unmount the filesystem; a second call does nothing."""

    def abandon(self) -> None:
        """Unmount a filesystem that does not respond, and make its pending requests fail."""

    def __enter__(self) -> "Subject":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class PlainDirectory(Subject):
    """A directory on a kernel filesystem, for comparison."""


class DaemonSubject(Subject):
    """A FUSE filesystem whose daemon runs in the foreground."""

    memory_counts = False  # True if the memory target applies to the filesystem.

    def __init__(self, name: str, root: Path) -> None:
        super().__init__(name, root)
        self._process: subprocess.Popen[bytes] | None = None
        self._sampler: memory.Sampler | None = None
        self.mountpoint.mkdir(exist_ok=True)
        self.exit_status: int | None = None

    @property
    @override
    def mountpoint(self) -> Path:
        """Return the mountpoint of the filesystem."""
        return self.root / "mnt"

    @property
    def log(self) -> Path:
        """Return the path of the file with the daemon's output."""
        return self.root / "daemon.log"

    @property
    @override
    def pid(self) -> int | None:
        """Return the PID of the daemon; None if it was not started."""
        return self._process.pid if self._process else None

    @property
    @override
    def alive(self) -> bool:
        """Return whether the daemon runs."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        raise NotImplementedError

    @override
    def start(self) -> None:
        """Mount and wait until the kernel lists the mount."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment(), cwd=PROJECT
            )
        self._sampler = memory.sampler()
        if self._sampler:
            self._sampler.watch(self._process.pid)
        deadline = time.monotonic() + MOUNT_S_MAX
        while not os.path.ismount(self.mountpoint):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise SubjectError(
                    f"{self.name} exited, or did not mount within {MOUNT_S_MAX:g} s; the end of its log:\n"
                    + "\n".join(self.log_lines()[-20:])
                )
            time.sleep(POLL_S)

    @override
    def stop(self) -> None:
        """Unmount, and wait until the daemon exits; if it is late, send SIGTERM, then SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        connection = self._connection()
        _unmount(process, self.mountpoint)
        if not _ended(process, UNNOTICED_S_MAX) and connection and connection.exists():
            _abort(connection)
            process.terminate()  # S3QL does not notice an aborted connection.
        if not _ended(process, UNMOUNT_S_MAX):
            process.terminate()
            if not _ended(process, TERMINATE_S_MAX):
                process.kill()
                process.wait()
        self.exit_status = process.returncode
        if _is_mounted(self.mountpoint):
            command = ["fusermount3", "-u", "-z", str(self.mountpoint)]
            subprocess.run(command, capture_output=True, check=False)
        if self._sampler:
            self._sampler.end(process.pid, self.name, counts=self.memory_counts)

    def kill(self) -> None:
        """Kill the daemon and unmount."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.stop()

    @override
    def abandon(self) -> None:
        """Abort the FUSE connection so that pending requests fail; kill the daemon, and unmount."""
        _abort(self._connection())
        self.kill()

    def _connection(self) -> Path | None:
        """Return the directory of the FUSE connection in /sys; send no request to the daemon."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            device, mountpoint = line.split()[2], line.split()[4]
            if mountpoint == str(self.mountpoint):
                return Path("/sys/fs/fuse/connections", device.partition(":")[2])
        return None

    def log_lines(self) -> list[str]:
        """Return the lines of the daemon's output."""
        return self.log.read_text(errors="replace").splitlines()


class NullSubject(DaemonSubject):
    """The do-nothing filesystem, optionally with file contents in plain files."""

    def __init__(
        self, name: str, root: Path, *, plain_files: bool = False, scheduled: bool = False
    ) -> None:
        super().__init__(name, root)
        self._data = root / "data" if plain_files else None
        self._scheduled = scheduled  # True to use the request loop of pyfuse3.

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        command = [sys.executable, "-m", "contrib.bench.null_fs", str(self.mountpoint)]
        if self._data:
            self._data.mkdir(exist_ok=True)
            command += ["--data-dir", str(self._data)]
        if self._scheduled:
            command.append("--scheduled")
        return [*command, "--allow-other"] if os.geteuid() == 0 else command

    @override
    def start(self) -> None:
        """Mount; set the kernel's read-ahead to the value that s3fs-meta uses."""
        super().start()
        device = self.mountpoint.stat().st_dev
        tunable = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        if os.access(tunable, os.W_OK):
            tunable.write_text(str(KERNEL_READAHEAD_KIB))


class S3fsSubject(DaemonSubject):
    """s3fs-meta on a local directory as the bucket."""

    def __init__(
        self,
        name: str,
        root: Path,
        *,
        options: Mapping[str, str] | None = None,
        beside: "S3fsSubject | None" = None,
    ) -> None:
        """Prepare a mount on a new bucket, or on the bucket of the mount *beside*."""
        super().__init__(name, root)
        self.options = dict(options or {})
        self.memory_counts = not MEMORY_OPTIONS & self.options.keys()
        self.bucket: Path = beside.bucket if beside else root / "bucket"
        self.state = root / "state"
        self.state.mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        """Return the bucket's URL."""
        return f"local://{self.bucket}"

    def make(self, arguments: Sequence[str] = ("--plain",)) -> None:
        """Run ``s3fs-meta mkfs`` with *arguments*. The filesystem is unencrypted by default."""
        self.memory_counts = self.memory_counts and "--block-size" not in arguments
        self.bucket.mkdir(exist_ok=True)
        run(["mkfs", self.url, "--cachedir", str(self.state), *arguments])

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        options = {"cachedir": str(self.state), **self.options}
        if os.geteuid() == 0:
            options["allow_other"] = ""
        text = ",".join(f"{name}={value}" if value else name for name, value in options.items())
        return [
            *program(), "mount", "--foreground", self.url, str(self.mountpoint), "-o", text,
        ]  # fmt: skip

    @override
    def settle(self) -> None:
        """Wait until all data is in the bucket and the daemon is idle."""
        call(*self.words("flush"))
        super().settle()

    def words(self, command: str, *options: str, paths: Sequence[Path] = ()) -> list[str]:
        """Return the command line of an s3fs-meta command on the mountpoint or on *paths*."""
        places = map(str, paths or [self.mountpoint])
        return [*program(), command, *options, *places, "--cachedir", str(self.state)]

    def database(self) -> Path:
        """Return the path of the metadata database in the state directory."""
        found = sorted(self.state.rglob("*.db"))
        if len(found) != 1:
            raise SubjectError(
                f"expected exactly one metadata database below {self.state}, found {found}"
            )
        return found[0]


def _unmount(process: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """Unmount; retry for a few seconds, because an exited process may still have a file open."""
    deadline = time.monotonic() + BUSY_S_MAX
    while process.poll() is None and _is_mounted(mountpoint):
        late = time.monotonic() > deadline
        command = ["fusermount3", "-u", *(["-z"] if late else []), str(mountpoint)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0 or late:
            return
        time.sleep(BUSY_POLL_S)


def _abort(connection: Path | None) -> None:
    """Abort a FUSE connection that still exists, perhaps in another mount namespace."""
    if connection and connection.exists():
        (connection / "abort").write_text("1")


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_mounted(mountpoint: Path) -> bool:
    """Return whether *mountpoint* is a mount, even if its daemon was killed."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return any(line.split()[1] == str(mountpoint) for line in mounts)
