"""The static files of the pages: the style sheet, the icon, and the only script.

Owns: the content types, the hash of the script. Does not know: pages.
Keeps: the content security policy permits only the script with this hash. So no other script runs,
even if a mistake in a template or a file adds a script to a page.
Source: https://www.w3.org/TR/CSP3/#external-hash; https://www.w3.org/TR/SRI.
"""

import base64
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent


class Asset(NamedTuple):
    """A static file of the pages, such as the style sheet."""

    content: bytes
    content_type: str

    @property
    def hash(self) -> str:
        """Return the content's hash in the syntax for a content security policy."""
        return "sha256-" + base64.b64encode(hashlib.sha256(self.content).digest()).decode()


def _asset(name: str, content_type: str) -> Asset:
    return Asset((FOLDER / name).read_bytes(), content_type)


SCRIPT: Final = _asset("plot.js", "text/javascript; charset=utf-8")
# Static files, keyed by the path of their URL relative to the root.
ASSETS: Final = {
    b"style.css": _asset("style.css", "text/css; charset=utf-8"),
    b"icon.svg": _asset("icon.svg", "image/svg+xml"),
    b"plot.js": SCRIPT,
}
