"""The cases of a suite and their outcomes, compared with the expected failures."""

import configparser
import enum
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

EXPECTED_FILE: Final = Path(__file__).with_name("expected-failures.ini")

EXCLUDED_FILE: Final = Path(__file__).with_name("exclusions.ini")


class Outcome(enum.Enum):
    """The outcome of a test case; its value is the text in the tables."""

    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "skipped"
    EXPECTED = "failed as expected"
    SURPRISE = "PASSED, FAILURE EXPECTED"


BAD: Final = frozenset({Outcome.FAILED, Outcome.SURPRISE})


class Case(NamedTuple):
    """One test case of one suite."""

    suite: str
    name: str
    outcome: Outcome
    detail: str = ""  # Reason for a failure or a skip.
    seconds: float = 0.0


def expected_failures(suite: str, path: Path = EXPECTED_FILE) -> Mapping[str, str]:
    """Return the reason for each expected failure, by the name of the case."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keep the case of names
    parser.read(path)
    return dict(parser[suite]) if parser.has_section(suite) else {}


def exclusions(suite: str, path: Path = EXCLUDED_FILE) -> Mapping[str, str]:
    """Return the reasons why test cases are excluded, by patterns of their names."""
    return expected_failures(suite, path)


def is_excluded(name: str, patterns: Mapping[str, str]) -> str | None:
    """Return the reason why a test case is excluded; None if the case is run."""
    for pattern, reason in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return reason
    return None


def judged(cases: Iterable[Case], expected: Mapping[str, str]) -> Iterator[Case]:
    """Yield the test cases; mark expected failures, and passes that were expected to fail."""
    for case in cases:
        reason = expected.get(case.name)
        if reason is None:
            yield case
        elif case.outcome is Outcome.FAILED:
            yield case._replace(outcome=Outcome.EXPECTED, detail=reason)
        elif case.outcome is Outcome.PASSED:
            yield case._replace(outcome=Outcome.SURPRISE, detail=f"expected to fail: {reason}")
        else:
            yield case
