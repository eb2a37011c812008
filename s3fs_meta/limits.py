"""The limits of the program, with their units and reasons.

A limit that only ``browse``, ``cli``, ``control`` or ``mount`` uses is in the ``limits.py`` there.
Owns: the constants. Assertions check relations between them.
"""

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# --- names and attributes (POSIX, Linux) -------------------------------------------------------
NAME_BYTES_MAX: Final = 255  # maximum length of a name: NAME_MAX in linux/limits.h
SYMLINK_BYTES_MAX: Final = 4095  # maximum length of a symlink's target: PATH_MAX without the NUL
XATTR_NAME_BYTES_MAX: Final = 255  # maximum length of an xattr's name: XATTR_NAME_MAX in xattr(7)
XATTR_VALUE_BYTES_MAX: Final = 64 * KIB  # maximum xattr value: XATTR_SIZE_MAX in xattr(7)
XATTR_LIST_BYTES_MAX: Final = 64 * KIB  # maximum result of listxattr(2): XATTR_LIST_MAX
LINKS_MAX: Final = (1 << 31) - 1  # maximum number of hard links: largest signed 32-bit integer
# Maximum size of a file. Every offset fits into a signed 64-bit integer.
FILE_BYTES_MAX: Final = 1 << 60

# Bounds of file times. The database stores a file time minus ctime in a signed 64-bit integer.
# For any ctime from 1970 to 2116, this difference fits.
TIME_NS_MIN: Final = -(1 << 62)  # earliest file time: the year 1823
TIME_NS_MAX: Final = (1 << 63) - 1  # latest file time: the year 2262

# --- directory cookies -------------------------------------------------------------------------
# Bits that distinguish up to 256 names of a directory with equal hashes; only attacks need more.
COOKIE_COLLISION_BITS: Final = 8
COOKIE_HASH_BITS: Final = 63 - COOKIE_COLLISION_BITS
RECENT_NAMES_MAX: Final = 64  # number of name hashes kept in memory
READDIR_ROWS_MAX: Final = 1024  # maximum number of rows that one readdir request reads

# --- blocks and packs --------------------------------------------------------------------------
# Smallest block size. Smaller blocks would make the block map too large.
BLOCK_BYTES_MIN: Final = 64 * KIB
# Largest block size. Limits the cost of small random reads, which fetch complete blocks.
BLOCK_BYTES_MAX: Final = 16 * MIB
PACK_BYTES_TARGET: Final = 16 * MIB  # size at which a pack is full
# Maximum size of a pack: the target size, the largest incompressible block, and the index.
PACK_BYTES_MAX: Final = 48 * MIB
# Maximum length of a range request. Limits the memory if a damaged row records a huge length.
RANGE_BYTES_MAX: Final = PACK_BYTES_MAX
PACK_BLOCKS_MAX: Final = 8192  # maximum number of blocks in a pack; limits its index to 1 MiB
# Minimum size of a block that is fetched alone. A shorter block is fetched with its neighbours.
SMALL_BLOCK_BYTES: Final = 64 * KIB
NEIGHBOUR_FETCH_BYTES: Final = 1 * MIB  # size of the range fetched around a small block
NEIGHBOURS_MAX: Final = 256  # maximum number of neighbours fetched on each side of a block
CONTENT_RUN_BYTES: Final = 8 * MIB  # size of a request when a command copies files out of packs
# Number of ranges of NEIGHBOUR_FETCH_BYTES kept in memory while small files are copied out.
CONTENT_WINDOWS_MAX: Final = 32
# Number of files copied from the bucket in parallel. Each needs memory for several blocks.
FILES_COPIED_AT_ONCE: Final = 4
# Maximum number of incomplete files that a report lists. It reports the number of all others.
INCOMPLETE_FILES_SHOWN_MAX: Final = 10_000
# Neighbouring blocks that were fetched but not read yet use at most 1/N of the cache.
NEIGHBOUR_CACHE_PART: Final = 16

# --- metadata images ---------------------------------------------------------------------------
IMAGE_PIECE_BYTES: Final = 8 * MIB  # database bytes in one piece of an image; a piece is one PUT
# Maximum number of pieces in an image: enough for 256 GiB of metadata.
# Parsing a hostile manifest with the maximum number of pieces takes about a second.
IMAGE_PIECES_MAX: Final = 1 << 15
# Number of damaged pieces after which fsck considers an image useless and stops reading it.
IMAGE_PIECE_FAULTS_MAX: Final = 16  # a hostile manifest may list thousands of damaged pieces
# Maximum growth of the WAL while the snapshot for an image waits for the upload of blocks.
# If the WAL grows beyond this limit, the image is abandoned and tried again later.
IMAGE_WAL_BYTES_MAX: Final = 256 * MIB
IMAGE_CUTS_MAX: Final = 16  # maximum cuts per image; a cut is repeated if the WAL grows too much
IMAGES_KEPT: Final = 2  # number of latest images kept, with the objects needed to restore them
IMAGES_SPACED: Final = 8  # number of older images that are kept per retention period
IMAGE_LINKS_MAX: Final = 100  # maximum length of a chain of images that a restore follows
SALVAGE_IMAGES_MAX: Final = 64  # maximum number of damaged images that fsck reads
# Maximum number of searches for readable rows in one table; they take about a minute.
SALVAGE_PROBES_MAX: Final = 2_000_000
# Number of evenly spaced searches between two runs of readable rows.
SALVAGE_PROBES_OF_GAP: Final = 64
SALVAGE_ROWS_AT_ONCE: Final = 1000  # maximum number of salvaged rows in memory
# Maximum length of a value or row in an image or a changeset. A longer value must be damaged.
# The longest valid value is an extended attribute of 64 KiB.
IMAGE_VALUE_BYTES_MAX: Final = 1 * MIB
# Maximum size of a metadata object that is parsed. Every intact object is smaller.
ENVELOPE_BYTES_MAX: Final = 64 * MIB
# Maximum length of a value or row in a local database. SQLite's own limit is 1 GB.
# The longest valid value is a changelog object that has not been uploaded yet.
DATABASE_VALUE_BYTES_MAX: Final = ENVELOPE_BYTES_MAX + 1 * MIB
# Maximum length of an SQL statement, or of a definition in a hostile database.
# SQL statements of s3fs-meta have a few KiB.
DATABASE_SQL_BYTES_MAX: Final = 1 * MIB

