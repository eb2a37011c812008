"""Invariants of cached blocks: their rows match their blocks, and their files match the rows.

Invariants about files require ``survey.cache``. If the file of a dirty block is too short, the
bytes in the file are kept, and the missing bytes are recorded as lost.
"""

import os
from pathlib import Path
from typing import Final

from s3fs_meta.cache.crash_safety.recovery import is_stored
from s3fs_meta.check import lost_data
from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.observations import Need
from s3fs_meta.check.report import Severity
from s3fs_meta.check.rules import blocks as block_rules
from s3fs_meta.check.rules.blocks import BESIDE_THE_PACK, CONFIRMED, NULLS, PENDING
from s3fs_meta.check.sums import BLOCK_BYTES, IS_REGULAR
from s3fs_meta.hashed_dir import make_durably
from s3fs_meta.model import BlockState

_ROWS: Final = (
    "cached_blocks AS c LEFT JOIN blocks AS b ON b.block = c.block"
    " LEFT JOIN temp.check_refs AS r ON r.block = c.block"
    " LEFT JOIN temp.seen_files AS f ON f.block = c.block"
)
_STATES: Final = ", ".join(f"{state:d}" for state in BlockState)
_IS_PENDING: Final = f"c.state IN {PENDING} AND {NULLS} = 4 AND r.refs > 0"
# Dirty blocks whose row of block_map is lost or wrong. Two values must prove it, because one damaged
# value must not bring back old content: a sealed block may have no references, and still have a row.
# The row of the block counts references, and the inode counts more blocks than the map has, or the
# map names a block at the position that does not exist or counts fewer references.
_IS_UNMAPPED: Final = (
    f"c.state IN {PENDING} AND {NULLS} = 4 AND b.refs > 0 AND r.block IS NULL AND {IS_REGULAR}"
    f" AND c.block_index >= 0 AND c.block_index * {BLOCK_BYTES} < i.size_bytes"
    " AND CASE WHEN p.block IS NULL THEN i.mapped_blocks > coalesce(m.blocks, 0)"
    " ELSE x.block IS NULL OR x.refs < y.refs END"
)
_WITH_POSITIONS: Final = (
    f"{_ROWS} JOIN inodes AS i ON i.ino = c.ino LEFT JOIN temp.check_mapped AS m ON m.ino = c.ino"
    " LEFT JOIN block_map AS p ON p.ino = c.ino AND p.block_index = c.block_index"
    " LEFT JOIN blocks AS x ON x.block = p.block"
    " LEFT JOIN temp.check_refs AS y ON y.block = p.block"
)
_UNMAPPED: Final = "SELECT u.block FROM temp.seen_unmapped AS u"


def note_unmapped(exam: Examination) -> None:
    """Record the dirty blocks that the block map has lost; call this before the first repair.

    A repair may remove rows of the block map and leave the number of references to a later repair.
    """
    exam.derive()
    # A block with a higher number has the newer content.
    exam.evidence.note_unmapped(
        f"SELECT max(c.block) FROM {_WITH_POSITIONS} WHERE {_IS_UNMAPPED}"
        " GROUP BY c.ino, c.block_index"
    )


def map_again(exam: Examination) -> None:
    """Map the dirty blocks that the block map has lost; call this before all other repairs.

    Another repair could treat the wrong row at the position of such a block as lost content.
    """
    rows = exam.collected(
        f"SELECT ino, block_index, block FROM cached_blocks WHERE block IN ({_UNMAPPED})"
    )
    for ino, index, block in rows:
        exam.run("INSERT OR REPLACE INTO block_map VALUES (?, ?, ?)", (ino, index, block))
        exam.report.remember(f"block {block} was mapped again at index {index} of inode {ino}")
    exam.db.all("DELETE FROM temp.seen_unmapped")


def _mend_states(exam: Examination, invariant: Invariant) -> None:
    """Set cached blocks without a row to DOOMED, with a location to UPLOADED, others to DIRTY."""
    for (block,) in exam.collected(invariant.select("c.block")):
        exam.note_dirty(block)  # note_dirty ignores a block with a location
    exam.run(
        "UPDATE cached_blocks SET state = coalesce("
        f" (SELECT CASE {NULLS} WHEN 0 THEN {BlockState.UPLOADED:d} ELSE {BlockState.DIRTY:d} END"
        " FROM blocks AS b WHERE b.block = cached_blocks.block),"
        f" {BlockState.DOOMED:d}) WHERE block IN ({invariant.select('c.block')})"
    )


