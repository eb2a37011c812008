"""Accepted SQLite settings, and what they guarantee."""

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import KIB, PAGE_CACHE_BYTES_MAX, PAGE_CACHE_BYTES_MIN
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, SYNCHRONOUS, Pragmas, default_cache_size


def test_defaults_are_valid() -> None:
    """The defaults need no correction."""
    Pragmas().validate()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("journal_mode", "wal2"),
        ("journal_mode", "WAL"),
        ("synchronous", "1"),
        ("page_size", 3000),
        ("page_size", 256),
        ("page_size", 131072),
        ("cache_size", 1 << 31),
        ("mmap_size", -1),
        ("wal_autocheckpoint", -1),
        ("journal_size_limit", -2),
        ("temp_store", "disk"),
    ],
)
def test_refusal_names_option_and_value(option: str, value: object) -> None:
    """A value that SQLite would silently ignore is refused by name."""
    with pytest.raises(UsageError) as caught:
        Pragmas(**{option: value}).validate()  # type: ignore[arg-type]  # wrong on purpose
    assert f"{option}={value}" in str(caught.value)


def test_checkpoints_without_wal_are_refused() -> None:
    """An option without effect is a mistake."""
    with pytest.raises(UsageError, match="wal_autocheckpoint=100 needs journal_mode=wal"):
        Pragmas(journal_mode="delete", wal_autocheckpoint=100).validate()


def test_page_cache_stays_within_its_bounds() -> None:
    """The default follows the machine's memory between two bounds."""
    size = -default_cache_size() * KIB
    assert PAGE_CACHE_BYTES_MIN <= size <= PAGE_CACHE_BYTES_MAX
    assert Pragmas(cache_size=77).effective_cache_size == 77


@pytest.mark.parametrize("mode", JOURNAL_MODES)
@pytest.mark.parametrize("level", SYNCHRONOUS)
def test_journal_end_is_synced_where_the_mode_needs_it(mode: str, level: str) -> None:
    """Only TRUNCATE needs FULL for it; test_database checks the effect."""
    pragmas = Pragmas(journal_mode=mode, synchronous=level)
    expected = level in {"full", "extra"} or mode in {"delete", "persist"}
    assert pragmas.commit_syncs_journal_end == expected


def test_power_loss_safety_of_each_setting() -> None:
    """Without a journal on disk, or without syncs, fsync guarantees nothing."""
    assert Pragmas().survives_power_loss
    assert not Pragmas(synchronous="off").survives_power_loss
    assert not Pragmas(journal_mode="memory").survives_power_loss
    assert not Pragmas(journal_mode="off").survives_power_loss
    assert Pragmas(journal_mode="memory").can_undo
    assert not Pragmas(journal_mode="off").can_undo
