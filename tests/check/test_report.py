"""Tests of the fsck report as lines, as JSON, and as an exit status."""

import json

import pytest

from s3fs_meta.check.report import Finding, Report, Severity, Verdict
from s3fs_meta.limits import FSCK_EXAMPLES_MAX


def _report(severity: Severity, *, found: int, left: int) -> Report:
    report = Report()
    verdict = report.open(Verdict("I1", "all is well", severity, advice="call support"))
    for number in range(found):
        report.add(verdict, Finding("I1", f"fault {number}"))
    report.settle("I1", left)
    return report


@pytest.mark.parametrize(
    ("severity", "found", "left", "status"),
    [
        (Severity.DAMAGE, 0, 0, 0),
        (Severity.DAMAGE, 2, 0, 1),
        (Severity.DAMAGE, 2, 1, 5),
        (Severity.DAMAGE, 2, 2, 4),
        (Severity.LEFTOVER, 2, 0, 0),
        (Severity.LEFTOVER, 2, 2, 0),
    ],
)
def test_exit_status_of_fsck_follows_the_fsck_manual_page(
    severity: Severity, found: int, left: int, status: int
) -> None:
    """The exit status of fsck is 0 if clean, 1 if corrected, 4 if damage remains, 5 for both."""
    assert _report(severity, found=found, left=left).exit_status == status


def test_fsck_report_counts_all_findings_but_keeps_a_limited_number_of_them() -> None:
    """The fsck report keeps a limited number of examples, which limits its memory."""
    report = _report(Severity.DAMAGE, found=FSCK_EXAMPLES_MAX + 5, left=0)
    [verdict] = report.verdicts
    assert (verdict.found, len(verdict.examples)) == (FSCK_EXAMPLES_MAX + 5, FSCK_EXAMPLES_MAX)


def test_json_form_of_the_fsck_report_contains_findings_counts_advice_and_notes() -> None:

    report = _report(Severity.DAMAGE, found=2, left=1)
    report.remember("moved something")

    read = json.loads(json.dumps(report.as_json()))

    assert read["exit_status"] == 5
    assert read["notes"] == ["moved something"]
    [broken] = read["invariants"]
    assert (broken["found"], broken["corrected"], broken["left"]) == (2, 1, 1)
    assert broken["findings"][0] == {"what": "fault 0", "ino": None, "path": None}
    assert broken["advice"] == "call support"


def test_fsck_report_has_a_line_for_each_broken_invariant() -> None:
    assert Report().lines() == ["clean"]
    [line] = _report(Severity.DAMAGE, found=2, left=1).lines()
    assert line == "I1: all is well: broken 2 times, 1 corrected, 1 left; call support"
    [line] = _report(Severity.LEFTOVER, found=1, left=0).lines()
    leftover = "I1 (leftover, harmless for the present files)"
    assert line == f"{leftover}: all is well: broken 1 times, 1 corrected"


def test_fsck_finding_ends_with_the_path_of_the_file() -> None:
    finding = Finding("I7", "inode 3 is odd", 3, "/a/b")
    assert str(finding) == "I7: inode 3 is odd [/a/b]"


def test_fsck_does_not_report_a_negative_number_of_repairs() -> None:
    """Repairs can uncover more damage than fsck had found before."""
    report = _report(Severity.DAMAGE, found=1, left=3)
    assert report.verdicts[0].corrected == 0
    assert report.exit_status == 4
