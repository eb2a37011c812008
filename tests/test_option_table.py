"""The table of mount options agrees with the fields of MountOptions."""

import dataclasses

import pytest

from s3fs_meta.option_table import OPTIONS, Option
from s3fs_meta.settings import MountOptions


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_documented_default_is_the_default(option: Option) -> None:
    """The default in the table equals that of MountOptions; a default in prose means None."""
    actual = getattr(MountOptions(), option.field)

    if option.default:
        assert actual == option.parse(option.word, option.default)
    elif option.takes:
        assert actual is None
    else:
        assert actual != option.parse(option.word, "")


def test_every_field_has_an_option_and_every_option_a_field() -> None:
    """Options and fields of MountOptions correspond one to one."""
    assert {option.field for option in OPTIONS} == {
        field.name for field in dataclasses.fields(MountOptions)
    }


def test_option_names_are_unique() -> None:
    """No option has two rows in the table."""
    assert len({option.word for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_every_option_documents_effect_cost_and_crash_loss(option: Option) -> None:
    """No column of the documentation is empty."""
    assert all(text.endswith(".") for text in (option.does, option.costs, option.crash))
