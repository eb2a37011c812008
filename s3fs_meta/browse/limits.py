"""Limits that only ``browse`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import KIB, MIB

# --- connections and requests ------------------------------------------------------------------
# Maximum number of concurrent requests and of concurrent replies. A browser opens 6 connections.
BROWSE_CONNECTIONS_MAX: Final = 32
# Maximum size of a request: enough for the headers and an escaped path of PATH_MAX bytes.
BROWSE_REQUEST_BYTES_MAX: Final = 32 * KIB
# Time for a client to send its request. Browsers connect before they need the connection.
BROWSE_REQUEST_S_MAX: Final = 30.0
BROWSE_SEND_S_MAX: Final = 120.0  # time after which a client that reads no data is disconnected
BROWSE_OUTAGE_S_MAX: Final = 10.0  # maximum time that a page waits for an unresponsive bucket
BROWSE_ANSWER_S: Final = 0.2  # time after which the browser gets a waiting page
BROWSE_PENDING_S: Final = 10.0  # longest time that a request from a waiting page may take
BROWSE_ABANDONED_S: Final = 10.0  # time after which a page that no request waits for is cancelled
BROWSE_PENDING_MAX: Final = 16  # maximum number of pages being generated, 100 KB each
# Maximum number of pending lists beside a folder; pages that a user opens need the other slots.
BROWSE_PENDING_FRAMES_MAX: Final = 8
BROWSE_FRESH_S: Final = 2.0  # time for which the newest txg is cached, to save requests

# --- directories, files and archives -----------------------------------------------------------
BROWSE_PAGE_NAMES: Final = 500  # names of a folder on one page; 500 names need 100 KB of HTML
BROWSE_SORTED_NAMES_MAX: Final = 5000  # largest directory that is sorted by name
BROWSE_FOUND_MAX: Final = 200  # maximum number of results when searching by name
# Maximum number of removed names that a search examines in a folder, at 150 bytes of memory each.
BROWSE_FORMER_NAMES_MAX: Final = 100_000
BROWSE_TEXT_BYTES_MAX: Final = 128 * KIB  # maximum size of a text to show or compare
BROWSE_PICTURE_BYTES_MAX: Final = 32 * MIB  # maximum size of a picture with a preview
# Maximum length of a path in an archive. The paths of all parent directories are in memory.
BROWSE_PATH_BYTES_MAX: Final = 16 * KIB
BROWSE_PIECE_BYTES: Final = 64 * KIB  # minimum size of the pieces in which an archive is sent
BROWSE_LINKS_MAX: Final = 100_000  # maximum number of hard-linked files in a tar: 20 MB of memory
BROWSE_ZIP_ENTRIES_MAX: Final = 50_000  # maximum number of files in a zip; each file needs 1 KB

# --- pages about the history -------------------------------------------------------------------
BROWSE_RUNS_MAX: Final = 128  # maximum number of rows in the time line
BROWSE_VERSIONS_MAX: Final = 200  # maximum number of versions on a file's page
# Maximum number of changelogs that are read for one page, if index objects are missing.
BROWSE_CHANGELOGS_MAX: Final = 256
BROWSE_CHANGED_MAX: Final = 20_000  # maximum number of inodes that a page compares, within 100 ms
# Maximum number of names that a comparison reads in changed directories and their parents.
# Compared names are not kept in memory. A million names take a few seconds, in short slices.
BROWSE_COMPARED_NAMES_MAX: Final = 4_000_000
BROWSE_CHANGES_SHOWN_MAX: Final = 1000  # maximum number of differences on one page
BROWSE_SINCE_SHOWN: Final = 20  # number of differences that are listed beside a folder
# Maximum number of lines compared in a text. A comparison takes seconds in the worst case.
BROWSE_LINES_MAX: Final = 2000

# --- pages about used space, and plots ---------------------------------------------------------
BROWSE_FOLDERS_SHOWN: Final = 100  # number of folders on the page about used space
BROWSE_FILES_SHOWN: Final = 20  # number of the largest files on the page about used space
BROWSE_SEARCHED_NAMES_MAX: Final = 100_000  # maximum number of names to search for large files
BROWSE_SIZES_MAX: Final = 2  # number of points in time whose folder sizes are in memory
BROWSE_SAMPLE_S: Final = 5.0  # interval at which the statistics of the mount are sampled
BROWSE_SAMPLES_MAX: Final = 720  # number of samples in memory: one hour, 2 KB per sample
