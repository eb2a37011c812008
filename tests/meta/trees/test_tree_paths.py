"""Paths of inodes and names, and the changes that concern one path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.limits import WATCHED_DIRECTORIES_MAX
from s3fs_meta.meta.changesets import Touched
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, hard_links, inodes
from s3fs_meta.meta.trees import tree_paths
from s3fs_meta.meta.trees.tree_paths import PathWatch, TreePaths
from s3fs_meta.model import ROOT_INO, Cookie, Ino

MakeDatabase = Callable[..., Database]
FACTS = {"uuid": b"u", "block_bytes": b"65536", "cookie_key": b"k" * 16}


def make(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Ino:
    """Create an inode with a name, as one operation of a group."""
    db.begin()
    ino = inodes.create(db, mode, 0, 0, parent, 0).ino
    dentries.add(db, parent, name, ino)
    return ino


def test_paths_of_inodes_and_names_begin_at_the_root(make_database: MakeDatabase) -> None:
    """Bytes of a name that are not UTF-8 are escaped in its path."""
    db = make_database()
    one = make(db, Ino(1), b"one", 0o040755)
    two = make(db, one, b"t\xffwo", 0o040755)
    file = make(db, two, b"file")
    db.commit()
    paths = TreePaths(db.connection)
    assert paths.of_inode(Ino(1)) == "/"
    assert paths.of_inode(file) == "/one/t\\xffwo/file"
    assert paths.of_name(two, b"gone") == "/one/t\\xffwo/gone"
    assert paths.of_inode(one) == "/one"


def test_unreachable_inode_has_no_path(make_database: MakeDatabase) -> None:
    """An inode has no path if it, or a directory above it, has no name or is in a cycle."""
    db = make_database()
    db.begin()
    orphan = inodes.create(db, 0o040755, 0, 0, Ino(1), 0).ino
    below = make(db, orphan, b"below")
    circle = make(db, Ino(1), b"circle", 0o040755)
    inodes.set_parent(db, circle, circle)
    dentries.add(db, circle, b"self", circle)
    db.commit()
    paths = TreePaths(db.connection)
    assert paths.of_inode(orphan) is None
    assert paths.of_inode(below) is None
    assert paths.of_inode(circle) is None
    assert paths.of_inode(Ino(999)) is None


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """Return a tree with a/b/c/f, a/g and h, in which h2 is a hard link to f."""
    made = Database.create(tmp_path / "meta.db", Pragmas(), FACTS)
    made.begin()
    a = add(made, ROOT_INO, b"a", 0o40755)
    b = add(made, a, b"b", 0o40755)
    f = add(made, add(made, b, b"c", 0o40755), b"f")
    add(made, a, b"g")
    add(made, ROOT_INO, b"h")
    parent = inodes.get(made, f).parent
    dentries.add(made, ROOT_INO, b"h2", f)
    inodes.add_links(made, f, 1, 0)
    made.run("INSERT INTO hard_links VALUES (?, ?, 1), (?, ?, 1)", (f, ROOT_INO, f, parent))
    assert len(hard_links.parents(made, f)) == 2
    return made


def add(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Ino:
    """Create an inode with a name."""
    ino = inodes.create(db, mode, 0, 0, parent, 0).ino
    dentries.add(db, parent, name, ino)
    return ino


def at(db: Database, path: bytes) -> Ino:
    """Return the inode at a path."""
    ino = PathWatch(db, path.split(b"/")).ino
    assert ino is not None
    return ino


def touched(
    names: tuple[tuple[Ino, bytes], ...] = (),
    inodes: tuple[Ino, ...] = (),
    cookies: tuple[tuple[Ino, Cookie], ...] = (),
) -> Touched:
    """Return the description of a changeset that touches some names, inodes and cookies."""
    return Touched(set(names), set(cookies), set(inodes), set())


@pytest.mark.parametrize("limit", [1, WATCHED_DIRECTORIES_MAX])
@pytest.mark.parametrize(
    ("path", "of", "concerned"),
    [
        (b"a", b"a/b/c/f", True),
        (b"a/b", b"a/b", True),
        (b"a/b", b"a/g", False),
        (b"a/b", b"a", False),
        (b"h2", b"a/b/c/f", True),  # one file, two names
        (b"h", b"a/b/c/f", False),
        (b"a/g", b"a/g", True),
    ],
)
def test_changed_inode_concerns_the_paths_of_its_names_and_above(
    db: Database,
    path: bytes,
    of: bytes,
    concerned: bool,
    limit: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result does not depend on the directories that are cached."""
    monkeypatch.setattr(tree_paths, "WATCHED_DIRECTORIES_MAX", limit)
    watch = PathWatch(db, path.split(b"/"))

    for _ in range(2):
        assert watch.is_touched(touched(inodes=(at(db, of),))) is concerned


@pytest.mark.parametrize(
    ("path", "parent", "name", "concerned"),
    [
        (b"a/b", b"a", b"b", True),  # The name is that of the path itself.
        (b"a/b/c", b"a", b"b", True),  # The name is that of a parent directory.
        (b"a/b", b"a/b/c", b"new", True),  # below
        (b"a/b", b"a", b"g", False),  # beside
        (b"a/new", b"a", b"new", True),  # missing in this state
        (b"a/new/x", b"a", b"g", False),
    ],
)
def test_changed_name_concerns_its_path_and_paths_above_and_below_it(
    db: Database, path: bytes, parent: bytes, name: bytes, concerned: bool
) -> None:
    """The path need not exist now, because it may exist before or after the change."""
    watch = PathWatch(db, path.split(b"/"))

    assert watch.is_touched(touched(names=((at(db, parent), name),))) is concerned


def test_path_of_a_replaced_name_is_found_by_its_cookie(db: Database) -> None:
    """A rename over an existing name changes only the inode in its dentry."""
    watch = PathWatch(db, [b"a", b"g"])
    cookies = {
        bytes(name): cookie for name, cookie, _ in dentries.page(db, at(db, b"a"), Cookie(0), 10)
    }
    a = at(db, b"a")

    assert watch.is_touched(touched(cookies=((a, cookies[b"g"]),)))
    assert not watch.is_touched(touched(cookies=((a, cookies[b"b"]),)))
    assert PathWatch(db, [b"a"]).is_touched(touched(cookies=((a, cookies[b"b"]),)))


def test_change_of_a_deleted_inode_concerns_no_path(db: Database) -> None:
    """A deleted inode has a path only in the state in which it exists."""
    watch = PathWatch(db, [b"a"])

    assert not watch.is_touched(touched(inodes=(Ino(999),), names=((Ino(998), b"x"),)))
