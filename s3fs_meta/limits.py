"""Every bound of the program, with its unit and its reason.

Owns: constants. Knows nothing else. Relations between bounds are asserted at the end.
"""

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# --- names and attributes (POSIX, Linux) -------------------------------------------------------
NAME_BYTES_MAX: Final = 255  # NAME_MAX in linux/limits.h
SYMLINK_BYTES_MAX: Final = 4095  # PATH_MAX without its NUL; symlink(2)
XATTR_NAME_BYTES_MAX: Final = 255  # XATTR_NAME_MAX; xattr(7)
XATTR_VALUE_BYTES_MAX: Final = 64 * KIB  # XATTR_SIZE_MAX; xattr(7)
XATTR_LIST_BYTES_MAX: Final = 64 * KIB  # XATTR_LIST_MAX; listxattr(2) cannot answer with more
LINKS_MAX: Final = (1 << 31) - 1  # st_nlink that every tool can still print
FILE_BYTES_MAX: Final = 1 << 60  # more than 16 TiB; keeps every offset in a signed 64-bit integer

# Times: 64-bit sums and differences with a ctime of 1970 to 2116 never overflow.
TIME_NS_MIN: Final = -(1 << 62)  # the year 1823
TIME_NS_MAX: Final = (1 << 63) - 1  # the year 2262

# --- directory cookies -------------------------------------------------------------------------
COOKIE_COLLISION_BITS: Final = 8  # 255 names with one 55-bit keyed hash: never without an attack
COOKIE_HASH_BITS: Final = 63 - COOKIE_COLLISION_BITS
RECENT_NAMES_MAX: Final = 64  # names whose hash is remembered: those of requests under way
READDIR_ROWS_MAX: Final = 1024  # rows that one readdir request may read from the database

# --- blocks and packs --------------------------------------------------------------------------
BLOCK_BYTES_MIN: Final = 64 * KIB  # below it the block map outgrows its worth
BLOCK_BYTES_MAX: Final = 16 * MIB  # a random 4 KiB read fetches one whole block
PACK_BYTES_TARGET: Final = 16 * MIB  # a pack is closed when it reaches this size
PACK_BYTES_MAX: Final = 48 * MIB  # target plus one incompressible largest block and its index
RANGE_BYTES_MAX: Final = PACK_BYTES_MAX  # of one answer, in memory: what a row says may be anything
PACK_BLOCKS_MAX: Final = 8192  # index entries in one pack: under 1 MiB of index
SMALL_BLOCK_BYTES: Final = 64 * KIB  # shorter blocks fetch their neighbours with them
NEIGHBOUR_FETCH_BYTES: Final = 1 * MIB  # range fetched around a small block
NEIGHBOURS_MAX: Final = 256  # of them on each side: bounds rows looked at and files made at once
CONTENT_RUN_BYTES: Final = 8 * MIB  # of a pack, fetched at once by commands that copy files out
CONTENT_WINDOWS_MAX: Final = 32  # of NEIGHBOUR_FETCH_BYTES, kept while small files are copied out
FILES_COPIED_AT_ONCE: Final = 4  # each holds a run, stored and plain
INCOMPLETE_FILES_TOLD_MAX: Final = 10_000  # of copies; the others are counted
NEIGHBOUR_CACHE_PART: Final = 16  # one part in so many of the cache may hold unrequested neighbours

# --- metadata images ---------------------------------------------------------------------------
IMAGE_PIECE_BYTES: Final = 8 * MIB  # database bytes per image piece: one PUT, one retry unit
IMAGE_PIECES_MAX: Final = 1 << 15  # 256 GiB of metadata; a hostile manifest is parsed in a second
IMAGE_PIECE_FAULTS_MAX: Final = 16  # one makes an image useless; a hostile manifest has thousands
IMAGE_WAL_BYTES_MAX: Final = 256 * MIB  # log that grows while the snapshot of an image waits for
#                                         blocks to be uploaded; then it is given up, and tried again
IMAGES_KEPT: Final = 2  # whatever the last two images need is never deleted
IMAGES_SPACED: Final = 8  # older ones that are retained lie an eighth of the retention apart
SALVAGE_IMAGES_MAX: Final = 64  # damaged images that are read; the retention keeps some ten
SALVAGE_PROBES_MAX: Final = 2_000_000  # searches for readable rows in one table: a minute, not days
SALVAGE_PROBES_OF_GAP: Final = 64  # evenly in what is between two readable runs of rows
SALVAGE_ROWS_AT_ONCE: Final = 1000  # rows in memory on their way from a damaged image
SALVAGE_VALUE_BYTES_MAX: Final = 1 * MIB  # above any row of ours; a longer one is damage
ENVELOPE_BYTES_MAX: Final = 64 * MIB  # a metadata object never is larger; refuse to parse more

