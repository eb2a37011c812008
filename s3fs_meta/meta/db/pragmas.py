"""The pragmas of SQLite that users can set as mount options.

Owns: the valid values, the refused combinations, and the settings of a new database.
Does not know: option strings and their defaults (``settings``), connections (``database``).
Design: docs/guide/tuning.md lists the data that a crash loses under each setting.
"""

import os
from dataclasses import dataclass
from typing import Final

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import KIB, PAGE_CACHE_BYTES_MAX, PAGE_CACHE_BYTES_MIN
from s3fs_meta.options.settings import SqliteOptions

JOURNAL_MODES: Final = ("wal", "delete", "truncate", "persist", "memory", "off")
# The levels of the pragma synchronous; the position of a level is SQLite's number for the level.
SYNCHRONOUS: Final = ("off", "normal", "full", "extra")
TEMP_STORES: Final = ("default", "file", "memory")
PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))

# By default, the page cache has 1/256 of the machine's memory, within limits.
_RAM_SHARE: Final = 256


@dataclass(frozen=True)
class Pragmas(SqliteOptions):
    """The settings of SQLite for one database.

    Attributes:
        cache_size: pages if positive, KiB if negative; None: a share of the machine's memory.
        wal_autocheckpoint: pages in the log after which a commit also checkpoints; 0: never,
            because the owner of the database checkpoints in a thread.
        page_size: bytes per page of a new database; an existing database keeps its page size.
        journal_size_limit: a longer journal or WAL is truncated after use; bytes, -1: no limit.
    """

    page_size: int = 4096
    journal_size_limit: int = 64 * KIB * KIB

    def validate(self) -> None:
        """Raise UsageError for settings that SQLite does not support or would silently ignore.

        Raises:
            UsageError: the message names the option, its value and the valid values.
        """
        _require_one_of("journal_mode", self.journal_mode, JOURNAL_MODES)
        _require_one_of("synchronous", self.synchronous, SYNCHRONOUS)
        _require_one_of("temp_store", self.temp_store, TEMP_STORES)
        _require_one_of("page_size", self.page_size, PAGE_SIZES)
        _require_between("cache_size", self.effective_cache_size, -(1 << 31) + 1, (1 << 31) - 1)
        _require_between("mmap_size", self.mmap_size, 0, 1 << 40)
        _require_between("wal_autocheckpoint", self.wal_autocheckpoint, 0, (1 << 31) - 1)
        _require_between("journal_size_limit", self.journal_size_limit, -1, 1 << 40)
        if self.wal_autocheckpoint and not self.is_wal:
            raise UsageError(
                f"option wal_autocheckpoint={self.wal_autocheckpoint} needs journal_mode=wal,"
                f" not {self.journal_mode}"
            )

    @property
    def is_wal(self) -> bool:
        """Return whether the journal is a write-ahead log."""
        return self.journal_mode == "wal"

    @property
    def can_undo(self) -> bool:
        """Return whether a commit group can be rolled back, which requires a journal."""
        return self.journal_mode != "off"

    @property
    def has_durable_journal(self) -> bool:
        """Return whether the journal is a file, which undoes an incomplete commit after a crash."""
        return self.journal_mode not in {"memory", "off"}

    @property
    def survives_power_loss(self) -> bool:
        """Return whether the settings let synced data survive a power loss."""
        return self.synchronous != "off" and self.has_durable_journal

    @property
    def effective_cache_size(self) -> int:
        """Return the size of the page cache as SQLite expects it: pages, or KiB if negative."""
        return default_cache_size() if self.cache_size is None else self.cache_size

    @property
    def commit_syncs_journal_end(self) -> bool:
        """Return whether the end of a rollback journal is on disk when COMMIT returns.

        Otherwise a journal that reappears after a power cut undoes the commit. Because the lock is
        exclusive, DELETE works like PERSIST: it keeps the journal and overwrites its header. The
        header is synced at every level except off. TRUNCATE syncs the journal only at FULL and
        above.
        Source: pager_end_transaction and zeroJournalHdr in SQLite's pager.c.
        """
        return self.journal_mode in {"delete", "persist"} or self.synchronous in {"full", "extra"}


def default_cache_size() -> int:
    """Return the default page cache size for this machine, as negative KiB."""
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    wanted = min(max(ram_bytes // _RAM_SHARE, PAGE_CACHE_BYTES_MIN), PAGE_CACHE_BYTES_MAX)
    return -(wanted // KIB)


def _require_one_of(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        valid = ", ".join(str(word) for word in known)
        raise UsageError(f"option {option}={value} is not valid; the valid values are {valid}")


def _require_between(option: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise UsageError(f"option {option}={value} must be from {lowest} to {highest}")
