"""The store in a local directory: durability, cleanup and disk errors."""

import errno
import fcntl
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import (
    InvalidRequestError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    S3fsError,
    StoreAccessError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import GIB, MIB, PACK_BYTES_MAX, STORE_THREADS_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.local import LocalStore
from tests.contract.store_contract import keys_of
from tests.faults import raising
from tests.memory import traced
from tests.polling import PROCESS_S_MAX, WAIT_S_MAX

KEY = ObjectKey("pack/3f/7-9a")
LEASE = ObjectKey("lease")
PATH_BYTES_MAX = 4096  # This is PATH_MAX in linux/limits.h.


@pytest.fixture
def store(root: Path) -> LocalStore:
    """Return a store in an empty directory."""
    return LocalStore(root)


def tree(root: Path) -> list[str]:
    """Return every path below *root* except the lock files."""
    paths = (str(path.relative_to(root)) for path in root.rglob("*"))
    return sorted(path for path in paths if not path.startswith("tmp/") or "lock" not in path)


def empty_directories(root: Path) -> list[str]:
    """Return all empty directories below *root*."""
    return [path for path, folders, files in os.walk(root) if not folders and not files]


def make_deep(top: Path, levels: int) -> None:
    """Create nested directories, *levels* deep, with a file in the lowest directory."""
    top.mkdir()
    fd = os.open(top, os.O_PATH)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


# --- layout of the object files ------------------------------------------------------------------


async def test_object_keys_are_paths_in_the_bucket_directory(root: Path, store: LocalStore) -> None:
    """The path of an object is its key; unfinished files are in a directory named tmp."""
    await store.put(KEY, b"content")
    await store.create(LEASE, b"content")

    assert tree(root) == ["lease", "pack", "pack/3f", "pack/3f/7-9a", "tmp"]
    assert (root / KEY).read_bytes() == b"content"
    assert store.url == f"local://{root}"


async def test_reading_from_a_local_store_creates_no_file(root: Path, store: LocalStore) -> None:
    """Requests that only read create no file in an empty store."""
    with pytest.raises(ObjectMissingError):
        await store.get(LEASE, PACK_BYTES_MAX)
    assert await keys_of(store) == []
    await store.close()

    assert os.listdir(root) == []


async def test_temporary_files_are_neither_listed_nor_readable_as_objects(
    root: Path, store: LocalStore
) -> None:
    await store.put(KEY, b"content")
    (root / "tmp" / "unfinished").write_bytes(b"half")

    assert await keys_of(store) == [KEY]
    for key in ("tmp", "tmp/unfinished", "tmp/lock"):
        with pytest.raises(InvalidRequestError):
            await store.get(ObjectKey(key), PACK_BYTES_MAX)


async def test_symlinks_in_the_bucket_directory_are_not_followed(
    root: Path, store: LocalStore, tmp_path: Path
) -> None:
    """A symlink in the bucket is neither listed nor followed; a write replaces it."""
    outside = tmp_path / "file"
    outside.write_bytes(b"private")
    (root / "folder").symlink_to(tmp_path)
    (root / "link").symlink_to(outside)

    assert await keys_of(store) == []
    with pytest.raises(StoreAccessError, match="ELOOP"):
        await store.get(ObjectKey("link"), PACK_BYTES_MAX)
    await store.put(ObjectKey("link"), b"content")
    assert outside.read_bytes() == b"private"


async def test_special_file_is_not_an_object(root: Path, store: LocalStore) -> None:
    """The store does not open a FIFO at the path of a key, because opening it would block."""
    os.mkfifo(root / "fifo")

    assert await keys_of(store) == []
    with pytest.raises(ObjectMissingError):
        await store.get(ObjectKey("fifo"), PACK_BYTES_MAX)


# --- durability of objects -----------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[tuple[str, bool]]:
    """Return a list that receives each sync: its path, and whether the object has its name yet."""
    calls: list[tuple[str, bool]] = []
    fsync = os.fsync

    def recording(file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        name = "unfinished file" if path.parent.name == "tmp" else str(path.relative_to(root))
        calls.append((name, (root / KEY).exists()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", recording)
    return calls


DURABLE = [("unfinished file", False), ("pack/3f", True), ("pack", True), (".", True)]


@pytest.mark.parametrize("method", ["put", "create"])
async def test_write_returns_after_the_file_and_its_directories_are_synced(
    store: LocalStore, synced: list[tuple[str, bool]], method: str
) -> None:
    """The content of an object is synced before the object gets its name.

    The name and all directories above it are synced before the write returns.
    """
    await store.now_ns()  # the first write also syncs the lock file
    synced.clear()

    await getattr(store, method)(KEY, b"content")

    assert synced == DURABLE


async def test_new_content_is_synced_before_it_replaces_an_object(
    store: LocalStore, synced: list[tuple[str, bool]]
) -> None:
    etag = await store.create(KEY, b"old")
    synced.clear()

    await store.replace(KEY, b"new", etag)

    assert synced == [(name, True) for name, _ in DURABLE]


async def test_refused_write_makes_the_existing_object_durable(
    store: LocalStore, synced: list[tuple[str, bool]]
) -> None:
    """A refused write syncs the existing object, which its writer may not have synced."""
    etag = await store.create(KEY, b"old")
    for refused in (store.create(KEY, b"new"), store.replace(KEY, b"new", "another")):
        synced.clear()
        with pytest.raises(PreconditionError):
            await refused
        assert [name for name, _ in synced] == [name for name, _ in DURABLE]

    assert (await store.get(KEY, PACK_BYTES_MAX)).etag == etag


async def test_huge_object_is_not_read_into_memory(root: Path, store: LocalStore) -> None:
    """An object of 3 GiB is refused or replaced without reading it into memory."""
    await store.put(KEY, b"content")
    os.truncate(root / KEY, 3 * GIB)

    with traced() as peak:
        with pytest.raises(ObjectTooLargeError) as caught:
            await store.get(KEY, PACK_BYTES_MAX)
        with pytest.raises(PreconditionError):
            await store.replace(KEY, b"new", "another")
        await store.replace(KEY, b"new", caught.value.etag)

    assert peak() < 4 * MIB
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_failed_sync_leaves_no_file(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write whose sync fails leaves no file behind, and a retry succeeds."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(TransientStoreError, match="EIO"):
            await store.put(KEY, b"content")
    assert tree(root) == ["tmp"]

    await store.put(KEY, b"content")
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"


async def test_request_to_an_unresponsive_disk_can_be_cancelled(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.now_ns()  # the first write syncs the lock file, for which others wait
    answer, stuck = threading.Event(), threading.Semaphore(0)
    fsync = os.fsync

    def never(fd: int) -> None:
        stuck.release()
        answer.wait()
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", never)
        try:
            async with trio.open_nursery() as nursery:
                # Send one request more than the store has threads.
                for number in range(STORE_THREADS_MAX + 1):
                    nursery.start_soon(store.put, ObjectKey(f"pack/{number}"), b"content")
                for _ in range(STORE_THREADS_MAX):
                    await trio.to_thread.run_sync(stuck.acquire)
                nursery.cancel_scope.cancel()
        finally:
            answer.set()
        with trio.fail_after(
            WAIT_S_MAX
        ):  # Threads of cancelled requests continue until their sync ends.
            while len(await keys_of(store, "pack/")) < STORE_THREADS_MAX:
                pass

    await store.put(KEY, b"content")
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"


# --- removal of empty directories ----------------------------------------------------------------


def pack_keys(count: int) -> list[ObjectKey]:
    """Return keys that look like the keys of packs."""
    return [ObjectKey(f"pack/{number % 256:02x}/7-{number}") for number in range(count)]


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_deletion_of_the_last_object_removes_its_directory(
    root: Path, store: LocalStore, count: int
) -> None:
    """Deleting the last object of a directory deletes the directory, so none stays empty."""
    keys = pack_keys(count)
    for key in keys:
        await store.put(key, b"")
    assert len(await keys_of(store, "pack/")) == count
    await store.delete(keys[: count // 2])
    assert empty_directories(root) == []
    await store.delete(keys[count // 2 :])

    assert tree(root) == ["tmp"]


@pytest.mark.parametrize("rounds", [20, pytest.param(2_000, marks=pytest.mark.slow)])
async def test_parallel_deletes_and_writes_in_one_directory_lose_no_object(
    root: Path, store: LocalStore, rounds: int
) -> None:
    """If tasks empty and refill one directory in parallel, no object is lost."""

    async def create_and_delete(key: ObjectKey) -> None:
        for _ in range(rounds):
            await store.create(key, key.encode())
            assert (await store.get(key, PACK_BYTES_MAX)).data == key.encode()
            await store.delete([key])

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(create_and_delete, ObjectKey(f"pack/3f/{number}"))

    assert tree(root) == ["tmp"]


# --- leftovers of a crash ------------------------------------------------------------------------


async def leave_as_after_a_crash(root: Path) -> None:
    """Make a store with an object, an unfinished file and empty directories, as after a crash."""
    store = LocalStore(root)
    await store.put(KEY, b"content")
    (root / "tmp" / "0123456789abcdef0123456789abcdef").write_bytes(b"half")
    (root / "pack" / "40" / "deeper").mkdir(parents=True)
    await store.close()


async def test_opening_a_store_removes_leftovers_of_a_crash(root: Path) -> None:
    """Opening a store removes unfinished files and empty directories, but no object."""
    await leave_as_after_a_crash(root)

    store = LocalStore(root)

    assert tree(root) == ["pack", "pack/3f", "pack/3f/7-9a", "tmp"]
    await store.close()


@pytest.mark.parametrize("levels", [1500, 3000], ids=["recursion limit", "longest path"])
async def test_foreign_directories_with_thousands_of_levels_do_not_prevent_a_listing(
    root: Path, levels: int
) -> None:
    """Another program may have made more levels than Python's stack, or the kernel, permits.

    A key cannot be as long as a path that the kernel refuses, so such files are not listed.
    """
    store = LocalStore(root)
    await store.put(KEY, b"content")
    await store.close()
    make_deep(root / "deep", levels)
    try:
        store = LocalStore(root)
        deep = ObjectKey("deep/" + levels * "d/" + "file")
        assert await keys_of(store) == ([deep, KEY] if len(deep) < PATH_BYTES_MAX else [KEY])
        await store.close()
    finally:
        with trio.fail_after(PROCESS_S_MAX, shield=True):
            await trio.run_process(["rm", "-rf", str(root / "deep")])


async def test_unfinished_files_of_another_open_store_are_kept(root: Path) -> None:
    """A store removes unfinished files only if no other store is open in the directory."""
    await leave_as_after_a_crash(root)
    with (root / "tmp" / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        await LocalStore(root).close()
        assert (root / "tmp" / "0123456789abcdef0123456789abcdef").exists()

    await LocalStore(root).close()
    assert not (root / "tmp" / "0123456789abcdef0123456789abcdef").exists()


async def test_files_of_a_user_in_a_directory_named_tmp_are_kept(root: Path) -> None:
    """Files of a user in a directory named tmp are listed as objects and not removed."""
    (root / "tmp").mkdir()
    (root / "tmp" / "thesis.odt").write_text("x")
    store = LocalStore(root)
    assert await keys_of(store) == ["tmp/thesis.odt"]

    await store.put(KEY, b"content")
    await store.close()
    await LocalStore(root).close()

    assert (root / "tmp" / "thesis.odt").exists()


async def test_store_opened_for_reading_does_not_change_its_directory(root: Path) -> None:
    """A store that only reads creates and removes no file."""
    await leave_as_after_a_crash(root)
    before = tree(root)
    store = LocalStore(root, probe_only=True)

    with pytest.raises(ObjectMissingError):
        await store.get(LEASE, PACK_BYTES_MAX)
    await store.close()

    assert tree(root) == before


# --- locks on a network disk ---------------------------------------------------------------------


@pytest.fixture
def nfs_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse an exclusive lock on a file that is open only for reading, as NFS does."""
    flock = fcntl.flock

    def refusing(fd: int, operation: int) -> None:
        is_read_only = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if operation & fcntl.LOCK_EX and is_read_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)


@pytest.mark.usefixtures("nfs_locks")
async def test_opening_a_store_on_nfs_removes_leftovers_of_a_crash(root: Path) -> None:
    await leave_as_after_a_crash(root)

    store = LocalStore(root)

    assert tree(root) == ["pack", "pack/3f", "pack/3f/7-9a", "tmp"]
    await store.close()


@pytest.mark.mount
@pytest.mark.usefixtures("nfs_locks")
async def test_store_on_a_read_only_nfs_mount_can_be_read(small_disk: Path) -> None:
    await leave_as_after_a_crash(small_disk)
    before = tree(small_disk)
    await _remount_read_only(small_disk)

    store = LocalStore(small_disk)

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"
    assert tree(small_disk) == before
    await store.close()


# --- concurrent processes ------------------------------------------------------------------------

_COUNT = """
import sys, trio
from pathlib import Path
from s3fs_meta.errors import PreconditionError
from s3fs_meta.objects.local import LocalStore

async def count():
    store = LocalStore(Path(sys.argv[1]))
    todo = 100
    while todo:
        present = await store.get("lease", 10)
        try:
            await store.replace("lease", b"%d" % (int(present.data) + 1), present.etag)
        except PreconditionError:
            continue
        todo -= 1
    won = 0
    for number in range(100):
        try:
            await store.create(f"race/{number}", sys.argv[2].encode())
            won += 1
        except PreconditionError:
            pass
    print(won)

trio.run(count)
"""


@pytest.mark.slow
async def test_conditional_writes_are_atomic_across_processes(
    root: Path, store: LocalStore
) -> None:
    """When three processes increment a counter by conditional writes, no increment is lost."""
    await store.create(LEASE, b"0")

    def race() -> list[int]:
        command = [sys.executable, "-c", _COUNT, str(root)]
        running = [
            subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in ("a", "b", "c")
        ]
        return [int(process.communicate()[0]) for process in running]

    won = await trio.to_thread.run_sync(race)

    assert (await store.get(LEASE, PACK_BYTES_MAX)).data == b"300"
    assert sum(won) == 100
    assert (
        os.listdir(root / "tmp") == ["replace.lock", "lock"] or len(os.listdir(root / "tmp")) == 2
    )


# --- errors of the operating system --------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, TransientStoreError),
        (errno.EDQUOT, TransientStoreError),
        (errno.EIO, TransientStoreError),
        (errno.ESTALE, TransientStoreError),
        (errno.EACCES, StoreAccessError),
        (errno.EROFS, StoreAccessError),
        (errno.EPERM, StoreAccessError),
        (errno.EXDEV, UnexpectedStoreError),
    ],
)
def test_operating_system_errors_are_translated_to_store_errors(
    root: Path, store: LocalStore, number: int, kind: type[S3fsError]
) -> None:
    """The error for a failed system call contains the errno and the directory."""
    error = store.translate(OSError(number, os.strerror(number)), KEY)

    assert type(error) is kind
    assert errno.errorcode[number] in error.message
    assert str(root) in error.message


@pytest.mark.mount
async def test_full_disk_raises_a_transient_error(small_disk: Path) -> None:
    """A write to a full disk leaves no file, and an existing object can still be replaced."""
    store = LocalStore(small_disk)
    await store.put(LEASE, b"content")

    with pytest.raises(TransientStoreError, match=r"ENOSPC .*: the store is full"):
        await store.put(KEY, bytes(2 << 20))

    assert tree(small_disk) == ["lease", "tmp"]
    await store.put(LEASE, b"new content")
    await store.close()


@pytest.mark.mount
async def test_error_about_a_write_to_a_read_only_disk_names_the_cause(small_disk: Path) -> None:
    """On a read-only disk, reads succeed; the error of a write suggests a remedy."""
    writer = LocalStore(small_disk)
    await writer.put(KEY, b"content")
    await writer.close()
    await _remount_read_only(small_disk)

    store = LocalStore(small_disk)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"
    with pytest.raises(StoreAccessError, match="mounted read-only"):
        await store.put(KEY, b"new")
    await store.close()


async def _remount_read_only(folder: Path) -> None:
    await trio.run_process(["mount", "-o", "remount,ro", str(folder)])


NAMES = ("a", "a-", "a.b", "a0", "b", "changelog", "00", "01")


def random_key(rnd: random.Random) -> str:
    """Return a random key of one to four names.

    Some names continue another name with a character that sorts before or after the slash.
    """
    return "/".join(rnd.choice(NAMES) for _ in range(rnd.randint(1, 4)))


@pytest.mark.parametrize("seed", range(3))
async def test_listing_after_a_key_finds_all_later_keys(store: LocalStore, seed: int) -> None:
    """A listing skips directories and names before the key *after* without reading them."""
    rnd = random.Random(seed)
    keys: set[str] = set()
    for key in (random_key(rnd) for _ in range(60)):
        if not any(one.startswith(f"{key}/") or key.startswith(f"{one}/") for one in keys):
            await store.put(ObjectKey(key), b"x")
            keys.add(key)

    texts = [key[:end] for key in sorted(keys) for end in range(len(key) + 1)]
    texts += [key + more for key in keys for more in ("-", "/", "/a", "0", "~")]
    for prefix, after in [(rnd.choice(texts), rnd.choice(texts)) for _ in range(150)]:
        found = [info.key async for info in store.list(prefix, after=after)]
        expected = sorted(key for key in keys if key.startswith(prefix) and key > after)
        assert found == expected, (prefix, after)


async def test_listing_reads_no_file_before_its_start_key(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing must not examine the files of all earlier keys, such as 100,000 changelogs."""
    for number in range(20):
        await store.put(ObjectKey(f"changelog/{number:012d}"), b"x")
    examined: list[str] = []
    lstat = os.lstat

    def noted(path: Path) -> os.stat_result:
        examined.append(path.name)
        return lstat(path)

    with monkeypatch.context() as patched:
        patched.setattr("s3fs_meta.objects.local.os.lstat", noted)
        found = [info.key async for info in store.list("changelog/", after=f"changelog/{17:012d}")]

    assert found == [f"changelog/{number:012d}" for number in (18, 19)]
    assert [name for name in examined if name.isdigit()] == [
        f"{number:012d}" for number in (18, 19)
    ]
