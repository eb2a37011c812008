"""The tree of commands and options, from which pages are generated."""

import pytest

from contrib.docs import command_tree
from contrib.docs.command_tree import Command


def test_every_parameter_is_explained() -> None:
    """Every option and argument has a text that is a sentence."""
    for command in command_tree.read():
        for one in (*command.arguments, *command.options):
            assert one.text, (command.words.name, one.names)
            assert one.text.endswith("."), (command.words.name, one.names)


def test_usage_line_has_the_arguments_in_their_order() -> None:
    usages = {command.words.name: command.usage for command in command_tree.read()}

    assert usages["mount"] == "s3fs-meta mount [OPTIONS] URL MOUNTPOINT"


def test_flags_have_no_value_and_options_name_theirs() -> None:
    """An option shows the name of its value and its default; a flag has neither."""
    (mkfs,) = [one for one in command_tree.read() if one.words.name == "mkfs"]
    options = {one.names[0]: one for one in mkfs.options}

    assert options["--plain"].takes == ""
    assert options["--block-size"].takes == "SIZE"
    assert options["--block-size"].default == "1M"


@pytest.mark.parametrize("command", command_tree.read(), ids=lambda command: command.words.name)
def test_every_command_on_a_filesystem_has_cachedir(command: Command) -> None:
    """Every command on a filesystem has --cachedir, so that scripts can always pass it."""
    names_one = bool(command.arguments) and command.words.name != "bench"
    options = {name for option in command.options for name in option.names}

    assert ("--cachedir" in options) == names_one
