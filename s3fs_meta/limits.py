"""The limits of the program, with their units and reasons.

A limit that only ``browse``, ``cli`` or ``mount`` uses is defined in the ``limits.py`` of that folder.
Owns: the constants. Assertions check relations between them.
"""

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# --- names and attributes (POSIX, Linux) -------------------------------------------------------
NAME_BYTES_MAX: Final = 255  # length of a name: NAME_MAX in linux/limits.h
SYMLINK_BYTES_MAX: Final = 4095  # length of a symbolic link's target: PATH_MAX without its NUL
XATTR_NAME_BYTES_MAX: Final = 255  # XATTR_NAME_MAX; xattr(7)
XATTR_VALUE_BYTES_MAX: Final = 64 * KIB  # XATTR_SIZE_MAX; xattr(7)
XATTR_LIST_BYTES_MAX: Final = 64 * KIB  # XATTR_LIST_MAX; listxattr(2) cannot return more
LINKS_MAX: Final = (1 << 31) - 1  # maximum number of hard links; fits into a signed 32-bit integer
# Maximum size of a file; every offset fits into a signed 64-bit integer.
FILE_BYTES_MAX: Final = 1 << 60

# With these limits, sums and differences of a file time and a ctime until 2116 fit into 64 bits.
TIME_NS_MIN: Final = -(1 << 62)  # earliest file time: the year 1823
TIME_NS_MAX: Final = (1 << 63) - 1  # latest file time: the year 2262

# --- directory cookies -------------------------------------------------------------------------
# Up to 255 names of a directory may have the same 55-bit keyed hash; only an attack creates more.
COOKIE_COLLISION_BITS: Final = 8
COOKIE_HASH_BITS: Final = 63 - COOKIE_COLLISION_BITS
RECENT_NAMES_MAX: Final = 64  # number of cached hashes of names
READDIR_ROWS_MAX: Final = 1024  # maximum number of rows that one readdir request reads

# --- blocks and packs --------------------------------------------------------------------------
# Smallest block size; with smaller blocks the block map becomes too large.
BLOCK_BYTES_MIN: Final = 64 * KIB
# Largest block size; a random read of 4 KiB fetches a complete block.
BLOCK_BYTES_MAX: Final = 16 * MIB
PACK_BYTES_TARGET: Final = 16 * MIB  # at this size a pack is full
# The target size, plus the largest incompressible block, plus the index.
PACK_BYTES_MAX: Final = 48 * MIB
# Maximum length of a range requested from the store, because a damaged row may contain any length.
RANGE_BYTES_MAX: Final = PACK_BYTES_MAX
PACK_BLOCKS_MAX: Final = 8192  # index entries in one pack: under 1 MiB of index
SMALL_BLOCK_BYTES: Final = 64 * KIB  # shorter blocks are fetched with their neighbours in the pack
NEIGHBOUR_FETCH_BYTES: Final = 1 * MIB  # size of the range fetched around a small block
NEIGHBOURS_MAX: Final = 256  # maximum number of neighbours fetched on each side
# Commands that copy files out of the bucket fetch ranges of this size from packs.
CONTENT_RUN_BYTES: Final = 8 * MIB
# Number of ranges of NEIGHBOUR_FETCH_BYTES kept in memory while small files are copied out.
CONTENT_WINDOWS_MAX: Final = 32
# Number of files copied out at the same time; each needs memory for a run of blocks.
FILES_COPIED_AT_ONCE: Final = 4
# A report lists at most this many incompletely copied files; the others are only counted.
INCOMPLETE_FILES_SHOWN_MAX: Final = 10_000
NEIGHBOUR_CACHE_PART: Final = 16  # neighbours that no read requested may fill 1/N of the cache

