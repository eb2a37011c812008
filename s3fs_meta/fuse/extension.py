"""Loading the compiled extension, and then pyfuse3.

Owns: loading ``fuse_intercept.c`` first, because the dynamic linker must find its symbols before
libfuse's symbols; importing pyfuse3; refusing an extension that was built from other source code.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from s3fs_meta.errors import ExtensionMissingError

# SHA-256 of fuse_intercept.c, which setup.py also compiles into the extension.
# An extension with another hash is rejected, because functions may be missing or different.
SOURCE_SUM: Final = "af8c9ba615280f811e0ada1dee1129dbf74b8a37f9476cac9f74d8d935740adc"


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

if getattr(fuse_intercept, "SOURCE_SUM", "") != SOURCE_SUM:
    raise ExtensionMissingError("the extension was built from a different version of s3fs-meta")

import pyfuse3  # noqa: E402 - must follow the extension

__all__ = ["fuse_intercept", "pyfuse3"]
