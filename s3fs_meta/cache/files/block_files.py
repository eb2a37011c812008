"""The files of cached blocks: one file per block, with its plain content.

Owns: reading, writing and syncing the files. Does not know: rows, states, the store.
A file is as long as the block's content; the remaining bytes of the block are a hole.
Every function blocks. If a function may take long, its docstring says that it must be called in
a thread. Only functions on the event loop keep recently used files open.
A function that raises LostBlockError or NoSpaceLeftError raises ShortageError instead if the
machine lacks memory or file descriptors. The caller must not treat such a block as lost.
"""

import contextlib
import ctypes
import errno
import itertools
import logging
import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from s3fs_meta import sync_failures
from s3fs_meta.cache.files.file_syncs import start_write_back, sync_files
from s3fs_meta.cache.files.files_ahead import FilesAhead
from s3fs_meta.cache.files.lost_pages import first_lost_byte
from s3fs_meta.cache.files.open_blocks import NO_DESCRIPTOR_ERRNOS, OpenBlocks, WrittenBlocks
from s3fs_meta.disk_full import FULL_ERRNOS
from s3fs_meta.errors import LostBlockError, NoSpaceLeftError, ShortageError
from s3fs_meta.hashed_dir import NumberedDir, make_durably, write_again, write_new
from s3fs_meta.limits import SYNCFS_FILES_MIN
from s3fs_meta.model import BlockId
from s3fs_meta.state_paths import is_unfinished, unfinished

# Opening a file fails with EIO if its inode has been lost on the disk.
# ext4 and XFS may also report EBADMSG or EUCLEAN.
_UNREADABLE_ERRNOS: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
# Errors that do not concern the file itself: too little memory, or too many open files.
_SHORTAGE_ERRNOS: Final = NO_DESCRIPTOR_ERRNOS | {errno.ENOMEM}
_FIRST: Final = BlockId(0)
_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


def sync_disk(fd: int, path: Path) -> None:
    """Sync the complete disk that contains an open file; error messages name *path*."""
    if _libc.syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))