# --- changelogs --------------------------------------------------------------------------------
SYNC_INTERVAL_S_DEFAULT: Final = 5.0  # the sync_interval= option: a changelog so often
SYNC_BYTES_MAX: Final = 16 * MIB  # recorded changes from which on one is due at once
POLL_INTERVAL_S_DEFAULT: Final = 2.0  # the poll= option: a follower asks for the next one so often
FOLLOW_LISTING_POLLS: Final = 30  # polls without an answer after which a follower looks whether the
#                                   chain goes on somewhere else
FOLLOW_TOUCHED_MAX: Final = 200_000  # names and inodes that a follower remembers of one txg: 40 MB;
#                                      of a larger one the kernel forgets all that it knows
FOLLOW_ANEW_S: Final = 60.0  # after a follower began to restore: until it may do so again
CHANGELOG_RUN_BYTES: Final = 4 * MIB  # changes merged at once, and put into one section
CHANGELOG_LOCATIONS_MAX: Final = 50_000  # in one section: 3 MiB
CONDENSED_RECORDS_MIN: Final = 200  # recorded groups that wait for the bucket are merged here,
CONDENSED_RECORDS_MAX: Final = 2000  # so many at once: a second of many changes, or an hour of few
UNSHIPPED_INODES_MAX: Final = 200_000  # remembered for questions about them: 30 MB
UNSHIPPED_INODES_AT_ONCE_MAX: Final = 2000  # read of records in one stretch, and one record more:
#                                             memory, and 12 ms of the loop without a WAL
UNSHIPPED_PATHS_MAX: Final = 2000  # of one answer
CONDENSE_INTERVAL_S: Final = 30.0
PURGED_AT_ONCE_MAX: Final = 50  # records removed in one slice; each may be some hundred kilobytes
FENCE_ROUNDS_MAX: Final = 5  # older writers that append while a new one begins
CHANGELOG_SECTION_BYTES_MAX: Final = 24 * MIB  # changes in one object; more go into parts
CHANGELOG_PARTS_MAX: Final = 1 << 14  # 64 GiB of changes; their names fit one object
CHANGELOG_PACKS_MAX: Final = 1 << 18  # 4 TiB of new content in one txg, and as many packs gone
HISTORY_FETCHES_MAX: Final = 8  # changelogs of a history fetched at once: memory for so many
REMOVAL_FETCHES_MAX: Final = 16  # objects read at once before a removal: latency is most of it
WATCHED_DIRECTORIES_MAX: Final = 100_000  # remembered by a search for changes below a path
HISTORY_SHOWN_DEFAULT: Final = 30  # txgs
MARK_HASH_DIGITS: Final = 32  # of a changelog's hash, as a mount prints it: 128 bits
MARK_HASH_DIGITS_MIN: Final = 16  # that a user must give at least

# --- levels ------------------------------------------------------------------------------------
LEVEL_FAN_OUT: Final = 5  # objects of one level merged into one of the next: a week is 53 at most
LEVELS_MAX: Final = 8  # the last one spans 390,625 txgs, three weeks at a txg every 5 s
LEVEL_SECTION_BYTES_MAX: Final = 16 * MIB  # changes and places of one object: bounds memory
LEVEL_INPUT_BYTES_MAX: Final = 48 * MIB  # what is merged at once
LEVEL_LOOK_S: Final = 10.0  # how often a mount checks for objects to merge

