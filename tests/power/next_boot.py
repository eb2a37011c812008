"""The program on a rebooted machine: run as a module, like ``s3fs_meta``.

The environment names the file that says which boot this is.
"""

import os
import sys
from pathlib import Path

from s3fs_meta import machine
from s3fs_meta.cli import entry

VARIABLE = "S3FS_META_TEST_BOOT_ID"

if __name__ == "__main__":
    machine.BOOT_ID = Path(os.environ.pop(VARIABLE))
    sys.exit(entry.main(sys.argv[1:]))
