"""Every benchmark by name: the module that measures, the options that it takes, and its sizes.

A size is what a run takes that nobody gave a size for: of the whole set, or of the quick one.
"""

import importlib
import inspect
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

Figures = dict[str, Any]
MIB: Final = 1 << 20
GIB: Final = 1 << 30
MB: Final = 1_000_000
RECOVERY_INTERVAL_S: Final = 5.0


class Sizes(NamedTuple):
    """Of one option: in the whole set, and in the quick one."""

    whole: int
    quick: int


class Benchmark(NamedTuple):
    """One name on the command line."""

    module: str
    call: Callable[[Any, Path, Namespace], Figures]
    sizes: Mapping[str, Sizes] = {}

    def load(self) -> ModuleType:
        """Import the module; the row-filling ones need the package, the others do not."""
        return importlib.import_module(f"contrib.bench.{self.module}")

    def method(self) -> str:
        """Return what the module says of itself."""
        return inspect.getdoc(self.load()) or ""

    def run(self, scratch: Path, arguments: Namespace) -> Figures:
        """Measure."""
        return self.call(self.load(), scratch, arguments)


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "metadata": Benchmark(
        "metadata",
        lambda module, scratch, got: module.run(scratch, files=got.files, rounds=got.rounds),
        {"files": Sizes(10_000, 2000), "rounds": Sizes(3, 2)},
    ),
    "peers": Benchmark(
        "peers",
        lambda module, scratch, got: module.run(scratch, files=got.files),
        {"files": Sizes(3000, 500)},
    ),
    "sequential": Benchmark(
        "sequential",
        lambda module, scratch, got: module.run(
            scratch, size_bytes=got.gib * GIB, rounds=got.rounds
        ),
        {"gib": Sizes(4, 1), "rounds": Sizes(3, 2)},
    ),
    "random": Benchmark(
        "random_access",
        lambda module, scratch, got: module.run(
            scratch,
            size_bytes=got.random_mib * MIB,
            operations=got.operations,
            rounds=got.rounds,
        ),
        {
            "random_mib": Sizes(1024, 128),
            "operations": Sizes(50_000, 5000),
            "rounds": Sizes(3, 2),
        },
    ),
    "extension": Benchmark(
        "extension",
        lambda module, scratch, got: module.run(
            scratch,
            files=got.files,
            entries=got.entries,
            copy_mib=got.copy_mib,
            rounds=got.rounds,
        ),
        {
            "files": Sizes(3000, 500),
            "entries": Sizes(20_000, 2000),
            "copy_mib": Sizes(2048, 64),
            "rounds": Sizes(7, 2),
        },
    ),
    "find": Benchmark(
        "find_cold",
        lambda module, scratch, got: module.run(scratch, entries=got.entries, rounds=got.rounds),
        {"entries": Sizes(100_000, 10_000), "rounds": Sizes(5, 3)},
    ),
    "space": Benchmark(
        "space",
        lambda module, scratch, got: module.run(scratch, small=got.many // 10, large=got.many),
        {"many": Sizes(1_000_000, 100_000)},
    ),
    "fsck": Benchmark(
        "fsck",
        lambda module, scratch, got: module.run(scratch, files=got.many, rounds=got.rounds),
        {"many": Sizes(1_000_000, 100_000), "rounds": Sizes(3, 2)},
    ),
    "stall": Benchmark(
        "stall",
        lambda module, scratch, got: module.run(scratch, database_bytes=got.database_mb * MB),
        {"database_mb": Sizes(500, 50)},
    ),
    "cut": Benchmark(
        "cut",
        lambda module, scratch, got: module.run(scratch, rows=got.rows, rounds=got.rounds),
        {"rows": Sizes(10_000, 10_000), "rounds": Sizes(5, 3)},
    ),
    "recovery": Benchmark(
        "recovery_point",
        lambda module, scratch, got: module.run(
            scratch, files=got.untar, interval_s=RECOVERY_INTERVAL_S
        ),
        {"untar": Sizes(50_000, 10_000)},
    ),
    "follow": Benchmark(
        "follow",
        lambda module, scratch, got: module.run(scratch, files=got.entries, rounds=got.rounds),
        {"entries": Sizes(100_000, 10_000), "rounds": Sizes(5, 1)},
    ),
    "restore": Benchmark(
        "restore",
        lambda module, scratch, got: module.run(
            scratch, files=got.many, txgs=got.txgs, rounds=got.rounds
        ),
        {"many": Sizes(1_000_000, 100_000), "txgs": Sizes(1000, 100), "rounds": Sizes(3, 1)},
    ),
    "trees": Benchmark(
        "trees",
        lambda module, scratch, got: module.run(scratch, entries=got.entries),
        {"entries": Sizes(1_000_000, 100_000)},
    ),
    "blocks": Benchmark(
        "blocks",
        lambda module, scratch, got: module.run(scratch, size_bytes=got.block_mib * MIB),
        {"block_mib": Sizes(256, 32)},
    ),
    "compression": Benchmark(
        "compression",
        lambda module, scratch, got: module.run(sample_bytes=got.sample_mib * MIB),
        {"sample_mib": Sizes(64, 8)},
    ),
    "s3_small": Benchmark(
        "s3_small",
        lambda module, scratch, got: module.run(
            scratch, files=got.untar, peer_files=got.peer_files, delay_ms=got.delay_ms
        ),
        {"untar": Sizes(10_000, 2000), "peer_files": Sizes(500, 50), "delay_ms": Sizes(30, 30)},
    ),
    "s3_read": Benchmark(
        "s3_read",
        lambda module, scratch, got: module.run(
            scratch,
            size_bytes=got.read_mib * MIB,
            reads=got.reads,
            rounds=got.rounds,
            delay_ms=got.delay_ms,
        ),
        {
            "read_mib": Sizes(1024, 128),
            "reads": Sizes(100, 20),
            "rounds": Sizes(3, 1),
            "delay_ms": Sizes(30, 30),
        },
    ),
    "upload_stall": Benchmark(
        "upload_stall",
        lambda module, scratch, got: module.run(
            scratch, size_bytes=got.read_mib * MIB, rounds=got.rounds, delay_ms=got.delay_ms
        ),
        {"read_mib": Sizes(1024, 128), "rounds": Sizes(3, 1), "delay_ms": Sizes(30, 30)},
    ),
    "journal_modes": Benchmark(
        "journal_modes",
        lambda module, scratch, got: module.run(scratch, files=got.files, rounds=got.rounds),
        {"files": Sizes(20_000, 2000), "rounds": Sizes(2, 1)},
    ),
    "copy_trees": Benchmark(
        "copy_trees",
        lambda module, scratch, got: module.run(scratch, tree=got.tree, rounds=got.rounds),
        {"rounds": Sizes(3, 1)},
    ),
    "database_pragmas": Benchmark(
        "database_pragmas",
        lambda module, scratch, got: module.run(scratch, updates=got.updates, rounds=got.rounds),
        {"updates": Sizes(100, 20), "rounds": Sizes(3, 1)},
    ),
    "sqlite_inserts": Benchmark(
        "sqlite_inserts",
        lambda module, scratch, got: module.run(scratch, inserts=got.inserts, rounds=got.rounds),
        {"inserts": Sizes(500, 100), "rounds": Sizes(3, 1)},
    ),
    "delete_many": Benchmark(
        "delete_many",
        lambda module, scratch, got: module.run(
            scratch,
            sizes=[10**power for power in range(got.delete_power_min, got.delete_power + 1)],
            one_by_one_max=10**got.one_by_one_power,
            peer_files=got.peer_files,
        ),
        {
            "delete_power_min": Sizes(5, 5),
            "delete_power": Sizes(6, 5),
            "one_by_one_power": Sizes(5, 5),
            "peer_files": Sizes(100_000, 10_000),
        },
    ),
    "scale": Benchmark(
        "scale",
        lambda module, scratch, got: module.run(
            scratch, sizes=got.sizes or module.sizes_up_to(10**got.scale_power)
        ),
        {"scale_power": Sizes(7, 5)},
    ),
    "extremes": Benchmark(
        "extremes",
        lambda module, scratch, got: module.run(scratch, names=got.names, tib=got.tib),
        {"names": Sizes(1_000_000, 100_000), "tib": Sizes(100, 1)},
    ),
}

