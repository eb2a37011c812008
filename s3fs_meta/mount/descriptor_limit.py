"""How many files a mount may have open.

Owns: the soft bound of this process. Does not know: who opens files.
The usual soft bound, 1,024, is there for programs that use select(2) with any descriptor; the hard
one is far above it.
"""

import resource

from s3fs_meta.limits import OPEN_FILES_WANTED


def raise_bound() -> None:
    """Raise the soft bound to OPEN_FILES_WANTED, or as far as the hard one lets it go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
