"""Folders as archives."""

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.browse.conftest import Served

pytestmark = pytest.mark.mount


def test_archive_equals_the_tree(served: Served, tmp_path: Path) -> None:
    archive = served.ask(f"/tar/{served.txg}/").content
    subprocess.run(["tar", "--extract"], input=archive, cwd=tmp_path, check=True)
    subprocess.run(
        ["diff", "--recursive", "--no-dereference", tmp_path / "root", served.tree], check=True
    )
    for path in sorted(served.tree.rglob("*")):
        there, here = os.lstat(tmp_path / "root" / path.relative_to(served.tree)), os.lstat(path)
        assert (there.st_mode, there.st_nlink) == (here.st_mode, here.st_nlink)
        if not stat.S_ISLNK(here.st_mode):
            assert there.st_mtime_ns == here.st_mtime_ns
    with tarfile.open(fileobj=io.BytesIO(served.ask("/tar/2/reports").content)) as old:
        assert sorted(old.getnames()) == [
            "reports",
            "reports/notes",
            "reports/old name",
            "reports/report.txt",
        ]