# --- retention ---------------------------------------------------------------------------------
RETENTION_S_DEFAULT: Final = 7 * 86_400  # any moment of the last week
RETENTION_S_MAX: Final = 100 * 365 * 86_400  # for ever
RECLAIM_INTERVAL_S: Final = 600.0  # a mount looks so often for objects to delete
RECLAIM_KEYS_MAX: Final = 10_000  # objects that one pass deletes; more wait for the next
RECLAIM_PACK_ROWS: Final = 100_000  # keys of packs held in memory to find those without row
WATCHED_TAIL_BYTES: Final = 64  # of a changelog: its authentication tag or checksum is in them
MEND_PROBES_MAX: Final = 1_000  # changelogs read to find where a mended chain goes on
GIVEN_UP_SHOWN_MAX: Final = 50  # txgs that fsck gives up and describes; the rest is a number
# So much of the time between two txgs counts where only this host's clock says how much it was: a
# clock that jumps costs a day.
RETENTION_GAP_S_MAX: Final = 86_400
# Between this host's clock and the store's: any clock that is set is within it, a wrong time zone or
# date is not; S3 refuses requests from 900 s on.
CLOCK_OFF_S_MAX: Final = 600
RECLAIM_PROBES_MAX: Final = 64  # changelogs read to find the one that is as old as the retention

# --- object stores -----------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 500  # flat keys below what every server allows (1,024)
KEY_COMPONENT_BYTES_MAX: Final = 255  # stores that keep objects as files
OBJECT_BYTES_MAX: Final = 5 * GIB  # S3's limit of one PUT
MULTIPART_BYTES: Final = 64 * MIB  # objects above it are sent in parts of this size
HASHED_BYTES_MAX: Final = 64 * MIB  # read to know its version; of a larger file size and time count
LIST_PAGE_KEYS: Final = 1000  # S3's page
DELETE_BATCH_KEYS: Final = 1000  # S3's DeleteObjects
STORE_ATTEMPTS_MAX: Final = 8  # about one minute with the delays below
STORE_DELAY_S_MIN: Final = 0.1
STORE_DELAY_S_MAX: Final = 20.0
STORE_THREADS_MAX: Final = 4  # boto3 holds the interpreter lock 0.8 ms per request
STORE_CONNECT_TIMEOUT_S: Final = 5
STORE_READ_TIMEOUT_S: Final = 20
STORE_TOTAL_S_MAX: Final = 120.0  # no further attempt begins later than this after the first
STORE_SILENCE_S_MAX: Final = 1.0  # of a store that has never answered, before that is reported
OFFLINE_AFTER_S: Final = 10.0  # a mount that only reads then goes on from complete local state
STORE_BODY_CHUNK_BYTES: Final = 256 * KIB  # an answer is read in pieces: a slow one is seen early
STORE_BODY_BYTES_PER_S_MIN: Final = 32 * KIB  # slower answers are given up
STORE_CLEANUP_S_MAX: Final = 10.0  # what removing a probe or an unfinished upload may take

# --- group commit and background sync ----------------------------------------------------------
GROUP_DELAY_S: Final = 0.005  # a group commits this long after its first operation
GROUP_OPERATIONS_MAX: Final = 500  # and after so many operations: bounds what SQLITE_FULL can undo
WAL_BYTES_MAX: Final = 64 * MIB  # a background sync then checkpoints, in a thread
COMMIT_INTERVAL_S_DEFAULT: Final = 5.0  # the commit= option: cache files, then the WAL, to disk
IMAGE_INTERVAL_S_DEFAULT: Final = 86400.0  # an image at least so often, if anything was shipped
COLLECT_S_MAX: Final = 5.0  # a sync or a cut waits so long for what the kernel holds of open files
COLLECT_PASSES_MAX: Final = 3  # each asks for everything; more help only while programs write fast
COLLECT_QUIET_REQUESTS: Final = 8  # fewer than the kernel's own bound from which on it skips files
COLLECTOR_END_S_MAX: Final = 2.0  # a killed process ends at once, but if it waits for the mount
IMAGE_LOOK_S: Final = 10.0  # how often a mount checks whether an image is due
IMAGE_SHARE: Final = 4  # changelogs of so large a part of the last image, as stored, make one due
NEWS_BYTES_MIN: Final = 512  # a smaller changelog is a fence record, or only says what is deleted
IMAGE_SHARE_BYTES_MIN: Final = 4 * MIB  # below this size an image saves no restore time
SEAL_AGE_S: Final = 5.0  # a block not written for so long is sealed once there is a pack of such
SEAL_LINGER_S: Final = 30.0  # and after so long in any case, so that few packs are small
LEASE_LOOK_S: Final = 10.0  # uploads read the lease so often: a taken-over mount ships no longer
UPLOADS_MAX: Final = 2  # batches packed or on their way at once; each holds all its packs:
#                         memory for 2 x SEAL_BATCH_BYTES, plain and packed

