"""SQLite pragmas that the program accepts, and the guarantees of these pragmas."""

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import KIB, PAGE_CACHE_BYTES_MAX, PAGE_CACHE_BYTES_MIN
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, SYNCHRONOUS, Pragmas, default_cache_size


def test_default_pragmas_are_valid() -> None:
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
def test_error_about_an_invalid_pragma_names_the_option_and_the_value(
    option: str, value: object
) -> None:
    """The program refuses an invalid pragma value, which SQLite would silently ignore."""
    with pytest.raises(UsageError) as caught:
        # mypy cannot check keyword arguments that come from a dict.
        Pragmas(**{option: value}).validate()  # type: ignore[arg-type]
    assert f"{option}={value}" in str(caught.value)


def test_wal_autocheckpoint_without_wal_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="wal_autocheckpoint=100 needs journal_mode=wal"):
        Pragmas(journal_mode="delete", wal_autocheckpoint=100).validate()


def test_default_page_cache_size_is_within_its_limits() -> None:
    """The default size of the page cache depends on the host's memory, within limits."""
    size = -default_cache_size() * KIB
    assert PAGE_CACHE_BYTES_MIN <= size <= PAGE_CACHE_BYTES_MAX
    assert Pragmas(cache_size=77).effective_cache_size == 77


@pytest.mark.parametrize("mode", JOURNAL_MODES)
@pytest.mark.parametrize("level", SYNCHRONOUS)
def test_commit_syncs_the_journal_end_only_if_the_pragmas_require_it(mode: str, level: str) -> None:
    pragmas = Pragmas(journal_mode=mode, synchronous=level)
    expected = level in {"full", "extra"} or mode in {"delete", "persist"}
    assert pragmas.commit_syncs_journal_end == expected


def test_pragmas_determine_whether_the_database_survives_a_power_loss() -> None:
    """A power loss may damage the database if there is no journal on disk, or no sync."""
    assert Pragmas().survives_power_loss
    assert not Pragmas(synchronous="off").survives_power_loss
    assert not Pragmas(journal_mode="memory").survives_power_loss
    assert not Pragmas(journal_mode="off").survives_power_loss
    assert Pragmas(journal_mode="memory").can_undo
    assert not Pragmas(journal_mode="off").can_undo
