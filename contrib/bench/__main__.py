"""The command line of the benchmarks: choose, run, print, keep as JSON."""

import argparse
import datetime as dt
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from contrib.bench import machine

Figures = dict[str, object]
MIB: Final = 1 << 20
GIB: Final = 1 << 30
MB: Final = 1_000_000


def _metadata(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import metadata

    return metadata.run(scratch, files=arguments.files, rounds=arguments.rounds)


def _peers(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import peers

    return peers.run(scratch, files=arguments.files // 4)


def _sequential(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import sequential

    return sequential.run(scratch, size_bytes=arguments.gib * GIB, rounds=arguments.rounds)


def _find(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import find_cold

    return find_cold.run(scratch, entries=arguments.entries, rounds=arguments.rounds)


def _space(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import space

    return space.run(scratch, small=arguments.many // 10, large=arguments.many)


def _fsck(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import fsck

    return fsck.run(scratch, files=arguments.many, rounds=arguments.rounds)


def _stall(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import stall

    return stall.run(scratch, database_bytes=arguments.database_mb * MB)


def _cut(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import cut

    return cut.run(scratch, rows=arguments.rows, rounds=arguments.rounds)


def _recovery(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import recovery_point

    return recovery_point.run(scratch, files=arguments.untar, interval_s=5.0)


def _follow(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import follow

    return follow.run(scratch, files=arguments.entries, rounds=arguments.rounds)


def _restore(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import restore

    return restore.run(scratch, files=arguments.many, txgs=arguments.txgs, rounds=arguments.rounds)


def _trees(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import trees

    return trees.run(scratch, entries=arguments.entries)


def _blocks(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import blocks

    return blocks.run(scratch, size_bytes=arguments.block_mib * MIB)


def _compression(scratch: Path, arguments: argparse.Namespace) -> Figures:
    from contrib.bench import compression

    return compression.run()


# Imported when called: the row-filling ones need the package's own modules, the others do not.
BENCHMARKS: Final[dict[str, Callable[[Path, argparse.Namespace], Figures]]] = {
    "metadata": _metadata,
    "peers": _peers,
    "sequential": _sequential,
    "find": _find,
    "space": _space,
    "fsck": _fsck,
    "stall": _stall,
    "cut": _cut,
    "recovery": _recovery,
    "follow": _follow,
    "restore": _restore,
    "trees": _trees,
    "blocks": _blocks,
    "compression": _compression,
}


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m contrib.bench",
        description="Measure s3fs-meta against the ceiling of its stack. Needs root (drop_caches).",
    )
    parser.add_argument("benchmark", nargs="*", help=f"{', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--scratch", type=Path, help="directory to work in (default: temporary)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default: 5)")
    parser.add_argument("--files", type=int, default=20_000, help="metadata: files per round")
    parser.add_argument("--gib", type=int, default=2, help="sequential: GiB per round")
    parser.add_argument(
        "--entries", type=int, default=100_000, help="find, follow, trees: entries in the tree"
    )
    parser.add_argument("--many", type=int, default=1_000_000, help="space, fsck, restore: files")
    parser.add_argument("--txgs", type=int, default=1000, help="restore: changelogs")
    parser.add_argument("--database-mb", type=int, default=500, help="stall: size of the database")
    parser.add_argument("--rows", type=int, default=10_000, help="cut: changed rows")
    parser.add_argument("--untar", type=int, default=50_000, help="recovery: files unpacked")
    parser.add_argument("--block-mib", type=int, default=256, help="blocks: size of the file")
    arguments = parser.parse_args(argv)
    arguments.benchmark = arguments.benchmark or list(BENCHMARKS)
    unknown = sorted(set(arguments.benchmark) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(unknown)}")
    return arguments


def _rounded(value: object) -> object:
    """Return *value* as a person reads it."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _without_samples(value: object) -> object:
    """Return *value* without the single samples, which only the JSON file keeps."""
    if not isinstance(value, dict):
        return value
    return {
        key: _without_samples(each)
        for key, each in value.items()
        if key not in {"values", "ratio_of_turns"}
    }


def main(argv: Sequence[str]) -> int:
    """Run what was asked for; return 1 if a target was missed."""
    arguments = _parse(argv)
    if os.geteuid() != 0:
        print("the benchmarks drop the kernel's caches: run them as root", file=sys.stderr)
        return 2
    # SIGTERM must unmount too: SystemExit passes through every finally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report: Figures = {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "contrib.bench", *argv]),
        "machine": machine.facts(),
    }
    missed = []
    for name in arguments.benchmark:
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=arguments.scratch) as scratch:
            figures = BENCHMARKS[name](Path(scratch), arguments)
        report[name] = figures
        print(name, json.dumps(_rounded(_without_samples(figures)), indent=2), flush=True)
        if figures.get("met") is False:
            missed.append(name)
        if arguments.json:  # after each, so that an interrupted run keeps what it has
            arguments.json.write_text(json.dumps(_rounded(report), indent=2) + "\n")
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
