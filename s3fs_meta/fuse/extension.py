"""pyfuse3, and the compiled extension that must be loaded before it.

Owns: loading ``fuse_intercept.c`` so that the dynamic linker finds it before libfuse; importing
pyfuse3.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from s3fs_meta.errors import ExtensionMissingError


@contextlib.contextmanager
def _symbols_for_all_libraries() -> Iterator[None]:
    """Make libraries that are loaded inside visible to later ones.

    Raises:
        ExtensionMissingError: the extension was not built, or not for this Python and libfuse.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        yield
    except ImportError as exc:
        raise ExtensionMissingError(str(exc)) from exc
    finally:
        sys.setdlopenflags(flags)


with _symbols_for_all_libraries():
    from s3fs_meta.fuse import fuse_intercept

import pyfuse3  # noqa: E402 - not before the extension

__all__ = ["fuse_intercept", "pyfuse3"]
