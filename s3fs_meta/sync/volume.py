"""A filesystem that is open on this host, as one value, and the options to open it with.

Owns: its parts: store, keys, state directory, database, lease, link of the chain.
Does not know: how it is opened and closed (``sync.opening``), what runs on it (``sync.session``).
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    UnconditionalStoreError,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import Mark
from s3fs_meta.objects import probe
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.lease.lease import LeaseKeeper
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
    at_least: Mark | None = None  # a link that the opened state must include
    hook: Hook = no_hook


@dataclass(slots=True)
class Volume:
    """A filesystem open on this host: the state directory is locked, the database open."""

    store: ObjectStore
    superblock: Superblock
    keyring: Keyring
    state_dir: StateDir
    db: Database
    recorder: ChangeRecorder
    keeper: LeaseKeeper
    link: Link  # the link that its rows hold
    read_only: bool
    crashed: bool  # unclean shutdown of the last mount on this host
    power_lost: bool  # and this is another boot of the machine
    notices: list[str]  # one-line facts to show to the user
    clock: StoreClock  # for times in the chain
    superblock_faults: Sequence[str] = ()  # faults of the copies in the bucket when it was opened
    mended: list[str] = field(default_factory=list)  # faults of the chain, and abandoned txgs
    offline: str = ""  # why only local state is shown: the bucket is unreachable
    throwaway: bool = False  # a snapshot: its state directory is removed when it is closed


async def require_conditions(store: ObjectStore, *, unsafe_allowed: bool) -> bool:
    """Return whether the store honours conditional writes.

    Raises:
        UnconditionalStoreError: it does not, and the user did not accept that.
    """
    if await probe.probe(store, uuid.uuid4().hex):
        return True
    if not unsafe_allowed:
        raise UnconditionalStoreError(
            f"{store.url} ignores conditional writes, so nothing would stop a second writer; "
            "use another store, or --unsafe-single-writer if only one host will ever mount it"
        )
    return False
