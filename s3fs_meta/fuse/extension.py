"""The door to pyfuse3, and the compiled extension that has to be loaded before it.

Owns: loading ``seam.c`` so that the dynamic linker finds it before libfuse; importing pyfuse3.
"""

import os
import sys
from types import ModuleType


def _load() -> ModuleType | None:
    """Load the extension for everybody; return None where it was not built, or does not fit."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        from s3fs_meta.fuse import seam
    except ImportError:
        return None
    finally:
        sys.setdlopenflags(flags)
    return seam


seam = _load()

import pyfuse3  # noqa: E402 - not before the extension

__all__ = ["pyfuse3", "seam"]