# --- changelogs and the chain ------------------------------------------------------------------
SYNC_BYTES_MAX: Final = 16 * MIB  # size at which recorded changes are shipped without delay
# Number of polls without a new changelog before a follower lists the bucket.
# The listing finds a chain that continues after a gap in the txg numbers.
FOLLOW_LISTING_POLLS: Final = 30
# Maximum number of changed names and inodes of one txg in a follower's memory: 40 MB.
# If a txg has more changes, the follower invalidates all caches of the kernel.
FOLLOW_TOUCHED_MAX: Final = 200_000
FOLLOW_RESYNC_S: Final = 60.0  # minimum time between two restores by a follower
# Maximum size of records that are merged into one changelog section.
CHANGELOG_RUN_BYTES: Final = 4 * MIB
# Maximum size of records that the event loop merges itself, in 1 ms. A thread merges all others.
LOOP_MERGE_BYTES: Final = 16 * KIB
# Maximum number of block locations in a changelog section: 3 MiB.
CHANGELOG_LOCATIONS_MAX: Final = 50_000
CONDENSED_RECORDS_MIN: Final = 200  # minimum number of unshipped records worth merging
# Maximum number of records merged in one step: as many as in a busy second or a quiet hour.
CONDENSED_RECORDS_MAX: Final = 2000
# Maximum number of inodes kept in memory (30 MB) to list the files with unshipped changes.
UNSHIPPED_INODES_MAX: Final = 200_000
# Maximum number of inodes in one slice of work that collects unshipped records.
# Without a WAL, such a slice occupies the event loop for 12 ms.
UNSHIPPED_INODES_AT_ONCE_MAX: Final = 2000
CONDENSE_INTERVAL_S: Final = 30.0
# Maximum number of shipped records that are deleted in one slice of work on the event loop.
PURGED_AT_ONCE_MAX: Final = 50  # a change record may be several hundred kilobytes long
# Maximum distance of a key's txg from the last known txg: 87 years with one txg every 5 ms.
# A more distant key is ignored as foreign: after a txg near 2^63, no numbers would remain.
TXG_LEAP_MAX: Final = 1 << 39
# Maximum number of successive txgs without any object.
# A key after a longer gap is used only if the filesystem's encryption keys open the object.
TXG_GAP_MAX: Final = 100
# Maximum number of runs of foreign keys, each after a gap. Keys after the last run are ignored.
TXG_GAPS_MAX: Final = 16
# Number of objects read at each end of a run of keys: one authentic object proves the run.
TXG_PROOFS_MAX: Final = 2
# Maximum number of late changelogs by previous writers that a new writer applies.
FENCE_ROUNDS_MAX: Final = 5
# Maximum size of the changes in one object. A longer changelog has several parts.
CHANGELOG_SECTION_BYTES_MAX: Final = 24 * MIB
# Maximum number of parts in a changelog: 64 GiB of changes. One object can list all parts.
CHANGELOG_PARTS_MAX: Final = 1 << 14
# Maximum number of new packs in a changelog, and of deleted packs: 4 TiB of content each.
CHANGELOG_PACKS_MAX: Final = 1 << 18
# Number of changelogs fetched in parallel to show the history; limits the memory use.
HISTORY_FETCHES_MAX: Final = 8
# Maximum number of unreadable changelogs that an overview of a bucket skips at the chain's end.
OVERVIEW_PROBES_MAX: Final = 16
# Maximum number of changelogs that an overview without keys lists, in 100 requests.
OVERVIEW_CHANGELOGS_MAX: Final = 100_000
# Number of objects that destroy reads in parallel to find the objects of the filesystem.
REMOVAL_FETCHES_MAX: Final = 16
# Maximum number of directories in memory during a search of the history for changes below a path.
WATCHED_DIRECTORIES_MAX: Final = 100_000
# Maximum number of removed or renamed names that a search of the history follows, at 50 bytes each.
FORMER_NAMES_MAX: Final = 2_000_000
MARK_HASH_DIGITS: Final = 32  # number of digits of a changelog's hash that a mount prints
MARK_HASH_DIGITS_MIN: Final = 16  # minimum digits of a changelog's hash in the at_least= option

# --- level objects -----------------------------------------------------------------------------
# Number of objects of one level that are merged into one object of the next level.
LEVEL_FAN_OUT: Final = 5  # a restore of a week of changes reads at most 53 objects
# Number of levels. An object of the last level spans 390,625 txgs: 22 days at one per 5 s.
LEVELS_MAX: Final = 8
# Maximum size of the changes, or of the block locations, in one level object; limits memory use.
LEVEL_SECTION_BYTES_MAX: Final = 16 * MIB
# Maximum total size of objects that are merged into a level object in one step.
LEVEL_INPUT_BYTES_MAX: Final = 48 * MIB
LEVEL_CHECK_S: Final = 10.0  # how often to check for changelogs to merge into levels

