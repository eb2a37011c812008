"""The message after Ctrl-C: the state that the command leaves, and whether to run it again.

Owns: the exception, and the conversion of KeyboardInterrupt to it. Does not know: commands.
The command-line parser handles KeyboardInterrupt by an exit status alone, so the exception is of
another class. ``boundary`` prints it and returns the status of an interrupted command.
"""

import contextlib
from collections.abc import Iterator

from s3fs_meta.console import exits


class InterruptedCommandError(Exception):
    """The user interrupted a command; the message describes the state that remains."""


class Remains:
    """The description of the state that an interruption would leave now."""

    def __init__(self, text: str) -> None:
        self.text = text

    def change(self, text: str) -> None:
        """Replace the description after progress of the command."""
        self.text = text


@contextlib.contextmanager
def explained(text: str) -> Iterator[Remains]:
    """Describe the remaining state if the user interrupts the context.

    Args:
        text: the description until the command changes it.

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
