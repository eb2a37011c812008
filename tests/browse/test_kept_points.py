"""Tests of how the browse pages show kept points that are older than the retention."""

import os
from pathlib import Path

import pytest

from tests.browse.serving import serving
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_time_line_lists_kept_points_older_than_the_retention(tmp_path: Path) -> None:
    """The time line begins at the oldest txg that retention keeps; older kept points are listed."""
    program, url, mnt = Program(tmp_path / "state"), f"local://{tmp_path}/bucket", tmp_path / "mnt"
    mnt.mkdir()
    program.ok("mkfs", "--plain", url)
    program.ok("mount", url, mnt)
    try:
        (mnt / "report").write_bytes(b"the first figures\n")
        made = program.ok("keep", mnt, "first-figures")
        txg = int(made.partition("txg ")[2].split()[0])
        program.ok("keep", mnt, "damaged-later")
        (mnt / "report").write_bytes(b"overwritten\n")
        program.ok("retention", url, "0")
        for number in range(3):
            (mnt / f"later-{number}").write_bytes(os.urandom(100))
            program.ok("flush", "--image", mnt)
        program.ok("reclaim", mnt)
    finally:
        program.ok("umount", mnt)
    newest = int(program.status(url)["txg"])
    words = ["--cachedir", f"{tmp_path}/elsewhere", url]
    with serving(words, program.environment, mnt, newest) as served:
        page = served.page("/")
        assert 'class="kept"' not in page
        for name in ("first-figures", "damaged-later"):
            assert f'<a href="{served.root}/at/{txg}/">{name}</a>' in page
        assert "the first figures" in served.page(f"/at/{txg}/report")
        assert served.ask(f"/content/{txg}/report").content == b"the first figures\n"
        # The page of changes needs all txgs. If some are missing, it shows the diff command.
        assert "s3fs-meta diff" in served.page(f"/changes/{txg}/")

        for path in sorted((tmp_path / "bucket" / "kept").iterdir())[:1]:
            path.write_bytes(b"damaged")
        page = served.page("/")
        assert page.count("cannot be read: ") == 1
        assert page.count(f'href="{served.root}/at/{txg}/"') == 1
