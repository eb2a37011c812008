"""Functions that run the commands of a documentation page."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests import forked

ROOT: Final = Path(__file__).parents[2]

# The limit stops a page that hangs. A slow page may start thirty s3fs-meta processes.
PAGE_S_MAX: Final = 600

# The shell code runs s3fs-meta from the sources. The local state is in the working directory.
# Commands in the background, in pipes or in $(…) run as new processes, which receive signals.
# Foreground commands run in forks of one process, because a fork takes a tenth of the time.
# When the shell exits, the trap stops all background processes of the page.
_PRELUDE: Final = """
set -eu
trap 'jobs -p | xargs --no-run-if-empty kill' EXIT
function s3fs-meta() {
    case "$*" in
        *--cachedir*) ;;
        *) set -- "$@" --cachedir "$PWD/state" ;;
    esac
    [ "$BASHPID" = "$$" ] || exec "$PYTHON" -m s3fs_meta "$@"
    "$PYTHON" -I -S "$CLIENT" "$ADDRESS" "$@"
}
"""


def blocks_of(page: Path) -> list[str]:
    """Return the blocks of commands in a documentation page."""
    return re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)


def run_page(page: Path, directory: Path) -> str:
    """Run all command blocks of a documentation page in one shell; return the output."""
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "commands")
        try:
            with forked.serving("s3fs_meta", address):
                done = _run_blocks(page, directory, address)
        finally:
            _unmount_below(directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run_blocks(page: Path, directory: Path, address: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", _PRELUDE + "\n".join(blocks_of(page))],
        cwd=directory,
        env={
            **os.environ,
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "CLIENT": str(ROOT / "tests" / "forked_client.py"),
            "ADDRESS": str(address),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def _unmount_below(directory: Path) -> None:
    """Unmount all mounts that a page has left below a directory."""
    # Pages that run as root also make bind mounts, which fusermount3 cannot unmount.
    command = ["umount", "--lazy"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        mountpoint = line.split(" ")[4]
        if mountpoint.startswith(f"{directory}/"):
            subprocess.run([*command, mountpoint], check=True)
