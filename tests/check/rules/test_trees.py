"""Trees that were removed as a whole."""

import stat

from s3fs_meta.check.report import Mode
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from tests.check.healthy import NOW_NS, Healthy


def _remove(healthy: Healthy, name: bytes, ino: Ino) -> None:
    """Do what the command does, and no more."""
    db = healthy.db
    db.begin()
    dentries.remove(db, ROOT_INO, name)
    inodes.change_directory(db, ROOT_INO, NOW_NS, entries=-1, subdirectories=-1)
    removed_trees.mark_removed(db, [ino], NOW_NS)
    db.commit()


def test_removed_tree_is_purged_only_when_unmounted(healthy: Healthy) -> None:
    """I69: it goes with what has no name elsewhere; a name elsewhere keeps its inode."""
    _remove(healthy, b"directory", healthy.directory)

    assert healthy.check(mounted=True).lines() == ["clean"]
    assert healthy.check().broken == ["I69"]
    report = healthy.check(Mode.SAFE)

    assert (report.exit_status, report.broken) == (0, ["I69"])
    assert healthy.check().lines() == ["clean"]
    for ino in (healthy.directory, healthy.inner, healthy.dirty, healthy.symlink, healthy.fifo):
        assert inodes.find(healthy.db, ino) is None
    linked = inodes.get(healthy.db, healthy.linked)
    assert (linked.nlink, linked.parent) == (1, ROOT_INO)
    assert not healthy.db.all("SELECT * FROM hard_links WHERE ino = ?", (healthy.linked,))


def test_directory_that_only_lost_its_name_is_kept(healthy: Healthy) -> None:
    """I26, not I69: without the flag the directory was not being removed."""
    db = healthy.db
    db.begin()
    dentries.remove(db, ROOT_INO, b"directory")
    inodes.change_directory(db, ROOT_INO, NOW_NS, entries=-1, subdirectories=-1)
    db.run("UPDATE inodes SET nlink = 0 WHERE ino = ?", (healthy.directory,))
    db.commit()

    assert healthy.check().broken == ["I26"]
    healthy.check(Mode.ALL)
    assert stat.S_ISDIR(inodes.get(db, healthy.directory).mode)
    assert healthy.check().lines() == ["clean"]


def test_flag_means_nothing_where_there_is_a_name(healthy: Healthy) -> None:
    """I58: what can be reached was not removed."""
    healthy.sql(
        f"UPDATE inodes SET flags = flags | {InodeFlag.REMOVED:d} WHERE ino = ?", healthy.directory
    )
    healthy.assert_mended("I58")
    assert healthy.dump() == healthy.before
