"""pyfuse3, and the compiled extension that must be loaded before it.

Owns: loading ``fuse_intercept.c``, whose symbols the dynamic linker must find before those of
libfuse; importing pyfuse3.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from s3fs_meta.errors import ExtensionMissingError


@contextlib.contextmanager
def _symbols_for_all_libraries() -> Iterator[None]:
    """Make the symbols of libraries loaded in this context visible to libraries loaded later.

    Raises:
        ExtensionMissingError: the extension was not built, or was built for another Python or
            libfuse.
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

import pyfuse3  # noqa: E402 - must follow the extension

__all__ = ["fuse_intercept", "pyfuse3"]
