"""Tests of downloads of folders as zip archives."""

import io
import shutil
import stat
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from s3fs_meta.browse.downloads import zip_stream
from s3fs_meta.browse.downloads.zip_stream import ZipStream
from s3fs_meta.browse.limits import BROWSE_PATH_BYTES_MAX
from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from tests.browse import points
from tests.browse.conftest import LONG
from tests.browse.serving import Served


@pytest.mark.mount
def test_zip_archive_contains_the_same_tree_as_the_filesystem(
    served: Served, tmp_path: Path
) -> None:
    content = served.ask(f"/zip/{served.txg}/reports").content
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        assert opened.testzip() is None
        for path in (served.tree / "reports").iterdir():
            if path.is_symlink():
                continue
            assert opened.read(f"reports/{path.name}") == path.read_bytes()
        one = opened.getinfo("reports/report.txt")
        written = (served.tree / "reports" / "report.txt").stat().st_mtime
        assert one.date_time[:5] == time.localtime(written)[:5]
        assert opened.read("reports/link") == b"report.txt"
        assert stat.S_ISLNK(opened.getinfo("reports/link").external_attr >> 16)
    if shutil.which("unzip") is not None:
        (tmp_path / "a.zip").write_bytes(content)
        subprocess.run(["unzip", "-q", "-d", tmp_path, tmp_path / "a.zip"], check=True)
        compared = ["diff", "--recursive", "--no-dereference", str(tmp_path / "reports")]
        subprocess.run([*compared, served.tree / "reports"], check=True)


@pytest.mark.mount
def test_zip_archive_omits_special_files_and_setuid_bits(served: Served) -> None:
    content = served.ask(f"/zip/{served.txg}/strange").content
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        found = {one.filename.removeprefix("strange/"): one for one in opened.infolist()}
    assert set(found) == {"", LONG, "setuid", "before 1970", "out"}
    assert found["setuid"].external_attr >> 16 == stat.S_IFREG | 0o755
    assert found["before 1970"].date_time == (1980, 1, 1, 0, 0, 0)


@pytest.mark.mount
def test_hostile_names_in_a_zip_archive_become_unique_and_stay_below_the_target_directory(
    served: Served,
) -> None:
    content = served.ask(f"/zip/{served.txg}/hostile").content
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        names = [name.removeprefix("hostile/") for name in opened.namelist()]
    assert len(names) == len(set(names)) == len(list((served.tree / "hostile").iterdir())) + 1
    assert {"new%0Aline", "%FF%FE", "%252e%252e%252f", "back%5Cslash;"} <= set(names)
    assert not any("\\" in name or ".." in name.split("/") for name in names)


async def _made(db: Database) -> bytes:
    db.commit()
    sent = io.BytesIO()
    await ZipStream(points.point_of(db), points.into(sent)).send(inodes.get(db, ROOT_INO), b"top")
    return sent.getvalue()


async def test_large_file_in_a_zip_archive_has_a_zip64_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file above the limit of 2 GiB, which the test lowers, has a zip64 record."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", MIB)
    db = points.made(tmp_path)
    points.add(db, ROOT_INO, b"large", size_bytes=3 * MIB)
    content = await _made(db)
    db.close()
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        one = opened.getinfo("top/large")
        assert (one.file_size, one.extract_version) == (3 * MIB, 45)
        assert opened.testzip() is None


async def test_zip_archive_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    db = points.made(tmp_path)
    for number in range(3):
        points.add(db, ROOT_INO, b"%d" % number)
    db.commit()
    await zip_stream.require_few(points.point_of(db), inodes.get(db, ROOT_INO), entries_max=4)
    db.begin()
    points.add(db, ROOT_INO, b"further")
    db.commit()
    with pytest.raises(SettingsError, match="download it as tar"):
        await zip_stream.require_few(points.point_of(db), inodes.get(db, ROOT_INO), entries_max=4)
    db.close()


async def test_zip_archive_contains_no_drive_of_windows(tmp_path: Path) -> None:
    """A simple program on Windows would extract the member C:/x outside of its target directory."""
    db = points.made(tmp_path)
    folder = points.add(db, ROOT_INO, b"C:", points.FOLDER)
    points.add(db, folder, b"a:b")
    content = await _made(db)
    db.close()
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        assert set(opened.namelist()) >= {"top/C%3A/", "top/C%3A/a%3Ab"}


def test_longest_path_fits_into_the_zip_format() -> None:
    """One byte of a name can become three characters, and zip stores a path length in 16 bits."""
    assert BROWSE_PATH_BYTES_MAX * len("%XX") < 1 << 16
