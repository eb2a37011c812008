"""Tests of the tree of commands and options, from which reference pages are generated."""

import pytest

from contrib.docs import command_tree
from contrib.docs.command_tree import Command


def test_every_command_parameter_has_a_help_text() -> None:
    """Each option and argument has a description that ends with a full stop."""
    for command in command_tree.read():
        for one in (*command.arguments, *command.options):
            assert one.text, (command.words.name, one.names)
            assert one.text.endswith("."), (command.words.name, one.names)


def test_usage_line_of_a_command_lists_its_arguments_in_order() -> None:
    usages = {command.words.name: command.usage for command in command_tree.read()}

    assert usages["mount"] == "s3fs-meta mount [OPTIONS] URL MOUNTPOINT"
    assert usages["restore"] == "s3fs-meta restore [OPTIONS] URL [PATH]..."


@pytest.mark.parametrize("command", command_tree.read(), ids=lambda command: command.words.name)
def test_usage_line_of_a_command_marks_its_optional_arguments(command: Command) -> None:
    for one in command.arguments:
        assert one.names[0].startswith("[") == (not one.required), one.names


def test_help_shows_a_placeholder_only_for_options_with_a_value() -> None:
    """An option with a value shows a placeholder and its default; a flag shows neither."""
    (mkfs,) = [one for one in command_tree.read() if one.words.name == "mkfs"]
    options = {one.names[0]: one for one in mkfs.options}

    assert options["--plain"].takes == ""
    assert options["--block-size"].takes == "SIZE"
    assert options["--block-size"].default == "1M"


@pytest.mark.parametrize("command", command_tree.read(), ids=lambda command: command.words.name)
def test_every_command_on_a_filesystem_has_the_option_cachedir(command: Command) -> None:
    """Scripts can pass --cachedir to every command that uses a filesystem."""
    names_one = bool(command.arguments) and command.words.name != "bench"
    options = {name for option in command.options for name in option.names}

    assert ("--cachedir" in options) == names_one
