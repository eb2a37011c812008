"""Power loss of an entire machine: a user-mode Linux with its own kernel and page cache.

The test kills the process of the virtual machine during a change. All memory of the machine is then
lost; its virtual disk keeps the data that its kernel had written. The test mounts this disk on the
host and checks it as ``test_real_cuts`` does. The state directory is on this disk, and all other
files are files of the host (hostfs). The tests need Debian's package user-mode-linux.
"""

import contextlib
import functools
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import Place
from tests.conftest import REQUIRED
from tests.power.loop_disk import LoopDisk
from tests.power.numbered_changes import NumberedChanges, Progress
from tests.programs import ROOT, QuickProgram

pytestmark = [pytest.mark.mount, pytest.mark.slow]

_log = logging.getLogger(__name__)

LINUX: Final = "linux.uml"
BOOTING_S_MAX: Final = 200
CHANGES_MAX: Final = 300
OPTIONS: Final = (
    "image_interval=1",
    "image_interval=1,commit=0.5,journal_mode=delete,synchronous=extra",
)

INIT: Final = """#!/bin/sh
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t devtmpfs devtmpfs /dev
mkdir -p {home}
mount -t hostfs none {home} -o {home}
export PATH={path} PYTHONPATH={root} PYTHONDONTWRITEBYTECODE=1 HOME=/run
cd {root}
exec {python} -m tests.power.guest {url} {options} {seed}
"""


@functools.cache
def why_no_user_mode_linux() -> str:
    """Return why user-mode Linux cannot run a program on this host, or an empty string.

    On processors with AMX, user-mode Linux 6.1 saves too few registers and kills each program.
    """
    if shutil.which(LINUX) is None:
        return f"{LINUX} is not installed (Debian package user-mode-linux)"
    with tempfile.TemporaryDirectory() as home:
        init = Path(home) / "init"
        init.write_text("#!/bin/sh\necho started\n")
        init.chmod(0o755)
        with running(LINUX, Path(home)) as process:
            output, _ = process.communicate()
    if re.search(r"(?m)^started\s*$", output):
        return ""
    panic = re.search(r"userspace - .*|Kernel panic.*", output)
    return f"{LINUX} cannot run programs here: {panic[0].strip() if panic else output[-200:]}"


@pytest.fixture
def user_mode_linux() -> str:
    """Return the path of the program user-mode Linux, or skip the test."""
    why = why_no_user_mode_linux()
    if why:
        assert "uml" not in REQUIRED, why
        pytest.skip(why)
    return LINUX


@contextlib.contextmanager
def running(program: str, home: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a virtual machine with the script ``init`` in *home*; kill it when the context ends."""
    command = [program, "mem=512M", f"init={home / 'init'}", *words]
    command += ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"]
    # The init script mounts /dev itself, because a devtmpfs would hide a script in /dev/shm.
    command += ["devtmpfs.mount=0"]
    command += ["con=null", "con0=null,fd:1", f"uml_dir={home}", "umid=machine"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        too_long = threading.Timer(BOOTING_S_MAX, os.killpg, [process.pid, signal.SIGKILL])
        too_long.start()
        try:
            yield process
        finally:
            too_long.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def work_until_the_end(
    process: "subprocess.Popen[str]", changes: NumberedChanges, stop_at: int
) -> Progress:
    """Read the progress from the console of a virtual machine, and kill it during a change."""
    said = []
    counts = {"began": 0, "ended": 0}
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if reported := re.fullmatch(r"(began|ended) (\d+)\s*", line):
            counts[reported[1]] = int(reported[2]) + 1
            if counts["ended"] == stop_at and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert counts["ended"] >= stop_at, "".join(said[-50:])
    return changes.progress(counts["began"], counts["ended"])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(4))
def test_synced_data_survives_the_power_loss_of_a_virtual_machine(
    user_mode_linux: str, empty: Place, disk: LoopDisk, tmp_path: Path, seed: int
) -> None:
    changes, stop_at = NumberedChanges(seed), random.Random(seed).randrange(1, CHANGES_MAX)
    program = QuickProgram(disk.mountpoint / "state")
    program.ok("mkfs", "--plain", "--block-size", "64K", empty.url, here=False)
    values = {"home": tmp_path, "path": os.environ["PATH"], "root": ROOT, "seed": seed}
    values |= {"python": sys.executable, "url": empty.url, "options": OPTIONS[seed % len(OPTIONS)]}
    (tmp_path / "init").write_text(INIT.format(**values))
    (tmp_path / "init").chmod(0o755)

    with running(user_mode_linux, tmp_path, f"ubda={disk.image}") as process:
        progress = work_until_the_end(process, changes, stop_at)

    disk.mount()
    program.ok("mount", empty.url, empty.mountpoint)
    try:
        verdict = changes.judge(empty.mountpoint, progress)
        _log.info("power loss with seed %d: %s, %s", seed, progress, verdict)
        for name in verdict.lost:
            (empty.mountpoint / name).unlink()
    finally:
        program.ok("umount", empty.mountpoint)
    program.ok("fsck", "-n", "--deep", empty.url)
