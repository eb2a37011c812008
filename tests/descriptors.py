"""A simulation of a process that cannot open any more files."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_more_files() -> Iterator[None]:
    """Make every open(2) in the ``with`` block fail with EMFILE; open files stay usable.

    The limit is set to the lowest free descriptor and not to 0, because poll(2) in a server thread
    fails if it gets more descriptors than the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
