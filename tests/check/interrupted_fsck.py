"""A helper program that repairs a database and kills itself during the repair.

python interrupted_fsck.py DATABASE REPAIRS

The program kills itself at the beginning of repair number REPAIRS + 1.
"""

import os
import signal
import sys
from pathlib import Path

from s3fs_meta.check.fsck import check_database
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas


class Killer:
    """Kills the process at the beginning of the first repair after a given number of repairs."""

    def __init__(self, repairs: int) -> None:
        self.left = repairs

    def note(self, text: str) -> None:
        """Record an entry of the report, and kill the process at the chosen repair."""
        if text.startswith("repairing"):
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Repair a database; the process may be killed before the repair ends."""
    db = Database.open(Path(sys.argv[1]), Pragmas())
    killer = Killer(int(sys.argv[2]))
    check_database(db, repair=Mode.ALL, report=Report(on_note=killer.note))
    db.close()


if __name__ == "__main__":
    main()