# --- cache -------------------------------------------------------------------------------------
CACHE_BYTES_DEFAULT: Final = 10 * GIB
CACHE_BYTES_MIN: Final = 64 * MIB
DISK_RESERVE_BYTES: Final = 32 * MIB  # kept free for SQLite: the largest group many times over
OPEN_BLOCKS_MAX: Final = 2048  # files kept open; never more than a fourth of what may be open
OPEN_FILES_WANTED: Final = 8192  # by a mount, if its user may raise the limit so far
CACHED_BLOCKS_MAX: Final = 250_000  # cached blocks: bounds the index in memory at about 50 MB
DIRTY_BLOCKS_MAX: Final = 100_000  # blocks not yet uploaded: bounds what one flush must upload
SYNCFS_FILES_MIN: Final = 32  # from so many files on, one syncfs is cheaper than an fsync each
DISK_CHECK_BYTES: Final = 8 * MIB  # bytes that may be written between two checks of the disk
DISK_FREE_BYTES: Final = 64 * KIB  # evicted beyond what is wanted: small files cost time, each
OPERATION_DISK_BYTES: Final = 16 * KIB  # what one metadata operation may add to the WAL
SEAL_BATCH_BYTES: Final = 64 * MIB  # plain bytes frozen and packed at once
SEAL_BATCH_BLOCKS_MAX: Final = 2048  # blocks of one batch: their rows are read in one slice
EVICTED_AT_ONCE_MAX: Final = 16  # files removed on the loop: under 1 ms; more go in a thread
LOOP_SLICE_ROWS: Final = 100  # blocks handled between two schedule points: 1 to 5 ms
COMPACT_LIVE_FRACTION: Final = 0.4  # a pack with fewer live bytes is emptied into new ones
INDEX_ENTRY_BYTES: Final = 80  # a block's entry in a pack's index, at the most
PACK_OVERHEAD_BYTES: Final = 128  # trailer, salts and tags of the smallest pack
COMPACT_CANDIDATES_MAX: Final = (
    1000  # mostly dead packs looked at in one round: some are no smaller
)
COMPACT_FAILURES_MAX: Final = 16  # packs of one round that cannot be read; each is fetched twice
COMPACT_PACKS_MAX: Final = 4  # packs emptied after one image: bounds what one round downloads
CLEANUP_S_MAX: Final = 10.0  # removing a temporary file, also while everything is cancelled
EQUAL_BLOCKS_MAX: Final = 16  # rows of one content that are looked at; two are rare already
DAMAGED_RECORDS_MAX: Final = 64  # of one pack that are marked; one more marks the whole pack
DAMAGE_SCAN_ROWS: Final = 1000  # rows of the block map looked at in one stretch: 1 ms
UPLOAD_PAUSE_S: Final = 5.0  # after an upload failed here, not at the store: the disk, the database
UPLOAD_RETRY_S_MAX: Final = 60.0  # pause between two rounds of attempts in a long outage
FETCHES_MAX: Final = 4  # blocks fetched from the store at once
READAHEAD_BYTES_MAX: Final = 64 * MIB  # before a sequential reader: four connections stay busy
READAHEAD_CACHE_PART: Final = 8  # one part in so many of the cache may hold it
READAHEAD_RUN_BYTES: Final = 8 * MIB  # of content, asked for at once: latency is a small part then
RUN_SLICE_BLOCKS: Final = 4  # of a run, unpacked before a reader of one of them hears of it: 2 ms
READAHEAD_GROWTH: Final = (
    4  # a window begins with one run, and grows so much with each that is read
)
READ_TIMEOUT_S_DEFAULT: Final = 60.0
WRITE_TIMEOUT_S_DEFAULT: Final = 60.0