# --- metadata images ---------------------------------------------------------------------------
IMAGE_PIECE_BYTES: Final = 8 * MIB  # database bytes in an image piece, which is one PUT
# Pieces of an image: 256 GiB of metadata. Parsing a hostile manifest of this length takes a second.
IMAGE_PIECES_MAX: Final = 1 << 15
# fsck stops reading an image after this many damaged pieces. One damaged piece makes the image
# useless, and a hostile manifest may list thousands.
IMAGE_PIECE_FAULTS_MAX: Final = 16
# Growth of the WAL while the snapshot of an image waits for blocks to be uploaded; beyond it the
# image is abandoned and retried.
IMAGE_WAL_BYTES_MAX: Final = 256 * MIB
IMAGES_KEPT: Final = 2  # the newest images are never deleted, nor the objects they need
IMAGES_SPACED: Final = 8  # the distance of older retained images is 1/N of the retention
SALVAGE_IMAGES_MAX: Final = 64  # maximum number of damaged images that fsck reads
# Maximum number of searches for readable rows in one table, so that they take a minute, not days.
SALVAGE_PROBES_MAX: Final = 2_000_000
SALVAGE_PROBES_OF_GAP: Final = 64  # evenly spaced searches between two readable runs of rows
SALVAGE_ROWS_AT_ONCE: Final = 1000  # number of salvaged rows in memory
# Maximum length of a value or row in an image or a change. A longer one is damaged, because the
# longest, an extended attribute, has 64 KiB.
IMAGE_VALUE_BYTES_MAX: Final = 1 * MIB
# Maximum size of a metadata object that is parsed; every intact one is smaller.
ENVELOPE_BYTES_MAX: Final = 64 * MIB
# Maximum length of a value or row of a local database. The longest value is an attempted changelog,
# which is one object. Without this limit SQLite would read and allocate up to 1 GB.
DATABASE_VALUE_BYTES_MAX: Final = ENVELOPE_BYTES_MAX + 1 * MIB
# Maximum length of an SQL statement, also of a definition in a hostile database; the statements of
# this program have a few KiB.
DATABASE_SQL_BYTES_MAX: Final = 1 * MIB

# --- changelogs --------------------------------------------------------------------------------
SYNC_BYTES_MAX: Final = 16 * MIB  # at this size of recorded changes a changelog is shipped at once
# Polls without a new changelog after which a follower lists the bucket, in case the chain continues
# under a later number.
FOLLOW_LISTING_POLLS: Final = 30
# Names and inodes of one txg that a follower keeps in memory: 40 MB. A larger txg invalidates all
# kernel caches.
FOLLOW_TOUCHED_MAX: Final = 200_000
FOLLOW_ANEW_S: Final = 60.0  # minimum time between two restores by a follower
CHANGELOG_RUN_BYTES: Final = 4 * MIB  # maximum size of records that are merged into one section
CHANGELOG_LOCATIONS_MAX: Final = 50_000  # block locations in one changelog section: 3 MiB
CONDENSED_RECORDS_MIN: Final = 200  # fewer unshipped records are not merged
# Records of groups that are merged at once: those of a second under load, or of an hour with few changes.
CONDENSED_RECORDS_MAX: Final = 2000
# Unshipped inodes in memory (30 MB), to list the files that are not in the bucket yet.
UNSHIPPED_INODES_MAX: Final = 200_000
# Inodes collected from records in one slice; the last record may exceed the limit. Without a
# WAL, a slice takes 12 ms of the event loop.
UNSHIPPED_INODES_AT_ONCE_MAX: Final = 2000
CONDENSE_INTERVAL_S: Final = 30.0
# At most this many records of shipped groups are deleted in one slice of work on the event loop; a
# record may be some hundred kilobytes long.
PURGED_AT_ONCE_MAX: Final = 50
# A key is accepted if its txg is at most this far after the last known txg: 87 years. A key
# with a later txg is foreign, because a number near 2^63 would leave no numbers for later txgs.
TXG_LEAP_MAX: Final = 1 << 39
# All objects of this many successive txgs may be missing. After a longer gap, a key
# counts only if its object opens with the keys of the filesystem.
TXG_GAP_MAX: Final = 100
TXG_GAPS_MAX: Final = (
    16  # maximum number of foreign runs of keys after gaps; later keys are ignored
)
TXG_PROOFS_MAX: Final = 2  # objects read at each end of a run of keys; one may be damaged
# Maximum number of late changelogs of older writers that a new writer applies while it fences.
FENCE_ROUNDS_MAX: Final = 5
# Changes in one object; a longer changelog has several parts.
CHANGELOG_SECTION_BYTES_MAX: Final = 24 * MIB
# Parts of a changelog: 64 GiB of changes. The names of all parts fit into one object.
CHANGELOG_PARTS_MAX: Final = 1 << 14
# Maximum number of new and of deleted packs in a changelog: 4 TiB of new content in one txg.
CHANGELOG_PACKS_MAX: Final = 1 << 18
HISTORY_FETCHES_MAX: Final = 8  # changelogs fetched in parallel to show the history; bounds memory
# An overview of a bucket skips at most this many unreadable changelogs at the end of the chain.
OVERVIEW_PROBES_MAX: Final = 16
# An overview without keys lists at most this many changelogs (100 requests).
OVERVIEW_CHANGELOGS_MAX: Final = 100_000
# Number of objects read in parallel before a filesystem is destroyed.
REMOVAL_FETCHES_MAX: Final = 16
# Directories kept in memory while the history is searched for changes below a path.
WATCHED_DIRECTORIES_MAX: Final = 100_000
FORMER_NAMES_MAX: Final = 2_000_000  # in a temporary table meanwhile: 50 bytes each
MARK_HASH_DIGITS: Final = 32  # a mount prints this many digits of a changelog's hash (128 bits)
MARK_HASH_DIGITS_MIN: Final = (
    16  # at_least= needs at least this many digits of the changelog's hash
)

