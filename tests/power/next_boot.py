"""The program on a machine that was started again: run as a module, as ``s3fs_meta`` is.

What ``opening`` takes for the number of this boot stands in a file that the environment names.
"""

import os
import sys
from pathlib import Path

from s3fs_meta.cli import entry
from s3fs_meta.sync import opening

VARIABLE = "S3FS_META_TEST_BOOT_ID"

if __name__ == "__main__":
    opening._BOOT_ID = Path(os.environ.pop(VARIABLE))  # a constant to everybody else
    sys.exit(entry.main(sys.argv[1:]))
