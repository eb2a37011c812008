"""Tests of the table inodes: attributes of inodes, and the totals in the counters."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.errors import BadRowError, NoInodeError
from s3fs_meta.limits import TIME_NS_MAX, TIME_NS_MIN
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Attributes, Ino, InodeFlag

FILE = 0o100644
T0 = 1_760_000_000_000_000_000


def make_file(db: Database, **values: int) -> Attributes:
    """Create a regular file in the root directory at time T0."""
    return inodes.create(db, FILE, 10, 20, ROOT_INO, T0, **values)


def test_stored_row_of_a_new_inode_equals_the_returned_attributes(db: Database) -> None:
    """A new inode has its creation time in all four time attributes."""
    made = inodes.create(db, 0o020600, 10, 20, ROOT_INO, T0, rdev=0x501, nlink=1)
    assert inodes.find(db, made.ino) == made
    assert inodes.get(db, made.ino).rdev == 0x501
    assert (made.ctime_ns, made.mtime_ns, made.atime_ns, made.btime_ns) == (T0, T0, T0, T0)
    assert make_file(db).ino == made.ino + 1


def test_number_of_a_deleted_inode_is_not_reused(db: Database) -> None:
    """Even the highest inode number is not reused after its inode is deleted."""
    gone = make_file(db).ino
    inodes.delete(db, gone)
    assert make_file(db).ino > gone


def test_operation_on_a_missing_inode_raises_an_error(db: Database) -> None:
    """For a missing inode, find() returns None; changes of times, size and links raise an error."""
    none = Ino(999)
    assert inodes.find(db, none) is None
    ghost = make_file(db)._replace(ino=none)
    attempts: list[Callable[[], object]] = [
        lambda: inodes.get(db, none),
        lambda: inodes.replace(db, ghost),
        lambda: inodes.delete(db, none),
        lambda: inodes.touch(db, none, atime_ns=1),
        lambda: inodes.touch(db, none, ctime_ns=1),
        lambda: inodes.add_links(db, none, 1, T0),
        lambda: inodes.change_directory(db, none, T0, entries=1),
        lambda: inodes.set_size_and_mtime(db, none, 1, T0, 0),
        lambda: inodes.set_size_and_mtime(db, none, 1, T0, 0),
        lambda: inodes.set_times(db, none, ctime_ns=1, mtime_ns=1, atime_ns=1),
        lambda: inodes.set_size(db, none, 1, 0),
        lambda: inodes.delete(db, none),
    ]
    for attempt in attempts:
        with pytest.raises(NoInodeError):
            attempt()
    assert (db.counters.inodes, db.counters.file_bytes) == (2, 0)


TIMES = st.integers(TIME_NS_MIN, TIME_NS_MAX)


@settings(max_examples=40)
@given(
    mode=st.sampled_from([0o100000, 0o040000]).flatmap(
        lambda kind: st.integers(0, 0o7777).map(lambda bits: kind | bits)
    ),
    numbers=st.lists(st.integers(0, (1 << 32) - 1), min_size=4, max_size=4),
    size_bytes=st.integers(0, 1 << 60),
    times=st.tuples(TIMES, TIMES, TIMES),
)
def test_every_attribute_of_an_inode_is_stored(
    one_db: Database, mode: int, numbers: list[int], size_bytes: int, times: tuple[int, int, int]
) -> None:
    """Every attribute that stat can return is read back as it was stored."""
    one_db.begin()
    made = make_file(one_db)
    wanted = made._replace(
        mode=mode,
        nlink=numbers[0],
        uid=numbers[1],
        gid=numbers[2],
        rdev=numbers[3],
        size_bytes=size_bytes,
        mapped_blocks=3,
        ctime_ns=T0 + 17,
        mtime_ns=times[0],
        atime_ns=times[1],
        parent=Ino(77),
        flags=1,
        btime_ns=times[2],
    )
    inodes.replace(one_db, wanted)
    assert inodes.get(one_db, made.ino) == wanted
    one_db.inodes.settle()
    assert inodes.get(one_db, made.ino) == wanted
    one_db.rollback()


@pytest.mark.parametrize(
    ("changes", "is_bare"),
    [
        ({}, True),
        ({"nlink": 1}, False),
        ({"size_bytes": 5}, False),
        ({"mapped_blocks": 1}, False),
        ({"flags": InodeFlag.HAS_XATTRS}, False),
    ],
    ids=str,
)
def test_orphan_is_deleted_immediately_only_if_it_has_no_other_rows(
    db: Database, changes: dict[str, int], is_bare: bool
) -> None:
    """An orphan with blocks or other rows is not deleted immediately."""
    db.begin()
    bare = make_file(db)._replace(nlink=0, size_bytes=0)
    # mypy cannot check keyword arguments that come from a dict.
    made = bare._replace(**changes)  # type: ignore[arg-type]
    inodes.replace(db, made)
    before = db.counters.inodes

    assert inodes.delete_bare_orphan(db, made.ino) is is_bare

    assert (inodes.find(db, made.ino) is None) is is_bare
    assert before - db.counters.inodes == is_bare


@pytest.fixture(scope="module")
def one_db(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Return one database for all examples of a test; each example rolls back its commit group."""
    from s3fs_meta.meta.db.pragmas import Pragmas

    path = tmp_path_factory.mktemp("db") / "meta.db"
    facts = {"uuid": b"u", "block_bytes": b"1048576", "cookie_key": b"k" * 16}
    return Database.create(path, Pragmas(synchronous="off"), facts)