# --- levels ------------------------------------------------------------------------------------
# Objects of one level that are merged into one object of the next level. A restore of a week reads
# at most 53 objects.
LEVEL_FAN_OUT: Final = 5
LEVELS_MAX: Final = 8  # the last level spans 390,625 txgs, three weeks at a txg every 5 s
# Changes and block locations in one level object: bounds memory.
LEVEL_SECTION_BYTES_MAX: Final = 16 * MIB
LEVEL_INPUT_BYTES_MAX: Final = 48 * MIB  # size of objects merged at once into a level object
LEVEL_CHECK_S: Final = 10.0  # how often a mount checks for changelogs to merge into levels

# --- the past in the mount ---------------------------------------------------------------------
# Inode numbers from this number on belong to points in time (fs/past); others start at 1.
PAST_INO_MIN: Final = 1 << 62
PAST_INO_BITS: Final = 40  # bits of an inode's own number: 10^12 inodes; the bits above are a slot
PAST_POINTS_OPEN_MAX: Final = 4  # databases of points in time that one mount keeps on the disk
PAST_IDLE_S: Final = 600.0  # after this time without a request the database is removed
PAST_CHECK_S: Final = 30.0  # how often a mount checks for idle points in time
PAST_WAITING_MAX: Final = 128  # waiting requests for the past; they use no worker of others
PAST_CACHED_BYTES_MAX: Final = 32 * MIB  # content of the past in memory
PAST_DOWNLOADS_MAX: Final = 4  # blocks downloaded at one time: packed and plain, each in memory
PAST_WINDOWS_MAX: Final = 8  # ranges of NEIGHBOUR_FETCH_BYTES that each open point keeps in memory
# A name such as 1h-ago means the same txg while that txg is in use, and this long after. A program
# that copies a tree looks the name up for each file.
PAST_NAME_KEPT_S: Final = 60.0
PAST_NAMES_MAX: Final = 1_000  # names such as 1h-ago whose txg a mount remembers
PAST_NAME_TIMEOUT_S: Final = 1.0  # the kernel may cache the txg of 1h-ago for this time
# A process of its own restores a database of this size for .snapshots, so that the requests of the
# mount do not wait for it. A smaller one is restored before a process has started.
RESTORE_APART_BYTES_MIN: Final = 32 * MIB
RESTORE_MESSAGE_BYTES_MAX: Final = 4 * MIB  # message of that process, apart from an object
RESTORER_END_S_MAX: Final = 2.0  # waiting for the end of that process after it was killed
REVIVED_PACKS_MAX: Final = CHANGELOG_PACKS_MAX // 4  # packs that a copy of the past revives per txg

# --- history index -----------------------------------------------------------------------------
# Txgs in a run of level 1, and runs of one level in a run of the next: the bits of a mask.
HISTORY_FAN_OUT: Final = 32
HISTORY_LEVELS_MAX: Final = 4  # the last level spans 1,048,576 txgs, 60 days at a txg every 5 s
# Bounds of one object of the history index. A run with more changes gets no object.
HISTORY_INODES_MAX: Final = 500_000
HISTORY_NAMES_MAX: Final = 200_000
HISTORY_NAME_BYTES_MAX: Final = 4 * MIB
HISTORY_CHECK_S: Final = 30.0  # how often a mount checks for txgs to index
# Txgs whose changes wait in memory for the end of their run, and the inodes and names in them.
HISTORY_TXGS_WAITING_MAX: Final = 64
HISTORY_ROWS_WAITING_MAX: Final = 200_000
HISTORY_OLDER_RUNS: Final = 2  # earlier runs indexed in one check: HISTORY_FAN_OUT requests each
HISTORY_CACHED_ROWS_MAX: Final = 1_000_000  # rows of index objects in memory during a search
HISTORY_CACHED_BYTES_MAX: Final = 64 * MIB  # changes of changelogs in memory during a search
DIFF_NAMES_CACHED_MAX: Final = 100_000  # names in memory while two points in time are compared
DIFF_CHANGES_MAX: Final = 1_000_000  # changed inodes that are compared
HISTORY_STAYS_MAX: Final = 1_000  # inodes of one name that a search of its versions follows

