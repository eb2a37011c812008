"""The survey of the cache directory: a list of its files, and a check of cached copies.

Owns: listing the files, and parsing their names. Does not know: which files are faults
(``rules.cache``).
Tasks: all calls block. Keeps: no file is changed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from s3fs_meta.cache.crash_safety import intent_log, intent_replay
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.check.context import Examination
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import LostBlockError
from s3fs_meta.hashed_dir import NumberedDir, PrunedTree
from s3fs_meta.limits import FSCK_BATCH_ROWS
from s3fs_meta.model import BlockId
from s3fs_meta.state_paths import is_unfinished


def survey(exam: Examination, files: BlockFiles, tmp: Path) -> None:
    """Record every file of the cache directory, and the unfinished files in *tmp*.

    The next mount writes the content of the intent log into the block files. So this content is
    treated as content of block files.

    Raises:
        OSError: a directory or a file cannot be examined. The run must end, because fsck -y would
            record the unlisted blocks as lost.
    """
    exam.report.note(f"listing the cache directory {files.root}")
    directory = NumberedDir(files.root)
    log = files.root / intent_log.NAME
    for batch in _batches(path for path in _paths(files.root) if path != log):
        found: dict[BlockId, int] = {}
        strays = []
        for path in batch:
            block, status = _block(path, directory), _status(path)
            if block is not None and stat.S_ISREG(status.st_mode):
                found[block] = status.st_size
            else:
                strays.append(path)
        exam.evidence.note_files(found.items())
        exam.evidence.note_strays(strays)
    exam.evidence.note_strays(
        path for path in tmp.iterdir() if is_unfinished(path.name) and not path.is_dir()
    )
    _note_logged(exam, files)
    exam.use_files(files)


def _note_logged(exam: Examination, files: BlockFiles) -> None:
    pieces = intent_replay.needed_pieces(exam.db, files.root)
    wanted = intent_replay.only_here(exam.db, pieces)
    sizes = {block: files.size(block) or 0 for block in wanted}
    for piece in pieces:
        if piece.block in wanted:
            sizes[piece.block] = max(sizes[piece.block], piece.stop)
    exam.evidence.note_files(sizes.items())


def _paths(root: Path) -> Iterator[Path]:
    return (root / name for name in PrunedTree(root).names())


def _status(path: Path) -> os.stat_result:
    """Return the status of a file. A link is followed, as by a mount, unless it has no target."""
    try:
        return path.stat()
    except OSError as exc:
        if exc.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return path.lstat()
        raise


def _batches(paths: Iterator[Path]) -> Iterator[list[Path]]:
    while batch := list(islice(paths, FSCK_BATCH_ROWS)):
        yield batch


def _block(path: Path, directory: NumberedDir) -> BlockId | None:
    """Return the block number of a file, or None if its path is not the path of a block file."""
    try:
        number = int(path.name, 16)
    except ValueError:
        return None
    is_name = path.name == f"{number:x}" and number < 1 << 63
    return BlockId(number) if is_name and directory.path(path.name) == path else None


def verify_copies(exam: Examination, keyring: Keyring, blocks_query: str) -> None:
    """Hash the cache files of the uploaded blocks that a query returns; record the correct files.

    A file needs no row in ``cached_blocks``: the hash in the block's row proves its content.
    """
    if exam.files is None:
        return
    files = exam.files
    rows = exam.collected(
        f"SELECT b.block, b.plain_bytes, b.hash FROM ({blocks_query}) AS x"
        " JOIN blocks AS b ON b.block = x.block AND typeof(b.hash) = 'blob'"
        " JOIN temp.seen_files AS f ON f.block = b.block AND f.size_bytes >= b.plain_bytes"
    )
    for block, plain_bytes, digest in rows:
        try:
            data = files.read(block, 0, plain_bytes)
        except LostBlockError:
            continue
        if keyring.block_hash(data) == digest:
            exam.evidence.note_intact_copies([block])
