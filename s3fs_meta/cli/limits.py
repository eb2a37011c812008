"""Limits that only ``cli`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import MIB

# --- commands log, versions and warm ------------------------------------------------------------
HISTORY_SHOWN_DEFAULT: Final = 30  # number of txgs that s3fs-meta log lists by default
PATTERN_SHOWN_DEFAULT: Final = 5  # number of versions listed for each file that matches a pattern
MISSING_PATHS_PRINTED_MAX: Final = 10  # maximum number of uncached files that ``warm`` lists

# --- completion in a shell ----------------------------------------------------------------------
COMPLETED_POINTS_MAX: Final = 40  # number of candidates that fit on one screen
# Maximum number of state directories that completion finds; two are already ambiguous.
COMPLETED_STATES_MAX: Final = 2

# --- the command s3fs-meta umount ---------------------------------------------------------------
# Number of unmount attempts. The daemon keeps a mountpoint busy for milliseconds at most.
BUSY_ATTEMPTS_MAX: Final = 5
BUSY_PAUSE_S: Final = 0.1

# --- the command s3fs-meta status --watch -------------------------------------------------------
WATCH_S_MIN: Final = 0.2  # minimum time between two updates of the screen; an update takes a few ms
# Numbers of operations and processes that fit on a screen of 24 lines.
WATCH_OPERATIONS_MAX: Final = 8
WATCH_PROCESSES_MAX: Final = 4

# --- the command s3fs-meta bench ----------------------------------------------------------------
# Maximum number of threads. More threads would only wait, and each thread needs memory.
BENCH_THREADS_MAX: Final = 256
BENCH_FILES_MAX: Final = 1_000_000  # maximum files per thread; each latency takes 8 bytes
BENCH_BLOCK_BYTES_MAX: Final = 64 * MIB  # maximum size of one read or write, held in memory
BENCH_POLL_S: Final = 0.1  # interval for updating the progress bar and noticing interrupts