# --- points in time in a mount (.snapshots) ---------------------------------------------------
# Smallest inode number that .snapshots shows; inodes of the present have smaller numbers.
PAST_INO_MIN: Final = 1 << 62
PAST_INO_BITS: Final = 40  # number of bits for an inode number within one point in time
PAST_POINTS_OPEN_MAX: Final = 4  # maximum number of past databases that a mount keeps on disk
PAST_IDLE_S: Final = 600.0  # idle time after which a past database is removed
PAST_CHECK_S: Final = 30.0  # how often to check for unused points in time
PAST_WAITING_MAX: Final = 128  # maximum number of waiting requests for points in time
PAST_CACHED_BYTES_MAX: Final = 32 * MIB  # maximum size of past file content in memory
# Maximum number of concurrent downloads of past blocks. Each block is held in memory twice.
PAST_DOWNLOADS_MAX: Final = 4
# Number of ranges of NEIGHBOUR_FETCH_BYTES that each open point in time keeps in memory.
PAST_WINDOWS_MAX: Final = 8
# How long a name such as 1h-ago keeps referring to the same txg after its last use.
# A program that copies a tree looks up a name such as 1h-ago once per file.
PAST_NAME_KEPT_S: Final = 60.0
PAST_NAMES_MAX: Final = 1_000  # maximum number of names such as 1h-ago in memory
PAST_NAME_TIMEOUT_S: Final = 1.0  # how long the kernel may cache the txg of 1h-ago
# Minimum size of a past database to restore in a separate process, so that requests do not wait.
# Restoring a smaller database takes less time than starting a process.
RESTORE_APART_BYTES_MIN: Final = 32 * MIB
# Maximum size of a message from a restore process, not counting the object that follows it.
RESTORE_MESSAGE_BYTES_MAX: Final = 4 * MIB
RESTORER_END_S_MAX: Final = 2.0  # time limit for a killed restore process to exit
# Maximum number of dead packs per txg that clones of a past state use again.
REVIVED_PACKS_MAX: Final = CHANGELOG_PACKS_MAX // 4

# --- history index -----------------------------------------------------------------------------
# A level 1 run covers 32 txgs; a higher run covers 32 lower runs. Change masks have 32 bits.
HISTORY_FAN_OUT: Final = 32
# Number of levels. A run of the last level spans 1,048,576 txgs: 60 days at one per 5 s.
HISTORY_LEVELS_MAX: Final = 4
# Limits for one object of the history index. A run with more changes gets no object.
HISTORY_INODES_MAX: Final = 500_000
HISTORY_NAMES_MAX: Final = 200_000
HISTORY_NAME_BYTES_MAX: Final = 4 * MIB
HISTORY_CHECK_S: Final = 30.0  # how often to check for txgs to index
# Maximum numbers of txgs and of changed inodes and names that wait in memory for a complete run.
HISTORY_TXGS_WAITING_MAX: Final = 64
HISTORY_ROWS_WAITING_MAX: Final = 200_000
# Number of earlier runs that one check adds to the index, with HISTORY_FAN_OUT requests each.
HISTORY_OLDER_RUNS: Final = 2
HISTORY_CACHED_ROWS_MAX: Final = 1_000_000  # maximum number of rows in memory during a search
HISTORY_CACHED_BYTES_MAX: Final = 64 * MIB  # maximum size of changes in memory during a search
HISTORY_KEPT_RESULTS_MAX: Final = 20_000  # maximum number of results shared by searches: 30 MB
DIFF_NAMES_CACHED_MAX: Final = 100_000  # number of changed files whose names are read together
DIFF_CHANGES_MAX: Final = 1_000_000  # maximum number of changed inodes in a comparison
# Maximum number of changelogs read to find changed inodes. Beyond this, comparing rows is faster.
DIFF_CHANGELOGS_MAX: Final = 4_096
HISTORY_BINDINGS_MAX: Final = 1_000  # maximum number of inodes followed for the versions of a path
HISTORY_NAMES_KEPT_MAX: Final = 10_000  # number of names considered for a pattern
HISTORY_NAMES_PAGE: Final = 1_000  # number of names read from a directory at a time

# --- retention and garbage collection ----------------------------------------------------------
RETENTION_S_DEFAULT: Final = 7 * 86_400  # default retention: every point in time of the last week
RETENTION_S_MAX: Final = 100 * 365 * 86_400  # maximum retention: 100 years
RECLAIM_INTERVAL_S: Final = 600.0  # time between two searches for objects to delete
# Time between two searches for objects to delete if no txg is written.
# More frequent listings would cost 0.3 USD a month on S3, even for an idle mount.
RECLAIM_IDLE_S: Final = 86_400.0
RECLAIM_KEYS_MAX: Final = 10_000  # maximum number of objects that one pass deletes
RECLAIM_PASSES_MAX: Final = 100_000  # maximum number of passes of one command: a billion objects
RECLAIM_PLANS_MAX: Final = 3  # maximum searches per pass; one is enough unless the bucket was reset
# Maximum number of pack keys in memory in a search for packs without a row.
RECLAIM_PACK_ROWS: Final = 100_000
# Number of bytes at the end of a changelog that identify it: they contain its tag or checksum.
WATCHED_TAIL_BYTES: Final = 64
MEND_PROBES_MAX: Final = 1_000  # maximum number of changelogs read to find where a chain continues
ABANDONED_SHOWN_MAX: Final = 50  # maximum number of abandoned txgs that fsck lists
# Without a clock in the store, a gap between two txgs adds at most this time to their ages.
# So if this host's clock jumps, retention deletes at most a day of history too early.
RETENTION_GAP_S_MAX: Final = 86_400
# Maximum difference between the clocks of this host and the store.
# Usually, only a wrong time zone or date exceeds this limit. S3 refuses requests beyond 900 s.
CLOCK_OFF_S_MAX: Final = 600
# Maximum number of changelogs read to find the changelog whose age equals the retention.
RECLAIM_PROBES_MAX: Final = 64

