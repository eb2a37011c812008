"""Differences between two states of a tree, compared with the differences of a model."""

import random
import stat
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from s3fs_meta.errors import DamagedDatabaseError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import block_map, dentries, hard_links, inodes, symlinks, xattrs
from s3fs_meta.meta.trees.tree_diff import (
    ADDED,
    ATTRIBUTES,
    CHANGED,
    REMOVED,
    RENAMED,
    Difference,
    TreeDiff,
    changed_inodes,
)
from s3fs_meta.model import ROOT_INO, BlockIndex, Ino
from tests.meta.conftest import MakeDatabase, create_file

FILE, DIRECTORY = 0o100644, 0o40755


@dataclass(frozen=True)
class Node:
    """An inode of the model."""

    parent: Ino
    name: bytes
    mode: int
    size: int


class Model:
    """A database of random files and directories, and a model of its expected content."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.rnd = random.Random(seed)
        self.nodes: dict[Ino, Node] = {}
        self.now_ns = 10**18

    def directories(self) -> list[Ino]:
        """Return all directories of the model."""
        found = [ino for ino, node in self.nodes.items() if stat.S_ISDIR(node.mode)]
        return [ROOT_INO, *found]

    def path(self, ino: Ino) -> bytes:
        """Return the path of an inode."""
        node = self.nodes[ino]
        return node.name if node.parent == ROOT_INO else self.path(node.parent) + b"/" + node.name

    def is_below(self, ino: Ino, above: Ino) -> bool:
        """Return True if an inode is the given directory or below it."""
        while ino != ROOT_INO:
            if ino == above:
                return True
            ino = self.nodes[ino].parent
        return False

    def step(self) -> None:
        """Run one random operation on the database and the model."""
        self.now_ns += 1
        self.db.begin()
        operations: list[Callable[[Ino], None]] = [
            self.create,
            self.rename,
            self.remove,
            self.write,
            self.chmod,
        ]
        if self.nodes:
            self.rnd.choice(operations)(self.rnd.choice(sorted(self.nodes)))
        else:
            self.create(ROOT_INO)

    def create(self, _ino: Ino) -> None:
        """Create a file or a directory."""
        parent = self.rnd.choice(self.directories())
        mode = self.rnd.choice([FILE, FILE, DIRECTORY])
        name = b"%d" % self.rnd.randrange(30)
        if dentries.find(self.db, parent, name) is not None:
            return
        ino = inodes.create(self.db, mode, 0, 0, parent, self.now_ns).ino
        dentries.add(self.db, parent, name, ino)
        inodes.change_directory(self.db, parent, self.now_ns, entries=1)
        self.nodes[ino] = Node(parent, name, mode, 0)

    def rename(self, ino: Ino) -> None:
        """Move a file or directory to a free name, or a file over another file."""
        node = self.nodes[ino]
        parent = self.rnd.choice(self.directories())
        name = b"%d" % self.rnd.randrange(30)
        if self.is_below(parent, ino) or (parent, name) == (node.parent, node.name):
            return
        there = dentries.find(self.db, parent, name)
        if there is not None:
            if node.mode & stat.S_IFMT(DIRECTORY) or stat.S_ISDIR(self.nodes[there].mode):
                return
            self.remove(there)
        dentries.remove(self.db, node.parent, node.name)
        dentries.add(self.db, parent, name, ino)
        inodes.change_directory(self.db, node.parent, self.now_ns, entries=-1)
        inodes.change_directory(self.db, parent, self.now_ns, entries=1)
        inodes.set_parent(self.db, ino, parent)
        self.nodes[ino] = replace(node, parent=parent, name=name)

    def remove(self, ino: Ino) -> None:
        """Remove a file or an empty directory."""
        node = self.nodes[ino]
        if any(one.parent == ino for one in self.nodes.values()):
            return
        dentries.remove(self.db, node.parent, node.name)
        inodes.change_directory(self.db, node.parent, self.now_ns, entries=-1)
        inodes.delete(self.db, ino)
        del self.nodes[ino]

    def write(self, ino: Ino) -> None:
        """Change the size of a file."""
        node = self.nodes[ino]
        if not stat.S_ISDIR(node.mode):
            inodes.set_size(self.db, ino, node.size + 1, 0)
            self.nodes[ino] = replace(node, size=node.size + 1)

    def chmod(self, ino: Ino) -> None:
        """Change the permissions of a file or directory."""
        node = self.nodes[ino]
        mode = node.mode ^ 0o11
        self.db.inodes.run("UPDATE inodes SET mode = ? WHERE ino = ?", (mode, ino))
        self.nodes[ino] = replace(node, mode=mode)


def expected(before: "dict[Ino, Node]", paths: dict[Ino, bytes], after: Model) -> set[Difference]:
    """Return the expected differences between an earlier state and a model of the current state."""
    found: set[Difference] = set()
    created = {(node.parent, node.name): ino for ino, node in after.nodes.items()}
    for ino, old in before.items():
        new = after.nodes.get(ino)
        if new is None:
            other = created.get((old.parent, old.name))
            if other is not None and other not in before:
                fresh = after.nodes[other]
                if stat.S_IFMT(old.mode) == stat.S_IFMT(fresh.mode):
                    path = after.path(other)
                    found.add(
                        Difference(path, CHANGED, None, fresh.mode, old.size, fresh.size, True)
                    )
                    continue
            found.add(Difference(paths[ino], REMOVED, None, old.mode, old.size, None, False))
        elif (old.parent, old.name) != (new.parent, new.name):
            is_new = old.size != new.size
            former = paths[ino]
            found.add(
                Difference(after.path(ino), RENAMED, former, new.mode, old.size, new.size, is_new)
            )
        elif old.size != new.size:
            path = after.path(ino)
            found.add(Difference(path, CHANGED, None, new.mode, old.size, new.size, True))
        elif old.mode != new.mode:
            path = after.path(ino)
            found.add(Difference(path, ATTRIBUTES, None, new.mode, old.size, new.size, False))
    taken = {
        (node.parent, node.name, stat.S_IFMT(node.mode))
        for ino, node in before.items()
        if ino not in after.nodes
    }
    for ino, new in after.nodes.items():
        if ino in before or (new.parent, new.name, stat.S_IFMT(new.mode)) in taken:
            continue
        found.add(Difference(after.path(ino), ADDED, None, new.mode, None, new.size, False))
    return found


def without_sizes_of_directories(found: "set[Difference] | list[Difference]") -> set[Difference]:
    """Return differences in which directories have size 0, as in the model."""
    return {
        one._replace(
            before_bytes=None if one.before_bytes is None else 0,
            after_bytes=None if one.after_bytes is None else 0,
        )
        if stat.S_ISDIR(one.mode)
        else one
        for one in found
    }


@pytest.mark.parametrize("piece_rows", [1, 3, 500])
@pytest.mark.parametrize("seed", range(12))
def test_differences_between_trees_equal_the_differences_in_a_model(
    make_database: MakeDatabase, tmp_path: Path, seed: int, piece_rows: int
) -> None:
    """The differences do not depend on the number of names that are compared in one slice."""
    db = make_database()
    model = Model(db, seed)
    for _ in range(60):
        model.step()
    db.commit()
    earlier = copy_of(db, tmp_path)
    before, paths = dict(model.nodes), {ino: model.path(ino) for ino in model.nodes}
    for _ in range(40):
        model.step()
    db.commit()
    found = differences(earlier, db, piece_rows)

    assert len(found) == len(set(found))
    # If a directory replaces another directory of the same name, it is listed once, as changed.
    assert without_sizes_of_directories(found) == without_sizes_of_directories(
        expected(before, paths, model)
    )


def test_new_file_with_a_former_name_is_listed_as_a_change_if_its_cookie_differs(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    db = make_database()
    # All names get the same hash, so their cookies depend on the order of creation.
    db.name_hash = lambda _name: 5
    db.begin()
    for name in (b"removed", b"replaced"):
        ino = inodes.create(db, FILE, 0, 0, ROOT_INO, 10**18).ino
        dentries.add(db, ROOT_INO, name, ino)
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    for name in (b"removed", b"replaced"):
        inodes.delete(db, dentries.remove(db, ROOT_INO, name))
    dentries.add(db, ROOT_INO, b"replaced", inodes.create(db, FILE, 0, 0, ROOT_INO, 10**18).ino)
    inodes.change_directory(db, ROOT_INO, 10**18, entries=-1)
    db.commit()
    found = {one.path: one.kind for one in differences(earlier, db, 1)}

    assert found == {b"removed": REMOVED, b"replaced": CHANGED}


def test_replaced_files_are_listed_as_changes_after_the_cookie_key_was_replaced(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """If fsck replaces a damaged cookie key, all names get new cookies."""
    db = make_database()
    names = [b"%d" % number for number in range(20)]
    db.begin()
    for name in names:
        dentries.add(db, ROOT_INO, name, inodes.create(db, FILE, 0, 0, ROOT_INO, 10**18).ino)
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    for name in names:
        inodes.delete(db, dentries.remove(db, ROOT_INO, name))
    db.take_cookie_key(b"another key, 16 ")
    for name in names:
        dentries.add(db, ROOT_INO, name, inodes.create(db, FILE, 0, 0, ROOT_INO, 10**18).ino)
    inodes.change_directory(db, ROOT_INO, 10**18, entries=0)
    db.commit()
    found = [one.kind for one in differences(earlier, db, 1)]

    assert found == [CHANGED] * len(names)


def differences(earlier: Database, db: Database, piece_rows: int = 500) -> list[Difference]:
    """Return the differences between an earlier copy and a database; close the copy."""
    try:
        diff = TreeDiff(earlier, db, piece_rows=piece_rows)
        return list(diff.differences({*changed_inodes(earlier, db)}))
    finally:
        earlier.close()


def copy_of(db: Database, tmp_path: Path) -> Database:
    """Return a copy of the committed state of a database."""
    snapshot = db.open_snapshot()
    snapshot.copy_to(tmp_path / "earlier.db")
    snapshot.close()
    return Database.open(tmp_path / "earlier.db", Pragmas(journal_mode="off"))


def test_tree_diff_compares_content_and_names_and_symlink_targets_and_xattrs(
    db: Database, tmp_path: Path
) -> None:
    """New content is detected even if a file's size and mtime are unchanged."""
    made = {
        name: inodes.create(db, mode, 0, 0, ROOT_INO, 5).ino
        for name, mode in ((b"f", FILE), (b"x", FILE), (b"link", 0o120777), (b"same", FILE))
    }
    for name, ino in made.items():
        dentries.add(db, ROOT_INO, name, ino)
        block_map.set(db, ino, BlockIndex(0), db.counters.take_block())
    symlinks.create(db, made[b"link"], b"old")
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    block_map.set(db, made[b"f"], BlockIndex(0), db.counters.take_block())
    xattrs.set(db, made[b"x"], b"user.x", b"1")
    symlinks.delete(db, made[b"link"])
    symlinks.create(db, made[b"link"], b"new")
    hard_links.link_added(db, inodes.get(db, made[b"same"]), ROOT_INO)
    inodes.add_links(db, made[b"same"], 1, 5)
    dentries.add(db, ROOT_INO, b"other name", made[b"same"])
    db.commit()
    found = {one.path: one.kind for one in differences(earlier, db)}

    assert found == {b"f": CHANGED, b"x": ATTRIBUTES, b"link": CHANGED, b"other name": ADDED}


