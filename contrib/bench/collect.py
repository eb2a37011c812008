"""The cost of collecting from the kernel the data that programs wrote to open files.

Run with ``python -m contrib.bench.collect``. A mount with ``commit=1`` and a long ``sync_interval``
collects once a second; for each load it is watched for ten seconds: requests of the kernel, and
processor time of the daemon and of the process that collects. *Written beside* is how many times a
program could append 100 bytes meanwhile, and the longest of these calls: no program may be blocked.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

WATCHED_S: Final = 10.0
PROGRAM: Final = (sys.executable, "-m", "s3fs_meta")
TICKS: Final = os.sysconf("SC_CLK_TCK")


def command(*words: str) -> str:
    """Run one command of the program."""
    return subprocess.run([*PROGRAM, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def cpu_s(pid: int | None) -> float:
    """Return the processor time of a process."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Appender(threading.Thread):
    """Appends 100 bytes to files in turn."""

    def __init__(self, files: list[int], pause_s: float) -> None:
        super().__init__()
        self._files, self._pause_s = files, pause_s
        self.ending = threading.Event()
        self.calls, self.longest_s = 0, 0.0

    def run(self) -> None:
        """Append until stopped."""
        while not self.ending.wait(self._pause_s):
            began_s = time.perf_counter()
            os.write(self._files[self.calls % len(self._files)], bytes(100))
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
            self.calls += 1


@contextlib.contextmanager
def appending(files: list[int], pause_s: float | None) -> Iterator[Appender | None]:
    """Append while the context lasts, if there is a pause between two calls."""
    if pause_s is None:
        yield None
        return
    appender = Appender(files, pause_s)
    appender.start()
    try:
        yield appender
    finally:
        appender.ending.set()
        appender.join()


def watched(name: str, mnt: Path, state: Path, count: int, pause_s: float | None) -> str:
    """Return a line of the table."""

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            command("status", "--json", str(mnt), "--cachedir", str(state))
        )
        return found

    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [os.open(mnt / f"{name}-{number}", flags) for number in range(count)]
    try:
        with appending(files, pause_s) as appender:
            time.sleep(2)  # the collecting process has started, and the barrier's name is cached
            before = status()
            pids = before["pid"], before["kernel"]["collector_pid"]
            cpu = [cpu_s(pid) for pid in pids]
            time.sleep(WATCHED_S)
            spent = [cpu_s(pid) - was for pid, was in zip(pids, cpu, strict=True)]
            after = status()
    finally:
        for one in files:
            os.close(one)
    grown = {
        kind: count - before["requests"][kind]
        for kind, count in after["requests"].items()
        if count > before["requests"][kind]
    }
    requests = ", ".join(f"{kind} {count / WATCHED_S:.1f}" for kind, count in grown.items())
    beside = f"{appender.calls:,}, {appender.longest_s * 1e3:.1f} ms" if appender else ""
    cpu_text = " + ".join(f"{one / WATCHED_S * 1e3:.1f}" for one in spent)
    return f"| {name} | {requests or 'none'} | {cpu_text} ms | {beside} |"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        mnt, state, url = root / "mnt", root / "state", f"local://{root}/bucket"
        mnt.mkdir()
        command("mkfs", "--plain", "--cachedir", str(state), url)
        wish = "commit=1,sync_interval=1h"
        command("mount", "-o", wish, "--cachedir", str(state), url, str(mnt))
        try:
            print("| open for writing | requests a second | processor a second | written beside |")
            print("| --- | --- | --- | --- |")
            loads: tuple[tuple[str, int, float | None], ...] = (
                ("none", 0, None),
                ("1 idle", 1, None),
                ("1,000 idle", 1000, None),
                ("1, appended every 10 ms", 1, 0.01),
                ("1,000, appended in turn every 10 ms", 1000, 0.01),
                ("1, appended without a pause", 1, 0.0),
            )
            for name, count, pause_s in loads:
                print(watched(name, mnt, state, count, pause_s), flush=True)
        finally:
            command("umount", "--cachedir", str(state), str(mnt))


if __name__ == "__main__":
    main()
