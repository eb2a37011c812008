"""Transactions per second of PostgreSQL on s3fs-meta, the do-nothing filesystem and the disk.

On each filesystem initdb makes a database directory, and ``pgbench -i`` makes its tables. This
preparation is not measured. Then each turn runs ``pgbench -c 4`` with its default transactions on
each filesystem; the order changes from turn to turn. The server of a filesystem runs as the user
``postgres``, and only while this filesystem is measured. All settings of PostgreSQL have their
defaults: each commit waits for an fdatasync of the write-ahead log. The server listens only on a
Unix socket in a separate directory. A ratio is the median of the ratios within a turn.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import awake, local_subjects, samples, targets
from contrib.bench.names import CEILING, DISK, OURS
from contrib.bench.subjects import COMMAND_S_MAX, Subject, SubjectError

USER: Final = "postgres"
PROGRAMS: Final = ("initdb", "postgres", "pg_isready", "pgbench")
# Debian installs each version of PostgreSQL in its own directory, which is not in PATH.
PLACES: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
CLIENTS: Final = 4
RATIO_MIN: Final = 0.5
READY_S_MAX: Final = 60.0
STOPPED_S_MAX: Final = 60.0
POLL_S: Final = 0.05
_TPS: Final = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_VERSION: Final = re.compile(r"[0-9]+")


class NotInstalledError(Exception):
    """PostgreSQL's server cannot be run on this machine."""


def run(scratch: Path, *, pg_scale: int, pg_seconds: int, rounds: int) -> dict[str, Any]:
    """Measure PostgreSQL on all three filesystems; skip it if it is not installed.

    Args:
        scratch: the directory to measure in.
        pg_scale: size of the tables, in units of 100,000 rows.
        pg_seconds: seconds of each measurement.
        rounds: number of turns.
    """
    try:
        programs, _ = find_programs(), pwd.getpwnam(USER)
    except (NotInstalledError, KeyError) as exc:
        print(f"skipped: postgres: {exc}", file=sys.stderr)
        return {"absent": ["PostgreSQL"]}
    subjects, _absent = local_subjects.available(scratch, (DISK, CEILING, OURS))
    with contextlib.ExitStack() as stack:
        stack.enter_context(awake.paused())
        for subject in subjects:
            stack.enter_context(subject)
        databases = {subject.name: Database(programs, subject) for subject in subjects}
        taken = measured(list(databases.values()), pg_scale, pg_seconds, rounds)
    return {
        "version": _output([programs / "postgres", "--version"]).strip(),
        "clients": CLIENTS,
        "scale": pg_scale,
        "seconds": pg_seconds,
        **_figures(taken),
    }


