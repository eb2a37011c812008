"""Text for a terminal: text without control characters, and the names of users.

Owns: escaping characters that a terminal would interpret or cannot show, and the name of a user who
has only a number. Does not know: tables, errors.
Names of files and processes, and texts from a bucket, may be chosen by other users. An escape
sequence in a name could change the screen of the terminal, or even the input that it sends.
Source: ECMA-48; ls(1), --quoting-style=escape.
"""

import os
import pwd
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


def user_name(uid: int) -> str:
    """Return the name of a user, or the number as text if the user has no name on this host."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
