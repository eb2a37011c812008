"""The command line of the benchmarks: choose, run, print, keep as JSON and as a page."""

import argparse
import contextlib
import datetime as dt
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import disk, machine
from contrib.bench.catalogue import BENCHMARKS, OPTIONS, Benchmark, Figures, option_help
from contrib.bench.subjects import PROJECT

SAMPLES: Final = frozenset({"values", "ratio_of_turns"})
KEPT: Final = PROJECT / "docs" / "benchmarks"  # of the whole set
QUICK: Final = PROJECT / "build" / "benchmarks"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m contrib.bench",
        description="Measure s3fs-meta beside the ceiling of its stack, the disk and its peers. "
        "Needs root (drop_caches). Without a name the whole set runs, and its page is written. "
        "`page --from FILE --to FILE` makes the page of figures that are there.",
        epilog="Sizes are those of the whole set, and in brackets those of --quick.",
    )
    parser.add_argument("benchmark", nargs="*", help=f"{', '.join(BENCHMARKS)}; default: all")
    parser.add_argument(
        "--scratch", type=Path, help="directory to work in (default: a new disk in an image file)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: some minutes for all")
    parser.add_argument(
        "--json", type=Path, help=f"write the figures to this file (all: {_shown(KEPT)}/…)"
    )
    parser.add_argument("--page", type=Path, help="write the page to this file")
    parser.add_argument(
        "--update", action="store_true", help="keep what the JSON file has of other benchmarks"
    )
    for option in OPTIONS:
        words = f"--{option.replace('_', '-')}"
        parser.add_argument(words, type=int, metavar="N", help=option_help(option))
    parser.add_argument("--tree", type=Path, metavar="DIR", help="copy_trees: of what, absolute")
    parser.add_argument(
        "--sizes", type=_numbers, metavar="N,N…", help="scale: these numbers of files"
    )
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.benchmark) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(unknown)}")
    if not arguments.benchmark:
        arguments.benchmark = list(BENCHMARKS)
        folder = QUICK if arguments.quick else KEPT
        arguments.json = arguments.json or folder / "figures.json"
        arguments.page = arguments.page or folder / "index.html"
    if arguments.page and not arguments.json:
        parser.error("--page needs --json: the page is made from that file")
    return arguments


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _word(size: object) -> str:
    return ",".join(map(str, size)) if isinstance(size, list) else str(size)


def _shown(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def _sized(benchmark: Benchmark, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the sizes of one benchmark: as given, or else its own."""
    sizes = {
        option: size.quick if arguments.quick else size.whole
        for option, size in benchmark.sizes.items()
    }
    given = {option: value for option in sizes if (value := getattr(arguments, option)) is not None}
    own = {"tree": arguments.tree} | ({"sizes": arguments.sizes} if "scale_power" in sizes else {})
    return argparse.Namespace(**{**sizes, **given}, **own)


def _command(name: str, sizes: argparse.Namespace, scratch: Path | None) -> str:
    """Return the command that measures this alone, with its sizes written out."""
    given: dict[str, object] = {"scratch": scratch} if scratch else {}
    given |= {option: size for option, size in vars(sizes).items() if size is not None}
    words = [f"--{option.replace('_', '-')}={_word(size)}" for option, size in given.items()]
    return shlex.join(["python", "-m", "contrib.bench", name, *words])


def _word(size: int | Path | list[int]) -> str:
    """Return the value of an option as it is typed."""
    return ",".join(map(str, size)) if isinstance(size, list) else str(size)


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _revision() -> str:
    """Return what of the project was measured."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one benchmark; a failure is written down, and the next one runs."""
    benchmark = BENCHMARKS[name]
    sizes = _sized(benchmark, arguments)
    entry: dict[str, Any] = {
        "command": _command(name, sizes, arguments.scratch),
        "method": benchmark.method(),
        "date": _now(),
        "revision": _revision(),
    }
    began_s = time.monotonic()
    try:
        with _scratch(name, arguments.scratch) as scratch:
            entry["figures"] = benchmark.run(scratch, sizes)
    except Exception as exc:  # noqa: BLE001 - one that fails must not cost the others
        traceback.print_exc()
        entry["error"] = f"{type(exc).__name__}: {exc}"
    entry["seconds"] = time.monotonic() - began_s
    return entry


@contextlib.contextmanager
def _scratch(name: str, folder: Path | None) -> Iterator[Path]:
    """Give a directory to measure in: in *folder*, else on a new disk."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(disk.new())
        place = tempfile.TemporaryDirectory(
            prefix=f"bench-{name}-", dir=folder, ignore_cleanup_errors=True
        )
        yield Path(stack.enter_context(place))


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
    return {key: _without_samples(each) for key, each in value.items() if key not in SAMPLES}


def _missed(entry: Figures) -> list[str]:
    """Return which targets were missed."""
    targets = entry.get("figures", {}).get("targets", ())
    return [target["what"] for target in targets if not target["met"]]


def _began(arguments: argparse.Namespace, argv: Sequence[str]) -> Figures:
    """Return the report so far: nothing, or with --update what the file has."""
    if arguments.update and arguments.json and arguments.json.exists():
        found: Figures = json.loads(arguments.json.read_text())
        return found
    return {
        "date": _now(),
        "command": shlex.join(["python", "-m", "contrib.bench", *argv]),
        "machine": machine.facts(),
        "seconds": 0.0,
        "benchmarks": {},
    }


def _put(entries: dict[str, Any], name: str, entry: Figures) -> None:
    """Add an entry, or replace it; all stay in the order of the catalogue."""
    found = {**entries, name: entry}
    entries.clear()
    entries.update({each: found[each] for each in BENCHMARKS if each in found})


def _keep(report: Figures, path: Path | None) -> None:
    """Write the file; after each benchmark, so that an interrupted run keeps what it has."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_rounded(report), indent=1) + "\n")


def _run(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    report = _began(arguments, argv)
    failed = []
    for name in arguments.benchmark:
        entry = _measured(name, arguments)
        _put(report["benchmarks"], name, entry)
        report["seconds"] = sum(each["seconds"] for each in report["benchmarks"].values())
        print(name, json.dumps(_rounded(_without_samples(entry)), indent=2), flush=True)
        for what in _missed(entry):
            print(f"missed: {name}: {what}", file=sys.stderr)
        failed += [name] if "error" in entry else []
        _keep(report, arguments.json)
    if arguments.page:
        from contrib.bench import page  # the plots' library is for this alone

        arguments.page.parent.mkdir(parents=True, exist_ok=True)
        page.write(arguments.json, arguments.page)
        print(f"written: {arguments.json}, {arguments.page}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run what was asked for; return 1 if a benchmark failed; a missed target is a figure."""
    if argv[:1] == ["page"]:
        from contrib.bench import page  # the plots' library is for this alone

        return page.main(argv[1:])
    arguments = _parse(argv)
    if os.geteuid() != 0:
        print("the benchmarks drop the kernel's caches: run them as root", file=sys.stderr)
        return 2
    # SIGTERM must unmount too: SystemExit passes through every finally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return _run(arguments, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