# --- kept points ------------------------------------------------------------------------------
# Maximum number of kept points: enough for two years of nightly points, and one page of a listing.
KEPT_POINTS_MAX: Final = 1_000
KEPT_NAME_CHARS_MAX: Final = 64  # maximum length of a kept point's name
# Maximum size of a kept point's object, which usually has 700 bytes.
KEPT_PAYLOAD_BYTES_MAX: Final = 4 * KIB
LEVEL_FAULTS_MAX: Final = 10  # maximum number of unusable level objects that a restore reports
KEPT_FAULTS_MAX: Final = 100  # maximum number of invalid kept-point objects in a report
KEPT_FETCHES_MAX: Final = 16  # number of kept points that are read in parallel, to save time

# --- object stores -----------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 500  # maximum length of a key or a URL's prefix; S3 allows 1,024 for both
# Maximum length of a component in a key, because some stores keep objects as files.
KEY_COMPONENT_BYTES_MAX: Final = 255
OBJECT_BYTES_MAX: Final = 5 * GIB  # largest object that S3 accepts in one PUT
MULTIPART_BYTES: Final = 64 * MIB  # largest object sent with one PUT; larger ones are multipart
# Maximum size of a local object whose ETag is a hash of its content.
# The ETag of a larger local object is made from its inode, size and time.
HASHED_BYTES_MAX: Final = 64 * MIB
LIST_PAGE_KEYS: Final = 1000  # number of keys per page in an S3 listing
DELETE_BATCH_KEYS: Final = 1000  # maximum number of keys in one DeleteObjects request of S3
REFUSED_KEYS_MAX: Final = 100_000  # maximum number of refused objects to remember: 20 MB
DELETES_REFUSED_MAX: Final = 16  # after so many refusals, failed requests are not divided
STORE_ATTEMPTS_MAX: Final = 8  # maximum attempts per request; the delays add up to at most 13 s
STORE_DELAY_S_MIN: Final = 0.1
STORE_DELAY_S_MAX: Final = 20.0
# Number of threads for requests. For each request, boto3 holds the interpreter lock for 0.8 ms.
STORE_THREADS_MAX: Final = 4
STORE_CONNECT_TIMEOUT_S: Final = 5
STORE_READ_TIMEOUT_S: Final = 20
STORE_TOTAL_S_MAX: Final = 120.0  # maximum time from the first attempt to the last retry
# Time for retries if the store has never responded and its address refuses connections.
# The retries give a server that is restarting time to listen again.
STORE_UNCONNECTED_S_MAX: Final = 2.5
STORE_SILENCE_S_MAX: Final = 1.0  # time after which a silent or failing store is reported
OFFLINE_AFTER_S: Final = 10.0  # wait for a first response before a mount opens without the store
STORE_BODY_CHUNK_BYTES: Final = 256 * KIB  # size of a read; small, to detect slow responses early
STORE_TEXT_BYTES_MAX: Final = 8 * MIB  # maximum size of a listing or error; S3 sends under 7 MiB
CREDENTIALS_BYTES_MAX: Final = 64 * KIB  # maximum response with credentials; most have a few KiB
CREDENTIAL_PROCESS_S_MAX: Final = 60.0  # time limit of credential_process, as in AWS's Go SDK
STORE_BODY_BYTES_PER_S_MIN: Final = 32 * KIB  # speed below which a response is abandoned
STORE_CLEANUP_S_MAX: Final = 10.0  # maximum time to delete a probe object or abort an upload

# --- counted requests --------------------------------------------------------------------------
REQUEST_DAYS_MAX: Final = 400  # number of days whose request counts are kept: 13 months
REQUEST_NAMES_MAX: Final = 64  # maximum number of counters per day, one per class and cause
REQUEST_LOG_BYTES_MAX: Final = 4 * MIB  # maximum size of the request log; usually at most 1 MiB
REQUESTS_SAVE_S: Final = 600.0  # how often counts are saved; a crash loses at most one interval
REQUESTS_LOCK_S_MAX: Final = 10.0  # longest time to wait for the lock of the request log
KNOWN_POINTS_S: Final = 600.0  # how often a mount records its last txg for shell completion
KNOWN_POINTS_LATEST: Final = 12  # number of the latest points, of which completion offers all
# Maximum number of points that completion offers: hourly for two days, daily for two months.
KNOWN_POINTS_MAX: Final = 128
KNOWN_NAMES_MAX: Final = 200  # maximum number of kept points that completion offers
# Maximum size of the list for completion. A full list usually has 20 KiB.
KNOWN_POINTS_BYTES_MAX: Final = 64 * KIB

