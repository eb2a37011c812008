#!/usr/bin/env python3
"""Run conformance suites on s3fs-meta or in any directory; see README.md and --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from contrib.conformance.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
