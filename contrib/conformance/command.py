"""The command line of the conformance suites, which prints a table of outcomes."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from contrib.bench.subjects import Subject, SubjectError
from contrib.conformance import (
    comparison,
    fio,
    fsx,
    ltp,
    pjdfstest,
    places,
    programs,
    stress_ng,
    xfstests,
)
from contrib.conformance.cases import BAD, Case, Outcome, expected_failures, judged
from contrib.conformance.places import Place

SUITES: Final = (pjdfstest.SUITE, comparison.SUITE, fsx.SUITE, stress_ng.SUITE, fio.SUITE)
# Large test suites. The path of each suite is in an environment variable.
# The argument "all" includes a large suite only if this variable is set.
NAMED: Final = {xfstests.SUITE: xfstests, ltp.SUITE: ltp}


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="contrib/conformance/run.py",
        description="Run filesystem tests of other projects on s3fs-meta. Needs root. $XFSTESTS "
        "and $LTP are the directories of xfstests and LTP.",
        epilog="Exit status: 0 all outcomes as expected, 1 a case failed, 2 a program is missing.",
    )
    parser.add_argument(
        "suite", nargs="*", metavar="SUITE", help=f"{', '.join([*SUITES, *NAMED])} or all"
    )
    parser.add_argument("--target", type=Path, help="run in this directory, for comparison")
    parser.add_argument(
        "--on", choices=("s3fs-meta", "null"), default="s3fs-meta",
        help="filesystem to mount; null is the do-nothing filesystem of contrib/bench",
    )  # fmt: skip
    parser.add_argument("-o", dest="options", default="", help="mount options of s3fs-meta")
    parser.add_argument("--only", help="run only cases whose name contains this text")
    parser.add_argument(
        "--seeds", type=int, default=3, help="fsx and ext4: number of seeds (default: 3)"
    )
    parser.add_argument(
        "--group", default=xfstests.GROUP, help="xfstests: group of tests (default: quick)"
    )
    parser.add_argument("--operations", type=int, default=100_000, help="fsx: number of operations")
    parser.add_argument("--seconds", type=int, default=10, help="stress-ng: seconds per job")
    parser.add_argument("--scratch", type=Path, help="working directory (default: TMPDIR)")
    parser.add_argument("--json", type=Path, help="also write all cases to this file")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    arguments = parser.parse_args(argv)
    if not arguments.suite or "all" in arguments.suite:
        named = [name for name, suite in NAMED.items() if suite.VARIABLE in os.environ]
        arguments.suite = [*SUITES, *named]
    if unknown := sorted(set(arguments.suite) - {*SUITES, *NAMED}):
        parser.error(f"unknown conformance suite: {', '.join(unknown)}")
    return arguments


def _cases(suite: str, place: Place, arguments: argparse.Namespace) -> Iterator[Case]:
    if suite == pjdfstest.SUITE:
        return pjdfstest.run(place, arguments.only)
    if suite == fsx.SUITE:
        return fsx.run(
            place, arguments.only, seeds=arguments.seeds, operations=arguments.operations
        )
    if suite == comparison.SUITE:
        return comparison.run(place, arguments.only, seeds=range(1, arguments.seeds + 1))
    if suite == stress_ng.SUITE:
        return stress_ng.run(place, arguments.only, seconds=arguments.seconds)
    if suite == xfstests.SUITE:
        options = _mount_options(arguments)
        return xfstests.run(place, arguments.only, options, arguments.group)
    if suite == ltp.SUITE:
        return ltp.run(place, arguments.only)
    return fio.run(place, arguments.only)


def _mount_options(arguments: argparse.Namespace) -> dict[str, str]:
    return dict(each.partition("=")[::2] for each in arguments.options.split(",") if each)


def _run_all(
    subject: Subject, scratch: Path, arguments: argparse.Namespace, *, expecting: bool
) -> Iterator[Case]:
    """Run all suites; yield each test case when it is complete."""
    with subject:
        for suite in arguments.suite:
            expected = expected_failures(suite) if expecting else {}
            with places.prepared(subject, suite, scratch) as place:
                for case in judged(_cases(suite, place, arguments), expected):
                    yield case
                    if not subject.alive:  # Without the daemon, all later cases would fail.
                        yield Case(
                            suite, "(the daemon)", Outcome.FAILED, f"exited during {case.name}"
                        )
                        break
        yield from places.afterwards(subject)


def _show(case: Case) -> None:
    seconds = f"{case.seconds:8.1f} s" if case.seconds else " " * 10
    print(f"{case.suite:10} {case.name:48} {seconds}  {case.outcome.value}", flush=True)
    if case.outcome in BAD:
        print("".join(f"    {line}\n" for line in case.detail.splitlines()), end="", flush=True)


def _table(cases: Sequence[Case]) -> None:
    counts = Counter((case.suite, case.outcome) for case in cases)
    suites = list(dict.fromkeys(case.suite for case in cases))
    print(f"\n{'suite':12}" + "".join(f"{each.value:>26}" for each in Outcome))
    for suite in suites:
        print(f"{suite:12}" + "".join(f"{counts[suite, each]:>26}" for each in Outcome))


@contextmanager
def _target(arguments: argparse.Namespace) -> Iterator[Path | None]:
    """Yield a new directory below --target, so that the run changes no existing files there."""
    if arguments.target is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="conf-", dir=arguments.target) as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def _missing(suites: Sequence[str]) -> list[str]:
    texts = []
    for suite in suites:
        try:
            if suite in NAMED:
                NAMED[suite].root()
            else:
                programs.find(suite)
        except programs.MissingProgramError as exc:
            texts.append(str(exc))
    return texts


def main(argv: Sequence[str]) -> int:
    """Run the suites; return the exit status."""
    arguments = _parse(argv)
    problems = _missing(arguments.suite)
    if os.geteuid() != 0:
        problems.append("the suites change owners and create devices, so they must run as root")
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2

    places.own_mounts()
    # SIGTERM raises SystemExit, so that finally blocks unmount the filesystem.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cases = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="conf-", dir=arguments.scratch) as name:
        scratch = Path(name)
        scratch.chmod(0o755)  # Other users must be able to reach the mountpoint.
        try:
            with _target(arguments) as directory:
                subject = places.choose(arguments.on, scratch, directory, _mount_options(arguments))
                expecting = directory is None and arguments.on == "s3fs-meta"
                for case in _run_all(subject, scratch, arguments, expecting=expecting):
                    cases.append(case)
                    if arguments.verbose or case.outcome in BAD:
                        _show(case)
        except SubjectError as exc:
            print(exc, file=sys.stderr)
            return 1
    _table(cases)
    print(f"\n{time.monotonic() - start:.0f} s")
    if arguments.json:
        rows = [{**case._asdict(), "outcome": case.outcome.value} for case in cases]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if any(case.outcome in BAD for case in cases) else 0
