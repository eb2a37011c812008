"""Filesystems under test: made, mounted in the foreground, and always unmounted.

Owns: the processes it starts and their mount points. Ends only those, by their number.
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

from contrib.bench import machine
from s3fs_meta.limits import KERNEL_READAHEAD_KIB

MOUNT_S_MAX: Final = 120.0
UNMOUNT_S_MAX: Final = 900.0  # the daemon uploads the rest
TERMINATE_S_MAX: Final = 60.0
COMMAND_S_MAX: Final = 3600.0
UNNOTICED_S_MAX: Final = 10.0  # until the kernel has reported the unmount to the daemon
BUSY_S_MAX: Final = 10.0
POLL_S: Final = 0.02
BUSY_POLL_S: Final = 0.2
PROJECT: Final = Path(__file__).resolve().parents[2]


class SubjectError(Exception):
    """A filesystem could not be made, mounted or unmounted."""


def program() -> list[str]:
    """Return the command of s3fs-meta: $S3FS_META, or the script beside this interpreter, or PATH."""
    if "S3FS_META" in os.environ:
        return os.environ["S3FS_META"].split()
    beside = Path(sys.executable).parent / "s3fs-meta"
    if beside.exists():
        return [str(beside)]
    found = shutil.which("s3fs-meta")
    return [found] if found else [sys.executable, "-m", "s3fs_meta"]


def environment() -> dict[str, str]:
    """Return an environment in which the project's own tree is found first.

    Its modules are compiled once, as those of an installed program are.
    """
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def call(*command: str | Path) -> str:
    """Run a program to its end and return what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd=PROJECT, check=False,
        timeout=COMMAND_S_MAX,
    )  # fmt: skip
    if done.returncode:
        words = " ".join(map(str, command))
        raise SubjectError(f"{words}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def call_s(*command: str | Path) -> float:
    """Run a program to its end and return the seconds."""
    began_s = time.perf_counter()
    call(*command)
    return time.perf_counter() - began_s


def begin(*command: str | Path, stdin: int | None = None) -> "subprocess.Popen[str]":
    """Start a program; the caller waits for its end."""
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment(), cwd=PROJECT
    )


def run(arguments: Sequence[str]) -> str:
    """Run s3fs-meta with *arguments* to its end and return what it printed."""
    return call(*program(), *arguments)


class Subject:
    """A directory to measure in, and the daemon behind it if there is one."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def mountpoint(self) -> Path:
        """Return where the filesystem appears."""
        return self.root

    @property
    def pid(self) -> int | None:
        """Return the daemon, if there is one."""
        return None

    @property
    def alive(self) -> bool:
        """Return whether the filesystem still answers for itself."""
        return True

    def settle(self) -> None:
        """Wait until no background work is left."""
        self.rest()

    def rest(self) -> None:
        """Wait until the daemon is idle, if there is one."""
        if self.pid is not None:
            machine.settle(self.pid)

    def cpu_s(self) -> float:
        """Return the processor time of the daemon and its children so far."""
        return machine.cpu_s(self.pid) if self.pid else 0.0

    def memory(self) -> dict[str, int]:
        """Return the memory of the daemon and its children, in bytes."""
        assert self.pid is not None, "it is mounted, by a daemon"
        return machine.memory_bytes(self.pid)

    def start(self) -> None:
        """Mount."""

    def stop(self) -> None:
        """Unmount; doing it twice is no error."""

    def abandon(self) -> None:
        """End a filesystem that does not answer; its requests fail."""

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
    """A directory of the kernel's own filesystem, for comparison."""