# --- fuse --------------------------------------------------------------------------------------
FUSE_TASKS_MAX: Final = 480  # pyfuse3 stops reading requests when so many handlers wait
DESCRIPTORS_EXAMINED_MAX: Final = 4096  # of a process that asks for holes: some ms in a thread
NEXT_REQUEST_S: Final = 100e-6  # a caller that is at work sends its next request within that
STREAK_S_MAX: Final = 1e-3  # requests are taken past the scheduler for so long at a time
WAITING_HANDLERS_MAX: Final = 300  # of them may wait for the store; the next one gets an error
WRITE_BACK_WAITING_MAX: Final = 64  # and so many beside them: as many as the kernel sends at once
HELD_BACK_MAX: Final = 48  # requests of writers that wait for a copy; one more ends the freeze
FREEZE_S_DEFAULT: Final = 60.0  # and none of them longer: about three million entries
FREEZE_S_MIN: Final = 0.001
FREEZE_S_MAX: Final = 3600.0
ENTRY_TIMEOUT_S: Final = 3600.0  # one writer per filesystem: the kernel's entries cannot be stale
CONTROL_MESSAGE_BYTES_MAX: Final = 1 * MIB
CONTROL_CONNECTIONS_MAX: Final = 16  # a further one waits to be accepted
CONTROL_EVENTS_MAX: Final = 64  # progress events on their way to one client; more are dropped
CONTROL_IDLE_S_MAX: Final = 60.0  # a client that asks nothing for so long is hung up on

# --- directories that are never empty ----------------------------------------------------------
PRUNE_ATTEMPTS_MAX: Final = 100  # create against a concurrent prune

# --- fsck --------------------------------------------------------------------------------------
FSCK_EXAMPLES_MAX: Final = 100  # findings of one invariant that a report keeps; all are counted
FSCK_ROUNDS_MAX: Final = 8  # repairs that uncover further damage are followed so often
FSCK_PATH_DEPTH_MAX: Final = 4096  # directories that a path in a report may have above it
FSCK_BATCH_ROWS: Final = 1000  # rows of evidence written with one statement
FSCK_SUMS_CACHE_KIB: Final = 64 * KIB  # page cache of temporary tables: 64 MiB
FSCK_SUMS_ROWS_MAX: Final = 3_000_000  # rows of about 16 bytes that fit into it
# Names under which fsck tries to read a pack that is none under its own: packs of exactly its size
# that are damaged, too. An exchange of two has one; each try hashes an index.
FSCK_NAMES_TRIED_MAX: Final = 1000
FSCK_HEADS_MAX: Final = 3  # images that another host may make while the kept ones are looked at
FSCK_UNNAMED_PACKS_MAX: Final = 10_000  # asked whose they are, with a request each; the rest stays
FOREIGN_SHOWN_MAX: Final = 5  # objects of others that a report names; all are counted
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
TEXT_OBJECT_BYTES_MAX: Final = 64 * KIB  # some hundred bytes in practice; refuse to parse more
HOLDER_BYTES_MAX: Final = 1 * KIB  # of the local file about the lease: a name, and the nonces below
EPOCH_LEAP_MAX: Final = (
    1 << 32
)  # of a lease beyond the chain's last: each mount for writing is an epoch
#                                 and leaves a fence record, unless it is killed at once
LEASE_NONCES_MAX: Final = 4  # that a host remembers: attempts to acquire whose outcome is unknown
LABEL_CHARS_MAX: Final = 64
PROOF_OBJECTS_MAX: Final = 4  # of one kind, tried with keys: some may be damaged
TRACE_KEYS_MAX: Final = 1000  # of one kind, where no superblock is: one page of a listing
HOST_CHARS_MAX: Final = 255  # HOST_NAME_MAX is 64; some systems allow more

# --- passphrases (argon2id; a superblock that asks for more is hostile) --------------------------
KDF_ITERATIONS_MAX: Final = 64
KDF_MEMORY_KIB_MAX: Final = 2 * MIB  # 2 GiB
KDF_LANES_MAX: Final = 16

# --- pack index ---------------------------------------------------------------------------------
PACK_TAIL_BYTES: Final = 64 * KIB  # first guess at what holds the index: about 1,000 entries

# --- SQLite -------------------------------------------------------------------------------------
PAGE_CACHE_BYTES_MIN: Final = 4 * MIB  # for small machines
PAGE_CACHE_BYTES_MAX: Final = 8 * MIB  # memory stays flat; behind it is the kernel's page cache
INODE_ROWS_MAX: Final = 8192  # in memory, 0.7 KB each: directories in use, files just made
RECENT_ANSWERS_MAX: Final = 4096  # remembered while no row changes: about 1 MB
STATEMENTS_CACHED_MAX: Final = 256  # more than there are different statements
DATABASE_BUSY_MS: Final = 10_000  # a reader may hold a lock for the length of its step
BACKUP_STEP_PAGES: Final = 512  # pages copied with the database's mutex held
WAL_CHECKPOINT_BYTES: Final = 8 * MIB  # from so much new WAL on, a checkpoint in a thread pays
WAL_REST_BYTES_MAX: Final = 4 * MIB  # WAL that may be copied on the loop, between two groups
WAL_PASSES_MAX: Final = 8  # of one checkpoint; each leaves a tenth of what the one before left