# --- group commit and background sync ----------------------------------------------------------
GROUP_DELAY_S: Final = 0.005  # idle time after which a commit group ends
GROUP_AGE_S_MAX: Final = 0.05  # maximum age of a group; limits the loss if the daemon is killed
GROUP_OPERATIONS_MAX: Final = 500  # maximum operations in a group; limits the loss on SQLITE_FULL
WAL_BYTES_MAX: Final = 64 * MIB  # WAL size at which a background sync starts a checkpoint
# Number of zeros kept after the end of the WAL while programs call fsync: enough for 50 calls.
# When half of the zeros after the WAL are used, more zeros are appended.
WAL_ROOM_BYTES: Final = 2 * MIB
# Number of zeros that the event loop appends in one write, which takes 0.1 ms.
WAL_ROOM_PIECE_BYTES: Final = 256 * KIB
# Size of the intent log: enough for 500 calls of fsync with 4 KiB each between two file syncs.
INTENT_LOG_BYTES: Final = 4 * MIB
INTENT_LOG_BYTES_MAX: Final = 64 * MIB  # maximum number of bytes that are read from an intent log
# Maximum content of a log entry. The log writes content twice, so a sync is faster beyond this.
INTENT_CONTENT_BYTES_MAX: Final = 256 * KIB
# Maximum number of byte ranges in a log entry. The event loop reads each range from a file.
INTENT_PIECES_MAX: Final = 256
WRITTEN_AGAIN_BYTES: Final = 1 * MIB  # number of bytes copied at a time when a file is rewritten
COLLECT_S_MAX: Final = 5.0  # time that a sync or cut may wait for the kernel's dirty data
# Maximum number of passes that collect the kernel's dirty data.
# More passes would help only while programs write at high speed.
COLLECT_PASSES_MAX: Final = 3
# Maximum number of write requests during a pass that collected all dirty data.
# After a pass with more write requests, the kernel may have skipped files.
COLLECT_QUIET_REQUESTS: Final = 8
# Time limit for a killed write-back process to exit. It may be waiting for the mount.
COLLECTOR_END_S_MAX: Final = 2.0
IMAGE_CHECK_S: Final = 10.0  # how often to check whether an image is due
# A new image is due when the changelogs since the last image reach 1/N of that image's size.
IMAGE_SHARE: Final = 4
NEWS_BYTES_MIN: Final = 512  # a larger changelog may have more than changed locations of blocks
# Minimum total size of changelogs for a new image. With less, an image does not speed up a restore.
IMAGE_SHARE_BYTES_MIN: Final = 4 * MIB
# Age at which blocks are sealed if there are enough blocks of this age to fill a pack.
SEAL_AGE_S: Final = 5.0
SEAL_LINGER_S: Final = 30.0  # age at which a block is sealed even if its pack remains small
# Time between two reads of the lease during uploads, so that a fenced mount soon stops uploading.
LEASE_CHECK_S: Final = 10.0
# Maximum number of batches that are packed or uploaded concurrently. Each has one pack in memory.
UPLOADS_MAX: Final = 2
# The upload speed is the average over at most 8 packs of the last 30 s.
# The average follows the network speed within seconds but ignores a single slow request.
UPLOADS_MEASURED: Final = 8
UPLOADS_MEASURED_S: Final = 30.0

# --- cache and uploads -------------------------------------------------------------------------
CACHE_BYTES_MIN: Final = 64 * MIB
DISK_RESERVE_BYTES: Final = 32 * MIB  # space on the disk for SQLite: enough for many commit groups
# Maximum number of open cache files. A mount uses at most a quarter of RLIMIT_NOFILE for them.
OPEN_BLOCKS_MAX: Final = 2048
# Number of empty block files created together once half of the previous ones are used.
# Half of the empty block files are enough for 100 ms of sequential writing.
FILES_AHEAD: Final = 128
# Number of block numbers reserved for blocks that are written before the first empty files exist.
FILES_AHEAD_MARGIN: Final = 32
CACHED_BLOCKS_MAX: Final = 250_000  # maximum number of cached blocks; their index takes 43 MB
DIRTY_BLOCKS_MAX: Final = 100_000  # maximum number of dirty blocks; limits the work of one flush
SYNC_THREADS_MAX: Final = 8  # number of threads that sync files at the same time
EARLY_WRITE_BYTES: Final = 4 * MIB  # total size of large writes at which their write-back starts
EARLY_WRITE_BYTES_MIN: Final = 64 * KIB  # minimum size of a large write
SYNCFS_FILES_MIN: Final = 32  # number of files from which one syncfs(2) is faster than fsync(2)
DISK_CHECK_BYTES: Final = 8 * MIB  # bytes written between two checks of the free disk space
# Extra bytes that each eviction frees, because an eviction per small file would be slow.
DISK_FREE_BYTES: Final = 64 * KIB
OPERATION_DISK_BYTES: Final = 16 * KIB  # growth of the WAL by a usual metadata operation
SEAL_BATCH_BYTES: Final = 64 * MIB  # maximum size of a batch of blocks that are sealed and packed
SEAL_BATCH_BLOCKS_MAX: Final = 2048  # maximum number of blocks in a batch to seal and pack
# Maximum number of evicted files that the event loop removes, in 1 ms. A thread removes more files.
EVICTED_AT_ONCE_MAX: Final = 16
LOOP_SLICE_ROWS: Final = 100  # number of blocks processed between two schedule points: 1 to 5 ms
# Number of rows of packs that a query without an index reads between two schedule points: 2 ms.
PACKS_SCANNED_AT_ONCE: Final = 4096
COMPACT_LIVE_FRACTION: Final = 0.4  # a pack is compacted if its share of live bytes is below this
INDEX_ENTRY_BYTES: Final = 80  # maximum size of a block's entry in a pack's index
PACK_OVERHEAD_BYTES: Final = 128  # size of the trailer, salts and tags of the smallest pack
# Maximum number of mostly dead packs that a compaction examines. Some are not worth compacting.
COMPACT_CANDIDATES_MAX: Final = 1000
# Number of unreadable packs after which a compaction stops. Each pack is fetched twice.
COMPACT_FAILURES_MAX: Final = 16
COMPACT_PACKS_MAX: Final = 4  # maximum number of packs compacted after one image
CLOSE_S_MAX: Final = 60.0  # time limit for closing the session of a mount or command
CLEANUP_S_MAX: Final = 10.0  # time limit of a cleanup that runs although its task was cancelled
# Maximum number of blocks with equal content that deduplication examines. Usually one exists.
EQUAL_BLOCKS_MAX: Final = 16
# Maximum number of quarantined states searched for lost content.
QUARANTINES_SEARCHED_MAX: Final = 16
# Maximum number of lost file parts that one mount tries to heal, using 10 MB of memory.
LOST_PARTS_MAX: Final = 100_000
# Maximum number of damage marks for records in one pack. Beyond this, the complete pack is marked.
DAMAGED_RECORDS_MAX: Final = 64
DAMAGE_SCAN_ROWS: Final = 1000  # number of block map rows read in one slice of work: 1 ms
UPLOAD_PAUSE_S: Final = 5.0  # pause after the local disk or database made an upload fail
THREAD_PAUSE_S: Final = 5.0  # pause of a background task that cannot start a thread
THREAD_WARNING_S: Final = 60.0  # minimum time between two warnings that no thread can be started
UPLOAD_RETRY_S_MAX: Final = 60.0  # longest pause between two attempts to upload, in a long outage
FETCHES_MAX: Final = 4  # maximum number of blocks fetched from the store concurrently
# Maximum read-ahead of a sequential reader. It keeps four connections busy.
READAHEAD_BYTES_MAX: Final = 64 * MIB
READAHEAD_CACHE_PART: Final = 8  # read-ahead uses at most 1/N of the cache
# Size of a read-ahead request, large enough to make the latency negligible.
READAHEAD_RUN_BYTES: Final = 8 * MIB
# Maximum size of fetched content that also stays in memory for its reader: two read-ahead runs.
ARRIVED_BYTES_MAX: Final = 2 * READAHEAD_RUN_BYTES + 128 * KIB
ARRIVED_S_MAX: Final = 1.0  # an unread run is dropped for one that arrives this much later
RUN_SLICE_BLOCKS: Final = 4  # number of blocks to unpack before waiting readers continue: 2 ms
# Number of small blocks to unpack before waiting readers continue. 32 are a third faster than 4.
RUN_SLICE_SMALL_BLOCKS: Final = 32
# A read-ahead window starts with one run of blocks, and grows by this factor with each run read.
READAHEAD_GROWTH: Final = 4

