"""A filesystem that is open on this host, as one value, and the options to open it with.

Owns: its parts: store, keys, state directory, database, lease, position in the chain.
Does not know: how it is opened and closed (``sync.opening``), what runs on it (``sync.session``).
Keeps: the value never changes. What changes during a mount's life has an owner with methods: the
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
    """How to open a filesystem."""

    pragmas: Pragmas = field(default_factory=Pragmas)
    read_only: bool = False
    follow: bool = False  # read-only, and exactly at the end of the chain
    repairing: bool = False  # fsck: open state that a mount would refuse
    mend: Mend | None = None  # txgs that may be abandoned if the end of the chain is unreadable
    accept_superblock: bool = False  # fsck: quarantine local state of other keys
    force_takeover: bool = False
    unsafe_single_writer: bool = False
    lock_wait_s: float = 0.0
    lease_check_s: float = LEASE_CHECK_S  # time between two checks of a held lease
    at_least: Mark | None = None  # a link that the opened state must include
    hook: Hook = no_hook


class Position:
    """The position of the rows in the chain. The writer or the follower of a mount advances it."""

    def __init__(self, first: Link) -> None:
        """Begin at the link that the rows held when the filesystem was opened."""
        self.first = first
        self.link = first  # the link that a follower shows, or that a writer shipped last

    def advance(self, link: Link) -> None:
        """Note that the rows hold another link now. Schedule point: never."""
        self.link = link


class KnownSuperblock:
    """The superblock that this mount uses. Other hosts may change the one in the bucket."""

    def __init__(self, present: Superblock) -> None:
        self._present = present

    @property
    def present(self) -> Superblock:
        """Return the newest superblock that this host has accepted."""
        return self._present

    def accept(self, newer: Superblock) -> None:
        """Use a newer superblock of the same filesystem from now on."""
        assert newer.uuid == self._present.uuid, "another filesystem has another superblock"
        self._present = newer


@dataclass(frozen=True, slots=True)
class Volume:
    """A filesystem open on this host: the state directory is locked, the database open."""

    store: ObjectStore
    known: KnownSuperblock
    keyring: Keyring
    state_dir: StateDir
    db: Database
    recorder: ChangeRecorder
    keeper: LeaseKeeper
    position: Position
    clock: StoreClock  # clock for times in the chain
    options: OpenOptions  # options of the opening; a promotion does not change them
    crashed: bool  # unclean shutdown of the last mount on this host
    power_lost: bool  # unclean shutdown, and the machine was rebooted since
    notices: tuple[str, ...]  # one-line facts to show to the user
    # Faults of the copies in the bucket when the volume was opened.
    superblock_faults: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()  # faults of the chain, and abandoned txgs
    offline: str = ""  # why it was opened without the bucket; empty: the bucket was reachable
    # True for a snapshot, whose state directory is removed when it is closed.
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
        """Return the link that the rows held when the filesystem was opened."""
        return self.position.first
