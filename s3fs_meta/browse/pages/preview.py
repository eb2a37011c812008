"""Previews of files: the beginning of a text file, or the type of a picture.

Owns: recognising text files, and pictures that a browser may display. Does not know: pages.
Keeps: only raster pictures are shown, each with the content type that its first bytes determine. An
SVG picture may contain scripts, so it is shown as text.
"""

import codecs
from typing import Final

# First bytes of pictures: mimesniff.spec.whatwg.org/#image-type-pattern-matching-algorithm.
_PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_RIFF: Final = b"RIFF"
_WEBP: Final = b"WEBP"
_WEBP_AT: Final = 8


def picture_type(begin: bytes) -> str | None:
    """Return the content type of a picture by its first bytes; None for any other file."""
    for magic, content_type in _PICTURES:
        if begin.startswith(magic):
            return content_type
    if begin.startswith(_RIFF) and begin[_WEBP_AT:].startswith(_WEBP):
        return "image/webp"
    return None


def text_of(begin: bytes, *, is_cut: bool) -> str | None:
    """Return the beginning of a file as text, or None if the file is not UTF-8.

    Args:
        begin: the first bytes of the file.
        is_cut: whether the file is longer; then the bytes may end in the middle of a character, which
            is omitted.
    """
    if b"\0" in begin:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(begin, final=not is_cut)
    except UnicodeDecodeError:
        return None
