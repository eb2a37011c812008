"""The files that the pages need: the style, the icon, and the one script.

Owns: their content types, the hash of the script. Does not know: pages.
Keeps: the content security policy names the script by its hash, so no other one is run, wherever a
mistake in a template or a file would bring it from.
Source: https://www.w3.org/TR/CSP3/#external-hash; https://www.w3.org/TR/SRI.
"""

import base64
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent


class Asset(NamedTuple):
    """One file."""

    content: bytes
    content_type: str

    @property
    def hash(self) -> str:
        """Return the hash of the content, as in a policy or an attribute ``integrity``."""
        return "sha256-" + base64.b64encode(hashlib.sha256(self.content).digest()).decode()


def _asset(name: str, content_type: str) -> Asset:
    return Asset((FOLDER / name).read_bytes(), content_type)


SCRIPT: Final = _asset("plot.js", "text/javascript; charset=utf-8")
# Static files by the path of their URL, relative to the root.
ASSETS: Final = {
    b"style.css": _asset("style.css", "text/css; charset=utf-8"),
    b"icon.svg": _asset("icon.svg", "image/svg+xml"),
    b"plot.js": SCRIPT,
}
