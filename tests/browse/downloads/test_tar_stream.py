"""Tests of downloads of folders as tar archives."""

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from s3fs_meta.browse.downloads.tar_stream import TarStream
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from tests.browse import points
from tests.browse.conftest import LONG
from tests.browse.serving import Served


@pytest.mark.mount
def test_tar_archive_contains_the_same_tree_as_the_filesystem(
    served: Served, tmp_path: Path
) -> None:
    archive = served.ask(f"/tar/{served.txg}/").content
    subprocess.run(["tar", "--extract"], input=archive, cwd=tmp_path, check=True)
    compared = ["diff", "--recursive", "--no-dereference", "--exclude=strange"]
    subprocess.run([*compared, tmp_path / "root", served.tree], check=True)
    for path in sorted(served.tree.rglob("*")):
        here = os.lstat(path)
        if stat.S_ISSOCK(here.st_mode):
            continue
        there = os.lstat(tmp_path / "root" / path.relative_to(served.tree))
        assert (there.st_mode, there.st_nlink) == (here.st_mode, here.st_nlink)
        if not stat.S_ISLNK(here.st_mode):
            assert there.st_mtime_ns == here.st_mtime_ns
    with tarfile.open(fileobj=io.BytesIO(served.ask("/tar/2/reports").content)) as old:
        assert sorted(old.getnames()) == [
            "reports",
            "reports/former",
            "reports/notes",
            "reports/old name",
            "reports/report.txt",
        ]


@pytest.mark.mount
def test_special_files_keep_their_type_in_a_tar_archive(served: Served) -> None:
    """A tar archive omits sockets, keeps symlinks, and stores times before 1970."""
    archive = served.ask(f"/tar/{served.txg}/strange").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = {one.name.removeprefix("strange/"): one for one in opened.getmembers()}
    assert "socket" not in found
    assert found["pipe"].isfifo()
    assert (found["out"].issym(), found["out"].linkname) == (True, "../../../etc/passwd")
    assert found["setuid"].mode == 0o4755
    assert found["before 1970"].pax_headers["mtime"] == "-1.500000000"
    assert found[LONG].size == 4
    if os.geteuid() == 0:
        assert (found["device"].ischr(), found["device"].devminor) == (True, 3)


@pytest.mark.mount
def test_hostile_names_are_stored_unchanged_in_a_tar_archive(
    served: Served, tmp_path: Path
) -> None:
    archive = served.ask(f"/tar/{served.txg}/hostile").content
    subprocess.run(["tar", "--extract"], input=archive, cwd=tmp_path, check=True)
    wanted = os.fsencode(served.tree / "hostile")
    assert sorted(os.listdir(os.fsencode(tmp_path / "hostile"))) == sorted(os.listdir(wanted))


@pytest.mark.parametrize(("most", "contents"), [(0, 3), (1, 1)])
async def test_tar_archive_repeats_content_of_a_hard_link_only_above_the_link_limit(
    tmp_path: Path, most: int, contents: int
) -> None:
    db = points.made(tmp_path)
    file = points.add(db, ROOT_INO, b"1")
    points.link(db, ROOT_INO, b"2", file)
    points.link(db, ROOT_INO, b"3", file)
    db.commit()
    sent = io.BytesIO()
    stream = TarStream(points.point_of(db), points.into(sent), links_max=most)
    await stream.send(inodes.get(db, ROOT_INO), b"top")
    db.close()
    sent.seek(0)
    with tarfile.open(fileobj=sent) as opened:
        types = [one.type for one in opened.getmembers() if one.name != "top"]
    assert types.count(tarfile.REGTYPE) == contents
    assert types.count(tarfile.LNKTYPE) == 3 - contents
