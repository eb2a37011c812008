"""``python -m s3fs_meta``."""

import sys

from s3fs_meta.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
