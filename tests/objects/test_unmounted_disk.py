"""The store in a local directory while its disk is unmounted."""

import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import (
    AbsentDirectoryError,
    StoreAccessError,
    TransientStoreError,
    UsageError,
)
from s3fs_meta.hashed_dir import PrunedTree
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.objects.urls import open_store
from tests.contract.store_contract import keys_of

KEY = ObjectKey("pack/3f/7-9a")
LEASE = ObjectKey("lease")


@pytest.fixture
def store(root: Path) -> LocalStore:
    """Return a store in an empty directory."""
    return LocalStore(root)


async def attempts(store: LocalStore, why: str = "is its disk mounted") -> None:
    """Require that each of seven store methods fails with a transient error."""
    for request in (
        lambda: store.get(KEY, PACK_BYTES_MAX),
        lambda: store.get_range(KEY, 0, 1),
        lambda: store.put(KEY, b"new"),
        lambda: store.create(LEASE, b"new"),
        lambda: store.replace(KEY, b"new", "etag"),
        lambda: store.delete([KEY]),
        lambda: keys_of(store),
    ):
        with pytest.raises(TransientStoreError, match=why):
            await request()
    with pytest.raises(TransientStoreError, match="for the list of objects: "):
        await keys_of(store)


async def test_requests_fail_until_the_bucket_directory_exists(tmp_path: Path) -> None:
    """Requests fail and create nothing while the bucket directory is missing."""
    root = tmp_path / "disk" / "bucket"
    store = LocalStore(root, may_be_absent=True)
    for request in (lambda: store.get(KEY, 1), lambda: store.create(KEY, b"x"), store.now_ns):
        with pytest.raises(TransientStoreError, match="is its disk mounted") as caught:
            await request()
        assert caught.value.unresolved
    assert os.listdir(tmp_path) == []
    root.mkdir(parents=True)
    (root / LEASE).write_bytes(b"content")
    assert (await store.get(LEASE, 100)).data == b"content"
    await store.close()


@pytest.mark.parametrize("mount_point_stays", [False, True])
async def test_bucket_directory_that_disappears_raises_a_transient_error(
    root: Path, store: LocalStore, mount_point_stays: bool
) -> None:
    """While the disk is unmounted, requests fail and write nothing."""
    await store.put(KEY, b"content")
    await trio.to_thread.run_sync(move_away, root, mount_point_stays)

    await attempts(store)

    await trio.to_thread.run_sync(move_back, root, mount_point_stays)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"


def move_away(root: Path, mount_point_stays: bool) -> None:
    """Move the bucket away, as if its disk were unmounted."""
    root.rename(root.with_name("away"))
    if mount_point_stays:
        root.mkdir()


def move_back(root: Path, mount_point_stays: bool) -> None:
    """Move the bucket back; require that no file was created at its path in the meantime."""
    assert root.exists() == mount_point_stays
    if mount_point_stays:
        root.rmdir()
    root.with_name("away").rename(root)


