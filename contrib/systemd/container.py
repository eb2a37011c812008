"""Test the systemd units in a container that boots a copy of this host.

python -m contrib.systemd.container [STEP…]   # as root; prints one line for each step

systemd-nspawn (Debian package systemd-container) boots an overlay of the root directory. Changes in
the overlay are kept in memory and dropped at the end. The device /dev/autofs belongs to the host.
The module ``trial`` runs as a unit inside the container. After the shutdown, this module checks the
content of the bucket.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
UNITS: Final = Path(__file__).resolve().parent
PROGRAM: Final = Path(sys.prefix, "bin", "s3fs-meta")
BOOT_S_MAX: Final = 300.0

_PREPARE: Final = f"""
[Unit]
Before=s3fs-meta@home.service remote-fs.target
RequiresMountsFor=/srv
[Service]
Type=oneshot
RemainAfterExit=yes
WorkingDirectory={ROOT}
ExecStart={sys.executable} -m contrib.systemd.trial prepare
"""
_CONSUMER: Final = f"""
[Unit]
Requires=s3fs-meta@home.service
After=s3fs-meta@home.service
[Service]
Type=oneshot
RemainAfterExit=yes
WorkingDirectory={ROOT}
ExecStart={sys.executable} -m contrib.systemd.trial consume
"""
# The systemd target starts no other services of this host.
_TARGET: Final = """
[Unit]
Requires=basic.target
After=basic.target
Wants=remote-fs.target dbus.service systemd-logind.service systemd-user-sessions.service
AllowIsolate=yes
"""
_TRIAL: Final = f"""
[Unit]
SuccessAction=poweroff
FailureAction=poweroff
[Service]
Type=exec
WorkingDirectory={ROOT}
StandardOutput=append:/results/output
StandardError=append:/results/output
ExecStart={sys.executable} -u -m contrib.systemd.trial run
"""
# The timeouts are shorter than in the installed units, so that the trial is short.
_QUICK: Final = """
[Service]
WatchdogSec=4s
RestartSec=1s
TimeoutStopSec=5s
"""
_FSTAB: Final = (
    "local:///srv/bucket-fstab /srv/fstab s3fs-meta"
    " _netdev,nofail,x-systemd.automount,x-systemd.mount-timeout=5min 0 0\n"
)
# The overlay filesystem is in a separate mount namespace, and disappears with the container.
_BOOT: Final = """
set -eu
base=$1 results=$2
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$base"
mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root"
cp -a "$results/files/." "$base/root/"
: > "$base/root/etc/machine-id"
chmod a+rx "$base/root/root"
exec systemd-nspawn --quiet --directory="$base/root" --machine=s3fs-meta-trial --register=no \\
    --keep-unit --private-network --boot --console=read-only --capability=CAP_MKNOD --bind=/dev/autofs \\
    --bind-ro="$3" --bind="$results:/results" systemd.unit=s3fs-meta-trial.target
"""


def _files(to: Path) -> None:
    """Write the files that the container needs in addition to the host's files."""
    system, user, config = (
        to / "etc" / name for name in ("systemd/system", "systemd/user", "s3fs-meta")
    )
    for folder in (
        system,
        user,
        config,
        to / "usr/local/bin",
        to / "usr/sbin",
        *(to / "srv" / name for name in ("home", "fstab", "away")),
    ):
        folder.mkdir(parents=True)
    for unit in (UNITS / "system").iterdir():
        shutil.copy(unit, system)
    shutil.copy(UNITS / "user/s3fs-meta@.service", user)
    texts = {"prepare": _PREPARE, "consumer": _CONSUMER, "trial": _TRIAL}
    for name, text in texts.items():
        (system / f"{name}.service").write_text(text)
    for folder in (system, user):
        quick = folder / "s3fs-meta@.service.d"
        quick.mkdir()
        (quick / "quick.conf").write_text(_QUICK)
    (system / "s3fs-meta-trial.target").write_text(_TARGET)
    wanted = system / "s3fs-meta-trial.target.wants"
    wanted.mkdir()
    for name in (*texts, "s3fs-meta@home"):
        template = "s3fs-meta@" if "@" in name else name
        (wanted / f"{name}.service").symlink_to(f"../{template}.service")
    (to / "usr/local/bin/s3fs-meta").symlink_to(PROGRAM)
    (to / "usr/sbin/mount.s3fs-meta").symlink_to(PROGRAM.with_name("mount.s3fs-meta"))
    (to / "etc/fstab").write_text(_FSTAB)
    (config / "home.conf").write_text(
        "URL=local:///results/bucket\nMOUNTPOINT=/srv/home\nOPTIONS=allow_other\n"
    )


def why_not() -> str:
    """Return the reason why this host cannot boot the container; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("systemd-nspawn", "unshare") if shutil.which(name) is None]
    return f"{missing[0]} is not installed" if missing else ""


def run(results: Path, steps: Sequence[str] = ()) -> str:
    """Boot the container and run the trial; return its output.

    Args:
        results: an empty directory, which the container shares.
        steps: names of functions of ``trial``; if empty, all steps run.

    Raises:
        subprocess.SubprocessError: the container did not boot, or did not power off.
        AssertionError: a step failed, or the shutdown did not upload all changes.
    """
    _files(results / "files")
    (results / "steps").write_text(" ".join(steps))
    with tempfile.TemporaryDirectory() as base:
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", _BOOT, "boot", base, results, ROOT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOOT_S_MAX,
            check=False,
        )
    output = results / "output"
    said = output.read_text() if output.exists() else done.stdout + done.stderr
    assert said.endswith("all steps passed\n"), said
    _check_shutdown(results)
    return said + "ok: The shutdown has uploaded all changes.\n"


def _check_shutdown(results: Path) -> None:
    """Restore the bucket as another host would; compare the file that was written last."""
    to = results / "restored"
    where = [f"local://{results}/bucket", "--cachedir", str(results / "state")]
    command = [str(PROGRAM), "restore", "--to", str(to), *where]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (to / "last").read_bytes() == (results / "last").read_bytes()


def main() -> int:
    """Run the trial and print its output."""
    why = why_not()
    if why:
        sys.stderr.write(f"{why}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        print(run(Path(folder), sys.argv[1:]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
