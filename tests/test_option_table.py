"""The table of mount options agrees with the value that it fills."""

import dataclasses

import pytest

from s3fs_meta.option_table import OPTIONS, Option
from s3fs_meta.settings import MountOptions


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_documented_default_is_the_default(option: Option) -> None:
    """The default in the row is that of MountOptions; an option with its default in words has None."""
    actual = getattr(MountOptions(), option.field)

    if option.default:
        assert actual == option.parse(option.word, option.default)
    elif option.takes:
        assert actual is None
    else:
        assert actual != option.parse(option.word, "")


def test_every_field_has_a_word_and_every_word_a_field() -> None:
    """Nothing can be set that no word sets."""
    assert {option.field for option in OPTIONS} == {
        field.name for field in dataclasses.fields(MountOptions)
    }


def test_words_are_unique() -> None:
    """One row per word."""
    assert len({option.word for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_every_word_says_what_it_does_costs_and_loses(option: Option) -> None:
    """No column of the documentation is empty."""
    assert all(text.endswith(".") for text in (option.does, option.costs, option.crash))
