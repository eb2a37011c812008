"""Temporary directories in memory, where fsync is fast."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.polling import WAIT_S_MAX

# A directory in memory; None if only the default temporary directory is available.
FAST_PLACE: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """Yield an empty directory, in memory if possible, and remove it at the end.

    The removal is retried, because the thread of a cancelled write may still create a file.
    """
    folder = Path(tempfile.mkdtemp(prefix="s3fs-meta-", dir=FAST_PLACE))
    try:
        yield folder
    finally:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=time.monotonic() < deadline_s)
            time.sleep(0.001)
