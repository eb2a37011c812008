"""Tests of kills of the daemon at random times, which must lose no acknowledged data.

Several writers change files on a real mount until SIGKILL ends the daemon. The next ``mount`` must
recover without help. The files are then compared with the acknowledged writes (``ordered_load``).
All synced writes and all writes older than one commit group must exist. The later changes that
exist must be a prefix of all later changes in their order. Finally, fsck must find no damage. A
seed selects the changes and the times of the kills, but the interleaving of the writers depends on
the machine.
"""

import contextlib
import logging
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trio

from s3fs_meta.control import client
from s3fs_meta.errors import S3fsError
from s3fs_meta.mount.requests.control_api import FLUSH
from s3fs_meta.state_paths import locate
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.power.ordered_load import Load, tree_of
from tests.programs import QuickProgram
from tests.servers import S3Server

pytestmark = pytest.mark.mount

_log = logging.getLogger(__name__)

KILLS: Final = 20  # The test kills the daemon this many times for each seed.
WRITERS: Final = 4


class Setting(NamedTuple):
    """Mount options, block size and write size of one filesystem."""

    options: str
    block_size: str = "1M"
    bytes_max: int = 200_000  # The largest number of bytes in one change.


# With short intervals, changelogs and images are uploaded frequently.
SETTINGS: Final = (
    Setting("sync_interval=1,image_interval=1"),
    Setting("sync_interval=1,commit=0.2", "64K"),
    Setting("image_interval=1,cachesize=64M", "1M", 8_000_000),
    Setting("sync_interval=1,image_interval=2,journal_mode=truncate", "64K"),
    Setting("sync_interval=1,image_interval=2,cachesize=64M,commit=0.5", "64K", 4_000_000),
)


