"""Limits that only ``browse`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import KIB, MIB

# --- connections -------------------------------------------------------------------------------
# Maximum of concurrent requests, and of concurrent replies; a browser opens six connections.
BROWSE_CONNECTIONS_MAX: Final = 32
BROWSE_REQUEST_BYTES_MAX: Final = 32 * KIB  # a path of PATH_MAX bytes, escaped, and headers
BROWSE_REQUEST_S_MAX: Final = 30.0  # browsers open connections before they need them
BROWSE_SEND_S_MAX: Final = 120.0  # a client that reads nothing for this time is disconnected
BROWSE_OUTAGE_S_MAX: Final = 10.0  # time that a page waits for a bucket that does not answer
BROWSE_ANSWER_S: Final = 0.2  # after this time a click gets a page that says to wait
BROWSE_PENDING_S: Final = 10.0  # longest request of a browser that waits for a page
BROWSE_ABANDONED_S: Final = 10.0  # time after which a page for which no request waits is cancelled
BROWSE_PENDING_MAX: Final = 16  # pages generated concurrently, each about 100 KB
BROWSE_FRESH_S: Final = 2.0  # the newest txg is cached for this time, so a click costs no request

# --- directories, files and archives -----------------------------------------------------------
BROWSE_PAGE_NAMES: Final = 500  # number of names on one page, which needs 100 KB of HTML
BROWSE_SORTED_NAMES_MAX: Final = 5000  # larger directories are sorted by hash, not by name
BROWSE_FOUND_MAX: Final = 200  # maximum number of results of a search by name
# Number of removed names that a search examines in a folder; each needs 150 bytes of memory.
BROWSE_FORMER_NAMES_MAX: Final = 100_000
BROWSE_TEXT_BYTES_MAX: Final = 128 * KIB  # bytes of a text file that are shown or compared
BROWSE_PICTURE_BYTES_MAX: Final = 32 * MIB  # a larger picture has no preview
# Length of a path in an archive; the paths of all its parents are in memory.
BROWSE_PATH_BYTES_MAX: Final = 16 * KIB
BROWSE_PIECE_BYTES: Final = 64 * KIB  # smaller pieces of an archive are sent together
BROWSE_LINKS_MAX: Final = 100_000  # hard-linked files that a tar remembers, in 20 MB of memory
BROWSE_ZIP_ENTRIES_MAX: Final = 50_000  # files in a zip; each needs 1 KB of memory to its end

# --- history -----------------------------------------------------------------------------------
BROWSE_RUNS_MAX: Final = 128  # maximum number of rows of the time line
BROWSE_VERSIONS_MAX: Final = 200  # maximum number of versions on the page of a file
# Number of changelogs that a page reads for txgs without a history index.
BROWSE_CHANGELOGS_MAX: Final = 256
BROWSE_CHANGED_MAX: Final = 20_000  # changed inodes that a page compares in about 100 ms
# Names in changed directories that a page compares; each needs 150 bytes of memory.
BROWSE_COMPARED_NAMES_MAX: Final = 300_000
BROWSE_CHANGES_SHOWN_MAX: Final = 1000  # maximum number of differences on one page
# Number of lines of a compared text; a comparison takes seconds in the worst case.
BROWSE_LINES_MAX: Final = 2000

# --- space and plots ---------------------------------------------------------------------------
BROWSE_FOLDERS_SHOWN: Final = 100  # number of folders on the page about used space
BROWSE_FILES_SHOWN: Final = 20  # number of the largest files on the page about used space
BROWSE_SEARCHED_NAMES_MAX: Final = 100_000  # names searched for large files in about 100 ms
BROWSE_SIZES_MAX: Final = 2  # number of points in time whose folder sizes are in memory
BROWSE_SAMPLE_S: Final = 5.0  # interval at which the figures of the mount are sampled
BROWSE_SAMPLES_MAX: Final = 720  # number of samples in memory: one hour, 2 KB per sample