# --- database pages (SQLite) --------------------------------------------------------------------
PAGE_BYTES_MIN: Final = 512
PAGE_BYTES_MAX: Final = 64 * KIB

# --- filesystem semantics -----------------------------------------------------------------------
PURGE_BLOCKS_MAX: Final = 256  # blocks of a removed file released in one stretch: some ms
TREE_SLICE_NAMES: Final = 1000  # names of a removed tree that go in one stretch: 2 to 5 ms
TREE_SLICE_DIRECTORIES: Final = 128  # tops that they may come from: bounds small ones
SEEK_SLICE_ROWS: Final = 1000  # blocks looked at in one stretch for the next hole: 1 to 2 ms
CLONE_SLICE_NAMES: Final = 400  # names that a slice of a copy makes: 2 to 5 ms
CLONE_SLICE_BLOCKS: Final = 1000  # blocks that a slice of a copy shares: 2 to 5 ms
COPIED_RANGE_BYTES: Final = 32 * MIB  # read and written for one copy_file_range
SHARED_RANGE_BYTES: Final = 1024 * MIB  # and covered by it in all; the answer has 32 bits
CLONE_COPIED_BYTES: Final = 4 * MIB  # content not yet uploaded, copied in one stretch: some ms
TREE_SLICE_DISK_BYTES: Final = 1 * MIB  # what a slice may add to the WAL
TREE_WAL_BYTES_MAX: Final = (
    512 * MIB
)  # WAL not yet copied from which on work on trees waits for a sync
TREE_TOLD_S_MAX: Final = 0.05  # a removal is answered then, even if the kernel is not done
KERNEL_TOLD_S_MAX: Final = 10.0  # so long a command polls until the kernel shows the change
TREE_PAUSE_S: Final = 0.2  # pause between two polls, also when the disk is full
TREE_BUSY_S: Final = 0.0002  # a checkpoint that takes longer had other tasks run in it
DIRECTORY_DEPTH_MAX: Final = 1 << 20  # steps from a directory to the root before it is a loop
FETCH_ROUNDS_MAX: Final = 16  # retries of a request after waiting for blocks
READDIR_ROWS_MIN: Final = 24  # what fits into the kernel's smallest readdir buffer
READAHEAD_REQUESTS_MAX: Final = 32  # runs that may wait for a worker; more are dropped
READAHEAD_WORKERS: Final = 6  # runs fetched and unpacked at once: bounds memory at 96 MiB
GROUP_NAMES_MAX: Final = 100_000  # names of one group, remembered in case SQLite loses it
UNLIMITED_CAPACITY_BYTES: Final = 1 << 50  # 1 PiB: what statfs shows where nothing limits
UNLIMITED_INODES: Final = 1 << 40
KERNEL_READAHEAD_KIB: Final = 1024  # one FUSE read of the largest size
KERNEL_BACKGROUND_MAX: Final = 64  # requests of read-ahead and write-back kept open
HOLDERS_SHOWN_MAX: Final = 10  # processes of other mount namespaces that one message names
HELD_S_MAX: Final = (
    5.0  # after an unmount a mount that no process is seen to hold has so long to end
)
HELD_PAUSE_S: Final = 0.1  # and is asked so often
BUSY_ATTEMPTS_MAX: Final = 5  # of an unmount: collecting makes a mountpoint busy for milliseconds,
BUSY_PAUSE_S: Final = 0.1  # programs for longer
UNMOUNT_GRACE_S: Final = 10.0  # after a signal: how long open files may keep a mount alive

# --- s3fs-meta bench ----------------------------------------------------------------------------
BENCH_THREADS_MAX: Final = 256  # more only wait for each other; each holds a block in memory
BENCH_FILES_MAX: Final = 1_000_000  # of one thread; 8 bytes of latency are kept for each
BENCH_BLOCK_BYTES_MAX: Final = 64 * MIB  # of one read or write, in memory
BENCH_LOOK_S: Final = 0.1  # the bar moves, and an interrupt is heard, so often
