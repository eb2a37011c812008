"""Invariants of names: valid bytes, correct cookies, and one tree without cycles.

``link_counts`` contains the invariants of values counted from names.
"""

from collections.abc import Iterator
from typing import Final

from s3fs_meta.check import lost_found, sums
from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.name_hashes import IS_BYTES
from s3fs_meta.check.rules.inodes import IS_TOP
from s3fs_meta.check.sums import EVERY_DIRECTORY, EVERY_INODE, IS_DIRECTORY
from s3fs_meta.errors import quoted
from s3fs_meta.limits import COOKIE_COLLISION_BITS, NAME_BYTES_MAX
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.model import ROOT_INO, Ino

_ENTRIES: Final = "dentries AS e"
_TARGETS: Final = "temp.check_names AS n LEFT JOIN inodes AS i ON i.ino = n.ino"
_COLLISIONS: Final = (1 << COOKIE_COLLISION_BITS) - 1
_HAS_ENTRIES: Final = "EXISTS (SELECT 1 FROM dentries AS e WHERE e.parent = i.ino)"

# --- repairs of single names -------------------------------------------------------------------

_BAD_NAME: Final = (
    f"typeof(e.name) <> 'blob' OR length(e.name) NOT BETWEEN 1 AND {NAME_BYTES_MAX}"
    " OR instr(e.name, x'2f') OR instr(e.name, x'00') OR e.name IN (x'2e', x'2e2e')"
)


def _drop_names(exam: Examination, invariant: Invariant) -> None:
    exam.run(f"DELETE FROM dentries WHERE ino IN ({invariant.select('n.ino')})")


def _rename(exam: Examination, invariant: Invariant) -> None:
    """Replace an invalid name with a similar valid name in its directory."""
    for parent, cookie, name, ino in exam.collected(
        invariant.select("e.parent, e.cookie, CAST(e.name AS BLOB), e.ino")
    ):
        _move(exam, parent, cookie, _good_name(name), ino)


def _good_name(name: bytes | None) -> bytes:
    good = (name or b"").replace(b"/", b"_").replace(b"\0", b"_")[:NAME_BYTES_MAX] or b"_"
    return b"_" * len(good) if good in {b".", b".."} else good


def _move(exam: Examination, parent: Ino, cookie: int, name: bytes, ino: Ino) -> None:
    """Give a dentry the cookie that matches the hash of the name; skip a dentry that was moved."""
    this = "parent = ? AND cookie = ? AND ino = ?"
    if not exam.run(f"DELETE FROM dentries WHERE {this}", (parent, cookie, ino)):
        return
    given = lost_found.add_under_free_name(exam, parent, name, ino)
    if given != name:
        exam.report.remember(
            f"renamed {quoted(name)} of inode {ino} in directory {parent} to {quoted(given)}, because"
            " the name is in use"
        )


def _misplaced(exam: Examination) -> Iterator[Row]:
    """Yield dentries whose cookie does not match the hash of the name."""
    if not exam.any_name_misplaced():
        return
    name_hash = exam.db.name_hash
    for parent, cookie, name, ino in exam.db.iterate(
        f"SELECT parent, cookie, name, ino FROM dentries WHERE {IS_BYTES}"
    ):
        if name_hash(name) != cookie >> COOKIE_COLLISION_BITS:
            yield parent, name, cookie, ino


def _put_in_place(exam: Examination, _invariant: Invariant) -> None:
    """Give each dentry with a wrong cookie the cookie that matches the hash of its name."""
    exam.db.all("DROP TABLE IF EXISTS temp.check_misplaced")
    exam.db.all("CREATE TEMP TABLE check_misplaced (parent, name, cookie, ino)")
    for row in _misplaced(exam):
        exam.db.all("INSERT INTO temp.check_misplaced VALUES (?, ?, ?, ?)", row)
    for parent, cookie, name, ino in exam.collected(
        "SELECT parent, cookie, name, ino FROM temp.check_misplaced"
    ):
        _move(exam, parent, cookie, name, ino)


def _rename_doubles(exam: Examination, invariant: Invariant) -> None:
    """Remove the duplicates of names in a directory; keep the entry that a lookup finds.

    A duplicate that refers to another inode is renamed; any other duplicate is deleted.
    """
    for parent, cookie, name, ino, first_ino in exam.collected(
        invariant.select("e.parent, e.cookie, CAST(e.name AS BLOB), e.ino, f.ino")
    ):
        if ino == first_ino:
            exam.run("DELETE FROM dentries WHERE parent = ? AND cookie = ?", (parent, cookie))
        else:
            _move(exam, parent, cookie, name, ino)


# --- repairs of the directory tree -------------------------------------------------------------


