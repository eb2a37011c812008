"""The command line as data."""

import pytest

from contrib.docs import command_tree
from contrib.docs.command_tree import Command


def test_every_parameter_is_explained() -> None:
    """No option without a sentence that ends."""
    for command in command_tree.read():
        for one in (*command.arguments, *command.options):
            assert one.text, (command.words.name, one.names)
            assert one.text.endswith("."), (command.words.name, one.names)


def test_usage_names_the_arguments() -> None:
    """In their order."""
    usages = {command.words.name: command.usage for command in command_tree.read()}

    assert usages["mount"] == "s3fs-meta mount [OPTIONS] URL MOUNTPOINT"


def test_switches_take_nothing_and_options_say_what() -> None:
    """A default is shown where there is one."""
    (mkfs,) = [one for one in command_tree.read() if one.words.name == "mkfs"]
    options = {one.names[0]: one for one in mkfs.options}

    assert options["--plain"].takes == ""
    assert options["--block-size"].takes == "SIZE"
    assert options["--block-size"].default == "1M"


@pytest.mark.parametrize("command", command_tree.read(), ids=lambda command: command.words.name)
def test_whatever_names_a_filesystem_takes_a_cachedir(command: Command) -> None:
    """So that scripts can say it everywhere; bench names any directory."""
    names_one = bool(command.arguments) and command.words.name != "bench"
    options = {name for option in command.options for name in option.names}

    assert ("--cachedir" in options) == names_one
