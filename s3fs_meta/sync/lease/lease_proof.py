"""The proof that a lease belongs to this host, and the detection of copied state directories.

Owns: the location of the proof (rows of ``local_state``, and a file in case the database is lost),
and the comparison of an unreleased lease with the chain. Does not know: how a lease is written.
Keeps: a nonce is synced on this host before it is written to the lease. So this host recognises its
own lease after a crash at any time.
Design: docs/design/durability.md, "One writer".
"""

import logging
import re
import uuid
from typing import Final

from s3fs_meta import machine
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import MARK_BYTES, NONCE_BYTES, Lease, MachineMarks
from s3fs_meta.errors import FormatError, HeldError, ObjectMissingError
from s3fs_meta.limits import LEASE_NONCES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state, pending
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease.keeper import Hold, describe_copy, new_nonce

_log = logging.getLogger(__name__)

_REPLACED: Final = "replaced_lease"
_WORD: Final = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")  # a holder name or a nonce


def known(db: Database | None, state_dir: StateDir, keyring: Keyring, *, doubtful: bool) -> Hold:
    """Return this host's proof of a lease, with a new holder name if this host has no proof.

    Args:
        db: the local database, if it exists; its rows take precedence over the file.
        state_dir: the directory whose ``holder`` file is used if the rows are missing or doubtful.
        keyring: the keys of the filesystem, which hash the machine's identifiers.
        doubtful: True if the rows of *db* may be too old to have the last nonce.
    """
    words = state_dir.holder
    if words and not _are_valid(words):
        _log.warning("the file 'holder' in %s is damaged, so it proves no lease", state_dir.path)
        words = []
    holder, *nonces = words or [uuid.uuid4().hex]
    if db is not None:
        holder = local_state.get(db, "holder") or holder
        rows = local_state.get(db, "nonces")
        if rows is not None and not doubtful:
            nonces = rows.split()
    return Hold(holder, tuple(nonces), machine_marks(keyring))


def require_valid(db: Database) -> None:
    """Raise FormatError if the rows with this host's proof of a lease are damaged."""
    for name in ("holder", "nonces"):
        value = local_state.get(db, name)
        if value is not None and not _are_valid(value.split()):
            raise FormatError(
                str(db.path), f"the row {name!r} of the table local_state is not a proof of a lease"
            )


def _are_valid(words: list[str]) -> bool:
    """Return whether all words have the form of holder names and nonces; there must be one."""
    return bool(words) and all(map(_WORD.fullmatch, words))


def machine_marks(keyring: Keyring) -> MachineMarks:
    """Return keyed hashes of this machine's identifiers; the hashes do not reveal them."""
    found = machine.this_machine()

    def mark(kind: bytes, value: str | None) -> str | None:
        if value is None:
            return None
        return keyring.checksum(b"machine", kind, value.encode("ascii"))[:MARK_BYTES].hex()

    return MachineMarks(
        mark(b"machine-id", found.machine_id), mark(b"product-uuid", found.product_uuid)
    )


def with_new_nonce(hold: Hold, lease: Lease) -> Hold:
    """Return this host's proof with a new nonce for the next acquisition of the lease.

    If *lease* has one of this host's nonces, the proof keeps that nonce.
    """
    drawn = [*hold.nonces, new_nonce()]
    kept = drawn[-LEASE_NONCES_MAX:]
    if lease.nonce in drawn and lease.nonce not in kept:
        kept[0] = lease.nonce
    return hold._replace(nonces=tuple(kept))


def note(db: Database, hold: Hold) -> None:
    """Record this host's proof of a lease in the database. Requires an open transaction."""
    local_state.put(db, "holder", hold.holder)
    local_state.put(db, "nonces", " ".join(hold.nonces))


def note_replaced(db: Database, lease: Lease) -> None:
    """Record the lease that this host replaced. Requires an open transaction."""
    local_state.put(db, _REPLACED, _named(lease))


def took_last(db: Database, lease: Lease) -> bool:
    """Return whether no other host can have taken the lease since this host took it.

    The result is true if the lease was written from this state directory. The result is also true
    if this host replaced the lease: the bucket was then reset to an older copy, and no host has
    used it since.
    """
    if lease.epoch > (local_state.number(db, "epoch") or 0):
        return False
    if lease.holder == local_state.get(db, "holder"):
        nonces = (local_state.get(db, "nonces") or "").split()
        return lease.nonce is None or lease.nonce in nonces
    return _named(lease) == local_state.get(db, _REPLACED)


def _named(lease: Lease) -> str:
    """Return a text that identifies one version of a lease by its content."""
    head = "" if lease.head is None else lease.head.manifest_hash
    facts = (lease.epoch, lease.holder, lease.nonce, lease.since_ns, lease.released, head)
    return " ".join(map(str, facts))


def keep(state_dir: StateDir, hold: Hold) -> None:
    """Durably record this host's proof of a lease in the file ``holder``. The call blocks."""
    state_dir.keep_holder([hold.holder, *hold.nonces])


async def refuse_copy(
    store: ObjectStore, keyring: Keyring, uuid: str, lease: Lease, db: Database, *, force: bool
) -> None:
    """Raise HeldError if a copy of this state directory has written while the lease was held.

    The lease contains the holder name and a nonce of this state directory. If the chain has a txg
    of the lease's epoch that this directory does not know, a copy of the directory wrote it.
    Delayed appends of an earlier writer have an older epoch and are ignored.

    Raises:
        HeldError: a copy of the directory wrote to the chain, and *force* is not set.
        StoreError: the chain cannot be read.
    """
    link = chain.recorded(db)
    if lease.released or force or link is None:
        return
    numbers = await chain.numbers_after(store, keyring, link.txg)
    last, own = max(numbers, default=link.txg), chain.own_txg(db)
    if own is None or last <= own:
        return
    attempt = pending.outbox(db)
    try:
        if attempt == (last, await chain.bytes_of(store, last)):
            return
        written = (await chain.fetch(store, keyring, uuid, last)).changelog
    except (FormatError, ObjectMissingError):
        return  # the writer of the txg is unknown; the next step reports the damage
    if written.epoch >= lease.epoch:
        why = f"the last txg of the chain is {last}, but this directory's last txg is {own}"
        raise HeldError(describe_copy(lease, why))
