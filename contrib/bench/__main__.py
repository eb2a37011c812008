"""The command line that runs the benchmarks, prints their results and saves them as JSON."""

import argparse
import contextlib
import datetime as dt
import gc
import importlib
import inspect
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import awake, disk, machine, memory, targets
from contrib.bench.awake import Awake
from contrib.bench.names import NAMES
from contrib.bench.plans import BENCHMARKS, COMPLETE, PLANS, QUICK
from contrib.bench.subjects import PROJECT

SAMPLES: Final = frozenset({"values", "ratio_of_turns"})
# Default result files for a full run and for a quick trial.
KEPT: Final = PROJECT / "docs" / "benchmarks" / "figures.json"
TRIAL: Final = PROJECT / "build" / "benchmarks" / "figures.json"

Figures = dict[str, Any]


MODULES: Final = {  # Benchmarks whose names differ from the names of their modules.
    "random": "random_access", "recovery": "recovery_point", "workloads": "workloads.session",
}  # fmt: skip
# Arguments of a benchmark's run() function that are not sizes.
EXTRA: Final[Mapping[str, tuple[str, ...]]] = {
    "scale": ("sizes",),
    "workloads": ("only", "subjects", "tree"),
}
LOAD_PER_CORE_MAX: Final = 0.5  # Load average (one minute) per core above which a benchmark warns.
MEMORY_MB_MAX: Final = 150.0  # Maximum PSS of the daemon's processes with default options, in MB.


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; return its arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m contrib.bench",
        description="Measure s3fs-meta, a filesystem that does nothing, the disk and other "
        "filesystems. Needs root, to drop the kernel's caches. Without a name the complete set "
        "runs. `page --from FILE --to FILE` makes an HTML page from saved results.",
        epilog="The sizes are listed in the order of the plans: " + ", ".join(PLANS) + ".",
    )
    parser.add_argument("benchmark", nargs="*", help=f"{', '.join(BENCHMARKS)}; default: all")
    parser.add_argument(
        "--scratch", type=Path, help="directory to measure in (default: a new disk image)"
    )
    parser.add_argument(
        "--plan",
        choices=PLANS,
        default=COMPLETE,
        help="sizes for a run of several hours, one hour or minutes (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", dest="plan", action="store_const", const=QUICK, help="the same as --plan=quick"
    )
    parser.add_argument("--json", type=Path, help=f"write the results to this file (all: {KEPT})")
    parser.add_argument("--page", type=Path, help="write the HTML page of the results to this file")
    parser.add_argument(
        "--update", action="store_true", help="keep results of other benchmarks in the JSON file"
    )
    for option in sorted({option for sizes in BENCHMARKS.values() for option in sizes}):
        users = [
            f"{name} {', '.join(f'{size:,}' for size in sizes[option])}"
            for name, sizes in BENCHMARKS.items()
            if option in sizes
        ]
        words = f"--{option.replace('_', '-')}"
        parser.add_argument(words, type=_size, metavar="N", help="; ".join(users))
    parser.add_argument(
        "--tree", type=Path, metavar="DIR", help="workloads: absolute path of a source tree to use"
    )
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(word) for word in text.split(",")],
        metavar="N,N…",
        help="scale: numbers of files to measure",
    )
    parser.add_argument(
        "--only",
        type=_words,
        metavar="STEP,…",
        default=[],
        help="workloads: prefixes of step names",
    )
    parser.add_argument(
        "--subjects",
        type=_words,
        metavar="NAME,…",
        default=[],
        help=f"workloads: filesystems to measure (any of {', '.join(NAMES)})",
    )
    arguments = parser.parse_args(argv)
    _validate(arguments, parser)
    return arguments