@pytest.mark.parametrize("mount_point_stays", [False, True])
@pytest.mark.parametrize("prefix", ["", "pack/"])
async def test_listing_fails_if_the_disk_is_unmounted_during_the_listing(
    root: Path,
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    mount_point_stays: bool,
) -> None:
    """If the disk is unmounted during a listing, the listing fails instead of omitting objects."""
    await store.put(KEY, b"content")
    lstat = os.lstat

    def unmounting(path: Path, **kwargs: int) -> os.stat_result:
        if str(path).endswith(KEY):
            move_away(root, mount_point_stays)
        return lstat(path, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", unmounting)
        with pytest.raises(TransientStoreError, match="is its disk mounted"):
            await keys_of(store, prefix)

    await trio.to_thread.run_sync(move_back, root, mount_point_stays)
    assert await keys_of(store, prefix) == [KEY]


async def test_deletion_fails_if_the_disk_is_unmounted_before_the_deletion(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put(KEY, b"content")
    unlink = os.unlink

    def unmounting(path: str) -> None:
        move_away(root, False)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unmounting)
        with pytest.raises(TransientStoreError, match="is its disk mounted"):
            await store.delete([KEY])

    await trio.to_thread.run_sync(move_back, root, False)
    assert await keys_of(store) == [KEY]


@pytest.mark.parametrize("write", ["put", "create", "replace"])
async def test_write_fails_if_the_disk_is_unmounted_before_its_directories_are_synced(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """A write is not reported as successful if the directories above its file were not synced."""
    await store.put(LEASE, b"old")
    etag = (await store.get(LEASE, 9)).etag
    sync = PrunedTree.sync_parents

    def unmounting(tree: PrunedTree, names: Iterable[str]) -> None:
        move_away(root, True)
        sync(tree, names)

    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: store.put(KEY, b"new"),
        "create": lambda: store.create(KEY, b"new"),
        "replace": lambda: store.replace(LEASE, b"new", etag),
    }
    with monkeypatch.context() as patch:
        patch.setattr(PrunedTree, "sync_parents", unmounting)
        with pytest.raises(TransientStoreError, match="is its disk mounted"):
            await requests[write]()

    assert os.listdir(root) == []
    await trio.to_thread.run_sync(move_back, root, True)


async def test_conditional_write_to_an_unmounted_disk_is_not_refused(
    root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is unmounted before the comparison, the object has not changed."""
    await store.put(LEASE, b"old")
    etag = (await store.get(LEASE, 9)).etag
    opened = PrunedTree.open

    def unmounting(tree: PrunedTree, name: str, flags: int, mode: int = 0) -> int:
        move_away(root, True)
        return opened(tree, name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(PrunedTree, "open", unmounting)
        with pytest.raises(TransientStoreError, match="is its disk mounted"):
            await store.replace(LEASE, b"new", etag)

    await trio.to_thread.run_sync(move_back, root, True)
    assert (await store.get(LEASE, 9)).data == b"old"


async def test_empty_mount_point_is_treated_like_a_missing_directory(root: Path) -> None:
    """A store that may be absent reports no missing object and writes nothing."""
    store = LocalStore(root, may_be_absent=True)
    await attempts(store)
    assert os.listdir(root) == []

    with pytest.raises(AbsentDirectoryError, match="mount its disk"):
        open_store(f"local://{root}")

    (root / LEASE).write_bytes(b"content")
    assert (await store.get(LEASE, 100)).data == b"content"
    await store.close()


async def test_unmounted_disk_is_noticed_without_a_lock_file(root: Path) -> None:
    """A copy of a bucket may lack the lock file; an empty directory then is a mount point."""
    (root / LEASE).write_bytes(b"content")
    store = LocalStore(root)
    await trio.to_thread.run_sync(move_away, root, True)

    await attempts(store)

    await trio.to_thread.run_sync(move_back, root, True)
    assert (await store.get(LEASE, 100)).data == b"content"


async def test_store_locks_its_directory_again_after_the_disk_was_exchanged(
    root: Path, store: LocalStore
) -> None:
    """Another store must not remove the unfinished files of this store as leftovers."""
    await store.put(LEASE, b"content")
    await trio.to_thread.run_sync(shutil.copytree, root, root.with_name("copy"))
    await trio.to_thread.run_sync(move_away, root, False)
    root.with_name("copy").rename(root)
    await store.get(LEASE, 100)
    unfinished = root / "tmp" / ("0" * 32)
    unfinished.write_bytes(b"unfinished")

    await LocalStore(root).close()
    assert unfinished.exists()

    await store.close()
    await LocalStore(root).close()
    assert not unfinished.exists()


def _files(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


@pytest.mark.parametrize("has_identity", [True, False])
async def test_other_bucket_at_the_same_path_is_neither_read_nor_written(
    root: Path, store: LocalStore, has_identity: bool
) -> None:
    """If another disk is mounted at the path, requests fail until the first disk is back."""
    await store.put(KEY, b"content")
    await trio.to_thread.run_sync(move_away, root, True)
    other = LocalStore(root)
    await other.put(LEASE, b"of another filesystem")
    await other.close()
    if not has_identity:  # only earlier versions have written to the other bucket
        (root / "tmp" / "lock").write_bytes(b"")
    before = _files(root)

    await attempts(store, "contains another bucket")

    assert _files(root) == before
    await trio.to_thread.run_sync(shutil.rmtree, root)
    await trio.to_thread.run_sync(move_back, root, False)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"


async def test_first_write_gives_an_identity_to_a_bucket_of_an_earlier_version(root: Path) -> None:
    """Earlier versions created an empty lock file; reading leaves it unchanged."""
    lock = root / "tmp" / "lock"
    lock.parent.mkdir()
    lock.touch()
    (root / LEASE).write_bytes(b"content")
    store = LocalStore(root)
    await store.get(LEASE, 100)
    assert lock.read_bytes() == b""

    await store.put(KEY, b"content")

    identity = lock.read_bytes()
    assert len(identity) == 32
    again = LocalStore(root)
    await again.put(KEY, b"content")
    assert lock.read_bytes() == identity
    await again.close()
    await store.close()


@pytest.fixture
def closed_directory(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that even a process of root cannot search."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(65534)
    try:
        yield tmp_path / "closed"
    finally:
        os.seteuid(uid)
        (tmp_path / "closed").chmod(0o700)


@pytest.mark.parametrize("name", ["", "bucket"])
def test_bucket_without_permissions_is_reported_as_an_error_of_the_store(
    closed_directory: Path, name: str
) -> None:
    """The error has the advice and the exit status of a refused request."""
    with pytest.raises(StoreAccessError, match="check the owner and the permissions"):
        open_store(f"local://{closed_directory / name}")


def test_bucket_cannot_be_opened_if_its_directory_is_missing(tmp_path: Path) -> None:
    """A bucket cannot be opened if its directory is missing or is a file."""
    (tmp_path / "file").touch()

    for name in ("missing", "file"):
        with pytest.raises(UsageError, match="does not exist"):
            LocalStore(tmp_path / name)
