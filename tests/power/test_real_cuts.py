"""Power cuts of a real disk under a real mount.

The state directory is on its own ext4 on a loop device. While changes run, ext4 is shut down
without writing its caches, and the daemon is killed. Then ext4 is mounted again and replays its
journal, and the filesystem is mounted as on the next boot. ``numbered_changes`` checks the tree.
The filesystem must be writable, unmount cleanly and pass fsck. Recorded cuts reach more states.
These tests show that the recorder's disk behaves like a real disk.
"""

import contextlib
import logging
import os
import random
import select
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX, wait_until
from tests.power.loop_disk import LoopDisk
from tests.power.next_boot import VARIABLE
from tests.power.numbered_changes import NumberedChanges, Progress, Verdict
from tests.programs import QuickProgram

pytestmark = pytest.mark.mount

_log = logging.getLogger(__name__)

MODES: Final = (
    "journal_mode=wal,synchronous=normal",
    "journal_mode=wal,synchronous=full",
    "journal_mode=delete,synchronous=full",
    "journal_mode=delete,synchronous=extra",
    "journal_mode=truncate,synchronous=full",
    "journal_mode=truncate,synchronous=extra",
    "journal_mode=persist,synchronous=full",
    "journal_mode=persist,synchronous=extra",
)


class Machine:
    """A mount whose state directory is on a disk whose power a test can cut."""

    def __init__(self, place: Place, disk: LoopDisk, options: str) -> None:
        self._place, self._disk, self._options = place, disk, options
        self._program = QuickProgram(disk.mountpoint / "state")
        self._boots = 0
        self._pid_fd = -1
        disk.mount()
        self._program.ok("mkfs", "--plain", "--block-size", "64K", place.url)
        disk.unmount()

    def boot(self) -> None:
        """Mount the disk and the filesystem with a new boot id."""
        self._boots += 1
        boot_id = self._place.mountpoint.with_name("boot_id")
        boot_id.write_text(f"boot {self._boots}\n")
        self._program.environment[VARIABLE] = str(boot_id)
        self._disk.mount()
        url, mountpoint = self._place.url, self._place.mountpoint
        module = "tests.power.next_boot"
        done = self._program.run("mount", "-o", self._options, url, mountpoint, module=module)
        # Block files of lost operations may be in quarantine, but the database must not be.
        quarantined = list(self._disk.mountpoint.glob("state/*/kept-*/meta.db"))
        assert (done.returncode, quarantined) == (0, []), done.stderr + self._log_text()
        self._pid_fd = os.pidfd_open(self._program.status(self._place.mountpoint)["pid"])

    def work_until_the_cut(self, changes: NumberedChanges, seed: int) -> Progress:
        """Make changes until the power cut, and return the progress."""
        root, dice = self._place.mountpoint, random.Random(seed)
        for path in [*root.glob("w0-*"), *root.glob("d/w0-*")]:
            path.rmdir() if path.is_dir() else path.unlink()
        (root / "d").mkdir(exist_ok=True)
        sync_directory(root)
        begun, ended = [0], [0]
        failed: list[OSError] = []

        def work() -> None:
            try:
                changes.perform(
                    root,
                    lambda number: begun.append(number + 1),
                    lambda number: ended.append(number + 1),
                )
            except OSError as exc:
                failed.append(exc)

        writer = threading.Thread(target=work)
        writer.start()
        writer.join(0.05 * 60 ** dice.random())
        assert (failed, mount_table.find(str(root)) is not None) == ([], True), self._log_text()
        self._disk.cut(journal_written=dice.random() < 0.3)
        self._kill()
        writer.join(PROCESS_S_MAX)
        assert not writer.is_alive()
        self._unmount_all()
        return changes.progress(begun[-1], ended[-1])

    def judge(self, changes: NumberedChanges, progress: Progress) -> Verdict:
        """Compare the tree with the allowed states; require a clean unmount and a clean fsck."""
        root = self._place.mountpoint
        verdict = changes.judge(root, progress)
        for name in verdict.lost:
            (root / name).unlink()
        self._program.ok("umount", root)
        self._program.ok("fsck", "-n", "--deep", self._place.url)
        self._disk.unmount()
        os.close(self._pid_fd)
        self._pid_fd = -1
        return verdict

    def _log_text(self) -> str:
        return "".join(path.read_text() for path in self._disk.mountpoint.rglob("mount.log"))

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
        assert select.select([self._pid_fd], [], [], PROCESS_S_MAX)[0], "the daemon did not exit"
        os.close(self._pid_fd)
        self._pid_fd = -1

    def _unmount_all(self) -> None:
        subprocess.run(["fusermount3", "-u", "-z", self._place.mountpoint], check=True)
        self._disk.unmount()

    def close(self) -> None:
        """Kill the daemon if it is running, and unmount all filesystems."""
        if self._pid_fd >= 0:
            self._kill()
            self._unmount_all()


def sync_directory(path: Path) -> None:
    """Sync a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def cut_often(place: Place, disk: LoopDisk, options: str, seeds: range) -> None:
    """Cut the power once for each seed, and check the tree after each cut."""
    with contextlib.closing(Machine(place, disk, options)) as machine:
        for seed in seeds:
            changes = NumberedChanges(seed)
            machine.boot()
            progress = machine.work_until_the_cut(changes, seed)
            machine.boot()
            verdict = machine.judge(changes, progress)
            _log.info(
                "power cut with seed %d: %s, %d changes found, %d files damaged",
                seed,
                progress,
                verdict.number,
                len(verdict.lost),
            )


@pytest.mark.parametrize("options", [MODES[0]])
def test_synced_data_survives_an_ext4_shutdown_on_a_loop_device(
    empty: Place, disk: LoopDisk, options: str
) -> None:
    cut_often(empty, disk, f"{options},image_interval=1,commit=0.5", range(1))


@pytest.mark.parametrize("is_noticed", [False, True])
def test_umount_ends_a_mount_whose_disk_refuses_all_requests(
    empty: Place, disk: LoopDisk, is_noticed: bool
) -> None:
    """The command can neither open the lock nor wait for it. It reports the failed upload."""
    program = QuickProgram(disk.mountpoint / "state")
    disk.mount()
    program.ok("mkfs", "--plain", empty.url)
    program.ok("mount", empty.url, empty.mountpoint)
    pid_fd = os.pidfd_open(program.status(empty.mountpoint)["pid"])
    try:
        disk.cut(journal_written=True)
        with contextlib.suppress(OSError):
            (empty.mountpoint / "file").write_bytes(b"lost")
        if is_noticed:
            wait_until(lambda: _is_degraded(program, empty.mountpoint), "the mount stays writable")
        done = program.run("umount", empty.mountpoint)

        assert (done.returncode, empty.mountpoint.is_mount()) == (ExitStatus.STORE, False), done
        assert select.select([pid_fd], [], [], PROCESS_S_MAX)[0], "the daemon did not exit"
    finally:
        subprocess.run(["umount", "-l", empty.mountpoint], check=False, stderr=subprocess.DEVNULL)
        os.close(pid_fd)


def _is_degraded(program: QuickProgram, mountpoint: Path) -> bool:
    return bool(program.status(mountpoint)["state"] == "degraded")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", MODES)
def test_synced_data_survives_many_power_cuts_of_a_real_disk(
    empty: Place, disk: LoopDisk, options: str
) -> None:
    """Synced data survives several power cuts with each journal mode that allows this promise."""
    cut_often(empty, disk, f"{options},image_interval=1", range(100, 107))