def _validate(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Reject contradictory arguments; set the defaults for a run of all benchmarks."""
    if other := sorted(set(arguments.subjects) - set(NAMES)):
        parser.error(f"the option --subjects names an unknown filesystem: {', '.join(other)}")
    if unknown := sorted(set(arguments.benchmark) - set(BENCHMARKS)):
        parser.error(f"unknown benchmark: {', '.join(unknown)}")
    if arguments.scratch and not arguments.scratch.is_dir():
        parser.error(f"--scratch: {arguments.scratch} is not a directory")
    if not arguments.benchmark:
        arguments.benchmark = list(BENCHMARKS)
        arguments.json = arguments.json or (TRIAL if arguments.plan == QUICK else KEPT)
    if arguments.page and not arguments.json:
        parser.error("--page needs --json, because the page is made from the JSON file")


def _size(text: str) -> int:
    size = int(text)
    if size < 1:
        raise ValueError
    return size


def _words(text: str) -> list[str]:
    return text.split(",")


def sized(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build the arguments of a benchmark's run() from the command-line options or the plan."""
    given = vars(arguments)
    sizes: dict[str, Any] = {
        option: size.of(arguments.plan) if given[option] is None else given[option]
        for option, size in BENCHMARKS[name].items()
    }
    return sizes | {extra: given[extra] for extra in EXTRA.get(name, ())}


def _command(name: str, sizes: Mapping[str, Any], scratch: Path | None) -> str:
    """Return the command that runs one benchmark alone, with all sizes as options."""
    words = [
        f"--{option.replace('_', '-')}="
        + (",".join(map(str, value)) if isinstance(value, list) else str(value))
        for option, value in {"scratch": scratch, **sizes}.items()
        if value is not None and value != []
    ]
    return shlex.join(["python", "-m", "contrib.bench", name, *words])


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def revision(project: Path) -> str:
    """Return the git revision of *project*, with -dirty if a file except the results is changed."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=project, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    results = str(KEPT.relative_to(PROJECT))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{results}")
    return (git("describe", "--always", "--exclude=*") or "unknown") + "-dirty" * bool(changed)


def measured(name: str, arguments: argparse.Namespace, processors: Awake) -> Figures:
    """Run a benchmark; return its entry for the report. A failure is recorded in the entry."""
    module = importlib.import_module(f"contrib.bench.{MODULES.get(name, name)}")
    sizes = sized(name, arguments)
    entry: Figures = {
        "command": _command(name, sizes, arguments.scratch),
        "method": inspect.getdoc(module) or "",
        "date": _now(),
        "revision": revision(PROJECT),
        "load": {"before": processors.other_load()},
    }
    if entry["load"]["before"] > LOAD_PER_CORE_MAX * (os.cpu_count() or 1):
        busy = f"the machine is busy (load {entry['load']['before']:.1f}): results may be too slow"
        print(busy, file=sys.stderr)
    began_s = time.monotonic()
    try:
        with (
            _same_environment(),
            _scratch(name, arguments.scratch) as scratch,
            memory.sampled() as sampler,
        ):
            entry["figures"] = module.run(scratch, **sizes)
            add_memory(entry["figures"], sampler.peaks)
    except Exception as exc:  # Continue after an error in one benchmark, but not after a signal.
        if (signalled := _signalled(exc)) is not None:
            raise signalled from exc
        traceback.print_exc()
        entry["error"] = f"{type(exc).__name__}: {exc}"
    entry["seconds"] = time.monotonic() - began_s
    entry["load"]["after"] = processors.other_load()
    return entry


def _signalled(exc: BaseException) -> BaseException | None:
    """Return the exception that a signal handler raised before *exc*, or None."""
    found: BaseException | None = exc
    while found is not None and isinstance(found, Exception):
        found = found.__context__
    return found


@contextlib.contextmanager
def _same_environment() -> Iterator[None]:
    """Restore the environment variables when the context ends, for the next benchmark."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def add_memory(figures: Figures, peaks: Mapping[str, memory.Peak]) -> None:
    """Add each daemon's peak memory to the results, and the memory target for s3fs-meta."""
    if peaks:
        figures["largest memory"] = {
            name: {"PSS, MB": peak.pss_bytes / 1e6} for name, peak in peaks.items()
        }
    counting = [peak.pss_bytes / 1e6 for peak in peaks.values() if peak.counts]
    if counting:
        target = targets.at_most(
            "largest memory of a daemon (PSS)", max(counting), MEMORY_MB_MAX, "MB"
        )
        figures["targets"] = [*figures.get("targets", ()), target]


@contextlib.contextmanager
def _scratch(name: str, folder: Path | None) -> Iterator[Path]:
    """Yield a new directory for measurements: in *folder*, or on a new disk image."""
    with contextlib.ExitStack() as stack:
        parent = folder or stack.enter_context(disk.new())
        directory = tempfile.TemporaryDirectory(
            prefix=f"bench-{name}-", dir=parent, ignore_cleanup_errors=True
        )
        scratch = Path(stack.enter_context(directory))
        scratch.chmod(disk.SEARCHABLE)
        yield scratch
        gc.collect()  # Free closed sessions now, because they keep files open.


def _rounded(value: object, *, without: frozenset[str] = frozenset()) -> object:
    """Return a copy of *value* without the keys *without*, with numbers rounded to four digits."""
    if isinstance(value, dict):
        return {
            key: _rounded(each, without=without)
            for key, each in value.items()
            if key not in without
        }
    if isinstance(value, list):
        return [_rounded(each, without=without) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _began(arguments: argparse.Namespace, argv: Sequence[str]) -> Figures:
    """Return an empty report; with --update, return the report in the JSON file."""
    if arguments.update and arguments.json and arguments.json.exists():
        found: Figures = json.loads(arguments.json.read_text())
        return found
    return {
        "date": _now(),
        "command": shlex.join(["python", "-m", "contrib.bench", *argv]),
        "machine": {**machine.facts(), "kept awake by": awake.describe()},
        "seconds": 0.0,
        "benchmarks": {},
    }


def _run(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    report = _began(arguments, argv)
    failed = []
    with awake.kept() as processors:
        for name in arguments.benchmark:
            entry = measured(name, arguments, processors)
            _add(report, name, entry)
            failed += [name] if "error" in entry else []
            # Write the results after each benchmark, because the run may be interrupted.
            if arguments.json:
                arguments.json.parent.mkdir(parents=True, exist_ok=True)
                arguments.json.write_text(json.dumps(_rounded(report), indent=1) + "\n")
    if arguments.page:
        from contrib.bench import page  # The page needs the packages of the extra "bench".

        page.main(["--from", str(arguments.json), "--to", str(arguments.page)])
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _add(report: Figures, name: str, entry: Figures) -> None:
    """Add the entry of a benchmark to the report, and print it."""
    found = {**report["benchmarks"], name: entry}
    report["benchmarks"] = {each: found[each] for each in BENCHMARKS if each in found}
    report["seconds"] = sum(each["seconds"] for each in found.values())
    print(name, json.dumps(_rounded(entry, without=SAMPLES), indent=2), flush=True)
    for target in entry.get("figures", {}).get("targets", ()):
        if not target["met"]:
            print(f"missed: {name}: {target['what']}", file=sys.stderr)


def main(argv: Sequence[str]) -> int:
    """Run the command; return 1 if a benchmark failed. A missed target is not a failure."""
    if argv[:1] == ["page"]:
        from contrib.bench import page  # The page needs the packages of the extra "bench".

        return page.main(argv[1:])
    arguments = parse(argv)
    if os.geteuid() != 0:
        print("the benchmarks drop the kernel's caches; run them as root", file=sys.stderr)
        return 2
    # SIGTERM raises SystemExit, so that finally clauses unmount all filesystems.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return _run(arguments, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