# --- retention ---------------------------------------------------------------------------------
RETENTION_S_DEFAULT: Final = 7 * 86_400  # default: any point in time of the last week
RETENTION_S_MAX: Final = 100 * 365 * 86_400  # 100 years: every point in time is retained
RECLAIM_INTERVAL_S: Final = 600.0  # time between two searches for objects to delete
# The interval while no txg is written. More listings would cost an idle mount 0.3 USD a month on S3.
RECLAIM_IDLE_S: Final = 86_400.0
# At most this many objects are deleted in one pass of garbage collection.
RECLAIM_KEYS_MAX: Final = 10_000
RECLAIM_PACK_ROWS: Final = 100_000  # pack keys in memory during a search for packs without a row
# Length of the authentication tag or checksum at the end of a changelog.
WATCHED_TAIL_BYTES: Final = 64
MEND_PROBES_MAX: Final = 1_000  # changelogs read to find where a repaired chain continues
ABANDONED_SHOWN_MAX: Final = 50  # abandoned txgs that fsck describes; others are only counted
# If only this host's clock measured the time between two txgs, retention counts at most this much
# of it. A jump of the clock then costs a day.
RETENTION_GAP_S_MAX: Final = 86_400
# Maximum difference between the clocks of this host and the store. Only a wrong time zone or date
# exceeds it. S3 refuses requests beyond 900 s.
CLOCK_OFF_S_MAX: Final = 600
RECLAIM_PROBES_MAX: Final = 64  # changelogs read to find the one that is as old as the retention

# --- kept points ------------------------------------------------------------------------------
KEPT_POINTS_MAX: Final = 1_000  # two years of nightly points, and one page of a listing
KEPT_NAME_CHARS_MAX: Final = 64  # a name is shown in tables and is a name in .snapshots
KEPT_PAYLOAD_BYTES_MAX: Final = 4 * KIB  # content of the object: about 700 bytes
KEPT_FETCHES_MAX: Final = 16  # such objects read in parallel: latency dominates

# --- object stores -----------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 500  # length of a key, within the limit of every server (1,024)
# Length of a component of a key, for stores that keep objects as files.
KEY_COMPONENT_BYTES_MAX: Final = 255
OBJECT_BYTES_MAX: Final = 5 * GIB  # the largest object that S3 accepts in one PUT
MULTIPART_BYTES: Final = 64 * MIB  # larger objects are uploaded in parts of this size
# The ETag of a local object is a hash of its content up to this size. The ETag of a larger object
# is made from its inode, size and time.
HASHED_BYTES_MAX: Final = 64 * MIB
LIST_PAGE_KEYS: Final = 1000  # keys in one page of an S3 listing
DELETE_BATCH_KEYS: Final = 1000  # keys in one DeleteObjects request of S3
STORE_ATTEMPTS_MAX: Final = 8  # attempts of one request: about one minute with the delays below
STORE_DELAY_S_MIN: Final = 0.1
STORE_DELAY_S_MAX: Final = 20.0
# Threads of requests; boto3 holds the interpreter lock 0.8 ms per request.
STORE_THREADS_MAX: Final = 4
STORE_CONNECT_TIMEOUT_S: Final = 5
STORE_READ_TIMEOUT_S: Final = 20
STORE_TOTAL_S_MAX: Final = 120.0  # time after the first attempt in which retries may begin
# The same while the store has never answered and its address refuses connections. The last attempt
# begins by then; a server that restarts may be back.
STORE_UNCONNECTED_S_MAX: Final = 2.5
STORE_SILENCE_S_MAX: Final = 1.0  # wait before a store that has never answered is reported
OFFLINE_AFTER_S: Final = 10.0  # wait before a read-only mount uses complete local state
# Bytes of a response that are read at once, so that a slow response is noticed early.
STORE_BODY_CHUNK_BYTES: Final = 256 * KIB
STORE_BODY_BYTES_PER_S_MIN: Final = 32 * KIB  # slower responses are abandoned
STORE_CLEANUP_S_MAX: Final = 10.0  # time for deleting a probe or an unfinished upload

# --- counted requests --------------------------------------------------------------------------
REQUEST_DAYS_MAX: Final = 400  # days whose counts are kept: a year and a month
REQUEST_NAMES_MAX: Final = 64  # counts of one day: classes and causes, with room for later ones
REQUEST_LOG_BYTES_MAX: Final = 4 * MIB  # size of the file that is parsed; a full one has 1 MiB
REQUESTS_SAVE_S: Final = 600.0  # a killed mount forgets the counts of at most this time
REQUESTS_LOCK_S_MAX: Final = 10.0  # longest wait for this lock, which is held for some ms
KNOWN_POINTS_S: Final = 600.0  # pause between two points in time that completion offers
KNOWN_POINTS_LATEST: Final = 12  # the newest points (two hours), which are always kept
KNOWN_POINTS_MAX: Final = (
    128  # maximum number of points: two days by the hour, two months by the day
)
KNOWN_NAMES_MAX: Final = 200  # names of kept points that completion offers, 64 characters each
KNOWN_POINTS_BYTES_MAX: Final = 64 * KIB  # size of the file that is parsed; a full one has 20 KiB

