"""Tests of copying files out of a snapshot."""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.export.copier import Copier
from s3fs_meta.export.from_snapshot import Restoring, Step, find, walk
from s3fs_meta.limits import FILE_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, blocks, dentries, inodes, symlinks, xattrs
from s3fs_meta.model import ROOT_INO, Attributes, BlockId, BlockIndex, Ino
from s3fs_meta.sync.progress import no_progress
from tests.export.conftest import Nothing, db, target

__all__ = ["db", "target"]

DIRECTORY = stat.S_IFDIR | 0o755
FILE = stat.S_IFREG | 0o644


def add(db: Database, parent: Ino, name: bytes, mode: int = FILE) -> Ino:
    """Create an inode with a name; return the inode number."""
    nlink = 2 if stat.S_ISDIR(mode) else 1
    ino = inodes.create(db, mode, 0, 0, parent, 10**18, nlink=nlink).ino
    dentries.add(db, parent, name, ino)
    return ino


def root(db: Database) -> Step:
    """Return the step from which a walk visits the complete tree."""
    return Step(inodes.get(db, ROOT_INO), b"")


def tree(db: Database) -> None:
    """Create the files a/b/c/f, a/g and h, and a symlink to a."""
    a = add(db, ROOT_INO, b"a", DIRECTORY)
    b = add(db, a, b"b", DIRECTORY)
    add(db, add(db, b, b"c", DIRECTORY), b"f")
    add(db, a, b"g")
    add(db, ROOT_INO, b"h")
    link = add(db, ROOT_INO, b"link", stat.S_IFLNK | 0o777)
    symlinks.create(db, link, b"a")


def found(root: Path) -> set[str]:
    """Return the paths of all entries below a directory."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("page", [1, 2, 256])
def test_tree_walk_visits_each_name_once_and_directories_after_their_entries(
    db: Database, page: int
) -> None:
    """A walk reads names in pages of any size, and leaves a directory after all its entries."""
    tree(db)
    for number in range(7):
        add(db, ROOT_INO, b"%d" % number)

    steps = list(walk(db, root(db), page_names=page))

    entered = [step.path for step in steps if not step.left]
    assert sorted(entered) == sorted(
        [b"a", b"a/b", b"a/b/c", b"a/b/c/f", b"a/g", b"h", b"link", *(b"%d" % n for n in range(7))]
    )
    assert [step.path for step in steps if step.left] == [b"a/b/c", b"a/b", b"a", b""]
    inside = [step.path for step in steps[: steps.index(Step(steps[-1].attributes, b"", True))]]
    assert inside.index(b"a/b/c/f") < inside.index(b"a/b/c", inside.index(b"a/b/c") + 1)


async def copy(db: Database, target: Path, *paths: bytes) -> Restoring:
    """Copy the files at the given paths of a snapshot."""
    restoring = Restoring(db, Copier(db, Nothing(), target), no_progress)
    await restoring.copy(paths)
    return restoring


async def test_copy_without_selected_paths_contains_the_complete_tree(
    db: Database, target: Path
) -> None:
    """If no paths are given, the copy contains all entries, and has the root directory's times."""
    tree(db)
    inodes.set_times(db, ROOT_INO, ctime_ns=1, mtime_ns=10**18 + 1, atime_ns=2)

    restoring = await copy(db, target)

    assert found(target) == {"a", "a/b", "a/b/c", "a/b/c/f", "a/g", "h", "link"}
    assert restoring.tally.files == 3
    assert os.stat(target).st_mtime_ns == 10**18 + 1
    assert (target / "a").stat().st_mtime_ns == 10**18


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([b"a/b"], {"a", "a/b", "a/b/c", "a/b/c/f"}),
        ([b"/a/b/", b"a/./b/c", b"a/b"], {"a", "a/b", "a/b/c", "a/b/c/f"}),
        ([b"h", b"a/b/c/f"], {"a", "a/b", "a/b/c", "a/b/c/f", "h"}),
        ([b"link"], {"link"}),
        ([b"/", b"h"], {"a", "a/b", "a/b/c", "a/b/c/f", "a/g", "h", "link"}),
    ],
)
async def test_selected_paths_are_copied_with_their_parent_directories(
    db: Database, target: Path, paths: list[bytes], expected: set[str]
) -> None:
    """Repeated or nested paths are copied only once. Parent directories keep their times."""
    tree(db)

    await copy(db, target, *paths)

    assert found(target) == expected
    if "a" in expected:
        assert (target / "a").stat().st_mtime_ns == 10**18
    if b"/" not in paths:
        assert stat.S_IMODE(os.stat(target).st_mode) == 0o700


