"""The benchmarks, with their sizes in each plan.

A plan determines the sizes of all benchmarks in a run. ``complete`` takes a few hours. ``hour``
takes one to two hours on two idle processors. ``quick`` only shows that all benchmarks can be run.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

COMPLETE: Final = "complete"
HOUR: Final = "hour"
QUICK: Final = "quick"
PLANS: Final = (COMPLETE, HOUR, QUICK)


class Sizes(NamedTuple):
    """The value of one size argument in each plan."""

    complete: int
    hour: int
    quick: int

    def of(self, plan: str) -> int:
        """Return the value that the plan *plan* uses."""
        return self[PLANS.index(plan)]


# The sizes that each plan passes to the run() function of each benchmark.
BENCHMARKS: Final[Mapping[str, Mapping[str, Sizes]]] = {
    "peers": {"files": Sizes(6000, 2500, 500)},
    "sequential": {"gib": Sizes(4, 4, 1), "rounds": Sizes(3, 3, 2)},
    "random": {
        "random_mib": Sizes(1024, 1024, 128), "operations": Sizes(50_000, 50_000, 5000),
        "rounds": Sizes(3, 3, 2),
    },
    "fsync_latency": {
        "copy_mib": Sizes(2048, 2048, 256), "fsyncs": Sizes(500, 500, 100),
        "rounds": Sizes(3, 3, 1),
    },
    "postgres": {
        "pg_scale": Sizes(10, 10, 2), "pg_seconds": Sizes(30, 10, 3), "rounds": Sizes(5, 3, 1),
    },
    "stall": {"database_mb": Sizes(500, 500, 50)},
    "cut": {"rows": Sizes(10_000, 10_000, 10_000), "rounds": Sizes(5, 5, 3)},
    "recovery": {"untar": Sizes(50_000, 50_000, 10_000)},
    "follow": {"entries": Sizes(100_000, 100_000, 10_000), "rounds": Sizes(5, 3, 1)},
    "restore": {
        "many": Sizes(1_000_000, 1_000_000, 100_000), "txgs": Sizes(1000, 1000, 100),
        "rounds": Sizes(3, 3, 1),
    },
    "history": {
        "many": Sizes(1_000_000, 200_000, 20_000), "txgs": Sizes(120_000, 10_000, 300),
        "rounds": Sizes(3, 3, 2), "delay_ms": Sizes(30, 30, 30),
    },
    "history_cost": {
        "files": Sizes(3000, 2000, 200), "txg_files": Sizes(100, 100, 20),
        "rounds": Sizes(9, 5, 2), "turn_s": Sizes(30, 15, 2), "window": Sizes(20_000, 20_000, 1000),
    },
    "trees": {"entries": Sizes(1_000_000, 1_000_000, 100_000)},
    "blocks": {"block_mib": Sizes(256, 256, 32)},
    "s3_small": {
        "untar": Sizes(10_000, 5000, 2000), "peer_files": Sizes(500, 300, 50),
        "delay_ms": Sizes(30, 30, 30),
    },
    "s3_read": {
        "read_mib": Sizes(1024, 1024, 128), "reads": Sizes(100, 100, 20),
        "rounds": Sizes(3, 3, 1), "delay_ms": Sizes(30, 30, 30),
    },
    "s3_write": {
        "upload_mib": Sizes(4096, 2048, 128), "rounds": Sizes(3, 3, 1),
        "delay_ms": Sizes(30, 30, 30),
    },
    "upload_stall": {
        "read_mib": Sizes(1024, 1024, 128), "rounds": Sizes(3, 3, 1),
        "delay_ms": Sizes(30, 30, 30),
    },
    "journal_modes": {"files": Sizes(20_000, 10_000, 2000), "rounds": Sizes(2, 2, 1)},
    "database_pragmas": {"updates": Sizes(100, 100, 20), "rounds": Sizes(3, 3, 1)},
    "delete_many": {  # The exponents N of 10^N files: minimum, maximum, maximum for other programs.
        "delete_power_min": Sizes(5, 5, 5), "delete_power": Sizes(6, 6, 5),
        "one_by_one_power": Sizes(5, 5, 5), "peer_files": Sizes(100_000, 10_000, 10_000),
    },
    "scale": {"scale_power": Sizes(7, 7, 5)},  # Filesystems of 10^N, 10^(N-1) and 10^(N-2) files.
    "extremes": {"names": Sizes(1_000_000, 200_000, 100_000), "tib": Sizes(100, 20, 1)},
    "collect": {"watched_s": Sizes(10, 10, 2)},
    "codec": {"corpus_mib": Sizes(24, 24, 2)},
    "workloads": {
        "files": Sizes(10_000, 3000, 1000), "messages": Sizes(5000, 600, 500),
        "turns": Sizes(5, 5, 1),
    },
    "used_mount": {
        "files": Sizes(6000, 6000, 500), "cached": Sizes(200_000, 200_000, 1000),
        "txgs": Sizes(120_000, 120_000, 100), "turns": Sizes(5, 5, 1),
    },
}  # fmt: skip