# --- group commit and background sync ----------------------------------------------------------
GROUP_DELAY_S: Final = 0.005  # a group commits when no operation has followed for this time
GROUP_AGE_S_MAX: Final = 0.05  # a group of this age is committed; bounds the loss by a kill
GROUP_OPERATIONS_MAX: Final = 500  # operations in a group: bounds the loss on SQLITE_FULL
WAL_BYTES_MAX: Final = 64 * MIB  # WAL size at which a background sync checkpoints, in a thread
# Zeros kept after the log on the disk while programs call fsync: 50 calls use them. More zeros are
# appended when half of them are used.
WAL_ROOM_BYTES: Final = 2 * MIB
WAL_ROOM_PIECE_BYTES: Final = 256 * KIB  # appended at once on the event loop: 0.1 ms
WRITTEN_AGAIN_BYTES: Final = 1 * MIB  # bytes in memory while a file is written again
COLLECT_S_MAX: Final = 5.0  # time that a sync or a cut waits for the kernel's dirty data
# Passes that collect the kernel's dirty data; more would help only while programs write fast.
COLLECT_PASSES_MAX: Final = 3
# A pass with at most this many write requests is complete; with more, the kernel may skip files.
COLLECT_QUIET_REQUESTS: Final = 8
# Time limit for the end of a killed collector process, which may wait for the mount.
COLLECTOR_END_S_MAX: Final = 2.0
IMAGE_CHECK_S: Final = 10.0  # how often a mount checks whether an image is due
IMAGE_SHARE: Final = 4  # an image is due when the changelogs reach 1/N of its stored size
NEWS_BYTES_MIN: Final = 512  # smaller changelogs are fence records or contain only deletions
IMAGE_SHARE_BYTES_MIN: Final = (
    4 * MIB
)  # below this size of changelogs an image saves no restore time
# A block is sealed at this age of its last write if the blocks that are due fill a pack.
SEAL_AGE_S: Final = 5.0
SEAL_LINGER_S: Final = 30.0  # a block of this age is sealed even if its pack stays small
# Time between two reads of the lease during uploads: bounds the uploads of a fenced mount.
LEASE_CHECK_S: Final = 10.0
# Batches packed or uploaded at once; each has one pack in memory.
UPLOADS_MAX: Final = 2
# The speed of uploads is measured over the last packs (at most 8, within 30 s), so that it follows a
# change of the network within seconds, but not a single slow request.
UPLOADS_MEASURED: Final = 8
UPLOADS_MEASURED_S: Final = 30.0

# --- cache -------------------------------------------------------------------------------------
CACHE_BYTES_MIN: Final = 64 * MIB
DISK_RESERVE_BYTES: Final = 32 * MIB  # disk space reserved for SQLite: many times the largest group
OPEN_BLOCKS_MAX: Final = 2048  # cache files kept open; at most a fourth of the process limit
# Empty block files that are made at once, when half of the last ones are used. The other half is
# enough for 100 ms of a stream.
FILES_AHEAD: Final = 128
FILES_AHEAD_MARGIN: Final = 32  # block numbers that are used before the first files exist
CACHED_BLOCKS_MAX: Final = 250_000  # cached blocks: bounds the index in memory at about 50 MB
DIRTY_BLOCKS_MAX: Final = 100_000  # blocks not yet uploaded: bounds what one flush must upload
SYNCFS_FILES_MIN: Final = 32  # number of files from which one syncfs is cheaper than an fsync each
DISK_CHECK_BYTES: Final = 8 * MIB  # bytes written between two checks of the disk
# Bytes evicted in addition, because an eviction for each small file would take time.
DISK_FREE_BYTES: Final = 64 * KIB
OPERATION_DISK_BYTES: Final = 16 * KIB  # maximum growth of the WAL by one metadata operation
SEAL_BATCH_BYTES: Final = 64 * MIB  # plain bytes sealed and packed at once
SEAL_BATCH_BLOCKS_MAX: Final = 2048  # blocks in one batch: their rows are read in one slice
# Evicted files removed on the event loop, in under 1 ms; more are removed in a thread.
EVICTED_AT_ONCE_MAX: Final = 16
LOOP_SLICE_ROWS: Final = 100  # blocks handled between two schedule points: 1 to 5 ms
COMPACT_LIVE_FRACTION: Final = 0.4  # a pack with a smaller live share is compacted
INDEX_ENTRY_BYTES: Final = 80  # maximum size of a block's entry in a pack's index
PACK_OVERHEAD_BYTES: Final = 128  # trailer, salts and tags of the smallest pack
# Mostly dead packs that one pass of compaction examines; some would not shrink.
COMPACT_CANDIDATES_MAX: Final = 1000
# Unreadable packs that end a pass of compaction; each is fetched twice.
COMPACT_FAILURES_MAX: Final = 16
COMPACT_PACKS_MAX: Final = 4  # packs compacted after one image: bounds the download
CLEANUP_S_MAX: Final = 10.0  # time for removing a temporary file, also during cancellation
# Deduplication examines at most this many blocks of equal content; two are already rare.
EQUAL_BLOCKS_MAX: Final = 16
QUARANTINES_SEARCHED_MAX: Final = 16  # quarantined states that a mount searches for lost content
LOST_PARTS_MAX: Final = 100_000  # lost parts of files that one mount tries to heal: 10 MB of memory
# If more records of a pack are damaged, the complete pack is marked.
DAMAGED_RECORDS_MAX: Final = 64
DAMAGE_SCAN_ROWS: Final = 1000  # rows of the block map read in one slice: 1 ms
UPLOAD_PAUSE_S: Final = 5.0  # pause after an upload failed on this host: disk or database
UPLOAD_RETRY_S_MAX: Final = 60.0  # pause between two attempts to upload in a long outage
FETCHES_MAX: Final = 4  # blocks fetched from the store at once
# Read-ahead of a sequential reader: keeps four connections busy.
READAHEAD_BYTES_MAX: Final = 64 * MIB
READAHEAD_CACHE_PART: Final = 8  # read-ahead is limited to 1/N of the cache
# Content that read-ahead requests at once, so that latency is a small part of the time.
READAHEAD_RUN_BYTES: Final = 8 * MIB
RUN_SLICE_BLOCKS: Final = 4  # blocks of a run that are unpacked before readers continue: 2 ms
RUN_SLICE_SMALL_BLOCKS: Final = 32  # the same, if all are small: a third faster than 4 at a time
# Factor by which a read-ahead window grows for each run that is read; it begins with one run.
READAHEAD_GROWTH: Final = 4