# --- warm-up and pinned trees ------------------------------------------------------------------
# Number of parallel requests in a warm-up; equals the number of request threads.
WARM_WORKERS: Final = 4
# Maximum content per request in a warm-up: a complete pack, if the network is fast enough.
WARM_RUN_BYTES: Final = 16 * MIB
# Size of the first request in a warm-up, and of each request in a slow network.
WARM_RUN_BYTES_MIN: Final = 1 * MIB
# Maximum time of a warm-up request. Readers of a block wait for the complete response.
WARM_RUN_S: Final = 2.0
# Maximum gap between two records of a pack that are downloaded by one request.
WARM_GAP_BYTES: Final = 64 * KIB
WALK_SLICE_BLOCKS: Final = 1000  # number of block map rows read in one slice of work: 2 ms
PINS_MAX: Final = 1000  # maximum number of pinned trees; limits the time of a check
PIN_PATH_BYTES_MAX: Final = 4096  # maximum length of a pinned path: PATH_MAX in linux/limits.h
# Maximum size of the pins file. Each byte of a path may need six characters.
PINS_FILE_BYTES_MAX: Final = PINS_MAX * (6 * PIN_PATH_BYTES_MAX + 128)
# Pinned blocks leave 1/N of the cache to other blocks, at least two blocks of the maximum size.
PIN_RESERVE_PART: Final = 8
PIN_RESERVE_BYTES_MIN: Final = 2 * BLOCK_BYTES_MAX
# Maximum number of parent directories that a write searches for a pinned one.
# The next check of the pinned trees finds the new blocks of files that are deeper in a tree.
PIN_DEPTH_MAX: Final = 256
PIN_CHECK_S: Final = 5.0  # pause between two checks of the pinned trees while files change
# Pause after a check of pins, as a multiple of its duration, so that checks use 2 % of the time.
PIN_CHECK_PART: Final = 50
PIN_RETRY_S: Final = 30.0  # pause after a failed download for pinned trees

# --- rate limits of transfers ------------------------------------------------------------------
# Lowest rate limit, at which a pack of 16 MiB takes over four hours.
RATE_BYTES_PER_S_MIN: Final = 1 * KIB
RATE_SLOTS_MAX: Final = 7 * 24 * 4  # maximum number of entries in a weekly timetable: four per hour
RATE_BURST_S: Final = 1.0  # maximum burst after a pause: the bytes of this time at the limit
# Interval at which a waiting transfer reads the wall clock to apply a timetable.
RATE_CHECK_S: Final = 15.0

