"""An opened filesystem as one value, and the options for opening it.

Owns: the parts of the value: store, keys, state directory, database, lease, position in the chain.
Does not know: how it is opened and closed (``sync.opening``), which tasks use it
(``sync.session``).
Keeps: the value never changes. Each part that changes during a mount is an object with methods: the
lease (``LeaseKeeper``), the position (``Position``), the superblock (``KnownSuperblock``), and the
role, follower or writer (``mount_state.MountStatus``).
"""

from dataclasses import dataclass, field

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.limits import LEASE_CHECK_S
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import AbbreviatedLink
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.store_clock import StoreClock


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """The options for opening a filesystem."""

    pragmas: Pragmas = field(default_factory=Pragmas)
    read_only: bool = False
    follow: bool = False  # True for a follower: read-only, and always in the state of one txg
    repairing: bool = False  # True for fsck: open local state even if a mount would refuse it
    mend: Mend | None = None  # unreadable txgs that may be abandoned; None to abandon no txg
    # True for fsck: quarantine local state that has a different master key
    accept_superblock: bool = False
    force_takeover: bool = False
    unsafe_single_writer: bool = False
    lock_wait_s: float = 0.0
    # minimum time in seconds between two checks that the lease is still held
    lease_check_s: float = LEASE_CHECK_S
    at_least: AbbreviatedLink | None = None  # txg that the opened state must contain
    hook: Hook = no_hook


class Position:
    """The database's position in the chain, which the mount's writer or follower advances."""

    def __init__(self, first: Link) -> None:
        """Start at the position of the opened database in the chain."""
        self.first = first
        self.link = first  # last position that a follower shows or a writer has shipped

    def advance(self, link: Link) -> None:
        """Record the chain position that the database has reached. Never yields to other tasks."""
        self.link = link


class KnownSuperblock:
    """The superblock that this mount uses; another host may change the superblock in the bucket."""

    def __init__(self, present: Superblock) -> None:
        self._present = present

    @property
    def present(self) -> Superblock:
        """Return the newest superblock that this host has accepted."""
        return self._present

    def accept(self, newer: Superblock) -> None:
        """Use a newer superblock of the same filesystem from now on."""
        assert newer.uuid == self._present.uuid, "the superblock must belong to the same filesystem"
        self._present = newer


@dataclass(frozen=True, slots=True)
class Volume:
    """A filesystem opened on this host: its state directory is locked, its database open."""

    store: ObjectStore
    known: KnownSuperblock
    keyring: Keyring
    state_dir: StateDir
    db: Database
    recorder: ChangeRecorder
    keeper: LeaseKeeper
    position: Position
    clock: StoreClock  # clock for the times in changelogs
    options: OpenOptions  # options used for opening the volume; a promotion does not change them
    crashed: bool  # True after an unclean shutdown of the last mount on this host
    power_lost: bool  # True if the machine was rebooted after the unclean shutdown
    notices: tuple[str, ...]  # notices to show to the user, one line each
    # Faults of the superblock copies in the bucket, found when the volume was opened.
    superblock_faults: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()  # faults of the chain and abandoned txgs, one line each
    offline: str = ""  # reason for opening the volume without the bucket; "" otherwise
    # True for a snapshot, whose state directory is removed when the snapshot is closed.
    temporary: bool = False

    @property
    def uuid(self) -> str:
        """Return the UUID of the filesystem."""
        return self.known.present.uuid

    @property
    def superblock(self) -> Superblock:
        """Return the newest superblock that this host has accepted."""
        return self.known.present

    @property
    def link(self) -> Link:
        """Return the chain position that the database had when the filesystem was opened."""
        return self.position.first