class BlockFiles:
    """The block files of one cache directory, by block number."""

    def __init__(self, root: Path, tmp: Path) -> None:
        """Open the directory *root* of the block files, and *tmp* for unfinished files.

        Raises:
            SettingsError: the directories are on different disks, or a link is in *root*.
            OSError: the disk failed.
        """
        self.root = root
        self._tmp = tmp
        make_durably(root)
        make_durably(tmp)
        self._directory = NumberedDir(root)
        self._directory.require_own_disk(tmp)
        # Opened now, because after a disk error syncfs(2) may not report it on a new descriptor.
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._root_fd)
        self._directory.gather()
        self.ahead = FilesAhead(self._directory)
        self._written = WrittenBlocks()
        self._open = OpenBlocks(self._written.close)
        self._adoptions = itertools.count()  # several threads may increment this counter
        self._sync_failure = ""  # error of the first failed sync, which later syncs raise again

    def read(self, block: BlockId, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of a block's content. Runs in any thread.

        Raises:
            LostBlockError: the file is missing, shorter than *stop*, or unreadable.
        """
        try:
            with self._file(block) as fd:
                return self._read(block, fd, start, stop)
        except OSError as exc:
            raise _not_opened(block, exc) from exc

    @contextlib.contextmanager
    def _file(self, block: BlockId, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Yield a descriptor of a block's file, which is open only in the ``with`` block."""
        fd = self._directory.open(_name(block), flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def read_on_loop(self, block: BlockId, start: int, stop: int) -> bytes:
        """Return bytes of a block as ``read`` does; keep the file open. Runs on the event loop."""
        fd = self._open.get(block)
        if fd is None:
            try:
                fd = self._opened(block)
            except LostBlockError:
                # The disk may be read-only after an error, so open the file only for reading.
                return self.read(block, start, stop)
        return self._read(block, fd, start, stop)

    def open_on_loop(self, block: BlockId) -> int | None:
        """Return the open descriptor of a block's file. Runs on the event loop.

        Returns:
            None if the file cannot be opened, or after a failed sync, which may have lost content.
        """
        if self._sync_failure:
            return None
        fd = self._open.get(block)
        if fd is None:
            # Ignore the error, because ``read`` opens the file again and raises it.
            with contextlib.suppress(LostBlockError, ShortageError):
                fd = self._opened(block)
        return fd

    def _read(self, block: BlockId, fd: int, start: int, stop: int) -> bytes:
        if self._sync_failure:  # after a failed sync, pages that the kernel lost read as zeros
            lost = first_lost_byte(fd, start)
            if lost is not None and lost < stop:
                raise LostBlockError(
                    block, f"the disk has lost the content of the cache file from byte {lost} on"
                )
        return _read(block, fd, start, stop)

    def _opened(self, block: BlockId) -> int:
        """Open the file of a block and keep it open. Runs on the event loop."""
        try:
            fd = self._directory.open(_name(block), os.O_RDWR)
        except OSError as exc:
            raise _not_opened(block, exc) from exc
        self._open.put(block, fd)
        return fd

    def create(self, block: BlockId, offset: int, data: bytes | memoryview) -> bool:
        """Write a new file: zeros up to *offset*, then *data*. Runs on the event loop.

        An existing file of the block is overwritten, because it is left over from a commit group
        that was undone by a crash.

        Returns:
            True if the name of the file is durable already.

        Raises:
            NoSpaceLeftError: the disk is full; the file was removed.
        """
        fd = self.ahead.take(block)
        is_named = fd is not None
        try:
            if fd is None:
                fd = self._directory.open(_name(block), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self._open.put(block, fd)
            write_all(fd, offset, data)
            self._written.add(block)
        except OSError as exc:
            with contextlib.suppress(OSError):  # unlink(2) fails if the inode is damaged
                self.remove(block)
            raise _translate(exc, block) from exc
        return is_named

    def write_within(
        self, block: BlockId, offset: int, data: bytes | memoryview, plain_bytes: int
    ) -> None:
        """Write into the file of a block; a gap after its content becomes zeros.

        Args:
            plain_bytes: the length of the content according to the row. Later bytes, which a killed
                daemon may have left, are cut off first, so that they do not appear in the gap.

        Raises:
            NoSpaceLeftError: the disk is full. As with write(2), a part of *data* may be written.
            LostBlockError: the file or content before *offset* is missing, or the disk failed.
        """
        fd = self._open.get(block)
        if fd is None:
            fd = self._opened(block)
        try:
            found = os.fstat(fd)
            if not found.st_nlink:
                raise LostBlockError(block, "the cache file was removed")
            if found.st_size < min(offset, plain_bytes):
                raise LostBlockError(
                    block,
                    f"the cache file ends at byte {found.st_size}, before byte"
                    f" {min(offset, plain_bytes)}",
                )
            if offset > plain_bytes:
                os.ftruncate(fd, plain_bytes)
            write_all(fd, offset, data)
            self._written.add(block)
        except OSError as exc:
            raise _translate(exc, block) from exc

    def copy(self, source: BlockId, target: BlockId, keep_bytes: int) -> bool:
        """Copy the first *keep_bytes* of *source* to a new file of *target*, on the event loop.

        Return whether the name of the new file is durable already, as ``create`` does.

        Raises:
            LostBlockError: the file of *source* is missing or too short.
            NoSpaceLeftError: the disk is full; the file of *target* was removed.
        """
        return self.create(target, 0, self.read_on_loop(source, 0, keep_bytes))

    def take_over(self, source: BlockId, target: BlockId, keep_bytes: int) -> None:
        """Rename the file of *source* to *target*, and truncate it to *keep_bytes*.

        Runs on the event loop. Afterwards *source* has no file. If a quarantined state has a hard
        link to the file, the file is copied instead, so that the quarantined content stays.

        Raises:
            LostBlockError: the file of *source* is missing or too short.
            NoSpaceLeftError: the disk is full; *source* may no longer have a file.
        """
        if (fd := self._open.get(source)) is None:
            fd = self._opened(source)
        try:
            found = os.fstat(fd)
            if found.st_size < keep_bytes:
                raise LostBlockError(source, f"the cache file has {found.st_size} bytes")
            if found.st_nlink > 1:  # a quarantined state has a hard link to the file
                self.copy(source, target, keep_bytes)
                return self.remove(source)
            self.ahead.drop(target)
            self._directory.rename(_name(source), _name(target))
            self._open.rename(source, target)
            self._cut_renamed(target, fd, found.st_size, keep_bytes)
        except OSError as exc:
            raise _translate(exc, source) from exc

    def _cut_renamed(self, target: BlockId, fd: int, size_bytes: int, keep_bytes: int) -> None:
        """Truncate a renamed file; if that fails, remove it, because no row will refer to it."""
        try:
            if not os.fstat(fd).st_nlink:  # a thread has just replaced the file (``adopt``)
                self._open.forget(target)
                fd = self._opened(target)
            self._written.add(target)
            if size_bytes > keep_bytes:
                os.ftruncate(fd, keep_bytes)
        except (OSError, LostBlockError, ShortageError):
            with contextlib.suppress(OSError):
                self.remove(target)
            raise

    def cut_after(self, block: BlockId, length: int) -> None:
        """Truncate a file to *length* bytes if it is longer; skip a missing or unreadable file."""
        try:
            fd = self._directory.open(_name(block), os.O_RDWR)
        except FileNotFoundError:
            return
        except OSError as exc:
            if exc.errno not in _UNREADABLE_ERRNOS:
                raise
            _log.error("%s", _not_opened(block, exc))
            return
        try:
            if os.fstat(fd).st_size > length:
                os.ftruncate(fd, length)
        finally:
            os.close(fd)

    def extend(self, block: BlockId, length: int) -> None:
        """Extend a file with zeros to *length* bytes if it is shorter. Runs in a thread."""
        with self._file(block, os.O_RDWR) as fd:
            if os.fstat(fd).st_size < length:
                os.ftruncate(fd, length)

    def put(self, block: BlockId, offset: int, data: bytes) -> None:
        """Write bytes into the file of a block, which is created if missing. Runs in a thread.

        Raises:
            OSError: the disk is full or failed.
        """
        with self._file(block, os.O_RDWR | os.O_CREAT) as fd:
            write_all(fd, offset, data)

    def adopt(self, block: BlockId, data: bytes | memoryview) -> None:
        """Store a fetched block: write a file in ``tmp``, then rename it. Runs in a thread.

        Raises:
            NoSpaceLeftError: the disk is full; no file was created.
        """
        # The temporary name is unique, because two tasks may fetch the block at the same time.
        path = unfinished(self._tmp, f"fetch-{_name(block)}-{next(self._adoptions)}")
        try:
            write_new(path, data)
            self._directory.put_from(path, _name(block))
            self._open.forget(block)
        except OSError as exc:
            with contextlib.suppress(OSError):  # unlink(2) fails if the disk is read-only
                path.unlink(missing_ok=True)
            raise _translate(exc, block) from exc

    def copy_clean(self, source: BlockId, target: BlockId, plain_bytes: int) -> None:
        """Copy a block's file to the file of a block with equal content. Runs in a thread.

        Raises:
            LostBlockError: the file of *source* is missing or too short.
            NoSpaceLeftError: the disk is full; no file was created.
        """
        self.adopt(target, self.read(source, 0, plain_bytes))

    def remove(self, block: BlockId) -> None:
        """Remove a block's file, and its directory once empty. Runs on the event loop."""
        self.let_go([block])
        self._unlink([block])

    def let_go(self, blocks: Iterable[BlockId]) -> None:
        """Close the files of blocks before a thread removes them. Runs on the event loop.

        The thread then frees the space of the files. On the event loop, the last close of a file
        would take 0.1 ms per MiB.
        """
        for block in blocks:
            self._open.forget(block)
        self._open.close_forgotten()

    def remove_all(self, blocks: Iterable[BlockId]) -> None:
        """Remove block files. Runs in any thread, between ``let_go`` and ``close_removed``.

        A file stays if the disk has lost its inode; fsck removes it after a repair of the disk.

        Raises:
            OSError: a file cannot be removed for another reason; all files were tried.
        """
        self._unlink(blocks)

    def _unlink(self, blocks: Iterable[BlockId]) -> None:
        failures: list[OSError] = []
        for name, exc in self._directory.remove_all(map(self._name_to_remove, blocks)):
            if exc.errno in _UNREADABLE_ERRNOS:
                _log.error(
                    "cannot remove the cache file %s (%s); check the disk that contains %s",
                    name,
                    exc.strerror,
                    self.root,
                )
            else:
                failures.append(exc)
        if failures:
            raise failures[0]

    def _name_to_remove(self, block: BlockId) -> str:
        """Stop using the open descriptor of a block; return the path of its file."""
        self._open.forget(block)
        return _name(block)

    def close_removed(self) -> None:
        """Close files that were opened again before their removal. Runs on the event loop."""
        self._open.close_forgotten()

    def size(self, block: BlockId) -> int | None:
        """Return the length of a block's file, or None if the file does not exist."""
        try:
            return self._directory.path(_name(block)).stat().st_size
        except FileNotFoundError:
            return None

    def is_unreadable(self, block: BlockId) -> bool:
        """Return whether the disk has lost the inode of a block's file, and log it if so."""
        try:
            self._directory.path(_name(block)).stat()
        except OSError as exc:
            if exc.errno in _UNREADABLE_ERRNOS:
                _log.error(
                    "%s; check the disk that contains %s", _not_opened(block, exc), self.root
                )
                return True
        return False

    def times_ns(self, block: BlockId) -> tuple[int, int]:
        """Return mtime and ctime of a block's file, in ns. Raises FileNotFoundError."""
        found = self._directory.path(_name(block)).stat()
        return found.st_mtime_ns, found.st_ctime_ns

    def numbers(self, first: BlockId = _FIRST) -> Iterable[BlockId]:
        """Yield the numbers of all block files from *first* on, in any order."""
        for number in self._directory.numbers(first):
            yield BlockId(number)

    def quarantine(self, blocks: Iterable[BlockId], directory: Path) -> None:
        """Move block files into another directory on the same disk; create it if needed.

        The move is durable, so a power cut cannot restore an old name that a new file may use. Runs
        in a thread.

        Raises:
            FileExistsError: the directory has a file with a block's number; later blocks stay.
            OSError: the disk failed.
        """
        target: NumberedDir | None = None
        for block in blocks:
            if target is None:
                make_durably(directory)
                target = NumberedDir(directory)
            self._open.forget(block)
            self._directory.move_to(target, _name(block))
        if target is not None:
            self.sync_everything()

    def link_to(self, blocks: Iterable[BlockId], directory: Path) -> None:
        """Link block files durably into another directory; create it if needed.

        Missing files are skipped. Runs in a thread.

        Raises:
            FileExistsError: the directory has a file with a block's number.
            OSError: the disk failed.
        """
        make_durably(directory)
        target = NumberedDir(directory)
        for block in blocks:
            with contextlib.suppress(FileNotFoundError):
                target.link_new(self._directory.path(_name(block)), _name(block))
        self.sync_everything()

    def sync(self, blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
        """Make block files and their names durable. Runs in a thread, because it may take long.

        Missing files are skipped: their blocks were unreferenced, so the files have been deleted.

        Args:
            blocks: blocks whose content is not durable yet.
            named: the blocks whose file names are already durable.

        Raises:
            OSError: the disk failed; possibly no file is durable.
        """
        self._written.begin_sync()
        if len(blocks) >= SYNCFS_FILES_MIN:
            self._written.need_syncfs()
            self.sync_everything()
            return
        with self.syncing(), contextlib.ExitStack() as opened:
            is_short = False
            try:
                # fdatasync(2) is enough, because the mtime of a block file need not be durable.
                # fsync(2) would write the mtime, which makes ext4 commit its journal.
                sync_files(list(self._open_files(blocks, opened)))
                self._directory.sync_parents(_name(block) for block in blocks if block not in named)
            except OSError as exc:
                # Use syncfs(2) instead, because it needs no further descriptor.
                if exc.errno not in NO_DESCRIPTOR_ERRNOS:
                    raise
                is_short = True
            if self._written.need_syncfs() or is_short:
                self._syncfs()

    def _open_files(self, blocks: Iterable[BlockId], opened: contextlib.ExitStack) -> Iterator[int]:
        """Yield descriptors of block files, which *opened* closes later; skip missing files."""
        for block in blocks:
            with contextlib.suppress(FileNotFoundError):
                yield opened.enter_context(self._file(block))

    def start_write_back(self, blocks: Iterable[BlockId]) -> None:
        """Start writing block files to the disk, so that a later sync waits less.

        Runs in a thread. Skips a file that cannot be opened, because the next sync opens it again.

        Raises:
            OSError: the disk failed; all later syncs fail, too.
        """
        for block in blocks:
            with contextlib.ExitStack() as opened:
                fds: list[int] = []
                with contextlib.suppress(OSError):
                    fds += self._open_files([block], opened)
                with self.syncing():
                    for fd in fds:
                        start_write_back(fd)

    def sync_everything(self) -> None:
        """Sync all files of the disk. Runs in a thread; raises the same errors as ``sync``.

        Uses syncfs(2), because ``os.sync`` waits for every disk.
        """
        with self.syncing():
            self._syncfs()

    def _syncfs(self) -> None:
        sync_disk(self._root_fd, self.root)

    def distrust_closed(self) -> None:
        """Make the next sync call syncfs(2), because a killed daemon wrote and closed files."""
        self._written.distrust()

    @contextlib.contextmanager
    def syncing(self) -> Iterator[None]:
        """Run a sync in a ``with`` block; after a failure all later syncs also fail.

        The kernel reports a lost page to one sync only. If a later sync were reported as
        successful, the lost bytes would seem to be durable. The failure is also recorded for the
        next mount.

        Raises:
            OSError: this ``with`` block or an earlier sync failed.
        """
        if self._sync_failure:
            raise OSError(errno.EIO, self._sync_failure, str(self.root))
        try:
            yield
        except OSError as exc:
            sync_failures.note(self.root.parent)
            self._sync_failure = f"an earlier sync failed ({exc.strerror or exc})"
            raise

    def write_again(self, blocks: Sequence[BlockId], tails: Mapping[BlockId, int]) -> None:
        """Replace block files with durable copies. Runs in a thread, before the files are opened.

        Args:
            blocks: the blocks.
            tails: for each block with unsynced bytes, the number of leading bytes that are durable.
                A copy ends before the first lost byte, because the lost bytes read as zeros.

        Raises:
            OSError: a file cannot be written to the disk.
        """
        for block in blocks:
            self._write_again(block, tails.get(block))
        self._directory.sync_parents(map(_name, blocks))

    def _write_again(self, block: BlockId, trusted_bytes: int | None) -> None:
        """Replace one file with a copy; skip a missing or unreadable file, whose block is lost."""
        try:
            with self._file(block) as fd:
                keep_bytes = os.fstat(fd).st_size
                lost = None if trusted_bytes is None else first_lost_byte(fd, trusted_bytes)
                if lost is not None:
                    what = "the disk has lost the content of block %d from byte %d on"
                    _log.error(what, block, lost)
                    keep_bytes = lost
                _read(block, fd, 0, keep_bytes)
        except FileNotFoundError:
            return
        except LostBlockError as exc:
            _log.error("%s", exc)
            return
        copy = unfinished(self._tmp, f"again-{_name(block)}")
        write_again(self._directory.path(_name(block)), copy, keep_bytes=keep_bytes)

    def drop_pages(self, blocks: Iterable[BlockId]) -> None:
        """Drop file pages from memory, so that reads return the disk's bytes. Runs in a thread."""
        for block in blocks:
            with contextlib.suppress(FileNotFoundError), self._file(block) as fd:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def clear_tmp(self) -> None:
        """Remove unfinished files of an earlier run from ``tmp``, but no other program's files."""
        for path in self._tmp.iterdir():
            if is_unfinished(path.name) and not path.is_dir():
                path.unlink(missing_ok=True)


def _read(block: BlockId, fd: int, start: int, stop: int) -> bytes:
    try:
        data = os.pread(fd, stop - start, start)
    except OSError as exc:
        raise _inaccessible(block, "the cache file cannot be read", exc) from exc
    if len(data) != stop - start:
        raise LostBlockError(
            block, f"the cache file ends at byte {start + len(data)}, before byte {stop}"
        )
    return data


def _name(block: BlockId) -> str:
    return f"{block:x}"


def write_all(fd: int, offset: int, data: bytes | memoryview) -> None:
    """Write all bytes of *data*; repeat pwrite(2) while it writes only a part."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):  # the loop ends: each pass writes at least one byte or raises
        written += os.pwrite(fd, memoryview(data)[written:], offset + written)


def _not_opened(block: BlockId, exc: OSError) -> LostBlockError | ShortageError:
    return _inaccessible(block, "the cache file cannot be opened", exc)


def _translate(exc: OSError, block: BlockId) -> LostBlockError | NoSpaceLeftError | ShortageError:
    if exc.errno in FULL_ERRNOS:
        return NoSpaceLeftError("the disk of the cache directory is full")
    return _inaccessible(block, "access to the cache file failed", exc)


def _inaccessible(block: BlockId, what: str, exc: OSError) -> LostBlockError | ShortageError:
    kind = ShortageError if exc.errno in _SHORTAGE_ERRNOS else LostBlockError
    return kind(block, f"{what} ({exc.strerror})")
