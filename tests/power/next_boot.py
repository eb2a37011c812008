"""The ``s3fs_meta`` command on a host that has rebooted; run it as a module.

An environment variable names a file that contains the boot id.
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
