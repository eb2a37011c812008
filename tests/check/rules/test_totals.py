"""Damage to the counters."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.meta.db.counters import COLUMNS
from tests.check.healthy import Healthy

COUNTED = [name for name in COLUMNS if not name.startswith(("next_", "capacity", "txg"))]


@pytest.mark.parametrize("counter", COUNTED)
def test_counter_is_what_a_scan_gives(healthy: Healthy, counter: str) -> None:
    """I65: statfs and status tell the truth."""
    healthy.db.begin()
    setattr(healthy.db.counters, counter, getattr(healthy.db.counters, counter) + 5)
    healthy.db.commit()

    healthy.assert_mended("I65")

    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("counter", ["capacity_bytes", "txg"])
def test_counter_that_nothing_counts_is_not_negative(healthy: Healthy, counter: str) -> None:
    """I65: a negative capacity means none."""
    healthy.sql(f"UPDATE counters SET {counter} = -1")

    assert "I65" in healthy.check().broken
    healthy.check(Mode.SAFE)

    assert healthy.check().lines() == ["clean"]
    assert healthy.dump() == healthy.before
