"""Tests of the parsers for the output of xfstests, LTP and pjdfstest."""

import os
import select
import sys
from pathlib import Path

import pytest

from contrib.conformance import cases, ltp, pjdfstest, programs, xfstests
from contrib.conformance.cases import Case, Outcome
from contrib.conformance.places import Place

PRINTED = """FSTYP         -- fuse
PLATFORM      -- Linux/x86_64

generic/001  44s ...  91s
generic/003        - output mismatch (see /r/003.out.bad)
    --- tests/generic/003.out\t2026-01-01
    +++ /r/003.out.bad\t2026-11-22
    @@ -1,2 +1,11 @@
     QA output created by 003
    +ERROR: access time has not been updated
generic/009        [not run] xfs_io fiemap  failed (old kernel/wrong fs?)
generic/013         118s
generic/014        [failed, exit status 137]- output mismatch (see /r/014.out.bad)
Ran: generic/001 generic/003
Failures: generic/003
"""


def _cases(text: str, size: int) -> list[Case]:
    """Parse a report that arrives in pieces of a given size."""
    found, rest = [], ""
    for start in range(0, len(text), size):
        rest += text[start : start + size]
        *complete, rest = xfstests.reports(rest)
        found += [xfstests.parse(one) for one in complete]
    return found


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_xfstests_parser_finds_the_result_of_each_test(size: int) -> None:
    """The xfstests parser finds each test case, even if the report is split at any byte."""
    found = _cases(PRINTED, size)

    assert [(one.name, one.outcome) for one in found] == [
        ("generic/001", Outcome.PASSED),
        ("generic/003", Outcome.FAILED),
        ("generic/009", Outcome.SKIPPED),
        ("generic/013", Outcome.PASSED),
        ("generic/014", Outcome.FAILED),
    ]
    assert found[0].seconds == 91
    assert "+ERROR: access time has not been updated" in found[1].detail
    assert found[2].detail.startswith("xfs_io fiemap")
    assert "exit status 137" in found[4].detail


def test_dangerous_group_of_xfstests_is_excluded() -> None:
    groups = "# comment\n\n001 auto rw quick\n002 auto\n003 quick dangerous_fuzzers\n004 quick\n"

    assert xfstests.members(groups) == ["generic/001", "generic/004"]
    assert xfstests.members(groups, "auto") == ["generic/001", "generic/002"]


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        (0, "x.c:1: TPASS: fine", Outcome.PASSED),
        (32, "x.c:1: TCONF: not here", Outcome.SKIPPED),
        (33, "x.c:1: TFAIL: wrong\nx.c:2: TCONF: not here", Outcome.FAILED),
        (2, "x.c:1: TBROK: no", Outcome.FAILED),
        (None, "", Outcome.FAILED),
    ],
)
def test_ltp_case_fails_if_any_of_its_parts_fails(
    status: int | None, output: str, outcome: Outcome
) -> None:
    """An LTP case fails if one of its parts fails, even if another part is skipped."""
    found, detail = ltp.judge(programs.Finished(status, output, 1.0))

    assert found is outcome
    assert ("TFAIL" in output) == ("TFAIL" in detail)


def test_ltp_report_contains_the_reason_for_a_skipped_case() -> None:
    output = "x.c:1: TCONF: not supported here\n\nSummary:\nskipped  1\nwarnings 0\n"

    _, detail = ltp.judge(programs.Finished(32, output, 1.0))

    assert detail == "x.c:1: TCONF: not supported here"


def test_only_ltp_tests_of_file_related_system_calls_are_run(tmp_path: Path) -> None:
    """In the LTP scenario "syscalls", only the listed file-related calls are tested.

    All other LTP scenarios are run in full.
    """
    scenarios = tmp_path / "runtest"
    scenarios.mkdir()
    lines = (
        "#open01 open01\nopen01 open01\nrename14 rename14 -x\nopen_tree01 open_tree01\nfork01 f\n"
    )
    for name in ("syscalls", "fs"):
        (scenarios / name).write_text(lines)

    assert ltp.tests(tmp_path, "syscalls") == {"open01": "open01", "rename14": "rename14 -x"}
    assert len(ltp.tests(tmp_path, "fs")) == 4


def test_every_excluded_or_failing_conformance_test_has_a_reason() -> None:
    """Each reason has at least three words, and no excluded test case is expected to fail."""
    for suite in ("xfstests", "ltp"):
        excluded, expected = cases.exclusions(suite), cases.expected_failures(suite)
        for reason in [*excluded.values(), *expected.values()]:
            assert len(reason.split()) > 2
        assert not [name for name in expected if cases.is_excluded(name, excluded)]


def test_pjdfstest_refuses_a_directory_with_a_long_path(tmp_path: Path) -> None:
    """In a directory with a long path, pjdfstest runs no test case and reports one failure."""
    place = Place(tmp_path / ("x" * 60), tmp_path, own_mount=False)

    found = list(pjdfstest.run(place, None))

    assert [(one.name, one.outcome) for one in found] == [("(the run itself)", Outcome.FAILED)]
    assert "--scratch" in found[0].detail


def test_hanging_conformance_program_is_killed_together_with_its_children() -> None:
    """A hanging program and its child are killed when the reader closes the program's output."""
    script = "sleep 1000 & echo $!; sleep 1000"
    pieces = programs.pieces(
        ["/bin/sh", "-c", script], directory=Path("/"), seconds_max=60.0, environment=os.environ
    )
    child = os.pidfd_open(int(next(pieces) or "0"))

    pieces.close()

    # The pidfd becomes readable when the child exits.
    assert select.select([child], [], [], 60.0)[0]
    os.close(child)


def test_silent_conformance_program_is_reported_as_hanging() -> None:
    """If a program prints nothing for too long, the last piece of its output is None."""
    pieces = programs.pieces(
        ["sleep", "1000"], directory=Path("/"), seconds_max=0.0, environment=os.environ
    )

    assert list(pieces) == [None]


def test_output_of_a_conformance_program_is_read_to_its_end() -> None:
    command = [sys.executable, "-c", "print('x' * 100_000)"]

    pieces = list(
        programs.pieces(command, directory=Path("/"), seconds_max=60.0, environment=os.environ)
    )

    assert "".join(piece or "" for piece in pieces) == "x" * 100_000 + "\n"