# --- warm-up and pins --------------------------------------------------------------------------
WARM_WORKERS: Final = 4  # equal to the number of threads for requests
# Content of one request: a complete pack, if the network is fast enough.
WARM_RUN_BYTES: Final = 16 * MIB
WARM_RUN_BYTES_MIN: Final = 1 * MIB  # content of the first request, and of each in a slow network
# A request should take at most this time, because readers of its blocks wait for all of it.
WARM_RUN_S: Final = 2.0
# Maximum gap between two records that are downloaded with one request.
WARM_GAP_BYTES: Final = 64 * KIB
WALK_SLICE_BLOCKS: Final = 1000  # rows of the block map read in one slice: 2 ms
PINS_MAX: Final = 1000  # pinned trees: bounds the time of a check
PIN_PATH_BYTES_MAX: Final = 4096  # PATH_MAX in linux/limits.h
# Size of the file with the pins: each byte of a path may need six characters.
PINS_FILE_BYTES_MAX: Final = PINS_MAX * (6 * PIN_PATH_BYTES_MAX + 128)
# The part of the cache that pins must leave for other blocks, and its minimum (two largest blocks).
PIN_RESERVE_PART: Final = 8
PIN_RESERVE_BYTES_MIN: Final = 2 * BLOCK_BYTES_MAX
# Number of parent directories that are searched for a pin after a write; the next check finds others.
PIN_DEPTH_MAX: Final = 256
PIN_CHECK_S: Final = 5.0  # pause between two checks of the pinned trees while there are changes
# A pause is at least this many times as long as the last check, so checks take 2 % of the time.
PIN_CHECK_PART: Final = 50
PIN_RETRY_S: Final = 30.0  # pause after a download for pins failed

# --- rate limits -------------------------------------------------------------------------------
# Slowest limit: at this rate a pack of 16 MiB takes over four hours.
RATE_BYTES_PER_S_MIN: Final = 1 * KIB
RATE_SLOTS_MAX: Final = 7 * 24 * 4  # entries of a timetable: one for each quarter of an hour
RATE_BURST_S: Final = 1.0  # after a pause a transfer may use the rate of this time at once
# A waiting transfer reads the wall clock at this interval, so a timetable applies this much later.
RATE_CHECK_S: Final = 15.0

