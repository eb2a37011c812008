"""An opened filesystem as one value, and the options with which it is opened.

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
from s3fs_meta.model import Mark
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.state_dir import StateDir
from s3fs_meta.sync.store_clock import StoreClock


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """The options with which a filesystem is opened."""

    pragmas: Pragmas = field(default_factory=Pragmas)
    read_only: bool = False
    follow: bool = False  # read-only, with exactly the state of the last txg
    repairing: bool = False  # for fsck: open state that a mount would refuse
    mend: Mend | None = None  # txgs that may be abandoned if they cannot be read
    accept_superblock: bool = False  # for fsck: quarantine local state of another master key
    force_takeover: bool = False
    unsafe_single_writer: bool = False
    lock_wait_s: float = 0.0
    lease_check_s: float = LEASE_CHECK_S  # minimum time between two checks of a held lease
    at_least: Mark | None = None  # a mark of a link that the opened state must include
    hook: Hook = no_hook


class Position:
    """The position of the database in the chain, which the mount's writer or follower advances."""

    def __init__(self, first: Link) -> None:
        """Begin with the link of the opened database."""
        self.first = first
        self.link = first  # the link that a follower shows, or that a writer shipped last

    def advance(self, link: Link) -> None:
        """Record that the database now has the state of another link. Schedule point: never."""
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
        assert newer.uuid == self._present.uuid, "the superblock must be of the same filesystem"
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
    clock: StoreClock  # gives the times of changelogs
    options: OpenOptions  # the options at opening; a promotion does not change them
    crashed: bool  # the last mount on this host had an unclean shutdown
    power_lost: bool  # the machine was rebooted after the unclean shutdown
    notices: tuple[str, ...]  # lines to show to the user
    # Faults of the copies in the bucket when the volume was opened.
    superblock_faults: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()  # lines about faults of the chain and abandoned txgs
    offline: str = ""  # why it was opened without the bucket; "" otherwise
    # True for a snapshot; its state directory is removed when the snapshot is closed.
    throwaway: bool = False

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
        """Return the link of the database when the filesystem was opened."""
        return self.position.first
