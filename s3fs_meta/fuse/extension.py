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

__all__ = ["asked_by", "asked_by_process", "pyfuse3", "seam"]


def asked_by(otherwise: int) -> int:
    """Return the user whose request was taken last, before any schedule point.

    Args:
        otherwise: returned without the extension: pyfuse3 does not hand on who reads and writes.
    """
    if seam is None or not seam.is_in_use() or not hasattr(seam, "asked_by"):
        return otherwise  # the last: compiled before this was there
    uid: int = seam.asked_by()
    return uid


def asked_by_process() -> int:
    """Return the number of the thread whose request was taken last; 0: it is not known here.

    As the kernel numbers it for this process, before any schedule point.
    """
    if seam is None or not hasattr(seam, "asked_by_process"):
        return 0
    pid: int = seam.asked_by_process()
    return pid
