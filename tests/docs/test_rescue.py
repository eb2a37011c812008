"""The program in docs/guide/recovery.md copies out what was set aside."""

import re
import subprocess
import sys
from pathlib import Path

from s3fs_meta.meta import dentries, inodes
from s3fs_meta.model import ROOT_INO
from s3fs_meta.sync.state_dir import StateDir
from tests.sync.conftest import Power, power, write_file

__all__ = ["power"]

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "recovery.md"


async def test_changed_files_come_out_with_their_names(power: Power, tmp_path: Path) -> None:
    """Content that was never uploaded, below the directory that it was in."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"not uploaded")
        folder = inodes.create(session.db, 0o40755, 0, 0, ROOT_INO, 0, nlink=2).ino
        dentries.add(session.db, ROOT_INO, b"folder", folder)
        dentries.add(session.db, folder, b"name", ino)
        session.db.commit()
    kept = StateDir(tmp_path / "a").set_aside("1")
    complaints = _rescue(kept, tmp_path / "out")

    assert (tmp_path / "out" / "folder" / "name").read_bytes() == b"not uploaded"
    assert complaints == ""


def _rescue(kept: Path, target: Path) -> str:
    """Run the page's program; return what it misses."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-c", found[1], kept, target, "1970-01-01T00:00+00:00"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr
