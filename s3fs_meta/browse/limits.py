"""Limits that only ``browse`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import KIB, MIB

# --- connections -------------------------------------------------------------------------------
# Requests read at the same time, and replies sent at the same time. A browser opens six connections.
BROWSE_CONNECTIONS_MAX: Final = 32
BROWSE_REQUEST_BYTES_MAX: Final = 32 * KIB  # a path of PATH_MAX bytes, escaped, and headers
BROWSE_REQUEST_S_MAX: Final = 30.0  # browsers open connections before they need them
BROWSE_SEND_S_MAX: Final = 120.0  # a client that reads nothing for this time is disconnected
BROWSE_OUTAGE_S_MAX: Final = 10.0  # time that a page waits for a bucket that does not answer
BROWSE_ANSWER_S: Final = 0.2  # after this time a click gets a page that says to wait
BROWSE_PENDING_S: Final = 10.0  # longest request of a browser that waits for a page
BROWSE_ABANDONED_S: Final = 10.0  # time after which a page for which no request waits is cancelled
BROWSE_PENDING_MAX: Final = 16  # pages that are made at the same time, each some 100 KB
BROWSE_FRESH_S: Final = 2.0  # the newest txg is cached for this time, so a click costs no request

# --- directories, files and archives -----------------------------------------------------------
BROWSE_PAGE_NAMES: Final = 500  # names on one page: 100 KB of HTML
BROWSE_SORTED_NAMES_MAX: Final = 5000  # larger directories are listed in the order of hashes
BROWSE_FOUND_MAX: Final = 200  # entries that a search by name shows
# Names of a folder in which a search looks for removed ones: 150 bytes of memory each.
BROWSE_FORMER_NAMES_MAX: Final = 100_000
BROWSE_TEXT_BYTES_MAX: Final = 128 * KIB  # beginning of a text that is shown or compared
BROWSE_PICTURE_BYTES_MAX: Final = 32 * MIB  # larger pictures are only downloaded
BROWSE_PATH_BYTES_MAX: Final = (
    16 * KIB
)  # path in an archive; the paths of all parents are in memory
BROWSE_PIECE_BYTES: Final = 64 * KIB  # smaller pieces of an archive are sent together
BROWSE_LINKS_MAX: Final = 100_000  # files with several names that a tar remembers: 20 MB
BROWSE_ZIP_ENTRIES_MAX: Final = 50_000  # files in a zip; each takes 1 KB of memory until its end

# --- history -----------------------------------------------------------------------------------
BROWSE_RUNS_MAX: Final = 128  # rows of the time line
BROWSE_VERSIONS_MAX: Final = 200  # versions of a file on its page
# Changelogs read for one page if the history index does not cover their txgs.
BROWSE_CHANGELOGS_MAX: Final = 256
BROWSE_CHANGED_MAX: Final = 20_000  # changed inodes that one page compares: some 100 ms
# Names of changed directories that one page compares: 150 bytes of memory each.
BROWSE_COMPARED_NAMES_MAX: Final = 300_000
BROWSE_CHANGES_SHOWN_MAX: Final = 1000  # differences on one page
# Lines of a compared text. Comparing takes under a second; for texts made to be slow, some seconds.
BROWSE_LINES_MAX: Final = 2000

# --- space and plots ---------------------------------------------------------------------------
BROWSE_FOLDERS_SHOWN: Final = 100  # rows of the page about space
BROWSE_FILES_SHOWN: Final = 20  # largest files of a directory on that page
BROWSE_SEARCHED_NAMES_MAX: Final = 100_000  # names searched for the largest files: some 100 ms
BROWSE_SIZES_MAX: Final = 2  # points in time whose folder sizes are in memory
BROWSE_SAMPLE_S: Final = 5.0  # time between two samples of the mount's figures for the plots
BROWSE_SAMPLES_MAX: Final = 720  # samples in memory: an hour, 2 KB each