OPTIONS: Final[Mapping[str, str]] = {
    "rounds": "repetitions",
    "files": "files per round",
    "gib": "size of the file, GiB",
    "random_mib": "size of the file, MiB",
    "operations": "reads, and writes",
    "entries": "entries in the tree",
    "copy_mib": "size of the file that is copied, MiB",
    "many": "files, written as rows",
    "txgs": "changelogs",
    "database_mb": "size of the database, MB",
    "rows": "changed rows",
    "untar": "files unpacked",
    "block_mib": "size of the file, MiB",
    "sample_mib": "real files to compress, MiB",
    "delay_ms": "milliseconds that each request to the store waits",
    "read_mib": "size of the file, MiB",
    "reads": "random reads",
    "updates": "changes of a row",
    "inserts": "rows",
    "delete_power_min": "begin with 10^N files",
    "delete_power": "ten times as many each time, up to 10^N",
    "one_by_one_power": "of these, what rm -rf and the like remove, too",
    "peer_files": "files on other filesystems",
    "names": "of one directory",
    "tib": "content that is simulated, TiB",
    "scale_power": "a hundredth of 10^N files, a tenth of them, and 10^N",
}


def option_help(option: str) -> str:
    """Return what an option is, whose it is, and its two sizes for each of them."""
    users = [
        f"{name} {sizes.whole:,} ({sizes.quick:,})"
        for name, benchmark in BENCHMARKS.items()
        if (sizes := benchmark.sizes.get(option))
    ]
    return f"{OPTIONS[option]}: {', '.join(users)}"