@pytest.mark.parametrize("far_ns", [-(1 << 63), (1 << 63) - 1, 1 << 80, -(1 << 80)])
def test_impossible_times_of_an_inode_are_corrected(db: Database, far_ns: int) -> None:
    """A time outside the range of its column becomes the nearest possible time."""
    made = make_file(db)
    inodes.replace(db, made._replace(mtime_ns=far_ns, atime_ns=far_ns))
    clamped = inodes.get(db, made.ino)
    assert clamped.mtime_ns == clamped.atime_ns
    assert (clamped.mtime_ns > T0) == (far_ns > T0)
    assert clamped.mtime_ns in {TIME_NS_MIN, TIME_NS_MAX}
    inodes.add_links(db, made.ino, 1, T0 + 10**18)
    after = inodes.get(db, made.ino)
    assert (after.mtime_ns, after.atime_ns) == (clamped.mtime_ns, clamped.atime_ns)
    assert isinstance(after.mtime_ns, int)
    inodes.touch(db, made.ino, atime_ns=far_ns)
    assert isinstance(inodes.get(db, made.ino).atime_ns, int)


# --- updates of single inode columns -----------------------------------------------------------


def test_write_sets_mtime_and_ctime_and_preserves_atime(db: Database) -> None:
    made = make_file(db)
    inodes.set_size_and_mtime(db, made.ino, 4096, T0 + 5, 1)
    expected = made._replace(size_bytes=4096, mapped_blocks=1, mtime_ns=T0 + 5, ctime_ns=T0 + 5)
    assert inodes.get(db, made.ino) == expected
    assert db.counters.file_bytes == 4096
    inodes.set_size_and_mtime(db, made.ino, 5000, T0 + 6, 2)
    assert inodes.get(db, made.ino).mapped_blocks == 3
    assert db.counters.file_bytes == 5000


def test_changing_a_directory_preserves_its_atime(db: Database) -> None:
    """A new name changes the directory's size, link count, mtime and ctime, but not its atime."""
    before = inodes.get(db, ROOT_INO)
    inodes.change_directory(db, ROOT_INO, T0 + 5, entries=2, subdirectories=1)
    assert inodes.get(db, ROOT_INO) == before._replace(
        size_bytes=2, nlink=3, mtime_ns=T0 + 5, ctime_ns=T0 + 5
    )
    inodes.change_directory(db, ROOT_INO, T0 + 6, entries=-2, subdirectories=-1)
    assert inodes.get(db, ROOT_INO).nlink == 2


def test_changing_the_link_count_changes_only_ctime(db: Database) -> None:
    made = make_file(db)
    inodes.add_links(db, made.ino, 2, T0 + 5)
    assert inodes.get(db, made.ino) == made._replace(nlink=3, ctime_ns=T0 + 5)
    inodes.add_links(db, made.ino, -3, T0 + 6)
    assert inodes.orphans(db) == [made.ino]


