"""Tests of the browse page with the space that folders and files use."""

import re
from pathlib import Path

import pytest

from s3fs_meta.browse.pages import space_page
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.meta.trees.folder_sizes import FolderSizes
from s3fs_meta.model import ROOT_INO
from tests.browse import points
from tests.browse.conftest import NAMES
from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def test_space_page_lists_the_largest_folders_and_files(served: Served) -> None:
    page = served.page(f"/space/{served.txg}/")
    rows = re.findall(r'<th scope="row">(.*?)</th>\n<td class="number">([^<]*)<', page)
    names = [re.sub("<[^>]*>", "", name) for name, _ in rows]
    assert names[0] == "reports/"
    assert {"latter", "hostile/", "many/", "strange/"} <= set(names)
    sizes = dict(zip(names, (size for _, size in rows), strict=True))
    assert sizes["many/"] == "0 B"
    assert sizes["latter"] == "17 B"
    below = served.page(f"/space/{served.txg}/reports")
    assert ">large</a>" in below
    assert "other files" in below  # Files with hard links, here report.txt, are not listed.
    assert f"{NAMES} files" in served.page(f"/space/{served.txg}/many").replace(",", "")


def test_hostile_names_are_shown_as_text_on_the_space_page(served: Served) -> None:
    page = served.page(f"/space/{served.txg}/hostile")
    assert "<script" not in page
    assert "\u202e" not in page
    assert "new\\nline" in page
    assert page.count("<rect") > 5


def test_space_page_shows_growth_since_another_point_in_time(served: Served) -> None:
    page = served.page(f"/space/{served.txg}/?since=2")
    assert "Since txg 2" in page
    grown = page.partition('id="grown"')[2]
    folders = re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', grown)
    assert folders[0] == "reports"
    assert "many" not in folders
    assert "No folder has more content" in served.page(f"/space/2/?since={served.txg}")


def test_space_page_shows_the_bucket_size_and_the_file_sizes(served: Served) -> None:
    page = served.page("/space/2/")
    shown = dict(re.findall(r"<dt>([^<]*)</dt><dd>([\d.]+ \w+)", page))
    assert set(shown) == {
        "Files",
        "After deduplication",
        "After compression",
        "Stored",
        "Only for the past",
    }
    # The first version of report.txt still occupies space.
    assert shown["Only for the past"] != "0 B"


def test_space_page_omits_folders_of_a_removed_tree_that_is_not_empty_yet(tmp_path: Path) -> None:
    """A txg may be cut while the content of a removed tree is still being deleted."""
    db = points.made(tmp_path)
    top = points.add(db, ROOT_INO, b"top", points.FOLDER)
    folder = points.add(db, top, b"folder", points.FOLDER)
    file = inodes.get(db, points.add(db, folder, b"file", size_bytes=5))
    inodes.replace(db, file._replace(mapped_blocks=1))
    sizes, before = FolderSizes(), FolderSizes()
    for _ in sizes.read(db):
        pass
    [(grown, more)] = sizes.grown_since(before, 9)
    assert (grown.ino, more) == (folder, 5)
    point = points.point_of(db)
    assert [one.path for one in space_page.grown(point, sizes, before)] == [b"top/folder"]

    dentries.remove(db, ROOT_INO, b"top")
    removed_trees.mark_removed(db, [top], 1)

    assert space_page.grown(point, sizes, before) == []
    db.close()
