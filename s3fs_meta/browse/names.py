"""Names of files in URLs, on pages and in commands for a shell.

Owns: the encodings. A name is bytes of any value except "/" and NUL, so no text stands for it as it
is. Does not know: pages, files.
"""

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

_PLAIN: Final = re.compile(rb"[A-Za-z0-9_./:=@%+,-]+")
_PRINTABLE: Final = range(0x20, 0x7F)


def to_url(path: bytes | str) -> str:
    """Return a path as part of a URL."""
    return quote(path, safe="/")


def from_url(text: bytes) -> list[bytes] | None:
    """Return the names of a path in a URL, None if it is not the path of a file."""
    names = [unquote_to_bytes(part) for part in text.split(b"/") if part]
    if any(name in {b".", b".."} or b"/" in name or b"\0" in name for name in names):
        return None
    return names


def shown(name: bytes) -> str:
    """Return a name as text; bytes and characters that cannot be seen are escaped."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shell_word(word: bytes) -> str:
    """Return a word for bash that stands for these bytes."""
    if _PLAIN.fullmatch(word):
        return word.decode()
    text = word.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return "'" + text.replace("'", "'\\''") + "'"
    return "$'" + "".join(_ansi(byte) for byte in word) + "'"


def _ansi(byte: int) -> str:
    """Return a byte as bash reads it inside $'…'."""
    if byte in _PRINTABLE and byte not in b"\\'":
        return chr(byte)
    return f"\\x{byte:02x}"