# --- memory of the process ---------------------------------------------------------------------
# Number of memory arenas in the C library, which all threads share.
ALLOCATOR_ARENAS: Final = 2
# Minimum size of a buffer with its own mapping, which free(3) returns to the system.
ALLOCATOR_MAPPED_BYTES_MIN: Final = 4 * MIB
# Maximum free memory at the end of an arena; the rest is returned to the system.
ALLOCATOR_UNUSED_BYTES_MAX: Final = 4 * MIB
# Minimum size of a buffer that uses 2 MiB huge pages.
LARGE_BUFFER_BYTES_MIN: Final = 2 * MIB
# Size of a reusable buffer for ranges: a read-ahead run with the headers of 2,048 records.
RANGE_BUFFER_BYTES: Final = READAHEAD_RUN_BYTES + 64 * KIB
RANGE_BUFFERS_IDLE_S: Final = 2.0  # time without read-ahead after which range buffers are freed

# --- FUSE requests and control socket ----------------------------------------------------------
FUSE_TASKS_MAX: Final = 600  # number of waiting handlers at which pyfuse3 stops reading requests
# Maximum number of descriptors of a process that are searched for an open file, in a thread.
DESCRIPTORS_EXAMINED_MAX: Final = 4096
# Time within which a busy program sends its next request. The C extension also waits this long.
NEXT_REQUEST_S: Final = 50e-6
# Maximum time for which the request loop delays other tasks.
# The C extension can add an equal delay (STREAK_NS in fuse_intercept.c).
STREAK_S_MAX: Final = 0.5e-3
# Maximum number of requests that wait for the store. All further requests fail with an error.
WAITING_HANDLERS_MAX: Final = 300
# Additional waiting places for write-back requests: as many as the kernel sends in parallel.
WRITE_BACK_WAITING_MAX: Final = 64
# How long the kernel caches names and attributes; the daemon invalidates what it changes itself.
ENTRY_TIMEOUT_S: Final = 3600.0
CONTROL_MESSAGE_BYTES_MAX: Final = 1 * MIB

# --- hashed directories ------------------------------------------------------------------------
# Maximum number of attempts to create a file while another thread removes the directory.
PRUNE_ATTEMPTS_MAX: Final = 100

# --- checks and repairs (fsck) -----------------------------------------------------------------
# Maximum number of findings per invariant that a report lists. All findings are counted.
FSCK_EXAMPLES_MAX: Final = 100
# Maximum number of repair passes, because a repair may uncover further damage.
FSCK_ROUNDS_MAX: Final = 8
FSCK_PATH_DEPTH_MAX: Final = 4096  # maximum depth of a path that a report prints
FSCK_BATCH_ROWS: Final = 1000  # number of observations written with one statement
FSCK_SUMS_CACHE_KIB: Final = 64 * KIB  # page cache for fsck's temporary tables: 64 MiB
# Maximum number of rows of temporary tables in the page cache. Each row takes about 16 bytes.
FSCK_SUMS_ROWS_MAX: Final = 3_000_000
# Number of keys that fsck tries for a damaged pack: keys of other damaged packs of the same size.
# If two packs were swapped, one of the tried keys matches. Each attempt hashes an index.
FSCK_NAMES_TRIED_MAX: Final = 1000
# Number of times that fsck checks the images again because another host has made a new image.
FSCK_HEADS_MAX: Final = 3
# Maximum number of packs without a row for which fsck checks the owner; one request for each.
FSCK_UNNAMED_PACKS_MAX: Final = 10_000
FOREIGN_SHOWN_MAX: Final = 5  # maximum number of foreign objects that a report lists
FSCK_DEEP_PACKS_MAX: Final = 2  # number of packs verified concurrently, in 96 MiB of memory
# Number of taken names in lost+found after which fsck gives up on an inode.
LOST_NAME_ATTEMPTS_MAX: Final = 1000

assert PACK_BYTES_TARGET + 2 * BLOCK_BYTES_MAX <= PACK_BYTES_MAX, (
    "a pack must have room for its last block"
)
assert LEVEL_SECTION_BYTES_MAX <= CHANGELOG_SECTION_BYTES_MAX, (
    "a section of a level must fit into a section of a changelog"
)
assert SMALL_BLOCK_BYTES <= BLOCK_BYTES_MIN, "a block of full length is never small"
assert PACK_BYTES_MAX <= MULTIPART_BYTES, "a pack must fit into one PUT"
assert WAITING_HANDLERS_MAX + PAST_WAITING_MAX + WRITE_BACK_WAITING_MAX < FUSE_TASKS_MAX, (
    "a worker must always be free for metadata requests"
)

# --- text objects: superblock and lease ---------------------------------------------------------
# Maximum size of a superblock or lease that is parsed. Most have a few hundred bytes.
TEXT_OBJECT_BYTES_MAX: Final = 64 * KIB
# Maximum size of the local holder file: a name and LEASE_NONCES_MAX nonces.
HOLDER_BYTES_MAX: Final = 1 * KIB
# Maximum difference between the lease's epoch and the last changelog's epoch.
# Each acquisition of the lease increments the epoch, and usually appends a fence record.
EPOCH_LEAP_MAX: Final = 1 << 32
# Number of nonces that a host keeps for lease acquisitions whose outcome is unknown.
LEASE_NONCES_MAX: Final = 4
LABEL_CHARS_MAX: Final = 64
# Number of objects on which encryption keys are tried, because some objects may be damaged.
PROOF_OBJECTS_MAX: Final = 4
# Maximum number of keys examined under each prefix to detect a filesystem without a superblock.
TRACE_KEYS_MAX: Final = 1000
HOST_CHARS_MAX: Final = 255  # Linux has HOST_NAME_MAX 64; some systems allow more

# --- passphrases: bounds of argon2id parameters, because a superblock may be hostile ------------
KDF_ITERATIONS_MAX: Final = 64
KDF_MEMORY_KIB_MAX: Final = 2 * MIB  # maximum memory of argon2id: 2 GiB
KDF_LANES_MAX: Final = 16