class DaemonSubject(Subject):
    """A filesystem served by a process in the foreground."""

    def __init__(self, name: str, root: Path) -> None:
        super().__init__(name, root)
        self._process: subprocess.Popen[bytes] | None = None
        self.mountpoint.mkdir(exist_ok=True)
        self.exit_status: int | None = None

    @property
    @override
    def mountpoint(self) -> Path:
        """Return where the filesystem appears."""
        return self.root / "mnt"

    @property
    def log(self) -> Path:
        """Return where the daemon's output goes."""
        return self.root / "daemon.log"

    @property
    @override
    def pid(self) -> int | None:
        """Return the daemon."""
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
        deadline = time.monotonic() + MOUNT_S_MAX
        while not os.path.ismount(self.mountpoint):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise SubjectError(
                    f"{self.name} did not mount:\n" + "\n".join(self.log_lines()[-20:])
                )
            time.sleep(POLL_S)

    @override
    def stop(self) -> None:
        """Unmount and wait for the daemon's end, with escalating signals."""
        process, self._process = self._process, None
        if process is None:
            return
        connection = self._connection()
        _unmount(process, self.mountpoint)
        if not _ended(process, UNNOTICED_S_MAX) and connection and connection.exists():
            _abort(connection)
            process.terminate()  # S3QL does not notice
        if not _ended(process, UNMOUNT_S_MAX):
            process.terminate()
            if not _ended(process, TERMINATE_S_MAX):
                process.kill()
                process.wait()
        self.exit_status = process.returncode
        if _is_mounted(self.mountpoint):
            command = ["fusermount3", "-u", "-z", str(self.mountpoint)]
            subprocess.run(command, capture_output=True, check=False)

    def kill(self) -> None:
        """Kill the daemon."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.stop()

    @override
    def abandon(self) -> None:
        """Fail the requests that the kernel waits for, then kill the daemon and unmount."""
        _abort(self._connection())
        self.kill()

    def _connection(self) -> Path | None:
        """Return the kernel's directory of the connection, without asking the daemon."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            device, mountpoint = line.split()[2], line.split()[4]
            if mountpoint == str(self.mountpoint):
                return Path("/sys/fs/fuse/connections", device.partition(":")[2])
        return None

    def log_lines(self) -> list[str]:
        """Return what the daemon said."""
        return self.log.read_text(errors="replace").splitlines()


class NullSubject(DaemonSubject):
    """The baseline: a filesystem that does nothing, optionally over plain files."""

    def __init__(
        self, name: str, root: Path, *, plain_files: bool = False, scheduled: bool = False
    ) -> None:
        super().__init__(name, root)
        self._data = root / "data" if plain_files else None
        self._scheduled = scheduled  # pyfuse3's own request loop

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
        """Mount, and set the kernel's read-ahead to that of the subject's mount."""
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
        """Prepare a mount; *beside* another one it has the same bucket."""
        super().__init__(name, root)
        self.options = dict(options or {})
        self.bucket: Path = beside.bucket if beside else root / "bucket"
        self.state = root / "state"
        self.state.mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        """Return the bucket's URL."""
        return f"local://{self.bucket}"

    def make(self, arguments: Sequence[str] = ("--plain",)) -> None:
        """Make the filesystem, unencrypted unless *arguments* say else."""
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
        """Wait until everything is in the bucket and no work is left."""
        call(*self.words("flush"))
        super().settle()

    def words(self, command: str, *options: str, paths: Sequence[Path] = ()) -> list[str]:
        """Return a command of s3fs-meta about the mount, or about *paths* in it."""
        places = map(str, paths or [self.mountpoint])
        return [*program(), command, *options, *places, "--cachedir", str(self.state)]

    def database(self) -> Path:
        """Return the metadata database in the state directory."""
        found = sorted(self.state.rglob("*.db"))
        if len(found) != 1:
            raise SubjectError(f"expected one database below {self.state}, found {found}")
        return found[0]


def _unmount(process: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """Unmount; a process that has just ended may still hold a file open, so try for some seconds."""
    deadline = time.monotonic() + BUSY_S_MAX
    while process.poll() is None and _is_mounted(mountpoint):
        late = time.monotonic() > deadline
        command = ["fusermount3", "-u", *(["-z"] if late else []), str(mountpoint)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0 or late:
            return
        time.sleep(BUSY_POLL_S)


def _abort(connection: Path | None) -> None:
    """End a connection that is still there: another mount namespace may have kept the mount."""
    if connection and connection.exists():
        (connection / "abort").write_text("1")


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_mounted(mountpoint: Path) -> bool:
    """Return whether it is mounted; a mount whose daemon died answers errors, and still is one."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return any(line.split()[1] == str(mountpoint) for line in mounts)
