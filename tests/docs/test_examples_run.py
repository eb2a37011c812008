"""The commands of docs/start/first-mount.md work as the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "first-mount.md"

# The commands find the program, and keep local state in a directory of the test.
_PRELUDE = """
set -eu
s3fs-meta() {
    case $1 in
        status|flush|umount) "$PYTHON" -m s3fs_meta "$@" ;;
        *) "$PYTHON" -m s3fs_meta "$@" --cachedir "$PWD/state" ;;
    esac
}
trap 'mountpoint -q mnt && fusermount3 -uz mnt || true' EXIT
"""


@pytest.mark.mount
def test_commands_of_the_first_mount_page_run_in_order(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 6

    done = subprocess.run(
        ["bash", "-c", _PRELUDE.replace("s3fs-meta()", "function s3fs-meta()") + "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "draft has 2 names" in done.stdout
    assert "Dear reader," in done.stdout
    assert ": clean" in done.stdout
