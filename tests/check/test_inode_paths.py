"""Tests of the inode paths in fsck's reports."""

from s3fs_meta.check import sums
from s3fs_meta.check.inode_paths import Paths
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino
from tests.check.healthy import NOW_NS, Healthy


def _paths(healthy: Healthy, *spoken_of: Ino) -> Paths:
    healthy.db.inodes.write_through()
    sums.make_tables(healthy.db)
    sums.fill_tables(healthy.db)
    paths = Paths(healthy.db)
    paths.look_up(" UNION ".join(f"SELECT {ino}" for ino in spoken_of) or "SELECT 0")
    return paths


def test_path_of_an_inode_begins_at_the_root_directory(healthy: Healthy) -> None:
    """Paths of reachable directories are always known, and paths of files after a request."""
    paths = _paths(healthy, healthy.fifo)
    assert paths.of(ROOT_INO) == "/"
    assert paths.of(healthy.inner) == "/directory/inner"
    assert paths.of(healthy.fifo) == "/directory/inner/fifo"
    assert paths.of(healthy.symlink) is None


def test_undecodable_bytes_of_a_path_are_escaped(healthy: Healthy) -> None:
    """Bytes that are not UTF-8 are escaped, so that the path can be printed and used in JSON."""
    healthy.db.begin()
    ino = healthy.create(ROOT_INO, b"caf\xe9")
    healthy.db.commit()
    assert _paths(healthy, ino).of(ino) == "/caf\\xe9"


def test_unreachable_inode_has_no_path(healthy: Healthy) -> None:
    """A directory that contains itself has no path, and the search for one ends."""
    healthy.db.begin()
    ring = inodes.create(healthy.db, 0o40755, 0, 0, ROOT_INO, NOW_NS, nlink=2).ino
    dentries.add(healthy.db, ring, b"itself", ring)
    healthy.db.commit()
    assert _paths(healthy).of(ring) is None
    assert _paths(healthy).of(Ino(999_999)) is None
