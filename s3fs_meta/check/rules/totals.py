"""The invariant of counters: they are what a scan gives."""

from typing import Final

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.scratch_tables import IS_REGULAR
from s3fs_meta.meta.db.counters import TABLE_OF
from s3fs_meta.model import PackState

_SCANS: Final = {
    "inodes": "SELECT count(*) FROM inodes",
    "dentries": "SELECT count(*) FROM dentries",
    "file_bytes": f"SELECT coalesce(sum(i.size_bytes), 0) FROM inodes AS i WHERE {IS_REGULAR}",
    "block_bytes": "SELECT coalesce(sum(plain_bytes), 0) FROM blocks",
    "stored_bytes": (
        f"SELECT coalesce(sum(object_bytes), 0) FROM packs WHERE state = {PackState.STORED:d}"
    ),
    "capacity_bytes": "SELECT max(capacity_bytes, 0) FROM counters",
    "txg": "SELECT max(txg, 0) FROM counters",
}
_COUNTS: Final = " UNION ALL ".join(
    f"SELECT '{name}' AS name, (SELECT {name} FROM {TABLE_OF[name]}) AS counted,"
    f" ({scan}) AS scanned"
    for name, scan in _SCANS.items()
)


def _set_counters(exam: Examination, invariant: Invariant) -> None:
    for name, _counted, scanned in list(exam.rows(invariant)):
        exam.set_counter(name, scanned)


TOTALS: Final = (
    Invariant(
        65,
        "the counters are what a scan gives",
        source=f"({_COUNTS}) AS x",
        damaged="x.counted <> x.scanned",
        columns="x.name, x.counted, x.scanned",
        text="counter {0} is {1}, should be {2}",
        repair=_set_counters,
        safe=True,
        about_inode=False,
    ),
)