def test_changed_file_with_a_new_hard_link_keeps_its_listed_path(
    db: Database, tmp_path: Path
) -> None:
    directory = inodes.create(db, DIRECTORY, 0, 0, ROOT_INO, 5, nlink=2).ino
    dentries.add(db, ROOT_INO, b"d", directory)
    ino = inodes.create(db, FILE, 0, 0, ROOT_INO, 5).ino
    dentries.add(db, ROOT_INO, b"old", ino)
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    for parent, name in ((ROOT_INO, b"a new one"), (ROOT_INO, b"z new one"), (directory, b"third")):
        hard_links.link_added(db, inodes.get(db, ino), parent)
        inodes.add_links(db, ino, 1, 5)
        dentries.add(db, parent, name, ino)
    inodes.set_size(db, ino, 9, 0)
    db.commit()
    found = {one.path: one.kind for one in differences(earlier, db)}

    assert found == {
        b"old": CHANGED,
        b"a new one": ADDED,
        b"z new one": ADDED,
        b"d/third": ADDED,
    }


def test_tree_diff_lists_a_replaced_file_under_its_former_path(
    db: Database, tmp_path: Path
) -> None:
    """A directory replaced a file, and the parent directory was renamed."""
    above = inodes.create(db, DIRECTORY, 0, 0, ROOT_INO, 5, nlink=2).ino
    dentries.add(db, ROOT_INO, b"before", above)
    file = inodes.create(db, FILE, 0, 0, above, 5).ino
    dentries.add(db, above, b"x", file)
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    dentries.remove(db, above, b"x")
    inodes.delete(db, file)
    new = inodes.create(db, DIRECTORY, 0, 0, above, 6, nlink=2).ino
    dentries.add(db, above, b"x", new)
    dentries.remove(db, ROOT_INO, b"before")
    dentries.add(db, ROOT_INO, b"after", above)
    db.commit()
    found = {(one.kind, one.path) for one in differences(earlier, db)}

    assert found == {(REMOVED, b"before/x"), (ADDED, b"after/x"), (RENAMED, b"after")}


