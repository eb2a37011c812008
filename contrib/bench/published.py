"""Published figures that this project was compared with, beside ours, as ratios.

Other machines, years and programs: seconds do not compare, but how much one case costs against
another one of the same table does. The first case of a table is what the others are compared with.
"""

from collections.abc import Mapping
from typing import Final

JOURNAL_CREATE_S: Final = {"off/off": 255.0, "wal/off": 268.0, "wal/normal": 269.0}
JOURNAL_DELETE_S: Final = {"off/off": 57.0, "wal/off": 63.0, "wal/normal": 59.0}
JOURNAL_FIND_S: Final = {"off/off": 0.3, "wal/normal": 0.9}
COPY_S: Final = {"ext3": 0.2, "XFS, best": 5.8, "XFS, worst": 16.0}
COPY_REMOVE_S: Final = {"ext3": 0.14, "XFS, best": 9.5, "XFS, worst": 18.0}
PRAGMAS_S: Final = {"without WAL": 59.0, "WAL, FULL": 6.2, "WAL, NORMAL": 0.9}
DELETE_MANY_S: Final = {
    "ext4, rm -rf": 18_647.0,
    "btrfs, rm -rf": 19_783.0,
    "ext4, rsync --delete": 24_279.0,
    "btrfs, rsync --delete": 53_516.0,
}
DELETE_MANY_FILES: Final = 1_000_000_000

Row = dict[str, float | None]


def beside(published: Mapping[str, float], here: Mapping[str, float]) -> dict[str, Row]:
    """Return for each published case both values and both ratios to the first case."""
    first = next(iter(published))
    return {
        case: {
            "published": value,
            f"published, of {first}": value / published[first],
            "here": here.get(case),
            f"here, of {first}": here[case] / here[first] if case in here else None,
        }
        for case, value in published.items()
    }
