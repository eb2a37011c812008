"""Text for a terminal: text without control characters, and the names of users.

Owns: escaping characters that a terminal would interpret or cannot show, and the name for a user
ID. Does not know: tables, errors.
Other users may choose names of files and processes, and texts in a bucket. An escape sequence in a
name could change the screen of a terminal, or even the input that the terminal sends.
Source: ECMA-48; ls(1), --quoting-style=escape.
"""

import pwd
import re
from typing import Final

_KEPT: Final = "\n\t"
_BYTE: Final = re.compile("[\udc80-\udcff]")  # a byte that is not UTF-8; see os.fsdecode
# A byte that is not UTF-8, in the result of repr(). A backslash in the text itself is doubled.
_REPRESENTED_BYTE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\udc([89a-f][0-9a-f])")


def printable(text: str) -> str:
    r"""Return a text with its unprintable characters escaped, for example as ``\x1b``.

    Line breaks and tabs stay; bytes that are not UTF-8 become ``\xff``.
    """
    valid = with_bytes(text)
    if valid.isprintable():
        return valid
    return "".join(
        one if one.isprintable() or one in _KEPT else one.encode("unicode_escape").decode("ascii")
        for one in valid
    )


def with_bytes(text: str) -> str:
    r"""Return a text in which a byte that is not UTF-8 is shown as ``\xff``, also in a ``repr``.

    Python represents the byte as a lone surrogate; its ``repr`` is ``\udcff``.
    """
    if "\\udc" in text:
        text = _REPRESENTED_BYTE.sub(r"\1\\x\2", text)
    if text.isascii():
        return text
    return _BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)


def quoted(name: str) -> str:
    """Return a name unchanged, or quoted and escaped if it has unprintable characters."""
    return name if name.isprintable() else with_bytes(repr(name))


def user_name(uid: int) -> str:
    """Return the name of a user, or the number as text if the user has no name on this host."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
