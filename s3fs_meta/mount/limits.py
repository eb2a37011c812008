"""Limits that only ``mount`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import KIB, MIB

# --- replies to requests ------------------------------------------------------------------------
# Longest wait for a reply that a daemon sends at once unless it is stopped or hangs.
CONTROL_ANSWER_S_MAX: Final = 30.0
UNSHIPPED_PATHS_MAX: Final = 2000  # maximum number of paths of unshipped files in one reply
UNSHIPPED_VERSIONS_BYTES_MAX: Final = 16 * MIB  # unshipped changes that a mount lists as versions
HISTORY_SHOWN_MAX: Final = 2_000  # versions that a mount lists: they fit into a control message
PATTERN_NAMES_MAX: Final = 100  # names that match a pattern of s3fs-meta versions
MISSING_PATHS_MAX: Final = 100  # paths of files that warm reports as not completely cached
# Longest wait for the kernel to drop removed names before the command gets a reply.
TREE_FORGET_S_MAX: Final = 0.05
KERNEL_FORGET_S_MAX: Final = 10.0  # time that a command waits for its effect to become visible

# --- waiting for uploads ------------------------------------------------------------------------
# Pauses of a command that waits for uploads: between two polls of the mount, and between two lines.
# The pause between lines doubles, so that an upload of hours prints a line a minute.
UPLOAD_POLL_S: Final = 0.25  # the first line within a second, also on a busy machine
UPLOAD_LINE_PAUSE_S_MIN: Final = 5.0
UPLOAD_LINE_PAUSE_S_MAX: Final = 60.0
UPLOAD_AWAY_S_MIN: Final = 1.0  # a shorter outage is not reported: a retry probably ends it
UPLOAD_FORCE_S_MIN: Final = 5.0  # umount --force does not wait for the end of a longer outage
SILENCE_SHOWN_S_MIN: Final = 5.0  # a shorter time without an answer is not shown to users

# --- processes and mounts of this host ----------------------------------------------------------
# File descriptors that a mount requests, if its user may raise the limit.
OPEN_FILES_WANTED: Final = 8192
HOLDERS_SHOWN_MAX: Final = 10  # processes of other mount namespaces named in a message
# Threads whose process is searched in /proc, those with most requests: some ms in a thread.
REQUESTER_THREADS_MAX: Final = 256
REQUESTERS_S_MAX: Final = 3600.0  # age of requests that are counted for this list
REQUESTERS_SHOWN_MAX: Final = 20  # processes in the list of those that send most requests
ENDED_NOTES_MAX: Final = 64  # notes of ended mounts, which each search of a mountpoint reads
CHILD_END_S_MAX: Final = 5.0  # longest wait for the end of the daemon after an interrupted mount
DEAD_MOUNT_S_MAX: Final = 5.0  # if statfs(2) takes longer, the daemon was not killed

# --- prices -------------------------------------------------------------------------------------
PRICE_TABLE_BYTES_MAX: Final = 64 * KIB  # size of a table of prices, which has some lines
PRICE_MAX: Final = 1e6  # in any currency; a larger price is a mistake

# --- service manager ----------------------------------------------------------------------------
SUPERVISED_STATUS_S: Final = 5.0  # pause between two updates of the status text
# Time that a message to systemd requests: at the end, more than one upload attempt takes; at the
# start, longer than the fetch of one piece of an image over a slow line.
SUPERVISED_END_S: Final = 90.0
SUPERVISED_START_S: Final = 300.0
SUPERVISED_CHARS_MAX: Final = 500  # length of a status text, which may quote an error of the store

# --- metrics over HTTP --------------------------------------------------------------------------
METRICS_CONNECTIONS_MAX: Final = 8  # clients at a time (mount/http_server.py)
METRICS_REQUEST_BYTES_MAX: Final = 8 * KIB  # request line and headers; Prometheus sends 500 bytes
METRICS_S_MAX: Final = 5.0  # for sending a request, for making the page, and for reading it
METRICS_PAGE_S: Final = 1.0  # a page is reused for this time; creating one takes 10 to 20 ms
HTTP_DRAIN_BYTES_MAX: Final = 1 * MIB  # read after a request, so that its client gets the reply
HTTP_DRAIN_S_MAX: Final = 2.0
