"""The sizes of all directories at one point in time."""

import itertools

import pytest

from s3fs_meta.errors import SettingsError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, hard_links, inodes
from s3fs_meta.meta.trees import folder_sizes
from s3fs_meta.meta.trees.folder_sizes import FolderSizes
from s3fs_meta.model import ROOT_INO, Ino
from tests.meta.conftest import PROPERTIES

BLOCK = int(PROPERTIES["block_bytes"])


def folder(db: Database, parent: Ino, name: bytes) -> Ino:
    """Create a directory."""
    ino = inodes.create(db, 0o040755, 0, 0, parent, 0, nlink=2).ino
    dentries.add(db, parent, name, ino)
    return ino


def file(db: Database, parent: Ino, name: bytes, size_bytes: int, blocks: int = 1) -> Ino:
    """Create a file with some blocks, followed by a hole."""
    made = inodes.create(db, 0o100644, 0, 0, parent, 0, size_bytes=size_bytes)
    inodes.replace(db, made._replace(mapped_blocks=blocks))
    dentries.add(db, parent, name, made.ino)
    return made.ino


def sizes_of(db: Database, **bounds: int) -> FolderSizes:
    """Return the sizes of all directories at the end of the open commit group."""
    found = FolderSizes(**bounds)
    for _ in found.read(db):
        pass
    return found


def test_size_of_a_folder_is_the_sum_of_all_file_sizes_in_its_tree(db: Database) -> None:
    one = folder(db, ROOT_INO, b"one")
    two = folder(db, one, b"two")
    file(db, ROOT_INO, b"a", 1)
    file(db, one, b"b", 10)
    file(db, two, b"c", 100)
    file(db, two, b"d", 1000)
    three = folder(db, one, b"three")
    file(db, three, b"e", 10000)
    sizes = sizes_of(db)
    assert len(sizes) == 4
    assert sizes.of(ROOT_INO) == (ROOT_INO, 11111, 5, 1, 1)
    assert sizes.of(one) == (one, 11110, 4, 10, 1)
    assert sizes.of(two) == (two, 1100, 2, 1100, 2)
    assert sizes.of(Ino(999)) is None
    assert [size.ino for size in sizes.below(ROOT_INO)] == [one]
    assert [size.ino for size in sizes.below(one)] == [three, two]
    assert sizes.below(two) == sizes.below(Ino(999)) == []


def test_size_of_a_folder_does_not_depend_on_the_slice_size(db: Database) -> None:
    folders = [ROOT_INO]
    for number in range(40):
        above = folders[number // 3]
        folders.append(folder(db, above, b"folder %d" % number))
        file(db, folders[-1], b"file", number)
    whole = sizes_of(db)
    sliced = sizes_of(db, slice_rows=3)
    assert [sliced.of(ino) for ino in folders] == [whole.of(ino) for ino in folders]
    assert sum(1 for _ in FolderSizes(slice_rows=3).read(db)) > 30


def test_folder_size_includes_a_subdirectory_with_a_lower_inode_number(db: Database) -> None:
    low = folder(db, ROOT_INO, b"low")
    high = folder(db, ROOT_INO, b"high")
    file(db, low, b"file", 5)
    inodes.set_parent(db, low, high)
    found = sizes_of(db).of(high)
    assert found is not None
    assert found.total_bytes == 5


def test_size_of_a_folder_excludes_holes_and_orphans_and_additional_hard_links(
    db: Database,
) -> None:
    file(db, ROOT_INO, b"sparse", 1 << 62, blocks=2)
    linked = file(db, ROOT_INO, b"linked", 10)
    before = inodes.get(db, linked)
    dentries.add(db, ROOT_INO, b"again", linked)
    hard_links.link_added(db, before, ROOT_INO)
    inodes.replace(db, before._replace(nlink=2))
    orphan = inodes.get(db, file(db, ROOT_INO, b"orphan", 100))
    inodes.replace(db, orphan._replace(nlink=0))
    found = sizes_of(db).of(ROOT_INO)
    assert found is not None
    assert (found.total_bytes, found.total_files) == (2 * BLOCK + 10, 2)
    assert folder_sizes.largest_files(db, ROOT_INO, 5) == [(b"sparse", 2 * BLOCK)]


def test_folder_sizes_stay_in_range_despite_damaged_rows(db: Database) -> None:
    """The damaged rows contain a cycle, a missing parent and sums above 64 bits."""
    circle = folder(db, ROOT_INO, b"circle")
    inodes.set_parent(db, circle, circle)
    lost = folder(db, ROOT_INO, b"lost")
    inodes.set_parent(db, lost, Ino(999))
    for parent, number in itertools.product((circle, lost, ROOT_INO), range(3)):
        file(db, parent, b"%d" % number, (1 << 63) - 1, blocks=(1 << 63) - 1)
    below = folder(db, ROOT_INO, b"below")
    file(db, below, b"file", (1 << 63) - 1, blocks=(1 << 63) - 1)
    sizes = sizes_of(db)
    for ino, files in ((circle, 3), (lost, 3), (ROOT_INO, 4), (below, 1)):
        found = sizes.of(ino)
        assert found is not None
        assert found.total_bytes == (1 << 63) - 1
        assert found.total_files == files


def test_folder_sizes_are_refused_if_there_are_too_many_folders(db: Database) -> None:
    folder(db, ROOT_INO, b"one")
    assert len(sizes_of(db, folders_max=2)) == 2
    folder(db, ROOT_INO, b"two")
    with pytest.raises(SettingsError, match="more than 2 folders"):
        sizes_of(db, folders_max=2)


def test_folders_with_the_largest_growth_are_found(db: Database) -> None:
    one, two = folder(db, ROOT_INO, b"one"), folder(db, ROOT_INO, b"two")
    file(db, one, b"a", 10)
    file(db, two, b"a", 10)
    before = sizes_of(db)
    file(db, one, b"b", 5)
    new = folder(db, two, b"new")
    file(db, new, b"a", 50)
    after = sizes_of(db)
    assert [(size.ino, more) for size, more in after.grown_since(before, 5)] == [
        (new, 50),
        (one, 5),
    ]
    assert [more for _, more in after.grown_since(before, 1)] == [50]
    assert after.grown_since(after, 5) == []


def test_names_of_given_inodes_in_a_folder_are_found(db: Database) -> None:
    one, two = folder(db, ROOT_INO, b"one"), folder(db, ROOT_INO, b"\xff")
    assert folder_sizes.names(db, ROOT_INO, [two, Ino(999)]) == {two: b"\xff"}
    assert folder_sizes.names(db, ROOT_INO, [one, two]) == {one: b"one", two: b"\xff"}
    assert folder_sizes.names(db, one, [two]) == {}


@pytest.mark.parametrize("value", ["CAST(name AS TEXT)", "4611686018427387904"])
def test_folder_sizes_show_names_of_a_wrong_type(db: Database, value: str) -> None:
    """A damaged row must neither end a page with an error nor allocate all memory."""
    top = folder(db, ROOT_INO, b"top")
    large = file(db, top, b"large", 3)
    db.run(f"UPDATE dentries SET name = {value}")

    assert len(folder_sizes.largest_files(db, top, 5)) == 1
    assert folder_sizes.names(db, ROOT_INO, [top]).keys() == {top}
    db.inodes.run("UPDATE inodes SET parent = 'x' WHERE ino IN (?, ?)", (top, large))
    found = sizes_of(db).of(top)
    assert found is not None
    assert found.own_files == 0