def test_touch_changes_only_the_times_that_it_is_given(db: Database) -> None:
    made = make_file(db)
    inodes.touch(db, made.ino, atime_ns=T0 + 1)
    assert inodes.get(db, made.ino) == made._replace(atime_ns=T0 + 1)
    inodes.touch(db, made.ino, ctime_ns=T0 + 2)
    assert inodes.get(db, made.ino) == made._replace(atime_ns=T0 + 1, ctime_ns=T0 + 2)
    inodes.touch(db, made.ino, ctime_ns=T0 + 3, mtime_ns=T0 + 4, atime_ns=0)
    assert inodes.get(db, made.ino) == made._replace(ctime_ns=T0 + 3, mtime_ns=T0 + 4, atime_ns=0)


def test_impossible_times_are_corrected_when_times_are_set(db: Database) -> None:
    """A time outside the valid range is corrected even if one call sets all times."""
    made = make_file(db)
    inodes.set_times(db, made.ino, ctime_ns=T0 + 1, mtime_ns=T0 + 2, atime_ns=T0 + 3)
    expected = made._replace(ctime_ns=T0 + 1, mtime_ns=T0 + 2, atime_ns=T0 + 3)
    assert inodes.get(db, made.ino) == expected
    inodes.set_times(db, made.ino, ctime_ns=T0, mtime_ns=1 << 80, atime_ns=-(1 << 80))
    found = inodes.get(db, made.ino)
    assert (found.mtime_ns, found.atime_ns) == (TIME_NS_MAX, TIME_NS_MIN)


CHANGES: list[Callable[[Database, Ino], object]] = [
    lambda db, ino: inodes.replace(db, inodes.get(db, ino)._replace(mode=FILE, ctime_ns=T0 + 5)),
    lambda db, ino: inodes.set_size_and_mtime(db, ino, 10, T0 + 5, 0),
    lambda db, ino: inodes.change_directory(db, ino, T0 + 5, entries=1),
    lambda db, ino: inodes.add_links(db, ino, 1, T0 + 5),
    lambda db, ino: inodes.touch(db, ino, ctime_ns=T0 - 5),
    lambda db, ino: inodes.set_times(db, ino, ctime_ns=T0 + 5, mtime_ns=0, atime_ns=0),
    lambda db, ino: inodes.set_size(db, ino, 10, 0),
    lambda db, ino: inodes.set_parent(db, ino, Ino(7)),
    lambda db, ino: inodes.set_flag(db, ino, 1, on=True),
]


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_change_of_an_inode_preserves_its_birth_time(
    db: Database, change: Callable[[Database, Ino], object], is_new: bool
) -> None:
    """The birth time is stored relative to ctime, so a change of ctime must adjust it."""
    ino = make_file(db).ino
    if not is_new:
        db.commit()
        db.begin()
    change(db, ino)
    assert inodes.get(db, ino).btime_ns == T0
    db.inodes.settle()
    assert inodes.get(db, ino).btime_ns == T0
    [(delta,)] = db.inodes.all("SELECT btime_delta_ns FROM inodes WHERE ino = ?", (ino,))
    assert delta == T0 - inodes.get(db, ino).ctime_ns


def test_birth_time_of_a_new_inode_is_stored_as_zero(db: Database) -> None:
    """A birth time equal to ctime is stored as 0, which takes only one byte of the row header."""
    ino = make_file(db).ino
    assert db.inodes.one("SELECT btime_delta_ns FROM inodes WHERE ino = ?", (ino,)) == (0,)


def test_setting_the_size_changes_the_block_count_and_total_bytes(db: Database) -> None:
    made = make_file(db, size_bytes=10)
    inodes.set_size(db, made.ino, 50, 2)
    assert inodes.get(db, made.ino) == made._replace(size_bytes=50, mapped_blocks=2)
    assert db.counters.file_bytes == 50


def test_totals_are_updated_when_an_inode_is_replaced_or_deleted(db: Database) -> None:
    made = make_file(db, size_bytes=10)
    wanted = made._replace(size_bytes=70)
    inodes.replace(db, wanted)
    assert (inodes.get(db, made.ino), db.counters.file_bytes) == (wanted, 70)
    inodes.delete(db, made.ino)
    assert (db.counters.inodes, db.counters.file_bytes) == (1, 0)


