"""The tree of commands and options, from which pages are generated."""

import pytest

from contrib.docs import command_tree
from contrib.docs.command_tree import Command


def test_every_command_parameter_is_explained() -> None:
    """The text of each option and argument is a sentence."""
    for command in command_tree.read():
        for one in (*command.arguments, *command.options):
            assert one.text, (command.words.name, one.names)
            assert one.text.endswith("."), (command.words.name, one.names)


def test_usage_line_lists_arguments_in_their_order() -> None:
    usages = {command.words.name: command.usage for command in command_tree.read()}

    assert usages["mount"] == "s3fs-meta mount [OPTIONS] URL MOUNTPOINT"


def test_only_options_with_a_value_show_its_name() -> None:
    """An option shows the name of its value and its default; a flag shows neither."""
    (mkfs,) = [one for one in command_tree.read() if one.words.name == "mkfs"]
    options = {one.names[0]: one for one in mkfs.options}

    assert options["--plain"].takes == ""
    assert options["--block-size"].takes == "SIZE"
    assert options["--block-size"].default == "1M"


@pytest.mark.parametrize("command", command_tree.read(), ids=lambda command: command.words.name)
def test_every_command_on_a_filesystem_has_the_option_cachedir(command: Command) -> None:
    """Scripts can pass --cachedir to every command on a filesystem."""
    names_one = bool(command.arguments) and command.words.name != "bench"
    options = {name for option in command.options for name in option.names}

    assert ("--cachedir" in options) == names_one