def _mend_places(exam: Examination, invariant: Invariant) -> None:
    """Correct the recorded positions of mapped blocks; ``map_again`` maps the other blocks."""
    exam.run(
        "UPDATE cached_blocks SET ino = m.ino, block_index = m.block_index FROM block_map AS m"
        f" WHERE m.block = cached_blocks.block AND m.block IN ({invariant.select('c.block')})"
    )


def _part_places(exam: Examination, invariant: Invariant) -> None:
    """Give each file position of a dirty block, except the recorded one, its own copy."""
    if exam.files is None:
        return
    rows = exam.collected(
        "SELECT c.block, b.plain_bytes, m.ino, m.block_index"
        f" FROM ({invariant.select('c.block')}) AS x JOIN cached_blocks AS c ON c.block = x.block"
        " JOIN blocks AS b ON b.block = x.block JOIN block_map AS m ON m.block = x.block"
        " JOIN temp.seen_files AS f ON f.block = x.block AND f.size_bytes >= b.plain_bytes"
        " WHERE (m.ino, m.block_index) <> (c.ino, c.block_index)"
    )
    for block, plain_bytes, ino, index in rows:
        block_rules.part(exam, block, plain_bytes, ino, index)


def _keep_what_is_there(exam: Examination, invariant: Invariant) -> None:
    """Keep the bytes of a short cache file; record missing bytes and missing files as lost."""
    lost_data.record(
        exam,
        "SELECT m.ino, m.block_index, coalesce(f.size_bytes, 0) FROM block_map AS m"
        " LEFT JOIN temp.seen_files AS f ON f.block = m.block"
        f" WHERE m.block IN ({invariant.select('c.block')})",
    )
    exam.run(
        "UPDATE blocks SET plain_bytes = f.size_bytes FROM temp.seen_files AS f"
        " WHERE f.block = blocks.block AND f.size_bytes > 0"
        f" AND blocks.block IN ({invariant.select('c.block')})"
    )


def _forget_copies(exam: Examination, invariant: Invariant) -> None:
    exam.run(f"DELETE FROM cached_blocks WHERE block IN ({invariant.select('c.block')})")


def _forget_origins(exam: Examination, invariant: Invariant) -> None:
    """Delete the recorded origins of uploaded and uncached blocks."""
    exam.run(f"DELETE FROM copies WHERE block IN ({invariant.select('k.block')})")


# Cache files that no row and no repair needs.
# Repairs need verified copies, and the files of cached, dirty, searched and unknown blocks.
_STRAY_FILES: Final = (
    "(SELECT f.block, NULL AS path FROM temp.seen_files AS f"
    " LEFT JOIN blocks AS b ON b.block = f.block"
    " WHERE NOT EXISTS (SELECT 1 FROM cached_blocks AS c WHERE c.block = f.block)"
    " AND CASE WHEN b.block IS NULL"
    " THEN NOT EXISTS (SELECT 1 FROM temp.check_refs AS r WHERE r.block = f.block)"
    " ELSE b.pack IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM temp.seen_searched AS k WHERE k.block = f.block)"
    " AND NOT EXISTS (SELECT 1 FROM temp.seen_intact_copies AS k WHERE k.block = f.block) END"
    " UNION ALL SELECT NULL, path FROM temp.seen_strays) AS x"
)


def _put_away(path: Path, root: Path, quarantine: Path) -> None:
    """Delete an unfinished file; move an unknown file from the block directory to quarantine."""
    if not path.is_relative_to(root):
        path.unlink(missing_ok=True)
        return
    target = quarantine / path.relative_to(root.parent)
    make_durably(target.parent)
    path.rename(target)


def _remove_strays(exam: Examination, invariant: Invariant) -> None:
    """Remove unused block files whose content is in the bucket; quarantine all other strays.

    A later rollback of the commit group is harmless, because no row refers to the removed files.
    """
    files = exam.files
    assert files is not None, "stray files are known only after the survey of the cache directory"
    unknown = []
    for block, path in exam.collected(invariant.select("x.block, x.path")):
        if path is not None:
            _put_away(Path(os.fsdecode(path)), files.root, exam.quarantine)
            exam.db.all("DELETE FROM temp.seen_strays WHERE path = ?", (path,))
            continue
        if is_stored(exam.db, files, block, exam.block_hash):
            files.remove(block)
        else:
            unknown.append(block)
        exam.db.all("DELETE FROM temp.seen_files WHERE block = ?", (block,))
    files.quarantine(unknown, exam.quarantine / files.root.name)
    if exam.quarantine.exists():
        exam.report.remember(f"quarantined files that no row uses in {exam.quarantine}")


