"""A filesystem that is open on this host, as one value, and the options to open it with.

Owns: what belongs to it: store, keys, state directory, database, lease, place in the chain.
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
    follow: bool = False  # read-only, and exactly where the bucket is
    repairing: bool = False  # fsck: open what a mount would refuse
    mend: Mend | None = None  # what may be given up of a chain whose end cannot be read
    accept_superblock: bool = False  # fsck: quarantine local state of other keys
    force_takeover: bool = False
    unsafe_single_writer: bool = False
    lock_wait_s: float = 0.0
    at_least: Mark | None = None  # a place in the chain that what is served must have passed
    hook: Hook = no_hook


@dataclass(slots=True)
class Opened:
    """A filesystem open on this host: the state directory is locked, the database open."""

    store: ObjectStore
    superblock: Superblock
    keyring: Keyring
    state_dir: StateDir
    db: Database
    recorder: ChangeRecorder
    keeper: LeaseKeeper
    link: Link  # where its rows are in the chain
    read_only: bool
    crashed: bool  # the last mount here did not end cleanly
    power_lost: bool  # and this is another boot of the machine
    notices: list[str]  # one-line facts that the user must hear
    clock: StoreClock  # for what goes into the chain
    superblock_faults: Sequence[
        str
    ] = ()  # copies in the bucket that did not count when it was opened
    mended: list[str] = field(default_factory=list)  # what was wrong with the chain, and given up
    offline: str = ""  # why it shows local state alone: the bucket could not be reached
    throwaway: bool = False  # the state directory goes with it: it is of a moment of the past


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
