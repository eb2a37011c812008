"""The names of the compared filesystems in the results.

This module imports no package of the project or of PyPI, because the program that makes the
benchmark page runs in an environment that contains only matplotlib.
"""

from typing import Final

DISK: Final = "ext4"
CEILING: Final = "do-nothing"
OURS: Final = "s3fs-meta"
USED: Final = "s3fs-meta, used"
JUICEFS: Final = "JuiceFS"
S3QL: Final = "S3QL"
PASSTHROUGH: Final = "passthrough_hp"
NAMES: Final = (DISK, PASSTHROUGH, CEILING, OURS, JUICEFS, S3QL)
