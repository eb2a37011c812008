"""Limits that only ``cli`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import MIB

# --- s3fs-meta log, versions, warm --------------------------------------------------------------
HISTORY_SHOWN_DEFAULT: Final = 30  # txgs that s3fs-meta log lists by default
PATTERN_SHOWN_DEFAULT: Final = 5  # versions listed of each file that matches a pattern
MISSING_PATHS_PRINTED_MAX: Final = 10  # paths of uncached files that warm prints on a terminal

# --- completion in a shell ----------------------------------------------------------------------
COMPLETED_POINTS_MAX: Final = 40  # candidates that a shell shows on one screen
COMPLETED_STATES_MAX: Final = 2  # enough to decide whether there is only one

# --- s3fs-meta umount ---------------------------------------------------------------------------
# After an unmount the daemon must end within this time if no process visibly uses the mount.
HELD_S_MAX: Final = 5.0
HELD_PAUSE_S: Final = 0.1  # pause between two checks whether the daemon has ended
# Attempts to unmount. Collecting dirty data makes a mountpoint busy for milliseconds, a program for
# longer.
BUSY_ATTEMPTS_MAX: Final = 5
BUSY_PAUSE_S: Final = 0.1

# --- s3fs-meta status --watch -------------------------------------------------------------------
WATCH_S_MIN: Final = 0.2  # time between two screens; each takes some ms of the daemon
WATCH_OPERATIONS_MAX: Final = 8  # operations and processes on one screen of 24 lines
WATCH_PROCESSES_MAX: Final = 4

# --- s3fs-meta bench ----------------------------------------------------------------------------
BENCH_THREADS_MAX: Final = 256  # more would only wait for each other; each holds a block in memory
BENCH_FILES_MAX: Final = 1_000_000  # operations of one thread; 8 bytes of latency are kept for each
BENCH_BLOCK_BYTES_MAX: Final = 64 * MIB  # bytes of one read or write, in memory
BENCH_POLL_S: Final = 0.1  # time between updates of the bar and checks for an interrupt
