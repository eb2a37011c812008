"""The form of one row of the table of mount options.

Owns: the fields of a row. Does not know: any option (``option_table``).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

NOTHING: Final = "Nothing."
NO_EFFECT: Final = "No effect."


class Option(NamedTuple):
    """One option of ``-o``, with its complete documentation."""

    word: str
    field: str  # field of MountOptions
    takes: str  # metavar after "=", empty for a flag
    parse: Callable[[str, str], object]  # (name, text) to value; raises UsageError
    default: str  # default value as text; if empty, the parser is not called
    does: str
    costs: str
    crash: str