def _keep_one_name(exam: Examination, invariant: Invariant) -> None:
    """Keep one name of each directory, preferably in its recorded parent; the root keeps none."""
    exam.run("DELETE FROM dentries WHERE ino = ?", (ROOT_INO,))
    for ino, parent in exam.collected(
        f"SELECT i.ino, i.parent FROM inodes AS i WHERE i.ino IN ({invariant.select('i.ino')})"
        f" AND i.ino <> {ROOT_INO}"
    ):
        kept = exam.db.one(
            "SELECT parent, cookie FROM dentries WHERE ino = ?1"
            " AND parent IN (SELECT l.parent FROM temp.check_links AS l WHERE l.ino = ?1)"
            " ORDER BY parent <> ?2, parent, cookie LIMIT 1",
            (ino, parent),
        )
        assert kept is not None, "a directory with several names has one of them in check_links"
        exam.run(
            "DELETE FROM dentries WHERE ino = ?1 AND (parent, cookie) <> (?2, ?3)"
            " AND parent IN (SELECT l.parent FROM temp.check_links AS l WHERE l.ino = ?1)",
            (ino, *kept),
        )


def _place_unnamed(exam: Examination, invariant: Invariant) -> None:
    home = lost_found.directory(exam)
    exam.derive()  # a directory that was just created has a name
    for ino, nlink in exam.collected(invariant.select("i.ino, i.nlink")):
        lost_found.place(exam, home, ino)
        if nlink == 0:
            exam.run("UPDATE inodes SET nlink = 1 WHERE ino = ?", (ino,))


def _break_cycles(exam: Examination, invariant: Invariant) -> None:
    """Move one directory of each cycle to lost+found; the other directories stay below it."""
    home = lost_found.directory(exam)
    exam.derive()
    while (row := exam.db.one(f"{invariant.query} ORDER BY 1 LIMIT 1")) is not None:
        ino = _on_cycle(exam, Ino(row[0]))
        exam.run("DELETE FROM dentries WHERE ino = ?", (ino,))
        lost_found.place(exam, home, ino)
        exam.db.all(
            "INSERT OR IGNORE INTO temp.check_reached WITH RECURSIVE below (ino) AS ("
            " SELECT ?1 UNION SELECT e.ino FROM below AS b"
            " JOIN temp.check_edges AS e ON e.parent = b.ino) SELECT ino FROM below",
            (ino,),
        )


def _on_cycle(exam: Examination, ino: Ino) -> Ino:
    """Follow the parents of an unreached directory into a cycle; return one of its directories."""
    seen = set()
    while ino not in seen:  # the loop visits each directory at most once
        seen.add(ino)
        row = exam.db.one("SELECT low FROM temp.check_names WHERE ino = ?", (ino,))
        assert row is not None, "a directory that the search did not reach has a name"
        ino = Ino(row[0])
    return ino


NAMES: Final = (
    Invariant(
        21,
        "every name refers to an existing inode",
        source=_TARGETS,
        damaged="i.ino IS NULL",
        columns="n.low, n.ino, n.names, (SELECT e.name FROM dentries AS e"
        " WHERE e.parent = n.low AND e.ino = n.ino LIMIT 1)",
        text="name {3!r} in directory {0} refers to inode {1}, which does not exist",
        repair=_drop_names,
    ),
    Invariant(
        22,
        "a name is 1 to 255 bytes without / and NUL, and is neither . nor ..",
        source=_ENTRIES,
        damaged=_BAD_NAME,
        columns="e.parent, e.name, e.ino",
        text="inode {2} has an invalid name in directory {0}: {1!r}",
        repair=_rename,
    ),
    Invariant(
        23,
        "the cookie of every name matches the hash of the name",
        text="name {1!r} in directory {0} has the wrong cookie {2}, so no lookup finds the name",
        scan=_misplaced,
        repair=_put_in_place,
        safe=True,
    ),
    Invariant(
        24,
        "a name occurs at most once in a directory",
        # If two names have equal hashes, the second has a collision number above 0.
        source=f"dentries AS e JOIN dentries AS f ON e.cookie & {_COLLISIONS} <> 0"
        f" AND f.parent = e.parent AND f.cookie BETWEEN e.cookie & ~{_COLLISIONS} AND e.cookie - 1"
        " AND f.name = e.name",
        columns="e.parent, e.name, e.ino, f.ino",
        text="name {1!r} occurs twice in directory {0}, for inode {3} and for inode {2}",
        repair=_rename_doubles,
    ),
    Invariant(
        25,
        "a directory has one name, and the root directory has none",
        source=EVERY_INODE,
        damaged=f"{IS_DIRECTORY} AND n.names > (i.ino <> {ROOT_INO})",
        columns="i.ino, n.names",
        text="directory {0} has {1} names",
        repair=_keep_one_name,
    ),
    Invariant(
        26,
        "an inode with nlink above 0 has a name",
        source=EVERY_INODE,
        damaged=f"n.ino IS NULL AND i.ino <> {ROOT_INO} AND (i.nlink > 0 OR {_HAS_ENTRIES})"
        f" AND NOT {IS_TOP}",
        columns="i.ino, i.mode, i.nlink",
        text="inode {0} of mode {1} and nlink {2} has no name",
        repair=_place_unnamed,
    ),
    Invariant(
        27,
        "no directory is below itself",
        source=EVERY_DIRECTORY,
        damaged=f"d.kind = {sums.DIRECTORY}"
        " AND NOT EXISTS (SELECT 1 FROM temp.check_reached AS r WHERE r.ino = d.ino)",
        columns="d.ino, d.entries",
        text="directory {0} with {1} entries is in a cycle of directories",
        repair=_break_cycles,
    ),
)
