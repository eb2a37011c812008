"""A simulated host with local state, a mountpoint, a clock, and commands."""

import contextlib
import json
import os
import select
import shutil
import signal
import struct
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from contrib.soak.buckets import Bucket
from contrib.soak.commands import COMMAND_S_MAX, ROOT, Commands, Done, FindingError, Journal

_OFFSET: Final = struct.Struct("<q")
_KEPT: Final = ("PATH", "HOME", "LANG", "TZ", "VIRTUAL_ENV")
CLOCK_LIBRARY: Final = "wrong_clock.so"


class Host:
    """A simulated machine that mounts the filesystem."""

    def __init__(self, name: str, folder: Path, bucket: Bucket, journal: Journal) -> None:
        self.name = name
        self.folder = folder / name
        self.cachedir = self.folder / "state"
        self.mnt = self.folder / "mnt"
        self.mnt.mkdir(parents=True)
        self.pid = 0  # PID of the daemon; 0 without a mount.
        self.bucket = bucket
        self._journal = journal
        self._commands = Commands(journal)
        self._clock = self.folder / "clock"
        self._clock.write_bytes(bytes(_OFFSET.size))
        self.clock_off = False
        self.environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self.environment |= {
            **bucket.environment,
            "PYTHONPATH": str(ROOT),
            "SOAK_CLOCK": str(self._clock),
            "LD_PRELOAD": str(folder / CLOCK_LIBRARY),
        }

    # --- commands of a host ----------------------------------------------------------------------

    def run(self, *words: str | Path, expected: Collection[int] | None = (0,)) -> Done:
        """Run one command on this host."""
        command = [sys.executable, "-m", "contrib.soak.program", *map(str, words)]
        command += ["--cachedir", str(self.cachedir)]
        shown = " ".join(map(str, words)).replace(str(self.folder.parent), "…")
        return self._commands.run(
            command, f"{self.name}: {shown}", self.environment, self.folder, expected
        )

    def on_bucket(
        self, command: str, *words: str | Path, expected: Collection[int] | None = (0,)
    ) -> Done:
        """Run one command with the filesystem's URL as its first argument."""
        words = (command, *self.bucket.options, self.bucket.url, *words)
        return self.run(*words, expected=expected)

    def mount(self, options: str, *words: str, expected: Collection[int] | None = (0,)) -> Done:
        """Mount the filesystem on this host."""
        done = self.run(
            "mount", *self.bucket.options, "-o", options, *words, self.bucket.url, self.mnt,
            expected=expected,
        )  # fmt: skip
        if done.status == 0:
            self.pid = int(self.status()["pid"])
        return done

    def status(self) -> dict[str, Any]:
        """Return the output of ``status --json`` for the mount."""
        found = json.loads(self.run("status", "--json", self.mnt).out)
        assert isinstance(found, dict)
        return found

    def umount(self, *words: str, expected: Collection[int] | None = (0,)) -> Done:
        """Unmount the filesystem; if it is unmounted, wait until the daemon exits."""
        done = self.run("umount", *words, self.mnt, expected=expected)
        if not self.is_mounted():
            self.wait_until_gone()
        return done

    # --- start and end of the daemon -------------------------------------------------------------

    def is_mounted(self) -> bool:
        """Return whether the mount table lists the mount, even if its daemon has exited."""
        return any(
            line.split()[4] == str(self.mnt)
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
        )

    def kill(self) -> None:
        """Kill the daemon with SIGKILL to simulate a crash."""
        self._journal.note(f"{self.name}: SIGKILL to {self.pid}")
        os.kill(self.pid, signal.SIGKILL)
        self.wait_until_gone()

    def stop(self) -> None:
        """Stop the daemon with SIGSTOP."""
        self._journal.note(f"{self.name}: SIGSTOP to {self.pid}")
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the stopped daemon continue."""
        self._journal.note(f"{self.name}: SIGCONT to {self.pid}")
        os.kill(self.pid, signal.SIGCONT)

    def wait_until_gone(self) -> None:
        """Wait until the daemon has exited.

        Raises:
            FindingError: the daemon does not exit.
        """
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(self.pid)
            try:
                if not select.select([fd], [], [], COMMAND_S_MAX)[0]:
                    raise FindingError(f"the daemon {self.pid} of {self.name} did not exit in time")
            finally:
                os.close(fd)
        self.pid = 0

    def end(self) -> Done:
        """Unmount, with --force if needed. Unshipped changes stay on this host.

        Raises: FindingError: the filesystem is still mounted afterwards.
        """
        done = self.umount(expected=None)
        if self.is_mounted():
            done = self.umount("--force", expected=None)
        if self.is_mounted():
            raise FindingError(f"the mount of {self.name} cannot be unmounted: {done}")
        return done

    def forget(self) -> None:
        """Delete the local state, so that the host resembles a new machine."""
        self._journal.note(f"{self.name}: its state directory is removed")
        shutil.rmtree(self.cachedir, ignore_errors=True)

    def kept(self) -> list[str]:
        """Return the names of quarantined states, except those that contain only block files."""
        return sorted(path.parent.name for path in self.cachedir.glob("*/kept-*/meta.db"))

    def log(self) -> str:
        """Return the log of the daemon."""
        return "".join(
            path.read_text(errors="replace") for path in self.cachedir.glob("*/mount.log")
        )

    # --- waiting and time ------------------------------------------------------------------------

    def set_clock(self, offset_s: float) -> None:
        """Set the clock of this host, also for processes that are already running."""
        self._journal.note(f"{self.name}: the clock is {offset_s:+.0f} s off")
        with self._clock.open("r+b") as file:
            file.write(_OFFSET.pack(int(offset_s * 1e9)))
        self.clock_off = offset_s != 0

    def wait_for(self, txg: int) -> dict[str, Any]:
        """Wait until a follower shows a txg.

        Raises:
            FindingError: the follower does not reach the txg in time.
        """
        deadline_s = time.monotonic() + COMMAND_S_MAX
        while True:
            status = self.status()
            if status["chain"]["txg"] >= txg:
                return status
            if time.monotonic() > deadline_s:
                raise FindingError(
                    f"follower {self.name} did not reach txg {txg} in time: {status}"
                )
            time.sleep(0.3)
