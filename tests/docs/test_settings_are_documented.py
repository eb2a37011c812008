"""Tests of the page of mount options, which is generated from the table of options."""

from pathlib import Path

from contrib.docs import reference
from s3fs_meta.options.option_table import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"


def test_committed_page_of_mount_options_is_up_to_date() -> None:
    """The committed page of mount options matches the output of ``make docs``."""
    assert (DOCS / "reference" / "settings.md").read_text() == reference.settings_page()


def test_tuning_guide_mentions_every_sqlite_option() -> None:
    guide = (DOCS / "guide" / "tuning.md").read_text()
    first = [option.word for option in OPTIONS]
    sqlite = first[: first.index("temp_store") + 1]

    assert [word for word in sqlite if word not in guide] == []
