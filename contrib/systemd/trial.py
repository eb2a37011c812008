"""The steps of the trial, which run inside the container that ``container`` boots.

Each step uses the systemd units as an administrator does, and checks the mount from outside the
unit.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOUNTPOINT: Final = Path("/srv/home")
RESULTS: Final = Path("/results")
CONFIG: Final = Path("/etc/s3fs-meta")
UNIT: Final = "s3fs-meta@home.service"
WAIT_S_MAX: Final = 40.0
USER: Final = "trial"


def command(*words: str | Path, check: bool = True) -> str:
    """Run a command; return its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{words}: {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def systemctl(*words: str, user: bool = False) -> str:
    """Run systemctl for the system, or for the test user."""
    return command("systemctl", *(["--user", f"--machine={USER}@"] if user else []), *words)


def shown(name: str, unit: str = UNIT, *, user: bool = False) -> str:
    """Return a property of a systemd unit."""
    return systemctl("show", "--value", "--property", name, unit, user=user)


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline_s, f"timeout after {WAIT_S_MAX:.0f} s: {what}"
        time.sleep(0.1)


def is_mounted(mountpoint: Path) -> bool:
    """Return whether the mount is visible to the first process of the container."""
    lines = Path("/proc/1/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(mountpoint) and "fuse.s3fs-meta" in line for line in lines)


def write_synced(path: Path) -> None:
    """Write a file with fsync, so that the file survives if the daemon is killed."""
    with path.open("w") as file:
        file.write("synced\n")
        file.flush()
        os.fsync(file.fileno())


def prepare() -> None:
    """Make the filesystems that the units mount at boot, and a device that users may open."""
    command("mknod", "--mode=666", "/dev/fuse", "c", "10", "229")
    for path in ("/results/bucket", "/srv/bucket-fstab", "/srv/bucket-away"):
        command("s3fs-meta", "mkfs", "--plain", f"local://{path}")


def consume() -> None:
    """Write into the mount, like a service that starts after the unit."""
    (MOUNTPOINT / "consumer").write_text("written at boot\n")


def main_pid(unit: str = UNIT, *, user: bool = False) -> int:
    """Return the PID of a unit's main process; 0 if no process runs."""
    return int(shown("MainPID", unit, user=user))


def returns_after(number: signal.Signals, mountpoint: Path, unit: str, *, user: bool) -> None:
    """Send a signal to the daemon, and require that systemd mounts the filesystem again."""
    before = main_pid(unit, user=user)
    write_synced(mountpoint / "kept")
    os.kill(before, number)
    wait_for("a new daemon", lambda: main_pid(unit, user=user) not in {0, before})
    wait_for("ready", lambda: shown("ActiveState", unit, user=user) == "active")
    assert is_mounted(mountpoint)
    assert (mountpoint / "kept").read_text() == "synced\n"


def step_boot() -> None:
    """The unit mounts at boot, and another unit that is ordered after it writes into the mount."""
    wait_for("filesystems", lambda: shown("ActiveState", "prepare.service") == "active")
    wait_for("consumer", lambda: shown("ActiveState", "consumer.service") == "active")
    assert is_mounted(MOUNTPOINT)
    assert (MOUNTPOINT / "consumer").read_text() == "written at boot\n"
    systemctl("enable", UNIT)
    assert shown("UnitFileState") == "enabled"


def step_status() -> None:
    """The status text says that the mount is serving and that everything is in the bucket."""
    (MOUNTPOINT / "file").write_bytes(os.urandom(1 << 20))
    command("s3fs-meta", "flush", MOUNTPOINT)
    text = "serving; everything is in the bucket"
    wait_for("status", lambda: shown("StatusText") == text)


def step_kill() -> None:
    """After SIGKILL, systemd mounts again on the same path and restarts units with Requires=."""
    before = shown("InvocationID", "consumer.service")
    returns_after(signal.SIGKILL, MOUNTPOINT, UNIT, user=False)
    wait_for("consumer", lambda: shown("InvocationID", "consumer.service") not in {"", before})
    wait_for("consumer", lambda: shown("ActiveState", "consumer.service") == "active")


def step_watchdog() -> None:
    """The watchdog kills a stopped daemon, which prints its stack. Then systemd mounts again."""
    returns_after(signal.SIGSTOP, MOUNTPOINT, UNIT, user=False)
    journal = command("journalctl", "--unit", UNIT, "--output", "cat")
    assert "Watchdog timeout" in journal, journal
    assert "Current thread" in journal, "the stack is printed"


def step_stop() -> None:
    """A stop of the unit waits for an upload that takes longer than TimeoutStopSec, here 5 s."""
    conf = CONFIG / "home.conf"
    conf.write_text(conf.read_text().replace("allow_other", "allow_other,compress=zstd-19"))
    systemctl("restart", UNIT)
    words = b" ".join(b"%d" % (number * 7919 % 1_000_003) for number in range(1_000_000))
    (MOUNTPOINT / "large").write_bytes(words)
    began_s = time.monotonic()
    systemctl("stop", UNIT)
    took_s = time.monotonic() - began_s
    assert shown("Result") == "success", shown("Result")
    assert not is_mounted(MOUNTPOINT)
    found = json.loads(command("s3fs-meta", "status", "--json", "local:///results/bucket"))
    assert found["state"] == "free", found
    assert took_s > 5, f"the upload took only {took_s:.1f} s, so it needed no additional time"
    systemctl("start", UNIT)
    assert (MOUNTPOINT / "large").read_bytes() == words


def step_busy() -> None:
    """A stop of the unit while a file is open succeeds, and the written data is kept."""
    with (MOUNTPOINT / "open").open("w") as file:
        file.write("before the stop")
        file.flush()
        systemctl("stop", UNIT)
    assert shown("Result") == "success"
    systemctl("start", UNIT)
    assert (MOUNTPOINT / "open").read_text() == "before the stop"


def step_away() -> None:
    """Require that systemd restarts the unit until its bucket exists again."""
    unit, mountpoint = "s3fs-meta@away.service", Path("/srv/away")
    bucket, hidden = Path("/srv/bucket-away"), Path("/srv/hidden")
    (CONFIG / "away.conf").write_text(f"URL=local://{bucket}\nMOUNTPOINT={mountpoint}\n")
    bucket.rename(hidden)
    command("systemctl", "start", unit, check=False)
    wait_for("retries", lambda: int(shown("NRestarts", unit)) >= 2)
    assert not is_mounted(mountpoint)
    hidden.rename(bucket)
    wait_for("mounted", lambda: is_mounted(mountpoint))
    write_synced(mountpoint / "kept")
    bucket.rename(hidden)
    os.kill(main_pid(unit), signal.SIGKILL)
    restarts = int(shown("NRestarts", unit))
    wait_for("retries", lambda: int(shown("NRestarts", unit)) >= restarts + 2)
    assert is_mounted(mountpoint), "the dead mount stays in place, so nothing is written below it"
    hidden.rename(bucket)
    wait_for("active", lambda: shown("ActiveState", unit) == "active")
    assert (mountpoint / "kept").read_text() == "synced\n"
    systemctl("stop", unit)


def step_wrong() -> None:
    """With a wrong mount option the unit fails once, and systemd does not retry it."""
    unit = "s3fs-meta@wrong.service"
    (CONFIG / "wrong.conf").write_text("URL=local:///none\nMOUNTPOINT=/srv/none\nOPTIONS=no-such\n")
    command("systemctl", "start", unit, check=False)
    assert shown("ExecMainStatus", unit) == "2"
    wait_for("failed", lambda: shown("ActiveState", unit) == "failed")
    assert shown("NRestarts", unit) == "0"


def step_fstab() -> None:
    """An fstab entry with x-systemd.automount is mounted at the first access."""
    mountpoint = Path("/srv/fstab")
    assert not is_mounted(mountpoint)
    (mountpoint / "first").write_text("access mounts it\n")
    assert is_mounted(mountpoint)
    content = os.urandom(8 << 20)
    (mountpoint / "second").write_bytes(content)
    systemctl("stop", "srv-fstab.mount")
    assert not is_mounted(mountpoint)
    assert (mountpoint / "second").read_bytes() == content, "mounted again, after the upload"
    systemctl("stop", "srv-fstab.automount", "srv-fstab.mount")
    assert not is_mounted(mountpoint)


def step_user() -> None:
    """A user unit mounts with fusermount3, mounts again after SIGKILL, and can be stopped."""
    command("useradd", "--create-home", "--shell", "/bin/bash", USER)
    uid = command("id", "--user", USER)
    home = Path("/home", USER)
    setup = (
        "mkdir -p ~/mnt ~/.config/s3fs-meta ~/.local/bin"
        " && ln -s /usr/local/bin/s3fs-meta ~/.local/bin/"
        " && s3fs-meta mkfs --plain local://$HOME/bucket"
        " && printf 'URL=local://%s/bucket\\nMOUNTPOINT=%s/mnt\\nOPTIONS=allow_other\\n'"
        " $HOME $HOME > ~/.config/s3fs-meta/own.conf"
    )
    command("runuser", "--login", USER, "--command", setup)
    Path("/etc/fuse.conf").write_text("user_allow_other\n")
    command("loginctl", "enable-linger", USER)
    wait_for("user manager", lambda: shown("ActiveState", f"user@{uid}.service") == "active")
    unit, mountpoint = "s3fs-meta@own.service", home / "mnt"
    systemctl("start", unit, user=True)
    assert is_mounted(mountpoint)
    (mountpoint / "open").touch(mode=0o666)
    returns_after(signal.SIGKILL, mountpoint, unit, user=True)
    systemctl("stop", unit, user=True)
    assert not is_mounted(mountpoint)


def kept() -> dict[str, str]:
    """Return the content of the file ``report`` at each kept point (named txg)."""
    listed = json.loads(command("s3fs-meta", "keep", "--list", "--json", MOUNTPOINT))
    snapshots = MOUNTPOINT / ".snapshots"
    return {
        one["name"]: (snapshots / one["name"] / "latest/report").read_text()
        for one in listed["points"]
    }


def run_backup(service: str, timer: str) -> str:
    """Trigger the timer as if a backup were overdue; return the state of the service."""
    before = shown("InvocationID", service)
    systemctl("stop", timer)
    stamp = Path("/var/lib/systemd/timers", f"stamp-{timer}")
    stamp.touch()
    os.utime(stamp, (time.time() - 2 * 86400,) * 2)
    systemctl("start", timer)
    wait_for("backup", lambda: shown("InvocationID", service) not in {"", before})
    wait_for("end", lambda: shown("ActiveState", service) in {"inactive", "failed"})
    return shown("ActiveState", service)


def rsync_status_24() -> None:
    """Replace rsync by a script that exits with status 24, as if files had vanished."""
    rsync, real = Path("/usr/bin/rsync"), Path("/usr/bin/rsync.real")
    rsync.rename(real)
    rsync.write_text(f'#!/bin/sh\n{real} "$@" && exit 24\n')
    rsync.chmod(0o755)


def step_backup() -> None:
    """The timer starts the backup, which keeps one point in time per night and drops the oldest."""
    service, timer = "s3fs-meta-backup@home.service", "s3fs-meta-backup@home.timer"
    source, conf = Path("/srv/source"), CONFIG / "home.backup"
    source.mkdir()
    conf.write_text(f'SOURCE={source}/\nKEEP="--keep-last 2"\n')
    at_once = Path("/etc/systemd/system", f"{timer}.d/at-once.conf")
    at_once.parent.mkdir()
    at_once.write_text("[Timer]\nRandomizedDelaySec=0\n")
    systemctl("daemon-reload")
    systemctl("enable", timer)
    for night in ("first", "second", "third"):
        (source / "report").write_text(night)
        if night == "third":
            rsync_status_24()
        assert run_backup(service, timer) == "inactive"
        assert shown("Result", service) == "success"
    points = kept()
    assert sorted(points.values()) == ["second", "third"], points
    source.rename("/srv/away-source")
    assert run_backup(service, timer) == "failed"
    assert service in systemctl("--failed", "--plain")
    assert kept() == points, "a failed backup must not keep or drop a point"
    systemctl("disable", "--now", timer)


def step_last() -> None:
    """The last changes are not uploaded yet, so that the shutdown must upload them."""
    content = os.urandom(8 << 20)
    (RESULTS / "last").write_bytes(content)
    (MOUNTPOINT / "last").write_bytes(content)


STEPS: Final = (
    step_boot,
    step_status,
    step_kill,
    step_watchdog,
    step_stop,
    step_busy,
    step_away,
    step_wrong,
    step_fstab,
    step_user,
    step_backup,
    step_last,
)


def run() -> None:
    """Run all steps, or the first, the last and the steps that a file lists."""
    names = (RESULTS / "steps").read_text().split()
    for step in STEPS:
        if names and step not in {step_boot, step_last} and step.__name__ not in names:
            continue
        try:
            step()
            print(f"ok: {step.__doc__}")
        except BaseException:
            print(command("journalctl", "--boot", "--no-pager", "--lines", "150"))
            raise
    print("all steps passed")


if __name__ == "__main__":
    {"prepare": prepare, "consume": consume, "run": run}[sys.argv[1]]()
