"""Objects stored as files below one directory.

Owns: the layout ``<root>/<key>``, and ``<root>/tmp`` with the unfinished files and two lock files.
Does not know: the content of objects.
Keeps: a write succeeds only after fsync of the file and of every directory above it; empty
directories remain only after a crash; nothing is written while the disk of the directory is not
mounted.

A write creates a file in ``tmp``, syncs it, and moves it to the object's name: by rename(2), or by
link(2) if the key must be free. ``replace`` compares and renames under flock(2) on
``tmp/replace.lock``, so it is atomic between processes. Every store that may have an unfinished
file holds a shared flock on ``tmp/lock``. A store that can make its lock exclusive is the only such
store, and removes the leftovers of a crash. The file ``tmp/lock`` also distinguishes the real
directory from the empty mount point of an unmounted disk, and its content distinguishes two disks.
If the disk is mounted again, the new file is locked.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import os
import re
import secrets
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.disk_full import FULL_ERRNOS
from s3fs_meta.errors import (
    FormatError,
    InvalidRequestError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    StoreAccessError,
    StoreError,
    ThreadShortageError,
    TransientStoreError,
    UnexpectedStoreError,
    UsageError,
)
from s3fs_meta.hashed_dir import DIRECTORY_MODE, FILE_MODE, PrunedTree, write_durably
from s3fs_meta.limits import (
    DELETE_BATCH_KEYS,
    HASHED_BYTES_MAX,
    LIST_PAGE_KEYS,
    STORE_BODY_CHUNK_BYTES,
    STORE_THREADS_MAX,
)
from s3fs_meta.memory_allocator import range_buffers
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import (
    STORE_FULL,
    ETag,
    Fetched,
    ObjectInfo,
    check_key,
    check_range,
    listing_of,
    possible_time,
)
from s3fs_meta.objects.local_directory import (
    identity_of,
    is_absent,
    is_free,
    make_root_directory,
    open_lock,
    suppress_read_only,
    write_identity,
)

UNFINISHED: Final = "tmp"  # name of a reserved directory; no key starts with this component
LOCK: Final = "lock"
REPLACE_LOCK: Final = "replace.lock"

_UNFINISHED_BYTES: Final = 16  # number of random bytes in the name of an unfinished file
_UNFINISHED_NAME: Final = re.compile(f"[0-9a-f]{{{2 * _UNFINISHED_BYTES}}}", re.ASCII)
_ETAG_BYTES: Final = 16

_Result = TypeVar("_Result")

# Disk errors that may be temporary: a disk may be attached again, or space may become free.
_TRANSIENT: Final = frozenset(
    {
        *FULL_ERRNOS,
        errno.EIO,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENODEV,
        errno.EAGAIN,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)
# Errors of a path that does not exist, or that is too long to be a key.
_UNREACHABLE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_IN_THE_WAY: Final = "a directory or a special file is in the way; move it away"
_ADVICE: Final = {
    errno.EACCES: "check the owner and the permissions of the directory and of the object's file",
    errno.ELOOP: "symbolic links are not followed; replace the link by its target",
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.ENXIO), _IN_THE_WAY),
    errno.EPERM: "the disk's filesystem must allow hard links, and the files must not be immutable",
    errno.EROFS: "the disk's filesystem is mounted read-only",
}


class LocalStore:
    """A store in a directory on this host, on a local or a network disk."""

    def __init__(
        self,
        root: Path,
        *,
        make_root: bool = False,
        probe_only: bool = False,
        may_be_absent: bool = False,
    ) -> None:
        """Open the directory *root*; this blocks until the disk responds.

        Args:
            root: an absolute path. Nothing is written below it before the first write.
            make_root: True to create the directory and its missing parents.
            probe_only: True if the directory may not be a store, because the caller only looks for
                a few objects in it. Then no lock is taken, and no leftovers are removed.
            may_be_absent: True to let every request fail while the directory does not exist or is
                empty, as if a server could not be reached.

        Raises:
            UsageError: *root* does not exist, is not a directory, or cannot be created.
            StoreError: the disk failed, or permissions are missing.
        """
        if make_root:
            make_root_directory(root)
        self.root = root
        self._was_absent = False
        try:
            self._was_absent = may_be_absent and is_absent(root)
            is_dir = root.is_dir()
            has_lock = is_dir and (root / UNFINISHED / LOCK).is_file()
            # If true, an empty directory is the mount point of an unmounted disk.
            self._has_content = self._was_absent or (is_dir and not is_absent(root))
        except OSError as exc:
            raise self.translate(exc, UNFINISHED) from exc
        if not self._was_absent and not is_dir:
            raise UsageError(f"directory {os.fspath(root)!r} does not exist")
        self._tree = PrunedTree(root)
        self._unfinished = root / UNFINISHED
        self._limiter = trio.CapacityLimiter(STORE_THREADS_MAX)
        self._lock_fd: int | None = None
        self._identity = b""  # content of the lock file; b"" if unknown
        self._identity_guard = threading.Lock()
        self._lock_fd_guard = threading.Lock()
        if not probe_only and has_lock:
            self._translated(UNFINISHED, partial(self._take_lock, 0))

    @property
    def url(self) -> str:
        """Return the URL ``local://`` with the path of the directory."""
        return f"local://{self.root}"

    @property
    def endpoint(self) -> str:
        """Return "", because a directory has no server."""
        return ""

    @property
    def has_own_clock(self) -> bool:
        """Return False: a local disk uses this host's clock; network disks are not detected."""
        return False

    async def now_ns(self) -> int | None:
        """Write a file and return its modification time, which is the disk's time."""
        return await self._in_thread(UNFINISHED, self._now_ns)

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        return await self._in_thread(key, partial(self._get, key, max_bytes))

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> memoryview:
        """Return bytes ``[start, stop)`` of an object."""
        check_range(key, start, stop)
        return await self._in_thread(key, partial(self._get_range, key, start, stop))

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object."""
        await self._in_thread(key, partial(self._put, key, data))

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if its key is still free."""
        return await self._in_thread(key, partial(self._create, key, data))

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag*."""
        return await self._in_thread(key, partial(self._replace, key, data, etag))

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects and the directories that become empty."""
        for key in keys:
            _check_key(key)
        for begin in range(0, len(keys), DELETE_BATCH_KEYS):
            batch = keys[begin : begin + DELETE_BATCH_KEYS]
            await self._in_thread(batch[0], partial(self._delete, batch))
        await trio.lowlevel.checkpoint()

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects in key order."""
        found, name = self._find(prefix, after), listing_of(prefix)
        while page := await self._in_thread(name, partial(self._page, name, found)):
            for info in page:
                yield info

    async def close(self) -> None:
        """Release the lock on the directory."""
        if self._lock_fd is not None:
            # Once the lock file is open, no thread holds the guard while it waits for the disk.
            with self._lock_fd_guard:
                os.close(self._lock_fd)
                self._lock_fd = None
        await trio.lowlevel.checkpoint()

    async def _in_thread(self, key: str, work: Callable[[], _Result]) -> _Result:
        """Run a function in a thread, which continues even after the caller is cancelled.

        A cancelled caller returns immediately, because the directory may be on a network disk whose
        server never responds again. The abandoned thread may still write. So the outcome of a
        cancelled request is unknown, as with a remote store.
        """
        try:
            return await in_thread(
                self._translated, key, work, abandon_on_cancel=True, limiter=self._limiter
            )
        except ThreadShortageError as exc:
            raise TransientStoreError(key, exc.message) from exc

    def _translated(self, key: str, work: Callable[[], _Result]) -> _Result:
        """Run a function on the files of the store; translate an OSError to a StoreError."""
        try:
            self._require_root(key)
            return work()
        except OSError as exc:
            raise self.translate(exc, key) from exc

    def translate(self, exc: OSError, key: str) -> StoreError:
        """Return the StoreError for an OSError; the caller raises it ``from`` the OSError."""
        if isinstance(exc, FileNotFoundError):
            with contextlib.suppress(OSError):
                self._require_root(key)
                return ObjectMissingError(key)
        name = errno.errorcode.get(exc.errno or 0, "OSError")
        code = f"{name} in {os.fspath(self.root)!r}"
        if exc.errno in FULL_ERRNOS:
            code = f"{code}: {STORE_FULL}"
        if exc.errno in _TRANSIENT or isinstance(exc, FileNotFoundError):
            return TransientStoreError(key, code)
        if exc.errno in _ADVICE:
            path = exc.filename2 or exc.filename or os.fspath(self.root)
            return StoreAccessError(key, f"{name} at {path!r}", _ADVICE[exc.errno])
        return UnexpectedStoreError(key, code)

    def _require_root(self, key: str) -> None:
        """Raise an error if the store's directory was removed, or its disk is not mounted.

        Raises:
            TransientStoreError: the directory is missing, or a directory at its path has no lock
                file or the lock file of another bucket. Before this store has opened the lock
                file, the directory must not be empty.
            OSError: the lock file cannot be opened.
        """
        if self._lock_fd is None:
            is_missing = is_absent(self.root) if self._has_content else not self.root.exists()
        else:
            is_missing = not self._keeps_lock(key, self._lock_fd)
        if is_missing:
            is_there = os.path.lexists(self.root)
            what = "does not contain the bucket" if is_there else "does not exist"
            code = f"directory {os.fspath(self.root)!r} {what}; is its disk mounted?"
            raise TransientStoreError(key, code, unresolved=self._was_absent)

    def _keeps_lock(self, key: str, held_fd: int) -> bool:
        """Return whether the directory has a lock file; lock it if the disk was mounted again.

        Raises:
            TransientStoreError: another bucket is mounted at the path.
        """
        location, held = self._unfinished / LOCK, os.fstat(held_fd)
        try:
            if os.path.samestat(os.stat(location), held):
                return True
            fd = open_lock(location, 0)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            # b"" is the identity of a bucket to which only earlier versions have written
            if self._identity and self._identity != identity_of(fd):
                code = f"directory {os.fspath(self.root)!r} contains another bucket;"
                raise TransientStoreError(key, f"{code} is another disk mounted there?")
            fcntl.flock(fd, fcntl.LOCK_SH)
            with self._lock_fd_guard:
                if self._lock_fd == held_fd:  # unless the store was closed meanwhile
                    os.dup2(fd, held_fd, inheritable=False)
        finally:
            os.close(fd)
        return True

    # --- read objects ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, key: ObjectKey) -> Iterator[tuple[int, os.stat_result]]:
        """Yield the descriptor and the status of an object's file."""
        _check_key(key)
        try:
            fd = self._tree.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except NotADirectoryError as exc:
            raise FileNotFoundError from exc
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                missing = ObjectMissingError(key)
                missing.reword(f"{missing.message}: {_IN_THE_WAY}")
                raise missing
            yield fd, status
        finally:
            os.close(fd)

    def _get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        with self._opened(key) as (fd, status):
            if status.st_size > max_bytes:
                etag = _etag_of(key, fd, status)
                raise ObjectTooLargeError(key, status.st_size, max_bytes, etag)
            data = _read(key, fd, 0, status.st_size)
        return Fetched(data, _etag(data))

    def _present_etag(self, key: ObjectKey) -> ETag | None:
        try:
            with self._opened(key) as (fd, status):
                return _etag_of(key, fd, status)
        except (FileNotFoundError, ObjectMissingError):
            return None

    def _get_range(self, key: ObjectKey, start: int, stop: int) -> memoryview:
        with self._opened(key) as (fd, status):
            if stop > status.st_size:
                size_bytes = status.st_size
                raise FormatError(
                    key,
                    f"the range ends at byte {stop}, but the object has only {size_bytes} bytes",
                )
            buffer = range_buffers.new(stop - start)
            _read_into(key, fd, start, buffer)
            return buffer.toreadonly()

    def _find(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield objects below *prefix* with keys after *after*, in key order.

        The walk is iterative, because other programs may have created more levels of directories
        than Python can recurse into.
        """
        path = [iter(self._names(prefix.rpartition("/")[0], prefix, after))]
        while path:
            key = next(path[-1], None)
            if key is None:
                path.pop()
            elif key.endswith("/"):
                path.append(iter(self._names(key[:-1], prefix, after)))
            elif key > after and key.startswith(prefix):
                try:
                    status = os.lstat(self._tree.path(key))
                except OSError as exc:
                    if exc.errno not in _UNREACHABLE:
                        raise
                    continue  # another process deleted the object
                if stat.S_ISREG(status.st_mode):
                    modified_ns = possible_time(status.st_mtime_ns)
                    yield ObjectInfo(ObjectKey(key), status.st_size, modified_ns)

    def _names(self, folder: str, prefix: str, after: str) -> Sequence[str]:
        """Return the keys of the files and subdirectories that a listing must visit, in key order.

        Keys of subdirectories end with a slash, so that they sort like keys of objects. A directory
        may have 100,000 changelogs, and most listings need only the last few. So all names that
        need no visit are dropped early.
        """
        above = f"{folder}/" if folder else ""
        begun = after[len(above) :] if after.startswith(above) else ""
        wanted = prefix[len(above) :]
        if after > above and not begun:
            return []  # all keys in the directory sort before the key *after*
        found: list[str] = []
        try:
            with os.scandir(self._tree.path(folder)) as entries:
                hides = not folder and self._owns_unfinished()
                for entry in entries:
                    name = f"{entry.name}/"
                    if name < begun and not begun.startswith(name):
                        continue
                    if not (name.startswith(wanted) or wanted.startswith(name)):
                        continue
                    if hides and entry.name == UNFINISHED:
                        continue
                    is_folder = entry.is_dir(follow_symlinks=False)
                    found.append(above + (name if is_folder else entry.name))
        except OSError as exc:
            if exc.errno not in _UNREACHABLE:
                raise
            self._require_root(folder)
            return []  # the directory does not exist, or was empty and has been removed
        return sorted(found)

    def _owns_unfinished(self) -> bool:
        """Return whether ``tmp`` has no user data: it is missing, empty, or made by a store."""
        return (self._unfinished / LOCK).exists() or not (
            self._unfinished.is_dir() and any(self._unfinished.iterdir())
        )

    def _page(self, name: str, found: Iterator[ObjectInfo]) -> Sequence[ObjectInfo]:
        page = tuple(itertools.islice(found, LIST_PAGE_KEYS))
        self._require_root(name)  # if the disk was unmounted, the page may lack objects
        return page

    # --- write objects ---------------------------------------------------------------------

    def _put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        with self._unfinished_file(key, data) as source:
            self._tree.put_from(source, key)
        self._sync(key)

    def _create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        with self._unfinished_file(key, data) as source:
            try:
                self._tree.link_new(source, key)
            except FileExistsError as exc:
                # Sync the existing object, because its writer may have crashed before the sync.
                self._sync(key)
                raise PreconditionError(key) from exc
        self._sync(key)
        return _etag(data)

    def _replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        with self._unfinished_file(key, data) as source, self._replace_lock():
            if self._present_etag(key) != etag:
                self._sync(key)
                raise PreconditionError(key)
            self._tree.put_from(source, key)
            self._sync(key)
        return _etag(data)

    def _sync(self, key: ObjectKey) -> None:
        self._tree.sync_parents([key])
        self._require_root(key)  # if the disk was unmounted, missing directories were skipped

    def _delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            self._tree.remove(key)
        self._require_root(keys[0])  # raise if the disk was unmounted: it still has the objects

    @contextlib.contextmanager
    def _unfinished_file(self, key: ObjectKey, data: bytes | memoryview) -> Iterator[Path]:
        """Yield the path of a new synced file with *data*; remove the file unless it was moved."""
        _check_key(key)
        self._prepare_writing()
        path = self._unfinished / secrets.token_hex(_UNFINISHED_BYTES)
        try:
            write_durably(path, data)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _now_ns(self) -> int:
        with self._unfinished_file(ObjectKey("now"), b"now") as path:
            return path.stat().st_mtime_ns

    def _prepare_writing(self) -> None:
        """Create ``tmp`` and take the shared lock, before the first write."""
        with self._lock_fd_guard:
            if self._lock_fd is None:
                with contextlib.suppress(FileExistsError):
                    self._unfinished.mkdir(DIRECTORY_MODE)
                self._take_lock(os.O_CREAT)
        if not self._identity:
            # Not under the other guard, for which ``close`` waits: the disk may not respond.
            with self._identity_guard, self._replace_lock():
                self._identity = write_identity(self._unfinished / LOCK)

    def _take_lock(self, flags: int) -> None:
        fd = open_lock(self._unfinished / LOCK, flags)
        try:
            if is_free(fd, self._unfinished / LOCK):
                with suppress_read_only():
                    self._remove_leftovers()
            fcntl.flock(fd, fcntl.LOCK_SH)
            self._identity = identity_of(fd)
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd

    def _remove_leftovers(self) -> None:
        """Remove the leftovers of a crash: unfinished files and empty directories."""
        with os.scandir(self._unfinished) as entries:
            for entry in entries:
                if _UNFINISHED_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry)
        self._tree.prune_all()

    @contextlib.contextmanager
    def _replace_lock(self) -> Iterator[None]:
        # No timeout is needed: the holder of the lock reads and renames one small file.
        # The kernel releases the lock of a process that exits.
        path = self._unfinished / REPLACE_LOCK
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _check_key(key: str) -> None:
    check_key(key)
    if key == UNFINISHED or key.startswith(f"{UNFINISHED}/"):
        raise InvalidRequestError("invalid object key", key)


def _read(key: str, fd: int, start: int, stop: int) -> bytes:
    target = io.BytesIO(bytes(stop - start))  # returns its buffer as bytes without a copy
    _read_into(key, fd, start, target.getbuffer())
    return target.getvalue()


def _read_into(key: str, fd: int, start: int, buffer: memoryview) -> None:
    """Fill a buffer with the bytes of a file from *start* on."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], start + done)
        if not count:
            missing_bytes = len(buffer) - done
            raise TransientStoreError(
                key, f"the file was truncated during the read: {missing_bytes} bytes are missing"
            )
        done += count


def _etag_of(key: str, fd: int, status: os.stat_result) -> ETag:
    """Return the ETag of a file: a hash of its content.

    For a file larger than HASHED_BYTES_MAX, the ETag consists of the inode number, size and mtime.
    """
    if status.st_size > HASHED_BYTES_MAX:
        return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"
    hasher = hashlib.blake2b(digest_size=_ETAG_BYTES)
    for start in range(0, status.st_size, STORE_BODY_CHUNK_BYTES):
        hasher.update(_read(key, fd, start, min(start + STORE_BODY_CHUNK_BYTES, status.st_size)))
    return hasher.hexdigest()


def _etag(data: bytes | memoryview) -> ETag:
    return hashlib.blake2b(data, digest_size=_ETAG_BYTES).hexdigest()
