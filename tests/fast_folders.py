"""Directories where fsync costs nothing."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# A filesystem in memory, if there is one, makes fsync cheap. None: the default for temporary files.
FAST_PLACE: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

_ENDING_S_MAX: Final = 10.0


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """Provide an empty directory, in memory if possible, and remove it.

    A write that was cancelled goes on in its thread, and may make a file while that is removed.
    """
    folder = Path(tempfile.mkdtemp(prefix="s3fs-meta-", dir=FAST_PLACE))
    try:
        yield folder
    finally:
        deadline_s = time.monotonic() + _ENDING_S_MAX
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=time.monotonic() < deadline_s)
            time.sleep(0.001)