def find_programs(places: Sequence[str] = PLACES) -> Path:
    """Return the directory with the programs of the newest installed PostgreSQL.

    Raises:
        NotInstalledError: no directory contains all programs.
    """
    found = [Path(path) for place in places for path in Path("/").glob(place.lstrip("/"))]
    found += [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    complete = [path for path in found if all(os.access(path / name, os.X_OK) for name in PROGRAMS)]
    if not complete:
        raise NotInstalledError(
            f"no directory contains all programs of PostgreSQL: {', '.join(PROGRAMS)}"
        )
    return max(complete, key=_version)


def _version(programs: Path) -> list[int]:
    return [int(number) for number in _VERSION.findall(str(programs))]


class Database:
    """A database directory on one filesystem, and the server that runs on it."""

    def __init__(self, programs: Path, subject: Subject) -> None:
        self.name = subject.name
        self.subject = subject
        self._programs = programs
        self._data = subject.mountpoint / "postgres"
        self._log = subject.root / "postgres.log"

    def make(self, scale: int) -> None:
        """Make the database directory and the tables of pgbench."""
        self._data.mkdir()
        shutil.chown(self._data, USER, USER)
        self._data.chmod(0o700)
        options = ["--auth=trust", "--no-locale", "--encoding=UTF8"]
        self._call("initdb", *options, "--pgdata", str(self._data))
        with self.served() as socket:
            self._call("pgbench", "-h", socket, "-i", "-q", "-s", str(scale), "postgres")

    def transactions_per_s(self, seconds: int) -> float:
        """Run pgbench; return the transactions per second."""
        with self.served() as socket:
            words = ["-h", socket, "-c", str(CLIENTS), "-T", str(seconds), "postgres"]
            return parsed_tps(self._call("pgbench", *words))

    @contextlib.contextmanager
    def served(self) -> Iterator[str]:
        """Run the server until the context ends; yield the directory of its socket.

        The path of a socket has at most 107 bytes. The scratch directory may have a long path, so
        the socket is in another directory.
        """
        with contextlib.ExitStack() as stack:
            socket = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-postgres-"))
            shutil.chown(socket, USER, USER)
            log = stack.enter_context(self._log.open("ab"))
            server = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-k", socket, "-c",
                 "listen_addresses="],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=socket, **_as_user(),
            )  # fmt: skip
            stack.callback(_stop, server)
            self._wait_until_ready(server, socket)
            yield socket

    def _wait_until_ready(self, server: "subprocess.Popen[bytes]", socket: str) -> None:
        deadline = time.monotonic() + READY_S_MAX
        ask: list[str | Path] = [self._programs / "pg_isready", "-q", "-h", socket]
        while subprocess.run(ask, check=False, timeout=READY_S_MAX).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                last = self._log.read_text(errors="replace").splitlines()[-10:]
                raise SubjectError("\n".join([f"PostgreSQL did not start on {self.name}:", *last]))
            time.sleep(POLL_S)

    def _call(self, name: str, *words: str) -> str:
        return _output([self._programs / name, *words], **_as_user())


def _as_user() -> dict[str, Any]:
    """Return the Popen options that run a program as the user of the server."""
    account = pwd.getpwnam(USER)
    inherited = {"PATH": os.environ.get("PATH", os.defpath)}
    return {
        "user": account.pw_uid,
        "group": account.pw_gid,
        "extra_groups": [],
        "env": {**inherited, "LC_ALL": "C", "PGUSER": USER, "HOME": "/"},
    }


def _output(words: Sequence[str | Path], **options: Any) -> str:
    """Run a program to completion and return its output."""
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=COMMAND_S_MAX,
            **{"cwd": "/", **options},
        )  # fmt: skip
    except subprocess.CalledProcessError as exc:
        raise SubjectError(f"{Path(words[0]).name}: {exc.stderr.strip()}") from exc
    return done.stdout


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """Stop the server with SIGINT, after a timeout with SIGQUIT, and finally with SIGKILL."""
    for end in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(end)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOPPED_S_MAX)
            return


def parsed_tps(text: str) -> float:
    """Return the transaction rate that pgbench printed, excluding the time to connect.

    Raises:
        SubjectError: the output contains no rate.
    """
    # pgbench before version 14 prints two rates; the last rate excludes the time to connect.
    found = _TPS.findall(text)
    if not found:
        raise SubjectError(f"pgbench printed no transaction rate: {text!r}")
    return float(found[-1])


def measured(
    databases: Sequence[Database], scale: int, seconds: int, rounds: int
) -> dict[str, list[float]]:
    """Make the databases and measure them; return the transactions per second of each turn."""
    for database in databases:
        database.make(scale)
    taken: dict[str, list[float]] = {database.name: [] for database in databases}
    for number in range(rounds):
        for database in samples.rotated(databases, number):
            database.subject.settle()
            os.sync()  # Flush the other databases' data before the measured turn.
            taken[database.name].append(database.transactions_per_s(seconds))
    return taken


def _figures(taken: dict[str, list[float]]) -> dict[str, Any]:
    """Compute the rates, the ratios and the target."""
    turns = {
        name: [own / other for own, other in zip(values, taken[CEILING], strict=True)]
        for name, values in taken.items()
    }
    ratios = {name: statistics.median(values) for name, values in turns.items()}
    return {
        "pgbench": {
            name: {
                "transactions/s": samples.summary(values),
                f"speed against {CEILING}": ratios[name],
            }
            for name, values in taken.items()
        },
        "targets": [
            targets.at_least(f"pgbench: speed against {CEILING}", ratios[OURS], RATIO_MIN, "times")
        ],
    }
