"""Paths of inodes and names."""

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees.tree_paths import TreePaths
from s3fs_meta.model import Ino
from tests.meta.conftest import MakeDatabase, create_file


def test_paths_of_inodes_and_names_begin_at_the_root_directory(make_database: MakeDatabase) -> None:
    """Bytes that are not valid UTF-8 are escaped in a path."""
    db = make_database()
    one = create_file(db, b"one", Ino(1), mode=0o040755)
    two = create_file(db, b"t\xffwo", one, mode=0o040755)
    file = create_file(db, b"file", two)
    db.commit()
    paths = TreePaths(db.connection)
    assert paths.of_inode(Ino(1)) == "/"
    assert paths.of_inode(file) == "/one/t\\xffwo/file"
    assert paths.of_name(two, b"gone") == "/one/t\\xffwo/gone"
    assert paths.of_inode(one) == "/one"


def test_unreachable_inode_has_no_path(db: Database) -> None:
    """An inode without a name, or in a cycle of directories, has no path."""
    orphan = inodes.create(db, 0o040755, 0, 0, Ino(1), 0).ino
    below = create_file(db, b"below", orphan)
    circle = create_file(db, b"circle", Ino(1), mode=0o040755)
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
    top = create_file(db, b"top", Ino(1), mode=0o040755)
    file = create_file(db, b"file", top)
    db.run("UPDATE dentries SET name = CAST(name AS TEXT)")
    db.commit()
    assert TreePaths(db.connection).of_inode(file) == "/top/file"
