"""File names in URLs, on pages and in shell commands.

Owns: the encodings. A name can contain any byte except "/" and NUL, so every encoding as text needs
escapes. Does not know: pages, files.
"""

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

_PLAIN: Final = re.compile(rb"[A-Za-z0-9_./:=@%+,-]+")
_PRINTABLE: Final = range(0x20, 0x7F)
# Characters that are invisible, or that change the direction of the text around them.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)
_NOT_SAFE: Final = re.compile("[^A-Za-z0-9 ._()+,@=-]")


def to_url(path: bytes | str) -> str:
    """Return a path as part of a URL."""
    return quote(path, safe="/")


def from_url(text: bytes) -> list[bytes] | None:
    """Return the components of a path in a URL, or None if the path is invalid."""
    names = [unquote_to_bytes(part) for part in text.split(b"/") if part]
    if any(name in {b".", b".."} or b"/" in name or b"\0" in name for name in names):
        return None
    return names


def is_utf8(name: bytes) -> bool:
    """Return whether a name is valid UTF-8."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def shown(name: bytes) -> str:
    """Return a name as text; invalid bytes and invisible characters are escaped."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def without_controls(text: str) -> str:
    """Return a text with escapes for characters that could deceive the user."""
    return _CONTROLS.sub(lambda found: _escaped(found[0]), text)


def attachment(name: bytes) -> str:
    """Return the Content-Disposition header of a download. Source: RFC 6266, RFC 8187.

    Clients that do not support UTF-8 in headers receive a name without quotes and separators.
    """
    text = name.decode("utf-8", "replace")
    text = "".join(one if one.isprintable() and one not in "/\\" else "_" for one in text)
    plain = _NOT_SAFE.sub("_", text)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(text, safe='')}"


def shell_word(word: bytes) -> str:
    """Return a name, quoted as one word for bash."""
    if _PLAIN.fullmatch(word):
        return word.decode()
    text = word.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return "'" + text.replace("'", "'\\''") + "'"
    return "$'" + "".join(_ansi(byte) for byte in word) + "'"


def _ansi(byte: int) -> str:
    """Return a byte, escaped for bash inside $'…'."""
    if byte in _PRINTABLE and byte not in b"\\'":
        return chr(byte)
    return f"\\x{byte:02x}"