class Victim:
    """A filesystem whose daemon the test kills."""

    def __init__(self, place: Place, program: QuickProgram, setting: Setting, seed: int) -> None:
        self._place, self._program, self._setting = place, program, setting
        self._dice = random.Random(seed)
        self._load = Load(place.mountpoint, WRITERS, seed, setting.bytes_max)
        self._pid_fd = -1
        self.kills = 0
        program.ok("mkfs", "--plain", "--block-size", setting.block_size, place.url)
        self._mount()
        (place.mountpoint / "d").mkdir()
        program.ok("flush", place.mountpoint)

    def kill_often(self, kills: int) -> None:
        """Kill the daemon repeatedly.

        After each kill compare the files with acknowledged writes.
        """
        ways = (self._under_load, self._under_load, self._in_a_flush, self._at_the_end)
        while self.kills < kills:
            killed_ns = self._dice.choice(ways)()
            if self._dice.random() < 0.2:
                self._kill_next_mount()
            self._mount()
            verdict = self._load.judge(tree_of(self._place.mountpoint), killed_ns)
            _log.info("result after kill %d: %s", self.kills, verdict)
            self._check()
        self._program.ok("umount", self._place.mountpoint)
        self._program.ok("fsck", "-n", "--deep", self._place.url)

    def check_from_another_host(self) -> None:
        """Require that another host reads the same tree from the bucket."""
        self._mount()
        expected = tree_of(self._place.mountpoint)
        self._program.ok("umount", self._place.mountpoint)
        other = QuickProgram(self._program.cachedir.with_name("other-state"))
        other.environment = self._program.environment
        other.ok("mount", "-o", "ro", self._place.url, self._place.mountpoint)
        assert tree_of(self._place.mountpoint) == expected
        other.ok("umount", self._place.mountpoint)

    # --- kills at different times ----------------------------------------------------------------

    def _under_load(self) -> int:
        with self._load.running() as trouble:
            trouble.wait(self._delay_s())
            return self._kill()

    def _in_a_flush(self) -> int:
        with self._load.running() as trouble, self._flushing():
            trouble.wait(self._delay_s())
            return self._kill()

    def _at_the_end(self) -> int:
        """Kill the daemon during its upload after fusermount3 -u; return the unmount's time."""
        with self._load.running() as trouble:
            trouble.wait(self._delay_s())
        ended_ns = time.monotonic_ns()
        subprocess.run(["fusermount3", "-u", self._place.mountpoint], check=True)
        threading.Event().wait(self._delay_s() / 10)
        self._kill()
        return ended_ns

    def _kill_next_mount(self) -> None:
        """Kill the next mount while it recovers from the previous kill."""
        mounting = self._program.begin("mount", "--foreground", *self._mount_words())
        with contextlib.suppress(subprocess.TimeoutExpired):
            mounting.wait(self._dice.uniform(0.3, 1.2))
        assert mounting.returncode is None, mounting.communicate()[1]
        mounting.kill()
        mounting.communicate()
        self.kills += 1

    def _delay_s(self) -> float:
        """Return a random time between 0.01 and 4 s, uniform in its logarithm."""
        return float(0.01 * 400 ** self._dice.random())

    def _kill(self) -> int:
        killed_ns = time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):  # The killed daemon may already have exited.
            signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
            self.kills += 1
        return killed_ns

    @contextlib.contextmanager
    def _flushing(self) -> Iterator[None]:
        """Flush repeatedly until a flush fails."""
        state = locate(self._place.url, self._program.cachedir)

        def flush() -> None:
            with contextlib.suppress(S3fsError):
                while True:
                    trio.run(client.call, state, FLUSH)

        thread = threading.Thread(target=flush)
        thread.start()
        try:
            yield
        finally:
            thread.join(PROCESS_S_MAX)
            assert not thread.is_alive(), "the flush did not return"

    # --- mount and check after a kill ------------------------------------------------------------

    def _mount_words(self) -> list[str | Path]:
        place, cachedir = self._place, self._program.cachedir
        return ["-o", self._setting.options, place.url, place.mountpoint, "--cachedir", cachedir]

    def _mount(self) -> None:
        done = self._program.run("mount", *self._mount_words(), here=False)
        assert done.returncode == 0, done.stderr
        kept = list(locate(self._place.url, self._program.cachedir).glob("kept-*/meta.db"))
        assert not kept, done.stderr
        self._close_pid_fd()
        pid = self._program.status(self._place.mountpoint)["pid"]
        self._pid_fd = os.pidfd_open(pid)

    def _close_pid_fd(self) -> None:
        if self._pid_fd >= 0:
            os.close(self._pid_fd)
            self._pid_fd = -1

    def _check(self) -> None:
        """Require that fsck finds no damage, either during the mount or after the unmount."""
        # Without WAL mode, fsck cannot read the database during a mount.
        beside = "journal_mode" not in self._setting.options
        if beside and self._dice.random() < 0.6:
            self._program.ok("fsck", "-n", self._place.url)
            return
        self._program.ok("umount", self._place.mountpoint)
        self._program.ok("fsck", "-n", self._place.url)
        self._mount()

    def close(self) -> None:
        """Kill the daemon and release its pid descriptor."""
        if self._pid_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
        self._close_pid_fd()


@contextlib.contextmanager
def new_victim(place: Place, program: QuickProgram, seed: int) -> Iterator[Victim]:
    """Yield a filesystem whose daemon the test kills; end its daemon when the context exits."""
    victim = Victim(place, program, SETTINGS[seed % len(SETTINGS)], seed)
    with contextlib.closing(victim):
        yield victim


def test_daemon_loses_no_acknowledged_data_if_it_is_killed_a_few_times(
    empty: Place, program: QuickProgram
) -> None:
    with new_victim(empty, program, 0) as victim:
        victim.kill_often(3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_daemon_loses_no_acknowledged_data_if_it_is_killed_many_times(
    empty: Place, program: QuickProgram, seed: int
) -> None:
    with new_victim(empty, program, seed) as victim:
        victim.kill_often(KILLS)
        victim.check_from_another_host()


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(600)
def test_daemon_loses_no_acknowledged_data_if_it_is_killed_many_times_during_uploads_to_s3(
    empty: Place, program: QuickProgram, s3_server: S3Server
) -> None:
    """On a real server, requests of a killed daemon may take effect after the kill."""
    s3_server.make_bucket("killed")
    program.environment |= {
        **s3_server.environment(),
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
    }
    with new_victim(empty._replace(url="s3://killed/home"), program, 200) as victim:
        victim.kill_often(KILLS)
        victim.check_from_another_host()