def test_changing_flags_or_parent_of_an_inode_preserves_its_times(db: Database) -> None:
    """Flags, parent and block count are internal, so their changes set no timestamp."""
    made = make_file(db)
    inodes.set_flag(db, made.ino, InodeFlag.HAS_XATTRS, on=True)
    inodes.set_parent(db, made.ino, Ino(9))
    inodes.add_mapped_blocks(db, made.ino, 4)
    assert inodes.get(db, made.ino) == made._replace(flags=1, parent=Ino(9), mapped_blocks=4)
    inodes.set_flag(db, made.ino, InodeFlag.HAS_XATTRS, on=False)
    assert inodes.get(db, made.ino).flags == 0


# --- inode totals in the counters --------------------------------------------------------------


def test_total_file_bytes_include_only_regular_files(db: Database) -> None:
    """The total excludes the sizes of directories and symbolic links."""
    inodes.create(db, 0o120777, 0, 0, ROOT_INO, T0, size_bytes=11)
    directory = inodes.create(db, 0o040755, 0, 0, ROOT_INO, T0, nlink=2)
    inodes.replace(db, directory._replace(size_bytes=5))
    assert db.counters.file_bytes == 0
    made = make_file(db, size_bytes=100)
    inodes.replace(db, made._replace(size_bytes=30))
    assert db.counters.file_bytes == 30
    assert db.counters.inodes == 4
    inodes.delete(db, made.ino)
    inodes.delete(db, directory.ino)
    assert (db.counters.file_bytes, db.counters.inodes) == (0, 2)


def test_orphans_are_found_through_an_index(db: Database) -> None:
    plan = db.inodes.all("EXPLAIN QUERY PLAN SELECT ino FROM inodes WHERE nlink = 0 ORDER BY ino")
    assert "inodes_orphaned" in plan[0][3]
    orphan = make_file(db, nlink=0)
    make_file(db)
    assert inodes.orphans(db) == [orphan.ino]


def test_setting_the_times_changes_only_atime_and_mtime_and_ctime(db: Database) -> None:
    """The function set_times() changes neither the birth time nor other attributes."""
    before = make_file(db, size_bytes=5)
    inodes.set_times(db, before.ino, ctime_ns=T0 + 9, mtime_ns=7, atime_ns=TIME_NS_MAX + 1)
    assert inodes.get(db, before.ino) == before._replace(
        ctime_ns=T0 + 9, mtime_ns=7, atime_ns=TIME_NS_MAX
    )
    with pytest.raises(NoInodeError):
        inodes.set_times(db, Ino(99), ctime_ns=1, mtime_ns=1, atime_ns=1)


def test_setting_the_size_preserves_the_times(db: Database) -> None:
    """The function set_size() sets no times, because the kernel sets them after a write."""
    before = make_file(db, size_bytes=5)
    inodes.set_size(db, before.ino, 12, 3)
    assert inodes.get(db, before.ino) == before._replace(size_bytes=12, mapped_blocks=3)
    assert db.counters.file_bytes == 12
    with pytest.raises(NoInodeError):
        inodes.set_size(db, Ino(99), 1, 0)


@pytest.mark.parametrize(
    "change",
    [
        *("mode = 1 << 32", "nlink = -1", "uid = 1 << 32", "gid = -1", "flags = -1"),
        *("size_bytes = -1", "size_bytes = 1 << 62", "mapped_blocks = 9223372036854775807"),
        *("ctime_ns = -1", f"mtime_delta_ns = {TIME_NS_MIN} - ctime_ns - 1"),
        *(f"{one}_delta_ns = {TIME_NS_MIN} - ctime_ns - 1" for one in ("atime", "btime")),
    ],
)
def test_change_of_an_inode_with_a_number_out_of_range_does_not_affect_other_inodes(
    db: Database, change: str
) -> None:
    """The inode with the damaged row is refused, and the commit group keeps the other changes."""
    ino = make_file(db).ino
    db.inodes.run(f"UPDATE inodes SET {change} WHERE ino = ?", (ino,))
    other = make_file(db)

    with pytest.raises(BadRowError):
        inodes.add_mapped_blocks(db, ino, 1)
    with pytest.raises(BadRowError):
        inodes.add_links(db, ino, 1, T0)
    db.commit()

    assert inodes.get(db, other.ino) == other
