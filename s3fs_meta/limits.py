"""Every bound of the program, with its unit and its reason.

Owns: constants. Knows nothing else. Relations between bounds are asserted at the end.
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
LINKS_MAX: Final = (1 << 31) - 1  # maximum number of hard links; every tool can print it
FILE_BYTES_MAX: Final = 1 << 60  # more than 16 TiB; keeps every offset in a signed 64-bit integer

# Times: 64-bit sums and differences with a ctime of 1970 to 2116 never overflow.
TIME_NS_MIN: Final = -(1 << 62)  # lowest time: the year 1823
TIME_NS_MAX: Final = (1 << 63) - 1  # highest time: the year 2262

# --- directory cookies -------------------------------------------------------------------------
# 255 names with one 55-bit keyed hash: impossible without an attack.
COOKIE_COLLISION_BITS: Final = 8
COOKIE_HASH_BITS: Final = 63 - COOKIE_COLLISION_BITS
RECENT_NAMES_MAX: Final = 64  # cached hashes of names: those of current requests
READDIR_ROWS_MAX: Final = 1024  # rows that one readdir request may read from the database

# --- blocks and packs --------------------------------------------------------------------------
# Smallest block size; below it the block map costs more than it saves.
BLOCK_BYTES_MIN: Final = 64 * KIB
# Largest block size; a random read of 4 KiB fetches a complete block.
BLOCK_BYTES_MAX: Final = 16 * MIB
PACK_BYTES_TARGET: Final = 16 * MIB  # size at which a pack is closed
PACK_BYTES_MAX: Final = 48 * MIB  # target plus the largest incompressible block and its index
# Maximum length of one requested range, because a row may claim any length.
RANGE_BYTES_MAX: Final = PACK_BYTES_MAX
PACK_BLOCKS_MAX: Final = 8192  # index entries in one pack: under 1 MiB of index
SMALL_BLOCK_BYTES: Final = 64 * KIB  # shorter blocks are fetched with their neighbours
NEIGHBOUR_FETCH_BYTES: Final = 1 * MIB  # size of the range fetched around a small block
NEIGHBOURS_MAX: Final = 256  # neighbours on each side: bounds rows read and files created at once
# Range of a pack fetched at once by commands that copy files out.
CONTENT_RUN_BYTES: Final = 8 * MIB
# Windows of NEIGHBOUR_FETCH_BYTES kept while small files are copied out.
CONTENT_WINDOWS_MAX: Final = 32
# Files copied at the same time; each needs memory for a run, stored and unpacked.
FILES_COPIED_AT_ONCE: Final = 4
# Incomplete copies that are listed; others are only counted.
INCOMPLETE_FILES_SHOWN_MAX: Final = 10_000
NEIGHBOUR_CACHE_PART: Final = 16  # fraction of the cache (1/N) for unrequested neighbours

# --- metadata images ---------------------------------------------------------------------------
IMAGE_PIECE_BYTES: Final = 8 * MIB  # database bytes per image piece: one PUT, one retry unit
# Pieces of an image: 256 GiB of metadata; a hostile manifest is parsed in a second.
IMAGE_PIECES_MAX: Final = 1 << 15
# One missing piece makes an image useless; a hostile manifest has thousands.
IMAGE_PIECE_FAULTS_MAX: Final = 16
# Growth of the WAL while the snapshot of an image waits for blocks to be uploaded; beyond it the
# image is abandoned and retried.
IMAGE_WAL_BYTES_MAX: Final = 256 * MIB
IMAGES_KEPT: Final = 2  # images that are never deleted, with everything they need
IMAGES_SPACED: Final = 8  # older retained images are an eighth of the retention apart
SALVAGE_IMAGES_MAX: Final = 64  # damaged images that are read; the retention keeps about ten
SALVAGE_PROBES_MAX: Final = 2_000_000  # searches for readable rows in one table: a minute, not days
SALVAGE_PROBES_OF_GAP: Final = 64  # probes, evenly between two readable runs of rows
SALVAGE_ROWS_AT_ONCE: Final = 1000  # rows in memory while they are salvaged from a damaged image
# Length of a value or row in an image or a change; the longest, an attribute, has 64 KiB, so a longer
# one is damage.
IMAGE_VALUE_BYTES_MAX: Final = 1 * MIB
# Larger than any metadata object; parsing is refused beyond it.
ENVELOPE_BYTES_MAX: Final = 64 * MIB
# Length of a value or row of a database on this host: the longest is an attempted changelog, which is
# one object. SQLite would read and allocate up to 1 GB.
DATABASE_VALUE_BYTES_MAX: Final = ENVELOPE_BYTES_MAX + 1 * MIB
# Length of an SQL statement: those of this program have a few KiB; definitions in a hostile file are
# not parsed beyond it.
DATABASE_SQL_BYTES_MAX: Final = 1 * MIB

# --- changelogs --------------------------------------------------------------------------------
SYNC_BYTES_MAX: Final = 16 * MIB  # size of recorded changes at which a changelog is due at once
# Polls without an answer after which a follower checks whether the chain continues under a later
# number.
FOLLOW_LISTING_POLLS: Final = 30
# Names and inodes of one txg in a follower's memory: 40 MB; for a larger txg all kernel caches are
# invalidated.
FOLLOW_TOUCHED_MAX: Final = 200_000
FOLLOW_ANEW_S: Final = 60.0  # minimum time between two restores of a follower
CHANGELOG_RUN_BYTES: Final = 4 * MIB  # changes merged at once, and put into one section
CHANGELOG_LOCATIONS_MAX: Final = 50_000  # block locations in one section: 3 MiB
CONDENSED_RECORDS_MIN: Final = 200  # recorded groups waiting for the bucket are merged
# Recorded groups merged at once: a second of many changes, or an hour of few.
CONDENSED_RECORDS_MAX: Final = 2000
# Records in memory to answer queries about unshipped files: 30 MB.
UNSHIPPED_INODES_MAX: Final = 200_000
# Inodes collected from records in one slice; the last record may exceed it: bounds memory, and takes
# 12 ms of the loop without a WAL.
UNSHIPPED_INODES_AT_ONCE_MAX: Final = 2000
UNSHIPPED_PATHS_MAX: Final = 2000  # paths in one answer
CONDENSE_INTERVAL_S: Final = 30.0
PURGED_AT_ONCE_MAX: Final = 50  # records removed in one slice; each may be some hundred kilobytes
TXG_LEAP_MAX: Final = (
    1 << 39
)  # txgs in names beyond the last known one: 87 years of one every 5 ms, in 12 digits; the name of
# a later one is foreign, since a number near 2^63 would leave none for the next txg
TXG_GAP_MAX: Final = 100  # missing names in a row that lost objects explain; a name after more of
# them counts only if its object opens with the keys of the filesystem
TXG_GAPS_MAX: Final = 16  # foreign runs of such names that are read before the rest is ignored
TXG_PROOFS_MAX: Final = 2  # objects read at each end of a run: one may be damaged
FENCE_ROUNDS_MAX: Final = 5  # late changelogs of older writers applied while a new one begins
CHANGELOG_SECTION_BYTES_MAX: Final = 24 * MIB  # changes in one object; more are split into parts
# Parts of a changelog: 64 GiB of changes; their names fit into one object.
CHANGELOG_PARTS_MAX: Final = 1 << 14
# Packs in a changelog: 4 TiB of new content in one txg, and as many deleted packs.
CHANGELOG_PACKS_MAX: Final = 1 << 18
HISTORY_FETCHES_MAX: Final = 8  # changelogs of a history fetched at once: bounds memory
REMOVAL_FETCHES_MAX: Final = 16  # objects read in parallel before a removal: latency dominates
# Inodes in memory during a search for changes below a path.
WATCHED_DIRECTORIES_MAX: Final = 100_000
HISTORY_SHOWN_DEFAULT: Final = 30  # txgs
MARK_HASH_DIGITS: Final = 32  # digits of a changelog's hash that a mount prints: 128 bits
MARK_HASH_DIGITS_MIN: Final = 16  # digits that a user must give at least

# --- levels ------------------------------------------------------------------------------------
LEVEL_FAN_OUT: Final = 5  # objects of one level merged into one of the next: a week is 53 at most
LEVELS_MAX: Final = 8  # the last level spans 390,625 txgs, three weeks at a txg every 5 s
LEVEL_SECTION_BYTES_MAX: Final = 16 * MIB  # changes and locations in one object: bounds memory
LEVEL_INPUT_BYTES_MAX: Final = 48 * MIB  # bytes merged at once
LEVEL_CHECK_S: Final = 10.0  # how often a mount checks for objects to merge

# --- retention ---------------------------------------------------------------------------------
RETENTION_S_DEFAULT: Final = 7 * 86_400  # default: any point in time of the last week
RETENTION_S_MAX: Final = 100 * 365 * 86_400  # for ever
RECLAIM_INTERVAL_S: Final = 600.0  # time between two searches for objects to delete
RECLAIM_KEYS_MAX: Final = 10_000  # objects that one pass deletes; more wait for the next
RECLAIM_PACK_ROWS: Final = 100_000  # keys of packs in memory while looking for packs without a row
WATCHED_TAIL_BYTES: Final = 64  # last bytes of a changelog, with its authentication tag or checksum
MEND_PROBES_MAX: Final = 1_000  # changelogs read to find where a repaired chain continues
ABANDONED_SHOWN_MAX: Final = 50  # abandoned txgs that fsck describes; others are only counted
# Time between two txgs counts up to this if only this host's clock measured it: a
# clock jump then costs a day.
RETENTION_GAP_S_MAX: Final = 86_400
# Between this host's clock and the store's: a clock that was set is within it, a wrong time zone or
# date is not; S3 refuses requests beyond 900 s.
CLOCK_OFF_S_MAX: Final = 600
RECLAIM_PROBES_MAX: Final = 64  # changelogs read to find the one as old as the retention

# --- object stores -----------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 500  # length of a key, within the limit of every server (1,024)
# Length of a component of a key, for stores that keep objects as files.
KEY_COMPONENT_BYTES_MAX: Final = 255
OBJECT_BYTES_MAX: Final = 5 * GIB  # S3's limit of one PUT
MULTIPART_BYTES: Final = 64 * MIB  # larger objects are sent in parts of this size
# Bytes read to recognise the version; a larger file is compared by size and time.
HASHED_BYTES_MAX: Final = 64 * MIB
LIST_PAGE_KEYS: Final = 1000  # S3's page
DELETE_BATCH_KEYS: Final = 1000  # S3's DeleteObjects
STORE_ATTEMPTS_MAX: Final = 8  # about one minute with the delays below
STORE_DELAY_S_MIN: Final = 0.1
STORE_DELAY_S_MAX: Final = 20.0
STORE_THREADS_MAX: Final = 4  # boto3 holds the interpreter lock 0.8 ms per request
STORE_CONNECT_TIMEOUT_S: Final = 5
STORE_READ_TIMEOUT_S: Final = 20
STORE_TOTAL_S_MAX: Final = 120.0  # time after the first attempt in which retries may begin
STORE_SILENCE_S_MAX: Final = 1.0  # wait before a store that has never answered is reported
OFFLINE_AFTER_S: Final = 10.0  # wait before a read-only mount uses complete local state
# An answer is read in pieces, so that a slow one is noticed early.
STORE_BODY_CHUNK_BYTES: Final = 256 * KIB
STORE_BODY_BYTES_PER_S_MIN: Final = 32 * KIB  # slower answers are abandoned
STORE_CLEANUP_S_MAX: Final = 10.0  # time for deleting a probe or an unfinished upload

# --- group commit and background sync ----------------------------------------------------------
GROUP_DELAY_S: Final = 0.005  # a group commits after so long without a further operation
GROUP_AGE_S_MAX: Final = 0.05  # and at this age in any case: bounds what a kill costs
GROUP_OPERATIONS_MAX: Final = 500  # operations in a group: bounds the loss on SQLITE_FULL
WAL_BYTES_MAX: Final = 64 * MIB  # WAL size at which a background sync checkpoints, in a thread
COLLECT_S_MAX: Final = 5.0  # time that a sync or a cut waits for the kernel's dirty data
# Passes of a collection; more would help only while programs write fast.
COLLECT_PASSES_MAX: Final = 3
# A quiet pass has fewer requests; below the bound at which the kernel skips files.
COLLECT_QUIET_REQUESTS: Final = 8
# Wait for a killed process, which ends at once unless it waits for the mount.
COLLECTOR_END_S_MAX: Final = 2.0
IMAGE_CHECK_S: Final = 10.0  # how often a mount checks whether an image is due
IMAGE_SHARE: Final = 4  # an image is due when the changelogs reach 1/N of its stored size
NEWS_BYTES_MIN: Final = 512  # a smaller changelog is a fence record or only lists deletions
IMAGE_SHARE_BYTES_MIN: Final = 4 * MIB  # below this size an image saves no restore time
# Age of a block's last write at which it is sealed, if a pack can be filled.
SEAL_AGE_S: Final = 5.0
SEAL_LINGER_S: Final = 30.0  # age at which a block is sealed in any case, even if its pack is small
# Time between reads of the lease during uploads: bounds uploads of a fenced mount.
LEASE_CHECK_S: Final = 10.0
# Batches packed or uploaded at once; each needs memory for all its packs: 2 x SEAL_BATCH_BYTES,
# plain and packed.
UPLOADS_MAX: Final = 2

# --- cache -------------------------------------------------------------------------------------
CACHE_BYTES_MIN: Final = 64 * MIB
DISK_RESERVE_BYTES: Final = 32 * MIB  # disk space reserved for SQLite: many times the largest group
OPEN_BLOCKS_MAX: Final = 2048  # files kept open; at most a fourth of the process limit
# File descriptors that a mount requests, if its user may raise the limit.
OPEN_FILES_WANTED: Final = 8192
CACHED_BLOCKS_MAX: Final = 250_000  # cached blocks: bounds the index in memory at about 50 MB
DIRTY_BLOCKS_MAX: Final = 100_000  # blocks not yet uploaded: bounds what one flush must upload
SYNCFS_FILES_MIN: Final = 32  # number of files from which one syncfs is cheaper than an fsync each
DISK_CHECK_BYTES: Final = 8 * MIB  # bytes written between two checks of the disk
# Additional blocks evicted at once, because each small file takes time.
DISK_FREE_BYTES: Final = 64 * KIB
OPERATION_DISK_BYTES: Final = 16 * KIB  # growth of the WAL by one metadata operation at most
SEAL_BATCH_BYTES: Final = 64 * MIB  # plain bytes sealed and packed at once
SEAL_BATCH_BLOCKS_MAX: Final = 2048  # blocks in one batch: their rows are read in one slice
# Files removed on the loop: under 1 ms; more are removed in a thread.
EVICTED_AT_ONCE_MAX: Final = 16
LOOP_SLICE_ROWS: Final = 100  # blocks handled between two schedule points: 1 to 5 ms
COMPACT_LIVE_FRACTION: Final = 0.4  # a pack with a smaller live share is compacted
INDEX_ENTRY_BYTES: Final = 80  # maximum size of a block's entry in a pack's index
PACK_OVERHEAD_BYTES: Final = 128  # trailer, salts and tags of the smallest pack
# Mostly dead packs examined in one pass: some would not shrink.
COMPACT_CANDIDATES_MAX: Final = 1000
COMPACT_FAILURES_MAX: Final = 16  # unreadable packs in one pass; each is fetched twice
COMPACT_PACKS_MAX: Final = 4  # packs compacted after one image: bounds the download
CLEANUP_S_MAX: Final = 10.0  # time for removing a temporary file, also during cancellation
EQUAL_BLOCKS_MAX: Final = 16  # rows of equal content that are examined; two are already rare
QUARANTINES_SEARCHED_MAX: Final = 16  # quarantined states that a mount searches for lost content
LOST_PARTS_MAX: Final = 100_000  # lost parts of files that one mount tries to heal: 10 MB of memory
DAMAGED_RECORDS_MAX: Final = 64  # marked records of one pack; one more marks the whole pack
DAMAGE_SCAN_ROWS: Final = 1000  # rows of the block map read in one slice: 1 ms
UPLOAD_PAUSE_S: Final = 5.0  # pause after an upload failed on this host: disk or database
UPLOAD_RETRY_S_MAX: Final = 60.0  # pause between two attempts in a long outage
FETCHES_MAX: Final = 4  # blocks fetched from the store at once
# Read-ahead of a sequential reader: keeps four connections busy.
READAHEAD_BYTES_MAX: Final = 64 * MIB
READAHEAD_CACHE_PART: Final = 8  # read-ahead is limited to 1/N of the cache
READAHEAD_RUN_BYTES: Final = 8 * MIB  # content requested at once: latency is then a small part
RUN_SLICE_BLOCKS: Final = 4  # bytes of a run unpacked before its readers continue: 2 ms
# Factor by which a read-ahead window grows for each run that is read; it begins with one run.
READAHEAD_GROWTH: Final = 4

# --- fuse --------------------------------------------------------------------------------------
FUSE_TASKS_MAX: Final = 480  # pyfuse3 stops reading requests at this number of waiting handlers
# Descriptors of a process searched for a file: some ms in a thread.
DESCRIPTORS_EXAMINED_MAX: Final = 4096
NEXT_REQUEST_S: Final = 100e-6  # an active caller sends its next request within this time
STREAK_S_MAX: Final = 1e-3  # time of taking requests without the scheduler
# Handlers that may wait for the store; the next one gets an error.
WAITING_HANDLERS_MAX: Final = 300
WRITE_BACK_WAITING_MAX: Final = 64  # plus write-back handlers: as many as the kernel sends at once
HELD_BACK_MAX: Final = 48  # writers that wait for a frozen copy; one more ends the freeze
FREEZE_S_DEFAULT: Final = 60.0  # time limit of a freeze: about three million entries
FREEZE_S_MIN: Final = 0.001
FREEZE_S_MAX: Final = 3600.0
ENTRY_TIMEOUT_S: Final = 3600.0  # one writer per filesystem: the kernel's entries cannot be stale
CONTROL_MESSAGE_BYTES_MAX: Final = 1 * MIB
CONTROL_CONNECTIONS_MAX: Final = 16  # waiting connections of clients
CONTROL_EVENTS_MAX: Final = 64  # queued progress events of one client; more are dropped
CONTROL_IDLE_S_MAX: Final = 60.0  # idle time after which a client is disconnected

# --- directories that are never empty ----------------------------------------------------------
PRUNE_ATTEMPTS_MAX: Final = 100  # attempts to create while another thread prunes

# --- fsck --------------------------------------------------------------------------------------
FSCK_EXAMPLES_MAX: Final = 100  # findings of one invariant that a report keeps; all are counted
FSCK_ROUNDS_MAX: Final = 8  # passes of repairs, as some uncover further damage
FSCK_PATH_DEPTH_MAX: Final = 4096  # directories above a path in a report
FSCK_BATCH_ROWS: Final = 1000  # observations written with one statement
FSCK_SUMS_CACHE_KIB: Final = 64 * KIB  # page cache of temporary tables: 64 MiB
FSCK_SUMS_ROWS_MAX: Final = 3_000_000  # rows of about 16 bytes that fit into it
# Names under which fsck tries to read a pack that does not match its own: damaged packs of
# exactly its size. An exchange of two has one; each try hashes an index.
FSCK_NAMES_TRIED_MAX: Final = 1000
FSCK_HEADS_MAX: Final = 3  # images that another host may make during the check of the kept ones
# Packs without a row whose owner is checked, with one request each; others are kept.
FSCK_UNNAMED_PACKS_MAX: Final = 10_000
FOREIGN_SHOWN_MAX: Final = 5  # foreign objects that a report names; all are counted
FSCK_DEEP_PACKS_MAX: Final = 2  # packs downloaded and verified at once: bounds memory at 96 MiB
LOST_NAME_ATTEMPTS_MAX: Final = 1000  # names tried in lost+found before fsck gives up on one inode

assert PACK_BYTES_TARGET + 2 * BLOCK_BYTES_MAX <= PACK_BYTES_MAX, "a pack must hold its last block"
assert LEVEL_SECTION_BYTES_MAX <= CHANGELOG_SECTION_BYTES_MAX, "a section is parsed by one rule"
assert SMALL_BLOCK_BYTES <= BLOCK_BYTES_MIN, "a whole block is part of a large file"
assert PACK_BYTES_MAX <= MULTIPART_BYTES, "a pack is one PUT"
assert WAITING_HANDLERS_MAX + WRITE_BACK_WAITING_MAX + HELD_BACK_MAX < FUSE_TASKS_MAX, (
    "metadata requests must always find a worker"
)

# --- stored text objects (superblock, lease) ----------------------------------------------------
# Some hundred bytes in practice; parsing is refused beyond it.
TEXT_OBJECT_BYTES_MAX: Final = 64 * KIB
HOLDER_BYTES_MAX: Final = 1 * KIB  # of the local holder file: a name, and the nonces below
# Epochs of a lease beyond the chain's last: each mount for writing takes one and appends a fence
# record, unless it is killed at once.
EPOCH_LEAP_MAX: Final = 1 << 32
LEASE_NONCES_MAX: Final = 4  # nonces that a host keeps: acquisitions with an unknown outcome
LABEL_CHARS_MAX: Final = 64
PROOF_OBJECTS_MAX: Final = 4  # objects of one kind tried with the keys: some may be damaged
# Objects of one kind read if the superblock is missing: one page of a listing.
TRACE_KEYS_MAX: Final = 1000
HOST_CHARS_MAX: Final = 255  # HOST_NAME_MAX is 64; some systems allow more

# --- passphrases (argon2id; a superblock that asks for more is hostile) --------------------------
KDF_ITERATIONS_MAX: Final = 64
KDF_MEMORY_KIB_MAX: Final = 2 * MIB  # 2 GiB
KDF_LANES_MAX: Final = 16

# --- pack index ---------------------------------------------------------------------------------
PACK_TAIL_BYTES: Final = 64 * KIB  # first guess at the size of the index: about 1,000 entries

# --- SQLite -------------------------------------------------------------------------------------
PAGE_CACHE_BYTES_MIN: Final = 4 * MIB  # for small machines
PAGE_CACHE_BYTES_MAX: Final = 8 * MIB  # larger caches only duplicate the kernel's page cache
INODE_ROWS_MAX: Final = 8192  # cached inode rows, 0.7 KB each: directories in use, new files
RECENT_ANSWERS_MAX: Final = 4096  # block locations cached while no row changes: about 1 MB
STATEMENTS_CACHED_MAX: Final = 256  # more than the number of different statements
DATABASE_BUSY_MS: Final = 10_000  # time that a reader may hold a lock: one step
BACKUP_STEP_PAGES: Final = 512  # pages copied with the database's mutex held
# New WAL pages at which a checkpoint in a thread is worthwhile.
WAL_CHECKPOINT_BYTES: Final = 8 * MIB
WAL_REST_BYTES_MAX: Final = 4 * MIB  # WAL that may be copied on the loop, between two groups
WAL_PASSES_MAX: Final = 8  # passes of one checkpoint; each leaves a tenth of the one before

# --- database pages (SQLite) --------------------------------------------------------------------
PAGE_BYTES_MIN: Final = 512
PAGE_BYTES_MAX: Final = 64 * KIB

# --- filesystem semantics -----------------------------------------------------------------------
PURGE_BLOCKS_MAX: Final = 256  # blocks of a removed file released in one slice: some ms
TREE_SLICE_NAMES: Final = 1000  # names of a removed tree deleted in one slice: 2 to 5 ms
TREE_SLICE_DIRECTORIES: Final = 128  # tops in one slice: bounds small ones
SEEK_SLICE_ROWS: Final = 1000  # blocks examined in one slice for the next hole: 1 to 2 ms
CLONE_SLICE_NAMES: Final = 400  # names created by a slice of a copy: 2 to 5 ms
CLONE_SLICE_BLOCKS: Final = 1000  # blocks shared by a slice of a copy: 2 to 5 ms
COPIED_AT_ONCE_BYTES: Final = 1 * MIB  # bytes copied at once, on the loop: as in one write request
COPIED_RANGE_BYTES: Final = 32 * MIB  # bytes read and written by one copy_file_range
SHARED_RANGE_BYTES: Final = 1024 * MIB  # bytes covered by it in total; the result has 32 bits
CLONE_COPIED_BYTES: Final = 4 * MIB  # unshipped content copied in one slice: some ms
TREE_SLICE_DISK_BYTES: Final = 1 * MIB  # growth of the WAL by a slice
TREE_WAL_BYTES_MAX: Final = 512 * MIB  # WAL size at which work on trees waits for a sync
# Longest wait for the kernel to forget removed names before the command is answered.
TREE_FORGET_S_MAX: Final = 0.05
KERNEL_FORGET_S_MAX: Final = 10.0  # time that a command waits for its effect to become visible
TREE_PAUSE_S: Final = 0.2  # pause between two checks, also when the disk is full
TREE_BUSY_S: Final = 0.0002  # a checkpoint that takes longer was interleaved with other tasks
DIRECTORY_DEPTH_MAX: Final = 1 << 20  # depth of a directory beyond which a loop is assumed
FETCH_ROUNDS_MAX: Final = 16  # retries of a request after waiting for blocks
READDIR_ROWS_MIN: Final = 24  # bytes that fit into the kernel's smallest readdir buffer
READAHEAD_REQUESTS_MAX: Final = 32  # runs that wait for a worker; more are dropped
READAHEAD_WORKERS: Final = 6  # runs fetched and unpacked at once: bounds memory at 96 MiB
GROUP_NAMES_MAX: Final = 100_000  # names of one group, kept in case SQLite loses it
UNLIMITED_CAPACITY_BYTES: Final = 1 << 50  # 1 PiB: size shown by statfs without a limit
UNLIMITED_INODES: Final = 1 << 40
KERNEL_READAHEAD_KIB: Final = 1024  # one FUSE read of the largest size
KERNEL_BACKGROUND_MAX: Final = 64  # pending kernel requests for read-ahead and write-back
HOLDERS_SHOWN_MAX: Final = 10  # processes of other mount namespaces named in a message
# After an unmount, a mount without visible holders must end within this time.
HELD_S_MAX: Final = 5.0
HELD_PAUSE_S: Final = 0.1  # time between two checks of it
# Attempts of an unmount: a collection makes a mountpoint busy for milliseconds, programs for longer.
BUSY_ATTEMPTS_MAX: Final = 5
BUSY_PAUSE_S: Final = 0.1
UNMOUNT_GRACE_S: Final = 10.0  # after a signal: time limit for open files

# --- s3fs-meta bench ----------------------------------------------------------------------------
BENCH_THREADS_MAX: Final = 256  # more would only wait for each other; each holds a block in memory
BENCH_FILES_MAX: Final = 1_000_000  # operations of one thread; 8 bytes of latency are kept for each
BENCH_BLOCK_BYTES_MAX: Final = 64 * MIB  # bytes of one read or write, in memory
BENCH_POLL_S: Final = 0.1  # time between updates of the bar and checks for an interrupt