# --- fuse --------------------------------------------------------------------------------------
FUSE_TASKS_MAX: Final = 600  # pyfuse3 stops reading requests at this number of waiting handlers
# File descriptors of a process among which an open file is searched: some ms in a thread.
DESCRIPTORS_EXAMINED_MAX: Final = 4096
NEXT_REQUEST_S: Final = 100e-6  # a busy program sends its next request within this time
STREAK_S_MAX: Final = 1e-3  # longest time of handling requests without a pass of the scheduler
# Requests that may wait for the store; the next one fails with an error.
WAITING_HANDLERS_MAX: Final = 300
# Write-back requests that may wait in addition: all that the kernel sends at once.
WRITE_BACK_WAITING_MAX: Final = 64
# The kernel caches names for this time; with one writer no name can be stale.
ENTRY_TIMEOUT_S: Final = 3600.0
CONTROL_MESSAGE_BYTES_MAX: Final = 1 * MIB
CONTROL_CONNECTIONS_MAX: Final = 16  # connections that wait to be accepted by the control socket
CONTROL_EVENTS_MAX: Final = 64  # queued progress events of one client; more are dropped
CONTROL_IDLE_S_MAX: Final = 60.0  # idle time after which a client is disconnected

# --- directories that are never empty ----------------------------------------------------------
# Attempts to make a file while another thread removes its directory.
PRUNE_ATTEMPTS_MAX: Final = 100

# --- fsck --------------------------------------------------------------------------------------
FSCK_EXAMPLES_MAX: Final = 100  # findings of one invariant that a report keeps; all are counted
FSCK_ROUNDS_MAX: Final = 8  # maximum number of repair passes; a repair may uncover further damage
FSCK_PATH_DEPTH_MAX: Final = 4096  # depth of a path in a report
FSCK_BATCH_ROWS: Final = 1000  # observations written with one statement
FSCK_SUMS_CACHE_KIB: Final = 64 * KIB  # page cache of temporary tables: 64 MiB
# Rows of temporary tables that fit into their page cache: each takes about 16 bytes.
FSCK_SUMS_ROWS_MAX: Final = 3_000_000
# If a pack does not match its key, fsck tries the keys of this many other damaged packs of its size.
# If two packs were swapped, one of these keys matches. Each try hashes an index.
FSCK_NAMES_TRIED_MAX: Final = 1000
# fsck repeats its check of the images this often if another host makes an image meanwhile.
FSCK_HEADS_MAX: Final = 3
# fsck checks the owner of at most this many packs without a row, with one request each.
FSCK_UNNAMED_PACKS_MAX: Final = 10_000
FOREIGN_SHOWN_MAX: Final = 5  # foreign objects that a report names; all are counted
FSCK_DEEP_PACKS_MAX: Final = 2  # packs downloaded and verified at once: bounds memory at 96 MiB
LOST_NAME_ATTEMPTS_MAX: Final = 1000  # names tried in lost+found before fsck skips an inode

assert PACK_BYTES_TARGET + 2 * BLOCK_BYTES_MAX <= PACK_BYTES_MAX, "a pack must hold its last block"
assert LEVEL_SECTION_BYTES_MAX <= CHANGELOG_SECTION_BYTES_MAX, "one limit for sections"
assert SMALL_BLOCK_BYTES <= BLOCK_BYTES_MIN, "a block of full length is never small"
assert PACK_BYTES_MAX <= MULTIPART_BYTES, "a pack must fit into one PUT"
assert WAITING_HANDLERS_MAX + PAST_WAITING_MAX + WRITE_BACK_WAITING_MAX < FUSE_TASKS_MAX, (
    "a worker must always be free for metadata requests"
)

# --- stored text objects (superblock, lease) ----------------------------------------------------
# Maximum size of a superblock or lease that is parsed; each has some hundred bytes.
TEXT_OBJECT_BYTES_MAX: Final = 64 * KIB
# Size of the local holder file: a name and up to LEASE_NONCES_MAX nonces.
HOLDER_BYTES_MAX: Final = 1 * KIB
# Difference between the epochs of the lease and of the last changelog. Every mount for writing
# takes an epoch and ships a fence record with it, unless the mount is killed at once.
EPOCH_LEAP_MAX: Final = 1 << 32
LEASE_NONCES_MAX: Final = 4  # nonces that a host keeps, for acquisitions with an unknown outcome
LABEL_CHARS_MAX: Final = 64
PROOF_OBJECTS_MAX: Final = 4  # keys are tried on this many objects, as some may be damaged
TRACE_KEYS_MAX: Final = 1000  # keys listed per kind of object if the superblock is missing
HOST_CHARS_MAX: Final = 255  # HOST_NAME_MAX is 64; some systems allow more

# --- passphrases (argon2id; a superblock that demands more is hostile) ---------------------------
KDF_ITERATIONS_MAX: Final = 64
KDF_MEMORY_KIB_MAX: Final = 2 * MIB  # 2 GiB
KDF_LANES_MAX: Final = 16

# --- pack index ---------------------------------------------------------------------------------
# The first read of a pack's end has this size: an index of about 1,000 entries.
PACK_TAIL_BYTES: Final = 64 * KIB

