"""Limits that only ``mount`` uses, with their units and reasons."""

from typing import Final

from s3fs_meta.limits import KIB, MIB

LOCK_WAIT_S: Final = 10.0  # maximum time to wait for the lock of an exiting process

# --- replies to requests ------------------------------------------------------------------------
# Timeout of requests that a working daemon answers immediately.
CONTROL_ANSWER_S_MAX: Final = 30.0
MOUNTS_ASKED_MAX: Final = 64  # maximum number of mounts that a command queries concurrently
# Pause before the next request for a flush, if the mount was too busy to accept the previous one.
FLUSH_PAUSE_S: Final = 1.0
UNSHIPPED_PATHS_MAX: Final = 2000  # maximum number of paths in the list of unshipped files
# Maximum size of the unshipped changes that ``versions`` reads.
UNSHIPPED_VERSIONS_BYTES_MAX: Final = 16 * MIB
HISTORY_SHOWN_MAX: Final = 2_000  # maximum number of file versions in one control message
PATTERN_NAMES_MAX: Final = 100  # maximum number of matching names that ``versions`` lists
MISSING_PATHS_MAX: Final = 100  # maximum number of partly cached files that ``warm`` lists
# Maximum delay of a reply while the kernel drops removed names from its cache.
TREE_FORGET_S_MAX: Final = 0.05
# Maximum time for which a command waits until programs see its change of names.
KERNEL_FORGET_S_MAX: Final = 10.0

# --- waiting for uploads ------------------------------------------------------------------------
# Interval at which a command that waits for uploads polls the mount.
# The interval is short, so that the first line appears within a second even on a busy machine.
UPLOAD_POLL_S: Final = 0.25
# The pause between two lines of progress doubles each time, up to a minute.
UPLOAD_LINE_PAUSE_S_MIN: Final = 5.0
UPLOAD_LINE_PAUSE_S_MAX: Final = 60.0
# Minimum duration of an outage that is reported. After a shorter outage, a retry often succeeds.
UPLOAD_AWAY_S_MIN: Final = 1.0
UPLOAD_FORCE_S_MIN: Final = 5.0  # duration of an outage after which umount --force stops waiting
SILENCE_SHOWN_S_MIN: Final = 5.0  # time after which commands report that a bucket is silent

# --- processes and mounts on this host ----------------------------------------------------------
# Soft limit of open files that a mount sets, if the hard limit permits it.
OPEN_FILES_WANTED: Final = 8192
# Time for the daemon to exit after an unmount, if no process is known to use the mount.
HELD_S_MAX: Final = 5.0
HELD_PAUSE_S: Final = 0.1  # pause between two checks for the exit of the daemon
# Maximum number of processes in other mount namespaces that a message lists.
HOLDERS_SHOWN_MAX: Final = 10
# Number of busiest threads whose processes are looked up in /proc.
REQUESTER_THREADS_MAX: Final = 256
REQUESTERS_S_MAX: Final = 3600.0  # maximum age of requests that are counted per process
REQUESTERS_SHOWN_MAX: Final = 20  # maximum length of the list of busiest processes
# Maximum number of notes of ended mounts; each search for a mountpoint reads all notes.
ENDED_NOTES_MAX: Final = 64
NOTE_BYTES_MAX: Final = 1 * MIB  # maximum size of a note, which contains the options of a mount
# Maximum time to wait for the daemon after an interrupted mount; enough to release a lease.
CHILD_END_S_MAX: Final = 15.0
DEAD_MOUNT_S_MAX: Final = 5.0  # time within which statfs(2) fails if the daemon was killed

# --- prices of requests -------------------------------------------------------------------------
PRICE_TABLE_BYTES_MAX: Final = 64 * KIB  # maximum size of a price file, which needs a few lines
PRICE_MAX: Final = 1e6  # maximum price; a higher price is certainly a mistake

# --- systemd ------------------------------------------------------------------------------------
SUPERVISED_STATUS_S: Final = 5.0  # interval between updates of the status text for systemd
# Extra time requested from systemd for stopping: longer than one upload attempt.
SUPERVISED_END_S: Final = 90.0
# Extra time requested from systemd for starting: longer than downloading one percent of an image.
SUPERVISED_START_S: Final = 300.0
SUPERVISED_CHARS_MAX: Final = 500  # maximum length of a status text, which may quote an error

# --- metrics over HTTP --------------------------------------------------------------------------
METRICS_CONNECTIONS_MAX: Final = 8  # maximum number of simultaneous clients
# Maximum size of request headers; Prometheus sends 500 bytes.
METRICS_REQUEST_BYTES_MAX: Final = 8 * KIB
# Timeout for each step: receiving a request, creating the page, and sending the page.
METRICS_S_MAX: Final = 5.0
METRICS_PAGE_S: Final = 1.0  # time for which a page is reused; creating it takes 10 to 20 ms
# Maximum number of bytes to ignore after a reply, so that the client still receives the reply.
HTTP_DRAIN_BYTES_MAX: Final = 1 * MIB
HTTP_DRAIN_S_MAX: Final = 2.0
