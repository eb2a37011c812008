"""Text without characters that control a terminal.

Owns: escaping characters that a terminal would interpret or cannot show. Does not know:
tables, errors.
Names of files and processes, and texts from a bucket, may be chosen by other users. An escape
sequence in a name could change the screen of the terminal, or even the input that it sends.
Source: ECMA-48; ls(1), --quoting-style=escape.
"""

import os
from typing import Final

_KEPT: Final = "\n\t"


def printable(text: str) -> str:
    r"""Return a text with its unprintable characters escaped, for example as ``\x1b``.

    Line breaks and tabs stay; bytes that are not UTF-8 become ``\xff``.
    """
    if text.isprintable():
        return text
    valid = os.fsencode(text).decode("utf-8", "backslashreplace")
    return "".join(
        one if one.isprintable() or one in _KEPT else one.encode("unicode_escape").decode("ascii")
        for one in valid
    )
