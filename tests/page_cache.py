"""A lock on the page cache of the machine, which test processes share.

A test with a failing disk needs cached pages that the disk has lost, but the kernel marks these
pages as clean. A benchmark drops all clean pages of the machine, so it must not run concurrently.
"""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_page_cache(*, is_exclusive: bool) -> Iterator[None]:
    """Hold the lock, exclusively to keep lost pages in memory, or shared to drop pages."""
    path = Path(tempfile.gettempdir()) / "s3fs-meta-tests-page-cache"
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
