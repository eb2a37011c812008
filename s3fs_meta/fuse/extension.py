"""pyfuse3, and the compiled extension that must be loaded before it.

Owns: loading ``seam.c`` so that the dynamic linker finds it before libfuse; importing pyfuse3.
"""

import os
import sys
from types import ModuleType

from s3fs_meta.errors import ExtensionMissingError


def _load() -> ModuleType:
    """Load the extension with its symbols visible to all libraries.

    Raises:
        ExtensionMissingError: it was not built, or not for this Python and libfuse.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        from s3fs_meta.fuse import seam
    except ImportError as exc:
        raise ExtensionMissingError(str(exc)) from exc
    finally:
        sys.setdlopenflags(flags)
    return seam


seam = _load()

import pyfuse3  # noqa: E402 - not before the extension

__all__ = ["pyfuse3", "seam"]