def test_name_with_a_new_cookie_is_not_listed_as_a_difference(db: Database, tmp_path: Path) -> None:
    """If a name is removed and added after a hash collision, its cookie may change."""
    ino = inodes.create(db, FILE, 0, 0, ROOT_INO, 5).ino
    dentries.add(db, ROOT_INO, b"kept", ino)
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    assert db.run("UPDATE dentries SET cookie = cookie + 1") == 1
    db.commit()
    assert differences(earlier, db) == []


def test_tree_diff_stores_no_names_of_unchanged_files_in_memory(
    db: Database, tmp_path: Path
) -> None:
    """The test changes a file and a directory among many unchanged names of 150 bytes."""
    above = inodes.create(db, DIRECTORY, 0, 0, ROOT_INO, 5, nlink=2).ino
    dentries.add(db, ROOT_INO, b"above", above)
    many = [(above, 256 * number, b"n%d" % number, 100 + number) for number in range(1, 20_001)]
    db.connection.executemany("INSERT INTO dentries VALUES (?, ?, ?, ?)", many)
    file = inodes.create(db, FILE, 0, 0, above, 5).ino
    folder = inodes.create(db, DIRECTORY, 0, 0, above, 5, nlink=2).ino
    dentries.add(db, above, b"file", file)
    dentries.add(db, above, b"folder", folder)
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    inodes.set_size(db, file, 9, 0)
    inner = inodes.create(db, FILE, 0, 0, folder, 6).ino
    dentries.add(db, folder, b"new", inner)
    db.commit()
    tracemalloc.start()
    try:
        diff = TreeDiff(earlier, db)
        found = {(one.path, one.kind) for one in diff.differences({file, folder, inner})}
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        earlier.close()

    assert found == {(b"above/file", CHANGED), (b"above/folder/new", ADDED)}
    assert peak_bytes < len(many) * 10