@pytest.mark.parametrize("path", [b"nothing", b"h/x", b"link/g", b"a/../h"])
async def test_copy_of_a_missing_path_fails_before_any_file_is_copied(
    db: Database, target: Path, path: bytes
) -> None:
    """If one path is missing, nothing is copied. Symlinks in a path are not followed."""
    tree(db)

    with pytest.raises(UsageError, match=os.fsdecode(path)):
        await copy(db, target, b"a", path)

    assert os.listdir(target) == []


async def test_copy_skips_names_that_point_outside_the_target_directory(
    db: Database, target: Path
) -> None:
    """Names such as "..", which exist only in rows of a forged bucket, are not copied."""
    outside = add(db, ROOT_INO, b"..", DIRECTORY)
    add(db, outside, b"evil")
    add(db, ROOT_INO, b"../evil")
    add(db, ROOT_INO, b"good")

    await copy(db, target)

    assert os.listdir(target) == ["good"]
    assert os.listdir(target.parent) == ["out"]


async def test_copy_preserves_hard_links(db: Database, target: Path) -> None:
    """Two names of a file in different directories are copied as hard links."""
    a = add(db, ROOT_INO, b"a", DIRECTORY)
    ino = add(db, a, b"one")
    dentries.add(db, ROOT_INO, b"two", ino)
    inodes.add_links(db, ino, 1, 10**18)

    restoring = await copy(db, target)

    assert (target / "a/one").samefile(target / "two")
    assert restoring.tally.files == 1


@pytest.mark.parametrize("index", [0, 1 << 40], ids=["lost content", "damaged row"])
async def test_report_lists_all_hard_links_to_an_incomplete_copy(
    db: Database, target: Path, index: int
) -> None:
    ino = add(db, ROOT_INO, b"f")
    for name in (b"g", b"h", b"i"):
        dentries.add(db, ROOT_INO, name, ino)
    inodes.add_links(db, ino, 3, 10**18)
    blocks.fill_hole(db, BlockId(7), ino, BlockIndex(index), 5, hole_bytes=0)
    inodes.add_mapped_blocks(db, ino, 1)

    tally = (await copy(db, target)).tally

    [one] = tally.incomplete
    assert sorted([one.path, *one.links]) == [b"f", b"g", b"h", b"i"]
    [line] = tally.lines(Copier(db, Nothing(), target))
    assert f"(hard links: {', '.join(repr(os.fsdecode(link)) for link in one.links)})" in line


def test_path_lookup_returns_every_directory_on_the_path(db: Database) -> None:
    """The directories on a path are returned from the outermost to the innermost."""
    tree(db)

    assert [step.path for step in find(db, b"a/b/c/f")] == [b"a", b"a/b", b"a/b/c", b"a/b/c/f"]
    assert find(db, b"/") == []
    attributes: Attributes = find(db, b"h")[0].attributes
    assert stat.S_ISREG(attributes.mode)


async def test_copy_continues_after_entries_with_damaged_rows(db: Database, target: Path) -> None:
    """A damaged entry is reported as incomplete and never copied as an empty file."""
    tree(db)
    row = add(db, ROOT_INO, b"row")
    folder = add(db, ROOT_INO, b"folder", DIRECTORY)
    add(db, folder, b"inside")
    kind = add(db, ROOT_INO, b"kind")
    add(db, ROOT_INO, b"no target", stat.S_IFLNK | 0o777)
    for name, text in ((b"NUL", b"a\0b"), (b"empty", b""), (b"long", b"x" * 5000)):
        symlinks.create(db, add(db, ROOT_INO, name, stat.S_IFLNK | 0o777), text)
    value, unmapped = add(db, ROOT_INO, b"value", DIRECTORY), add(db, ROOT_INO, b"unmapped")
    for ino in (value, unmapped):
        xattrs.set(db, ino, b"user.colour", b"blue")
    blocks = add(db, ROOT_INO, b"blocks")
    block_map.set(db, blocks, BlockIndex(0), BlockId(7))
    add(db, ROOT_INO, b"x" * 256)
    db.run("UPDATE xattrs SET value = 'text'")
    db.run("UPDATE block_map SET block = 'text'")
    db.inodes.run("UPDATE inodes SET mapped_blocks = 1 WHERE ino = ?", (blocks,))
    db.inodes.run("UPDATE inodes SET uid = 'text' WHERE ino IN (?, ?)", (row, folder))
    db.inodes.run("UPDATE inodes SET mode = ? WHERE ino = ?", (0o030644, kind))

    restoring = await copy(db, target)

    names = [b"row", b"folder", b"kind", b"no target", b"NUL", b"empty", b"long", b"value"]
    damaged = {*names, b"unmapped", b"blocks", b"x" * 256}
    assert {one.path for one in restoring.tally.incomplete} == damaged
    assert restoring.tally.incomplete_files == len(damaged)
    copied = {"a", "a/b", "a/b/c", "a/b/c/f", "a/g", "h", "link", "value", "unmapped", "blocks"}
    assert found(target) == copied
    assert restoring.tally.files == 3
    lines = list(restoring.tally.lines(Copier(db, Nothing(), target)))
    assert len(lines) == len(damaged)
    assert "  'kind' is not copied, or not complete: metadata of inode" in "\n".join(lines)


