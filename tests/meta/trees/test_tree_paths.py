"""Paths of inodes and names."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees.tree_paths import TreePaths
from s3fs_meta.model import Ino
from tests.meta.conftest import MakeDatabase


def make(db: Database, parent: Ino, name: bytes, mode: int = 0o100644) -> Ino:
    """Create an inode with a name as one operation of a commit group."""
    db.begin()
    ino = inodes.create(db, mode, 0, 0, parent, 0).ino
    dentries.add(db, parent, name, ino)
    return ino


def test_paths_of_inodes_and_names_begin_at_the_root_directory(make_database: MakeDatabase) -> None:
    """Bytes that are not valid UTF-8 are escaped in a path."""
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


def test_unreachable_inode_has_no_path(db: Database) -> None:
    """An inode without a name, or in a cycle of directories, has no path."""
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


def test_name_of_a_wrong_type_is_part_of_a_path(db: Database) -> None:
    """fsck converts such a name to a blob; until then, only its lookup fails."""
    top = make(db, Ino(1), b"top", 0o040755)
    file = make(db, top, b"file")
    db.run("UPDATE dentries SET name = CAST(name AS TEXT)")
    db.commit()
    assert TreePaths(db.connection).of_inode(file) == "/top/file"