def test_tree_diff_stores_each_new_name_once_in_memory(db: Database, tmp_path: Path) -> None:
    """A new name uses 280 bytes of memory; a second grouping by inode would add 400 bytes."""
    db.commit()
    earlier = copy_of(db, tmp_path)
    db.begin()
    made = [inodes.create(db, FILE, 0, 0, ROOT_INO, 5).ino for _ in range(10_000)]
    for ino in made:
        dentries.add(db, ROOT_INO, b"new-%d" % ino, ino)
    db.commit()
    changed = {ROOT_INO, *made}
    tracemalloc.start()
    try:
        count = sum(one.kind == ADDED for one in TreeDiff(earlier, db).differences(changed))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        earlier.close()

    assert count == len(made)
    assert peak_bytes < len(made) * 400


@pytest.mark.parametrize("name", ["'text'", "CAST(x'ff' AS TEXT)", "5"])
@pytest.mark.parametrize("ino", ["'text'", "CAST(x'ff' AS TEXT)", "1.5", "x'00'"])
def test_row_of_a_name_with_wrong_types_is_no_difference(
    make_database: MakeDatabase, name: str, ino: str
) -> None:
    """Other names in the directory are compared; fsck repairs the damaged row."""
    before, after = make_database("before.db"), make_database("after.db")
    added = create_file(after, b"added")
    after.run(f"INSERT INTO dentries VALUES ({ROOT_INO}, 5, {name}, {ino})")
    after.commit()

    found = list(TreeDiff(before, after).differences([ROOT_INO, added]))

    assert [(one.path, one.kind) for one in found] == [(b"added", ADDED)]


def test_rows_with_keys_of_wrong_types_are_compared(make_database: MakeDatabase) -> None:
    """Keys of different types are compared in the order in which SQLite sorts them."""
    before, after = make_database("before.db"), make_database("after.db")
    for db, values in ((before, ("'text'", "x'61'", "5")), (after, ("x'61'", "1.5"))):
        db.begin()
        for value in values:
            db.run(f"INSERT INTO xattrs VALUES (7, {value}, x'00'), ({value}, x'01', x'00')")
        db.commit()

    assert set(changed_inodes(before, after)) == {5, 7}


def test_text_that_is_not_utf8_is_reported_as_damage(make_database: MakeDatabase) -> None:
    before, after = make_database("before.db"), make_database("after.db")
    after.begin()
    after.run("INSERT INTO xattrs VALUES (7, CAST(x'ff' AS TEXT), x'00')")
    after.commit()

    with pytest.raises(DamagedDatabaseError, match="not valid UTF-8"):
        list(changed_inodes(before, after))