async def test_copy_continues_after_paths_that_are_too_long(db: Database, target: Path) -> None:
    """A path may be longer than system calls accept."""
    deep = ROOT_INO
    for _ in range(20):
        deep = add(db, deep, b"d" * 255, DIRECTORY)
    add(db, deep, b"f")
    add(db, ROOT_INO, b"z")

    restoring = await copy(db, target)

    assert (target / "z").exists()
    assert restoring.tally.incomplete_files == 1
    assert all("is longer than" in one.why for one in restoring.tally.incomplete)
    assert not restoring.tally.found_damage


async def test_directory_that_contains_itself_is_copied_once(db: Database, target: Path) -> None:
    """Otherwise a cycle in damaged rows would be copied up to the maximum length of a path."""
    circle = add(db, ROOT_INO, b"c", DIRECTORY)
    add(db, circle, b"f")
    dentries.add(db, circle, b"again", circle)
    dentries.add(db, circle, b"root", ROOT_INO)

    restoring = await copy(db, target)

    assert found(target) == {"c", "c/f"}
    assert {one.path for one in restoring.tally.incomplete} == {b"c/again", b"c/root"}
    assert restoring.tally.found_damage


async def test_directories_with_two_names_are_copied_once(db: Database, target: Path) -> None:
    """Otherwise 60 directories with two names each would give 2**60 paths, and no copy would end."""
    at = ROOT_INO
    for _ in range(60):
        below = add(db, at, b"a", DIRECTORY)
        dentries.add(db, at, b"b", below)
        at = below
    add(db, at, b"f")

    restoring = await copy(db, target)

    assert restoring.tally.files == 1
    assert restoring.tally.incomplete_files == 60


async def test_copy_continues_after_names_that_the_target_does_not_accept(
    db: Database, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT accepts no colons. A target that ignores case accepts only one of two similar names."""
    tree(db)
    refused = add(db, ROOT_INO, b"12:30", DIRECTORY)
    add(db, add(db, refused, b"deep", DIRECTORY), b"f")
    add(db, ROOT_INO, b"a:b")
    add(db, ROOT_INO, b"H")

    def like_fat(call: Callable[..., Any], path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, bytes) and b":" in path:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        lower = path.lower() if isinstance(path, bytes) and path.endswith(b"/H") else path
        return call(lower, *arguments, **options)

    for name in ("open", "mkdir"):
        monkeypatch.setattr(os, name, partial(like_fat, getattr(os, name)))

    restoring = await copy(db, target)

    assert found(target) == {"a", "a/b", "a/b/c", "a/b/c/f", "a/g", "h", "link"}
    tally = restoring.tally
    paths = {one.path.lower() for one in tally.incomplete}
    assert paths == {b"12:30", b"12:30/deep", b"12:30/deep/f", b"a:b", b"h"}
    assert (tally.incomplete_files, tally.refused_files, tally.found_damage) == (5, 5, False)


@pytest.mark.parametrize("size_bytes", [-1, FILE_BYTES_MAX + 1, (1 << 63) - 1])
async def test_invalid_size_of_a_file_counts_as_damage(
    db: Database, target: Path, size_bytes: int
) -> None:
    """The error is reported as damage, not as a refusal, because no target can have this size."""
    ino = add(db, ROOT_INO, b"f")
    add(db, ROOT_INO, b"g")
    db.inodes.run("UPDATE inodes SET size_bytes = ? WHERE ino = ?", (size_bytes, ino))
    db.inodes.forget()

    tally = (await copy(db, target)).tally

    assert (tally.incomplete_files, tally.refused_files, tally.found_damage) == (1, 0, True)
    assert found(target) == {"g"}


@pytest.mark.parametrize("index", [1 << 40, (1 << 63) - 1])
async def test_block_beyond_the_maximum_file_size_counts_as_damage(
    db: Database, target: Path, index: int
) -> None:
    ino = add(db, ROOT_INO, b"f")
    add(db, ROOT_INO, b"g")
    blocks.fill_hole(db, BlockId(7), ino, BlockIndex(index), 5, hole_bytes=0)
    inodes.add_mapped_blocks(db, ino, 1)

    tally = (await copy(db, target)).tally

    assert (tally.incomplete_files, tally.refused_files, tally.found_damage) == (1, 0, True)
    assert found(target) == {"f", "g"}