CACHE_ROWS: Final = (
    Invariant(
        40,
        "the state of a cached block matches its location",
        source=_ROWS,
        damaged=f"c.state NOT IN ({_STATES})"
        f" OR (b.block IS NULL AND r.block IS NULL AND c.state <> {BlockState.DOOMED:d})"
        f" OR ({NULLS} = 0 AND c.state NOT IN {BESIDE_THE_PACK})"
        f" OR ({NULLS} = 4 AND c.state IN {CONFIRMED})",
        columns="c.block, c.state, b.pack",
        text="the cached block {0} in pack {2} has state {1}",
        repair=_mend_states,
        about_inode=False,
    ),
    Invariant(
        41,
        "a dirty or sealed block records a file position at which it is mapped",
        source=_ROWS,
        damaged=f"{_IS_PENDING} AND NOT EXISTS (SELECT 1 FROM block_map AS m WHERE m.ino = c.ino"
        f" AND m.block_index = c.block_index AND m.block = c.block) OR c.block IN ({_UNMAPPED})",
        columns="c.block, c.ino, c.block_index",
        text="the cached block {0} is not at index {2} of inode {1}",
        repair=_mend_places,
        safe=True,
        about_inode=False,
    ),
    Invariant(
        42,
        "a dirty block is mapped at one file position only",
        source=_ROWS,
        damaged=f"{_IS_PENDING} AND r.refs > 1",
        columns="c.block, r.refs",
        text="the dirty block {0} is mapped {1} times",
        repair=_part_places,
        about_inode=False,
        advice="run s3fs-meta fsck -y on the host that has the cache directory",
    ),
)

_INCOMPLETE: Final = f"{_IS_PENDING} AND coalesce(f.size_bytes, -1) < b.plain_bytes"

CACHE_FILES: Final = (
    Invariant(
        43,
        "the cache file of a dirty block is complete",
        source=_ROWS,
        damaged=_INCOMPLETE,
        columns="c.block",
        listing="SELECT m.ino, m.block_index, m.block, b.plain_bytes,"
        " (SELECT f.size_bytes FROM temp.seen_files AS f WHERE f.block = m.block)"
        " FROM block_map AS m JOIN blocks AS b ON b.block = m.block"
        f" WHERE m.block IN (SELECT c.block FROM {_ROWS} WHERE {_INCOMPLETE})",
        text="block {2} at index {1} of file {0} is not in the bucket, and its cache file has {4} of"
        " {3} bytes",
        repair=_keep_what_is_there,
        needs=Need.FILES,
        advice="reading the block returns an error; -y keeps the available bytes and records the"
        " missing bytes as lost",
    ),
    Invariant(
        44,
        "the cache file of an uploaded block that is cached is complete",
        source=_ROWS,
        damaged=f"c.state IN {BESIDE_THE_PACK} AND {NULLS} = 0"
        " AND coalesce(f.size_bytes, -1) < b.plain_bytes",
        columns="c.block, coalesce(f.size_bytes || ' of ' || b.plain_bytes || ' bytes', 'no file')",
        text="the cache file of block {0} is missing or too short ({1}): the block is fetched again"
        " when needed",
        repair=_forget_copies,
        safe=True,
        severity=Severity.LEFTOVER,
        needs=Need.FILES,
        about_inode=False,
    ),
    Invariant(
        45,
        "every file in the cache directory belongs to a cached block",
        source=_STRAY_FILES,
        columns="coalesce(CAST('block ' || x.block AS BLOB), x.path)",
        text="{0}: no row uses this file of the cache directory",
        repair=_remove_strays,
        safe=True,
        severity=Severity.LEFTOVER,
        needs=Need.FILES,
        about_inode=False,
    ),
)

COPIES: Final = (
    Invariant(
        66,
        "a row of copies belongs to a cached block that is not uploaded",
        source="copies AS k LEFT JOIN cached_blocks AS c ON c.block = k.block"
        " LEFT JOIN blocks AS b ON b.block = k.block",
        damaged="c.block IS NULL OR b.pack IS NOT NULL",
        columns="k.block, k.origin",
        text="after a power cut, block {0} would have the outdated content of block {1}",
        repair=_forget_origins,
        safe=True,
        about_inode=False,
    ),
)
