"""Tests of the table of invariants on healthy filesystems."""

from pathlib import Path

import pytest

from s3fs_meta.check.invariants import INVARIANTS
from s3fs_meta.check.report import Mode
from tests.check.healthy import Healthy


@pytest.mark.parametrize("seed", range(12))
async def test_healthy_filesystem_satisfies_all_invariants(tmp_path: Path, seed: int) -> None:
    """fsck finds no damage in a healthy filesystem, and its repairs change nothing."""
    made = Healthy(tmp_path, seed, steps=60)
    made.add_lease()

    assert (await made.check_all(deep=True)).lines() == ["clean"]
    assert (await made.check_all(Mode.ALL, deep=True)).lines() == ["clean"]
    assert made.dump() == made.before
    assert not made.db.in_group
    made.db.close()


def test_numbers_of_invariants_are_consecutive() -> None:
    """The numbers of invariants have no gaps, because documents refer to them."""
    assert [one.name for one in INVARIANTS] == [f"I{n}" for n in range(1, len(INVARIANTS) + 1)]


def test_titles_of_invariants_are_distinct() -> None:
    assert len({one.title for one in INVARIANTS}) == len(INVARIANTS)
