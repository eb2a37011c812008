"""A runner for the commands of a page of the documentation."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

# Limits a hang, not the speed: a page runs up to thirty processes that each import the program.
PAGE_S_MAX: Final = 600

# The commands find the program, and keep local state in a directory of the test.
# Processes that a page starts in the background end with it.
_PRELUDE: Final = """
set -eu
trap 'jobs -p | xargs --no-run-if-empty kill' EXIT
function s3fs-meta() {
    local run=
    [ "$BASHPID" = "$$" ] || run=exec  # in the background, so that a signal reaches the program
    case "$*" in
        *--cachedir*) $run "$PYTHON" -m s3fs_meta "$@" ;;
        *) $run "$PYTHON" -m s3fs_meta "$@" --cachedir "$PWD/state" ;;
    esac
}
"""


def blocks_of(page: Path) -> list[str]:
    """Return the command blocks of a page."""
    return re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)


def run_page(page: Path, directory: Path) -> str:
    """Run all command blocks of a page in one shell, and return the output."""
    try:
        done = subprocess.run(
            ["bash", "-c", _PRELUDE + "\n".join(blocks_of(page))],
            cwd=directory,
            env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        _unmount_below(directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _unmount_below(directory: Path) -> None:
    """Unmount everything that a page has left mounted below a directory."""
    # Pages that run as root also make bind mounts, which fusermount3 refuses.
    command = ["umount", "--lazy"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        mountpoint = line.split(" ")[4]
        if mountpoint.startswith(f"{directory}/"):
            subprocess.run([*command, mountpoint], check=True)