# --- index of a pack ----------------------------------------------------------------------------
# Size of the first read at the end of a pack: enough for an index of 1,000 to 1,700 entries.
PACK_TAIL_BYTES: Final = 64 * KIB

# --- SQLite caches and checkpoints --------------------------------------------------------------
PAGE_CACHE_BYTES_MIN: Final = 4 * MIB  # size of SQLite's page cache on a small machine
# Maximum size of SQLite's page cache. A larger cache would only duplicate the kernel's cache.
PAGE_CACHE_BYTES_MAX: Final = 8 * MIB
# Maximum number of cached inode rows, at 0.7 KB per row. Changed rows do not count until written.
INODE_ROWS_MAX: Final = 8192
# Maximum number of block locations that are cached while no row changes: about 1 MB.
RECENT_ANSWERS_MAX: Final = 4096
STATEMENTS_CACHED_MAX: Final = 256  # number of prepared statements kept; the program has fewer
DATABASE_BUSY_MS: Final = 10_000  # maximum wait for another connection's lock on the database
BACKUP_STEP_PAGES: Final = 512  # number of pages copied while the database's mutex is held
# Size of new pages in the WAL at which a checkpoint in a thread becomes worthwhile.
WAL_CHECKPOINT_BYTES: Final = 8 * MIB
# Maximum size of the WAL that is copied on the event loop, between two commit groups.
WAL_REST_BYTES_MAX: Final = 4 * MIB
# Maximum number of passes in one checkpoint.
# Each pass copies about a tenth of what the previous pass copied.
WAL_PASSES_MAX: Final = 8

# --- database pages (SQLite) --------------------------------------------------------------------
PAGE_BYTES_MIN: Final = 512
PAGE_BYTES_MAX: Final = 64 * KIB

# --- operations on files and trees --------------------------------------------------------------
PURGE_BLOCKS_MAX: Final = 256  # number of blocks of a removed file released in one slice: a few ms
TREE_SLICE_NAMES: Final = 1000  # number of names of a removed tree deleted in one slice: 2 to 5 ms
TREE_SLICE_DIRECTORIES: Final = 128  # maximum number of small directories emptied in one slice
ANCESTORS_SLICE: Final = 1000  # number of parent directories that one slice visits: up to 5 ms
SEEK_SLICE_ROWS: Final = 1000  # number of blocks that a hole search reads in one slice: 1 to 2 ms
CLONE_SLICE_NAMES: Final = 400  # number of names that a clone creates in one slice: 2 to 5 ms
CLONE_SLICE_BLOCKS: Final = 1000  # number of blocks that a clone shares in one slice: 2 to 5 ms
COPIED_AT_ONCE_BYTES: Final = 1 * MIB  # number of bytes that the event loop copies in one slice
# Maximum number of bytes that one copy_file_range(2) copies by reading and writing.
COPIED_RANGE_BYTES: Final = 32 * MIB
# Maximum length of one copy_file_range(2). The kernel's reply has only 32 bits for the length.
SHARED_RANGE_BYTES: Final = 1024 * MIB
CLONE_COPIED_BYTES: Final = 4 * MIB  # dirty bytes that a clone copies in one slice: a few ms
TREE_SLICE_DISK_BYTES: Final = 1 * MIB  # maximum growth of the WAL between two schedule points
TREE_WAL_BYTES_MAX: Final = 512 * MIB  # WAL size at which operations on trees wait for a sync
TREE_PAUSE_S: Final = 0.2  # pause between two checks while work on a tree waits
TREE_BUSY_S: Final = 0.0002  # if a schedule point took longer, other tasks have run
MARK_PASSES_MAX: Final = 8  # maximum passes over the names of an inode; the last pass never yields
DIRECTORY_DEPTH_MAX: Final = 1 << 20  # a path with more directories probably has a cycle
FETCH_ROUNDS_MAX: Final = 16  # maximum number of times that one request fetches missing blocks
READDIR_ROWS_MIN: Final = 24  # number of entries that fit into the smallest readdir buffer
READDIR_S_MAX: Final = 0.002  # after this time a readdir reply ends, even if it is not full
# Maximum number of read-ahead runs that wait for a worker. All further runs are dropped.
READAHEAD_REQUESTS_MAX: Final = 32
# Number of read-ahead runs fetched and unpacked concurrently, in 96 MiB of memory.
READAHEAD_WORKERS: Final = 6
# Size that statfs reports without a capacity limit: 1 PiB.
UNLIMITED_CAPACITY_BYTES: Final = 1 << 50
UNLIMITED_INODES: Final = 1 << 40
KERNEL_READAHEAD_KIB: Final = 1024  # the kernel's read-ahead: one FUSE read of the largest size
# Maximum number of pending kernel requests for read-ahead and write-back.
KERNEL_BACKGROUND_MAX: Final = 64
UNMOUNT_GRACE_S: Final = 10.0  # time limit for unmounting after a signal while files are open


# --- the command s3fs-meta browse ---------------------------------------------------------------
FOLDER_SIZES_MAX: Final = 1_000_000  # maximum number of directories whose sizes are shown, in 56 MB
FOLDER_SIZES_SLICE: Final = 10_000  # number of rows read before other tasks may run: about 10 ms
NAME_SEARCH_SLICE: Final = 10_000  # number of names searched before other tasks may run: about 5 ms
# Maximum number of directories that a search keeps in memory: 10 MB.
NAME_SEARCH_DIRECTORIES_MAX: Final = 100_000
