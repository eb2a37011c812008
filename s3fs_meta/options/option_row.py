"""The fields of one row in the table of mount options.

Owns: the fields of a row. Does not know: the options (``option_table``).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

NOTHING: Final = "Nothing."
NO_EFFECT: Final = "This option makes no difference."


class Option(NamedTuple):
    """One option of ``-o``, with its complete documentation."""

    word: str
    field: str  # name of the field in MountOptions
    takes: str  # placeholder of the value, such as SIZE; empty for a flag
    parse: Callable[[str, str], object]  # parser: receives name and text; raises UsageError
    default: str  # default value as text; an empty text is not parsed
    does: str
    costs: str
    crash: str
