"""The message after Ctrl-C: the state that the command leaves, and the next step.

Owns: the exception, and the conversion of KeyboardInterrupt to it. Does not know: commands.
The exception is not a KeyboardInterrupt, because the parser prints no message for that class.
``boundary`` prints the message and returns the status of an interrupted command.
"""

import contextlib
from collections.abc import Iterator

from s3fs_meta.console import exits


class InterruptedCommandError(Exception):
    """The user interrupted a command; the message describes the state that remains."""


class Remains:
    """The description of the state that would remain after an interruption."""

    def __init__(self, text: str) -> None:
        self.text = text

    def change(self, text: str) -> None:
        """Replace the description, because the command has made progress."""
        self.text = text


@contextlib.contextmanager
def explained(text: str) -> Iterator[Remains]:
    """Run a context; if the user interrupts it, report the state that remains.

    Args:
        text: the first description, which the command may change.

    Raises:
        InterruptedCommandError: the user pressed Ctrl-C.
    """
    remains = Remains(text)
    try:
        yield remains
    except BaseException as exc:
        if not any(isinstance(leaf, KeyboardInterrupt) for leaf in exits.leaves(exc)):
            raise
        raise InterruptedCommandError(remains.text) from exc