# --- SQLite -------------------------------------------------------------------------------------
PAGE_CACHE_BYTES_MIN: Final = 4 * MIB  # page cache on a small machine
PAGE_CACHE_BYTES_MAX: Final = 8 * MIB  # larger caches only duplicate the kernel's page cache
INODE_ROWS_MAX: Final = 8192  # cached inode rows, 0.7 KB each: directories in use, new files
RECENT_ANSWERS_MAX: Final = 4096  # block locations cached while no row changes: about 1 MB
STATEMENTS_CACHED_MAX: Final = 256  # more than the program has different statements
DATABASE_BUSY_MS: Final = 10_000  # longest wait for a reader's lock, which is held for one step
BACKUP_STEP_PAGES: Final = 512  # pages copied with the database's mutex held
# With this many new WAL pages, a checkpoint in a thread is worthwhile.
WAL_CHECKPOINT_BYTES: Final = 8 * MIB
WAL_REST_BYTES_MAX: Final = 4 * MIB  # WAL that may be copied on the event loop, between two groups
# Maximum number of passes of one checkpoint. Each pass finds about a tenth of the WAL that the pass
# before it found.
WAL_PASSES_MAX: Final = 8

# --- database pages (SQLite) --------------------------------------------------------------------
PAGE_BYTES_MIN: Final = 512
PAGE_BYTES_MAX: Final = 64 * KIB

# --- filesystem semantics -----------------------------------------------------------------------
PURGE_BLOCKS_MAX: Final = 256  # blocks of a removed file released in one slice: some ms
TREE_SLICE_NAMES: Final = 1000  # names of a removed tree deleted in one slice: 2 to 5 ms
# Directories of removed trees emptied in one slice, if they are small.
TREE_SLICE_DIRECTORIES: Final = 128
SEEK_SLICE_ROWS: Final = 1000  # blocks examined in one slice for the next hole: 1 to 2 ms
CLONE_SLICE_NAMES: Final = 400  # names created in one slice of a clone: 2 to 5 ms
CLONE_SLICE_BLOCKS: Final = 1000  # blocks shared in one slice of a clone: 2 to 5 ms
COPIED_AT_ONCE_BYTES: Final = 1 * MIB  # bytes copied at once on the event loop
COPIED_RANGE_BYTES: Final = 32 * MIB  # bytes that one copy_file_range reads and writes
# Bytes that one copy_file_range covers; its result has 32 bits.
SHARED_RANGE_BYTES: Final = 1024 * MIB
CLONE_COPIED_BYTES: Final = 4 * MIB  # unshipped content copied in one slice of a clone: some ms
TREE_SLICE_DISK_BYTES: Final = 1 * MIB  # growth of the WAL by one slice of work on a tree
TREE_WAL_BYTES_MAX: Final = 512 * MIB  # WAL size at which work on trees waits for a sync
# Pause between two checks while work on trees waits, such as for disk space.
TREE_PAUSE_S: Final = 0.2
TREE_BUSY_S: Final = 0.0002  # if a pass of the scheduler takes longer, other tasks ran
DIRECTORY_DEPTH_MAX: Final = 1 << 20  # depth of a directory beyond which a loop is assumed
FETCH_ROUNDS_MAX: Final = 16  # retries of a request after waiting for blocks
READDIR_ROWS_MIN: Final = 24  # entries that fit into the kernel's smallest readdir buffer
READAHEAD_REQUESTS_MAX: Final = 32  # read-ahead runs that wait for a worker; any more are dropped
# Read-ahead runs fetched and unpacked at once: bounds memory at 96 MiB.
READAHEAD_WORKERS: Final = 6
GROUP_NAMES_MAX: Final = 100_000  # names recorded per group, in case SQLite loses the group
UNLIMITED_CAPACITY_BYTES: Final = 1 << 50  # 1 PiB: size shown by statfs without a limit
UNLIMITED_INODES: Final = 1 << 40
KERNEL_READAHEAD_KIB: Final = 1024  # read-ahead of the kernel: one FUSE read of the largest size
KERNEL_BACKGROUND_MAX: Final = 64  # pending kernel requests for read-ahead and write-back
UNMOUNT_GRACE_S: Final = 10.0  # time limit of an unmount by a signal while files are open


# --- s3fs-meta browse ---------------------------------------------------------------------------
FOLDER_SIZES_MAX: Final = 1_000_000  # directories: 56 MB
FOLDER_SIZES_SLICE: Final = 10_000  # rows between two schedule points: some 10 ms
NAME_SEARCH_SLICE: Final = 10_000  # names between two schedule points: some 5 ms
NAME_SEARCH_DIRECTORIES_MAX: Final = 100_000  # directories that a search remembers: 10 MB
