"""The keeper of the lease: acquiring and releasing the lease object, and its epoch.

Owns: acquiring the lease, changing its head, releasing it, and checking whether an unreleased
lease belongs to this host. Each change is one compare-and-set on one object, so exactly one of two
writers succeeds. A store without conditional writes, which the user must allow, gives no such
guarantee.
Does not know: images, where this host stores its proof of a lease (``lease_proof``). No step
depends on a clock; the times in the lease are only shown to users.
Design: docs/design/durability.md, "One writer".
"""

import contextlib
import logging
import os
import secrets
import socket
import uuid
from dataclasses import replace
from datetime import datetime, timezone
from typing import Final, NamedTuple, NoReturn

import trio

from s3fs_meta.background_task import finish
from s3fs_meta.bucket_errors import LostLeaseError, OlderBucketError
from s3fs_meta.clock import Clock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.lease import NONCE_BYTES, UNKNOWN_MACHINE, Head, Lease, MachineMarks
from s3fs_meta.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    HeldError,
    NewerFormatError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    StoreError,
    UnconditionalStoreError,
    UnexpectedStoreError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import CLEANUP_S_MAX, LEASE_CHECK_S, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import Epoch, ObjectKey
from s3fs_meta.objects import probe
from s3fs_meta.objects.contract import ETag, ObjectStore

_log = logging.getLogger(__name__)

_NO_EPOCH: Final = Epoch(0)
# How many of this host's writes the store may apply late, after they have timed out.
_LATE_WRITES_MAX: Final = 3


class Hold(NamedTuple):
    """The proof that an unreleased lease belongs to a state directory."""

    holder: str  # random name that identifies the state directory
    # nonces of the acquisitions, oldest first; the lease contains one of them
    nonces: tuple[str, ...]
    machine: MachineMarks = UNKNOWN_MACHINE  # the machine on which the state directory is used


def new_nonce() -> str:
    """Return a new nonce for one acquisition of the lease."""
    return secrets.token_hex(NONCE_BYTES)


def refuse_held(lease: Lease, hold: Hold, *, force: bool) -> None:
    """Raise HeldError if another state directory, or a copy of this one, holds the lease.

    If *force* is set, no error is raised.

    Raises:
        HeldError: the message names the holder, the time, and what to do.
    """
    if lease.released or force:
        return
    if lease.holder != hold.holder:
        raise HeldError(describe_holder(lease))
    if lease.nonce is not None and lease.nonce not in hold.nonces:
        raise HeldError(
            describe_copy(lease, "the lease was acquired again after this directory was copied")
        )
    if lease.machine.is_other(hold.machine):
        raise HeldError(describe_copy(lease, "the lease was acquired on another machine"))


class LeaseKeeper:
    """This host's view of one filesystem's lease, and its hold on that lease."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        conditional: bool = True,
        check_s: float = LEASE_CHECK_S,
    ) -> None:
        """Create a keeper that does not yet hold the lease.

        Args:
            store: the bucket with the lease.
            clock: the clock for acquisition times, which are only shown to users.
            conditional: whether the store honours conditional writes.
            check_s: minimum time between two checks that this host still holds the lease.
        """
        self._store = store
        self._clock = clock
        self._conditional = conditional
        self._check_s = check_s
        self._is_acquired = False
        self._hold = Hold("", ())
        self._etag: ETag = ""
        self._lease: Lease | None = None
        # the lease that was replaced when this process acquired its lease
        self._replaced: Lease | None = None
        # the last lease object that ``find`` read, and its content
        self._last_found: tuple[bytes, Lease] | None = None
        self._checked_s = 0.0
        # error that reports the loss of the lease; None until a loss
        self.fenced: FencedError | None = None

    @property
    def lease(self) -> Lease:
        """Return the lease that this process last wrote or read."""
        assert self._lease is not None, "the lease must have been read"
        return self._lease

    @property
    def is_held(self) -> bool:
        """Return whether this process acquired the lease and has not been fenced since."""
        return self._is_acquired and self.fenced is None

    @property
    def has_replaced_released(self) -> bool:
        """Return whether this process acquired a released lease and still holds it.

        If this process has not changed the filesystem, it can release the lease again.
        """
        return self.is_held and self._replaced is not None and self._replaced.released

    @property
    def epoch(self) -> Epoch:
        """Return the epoch of the lease that this process last wrote or read."""
        return self.lease.epoch

    async def require_conditions(self, *, unsafe_allowed: bool) -> None:
        """Test whether the store honours conditional writes, and use them only if it does.

        Raises:
            UnconditionalStoreError: the store ignores conditions, and *unsafe_allowed* is not set.
        """
        conditional = await probe.probe(self._store, uuid.uuid4().hex)
        if not conditional and not unsafe_allowed:
            raise UnconditionalStoreError(
                f"the store {self._store.url} ignores conditional writes, so nothing would stop a"
                " second writer; use another store, or use --unsafe-single-writer if only one host"
                " will ever use the filesystem"
            )
        self._conditional = conditional

    def assume(self, lease: Lease) -> None:
        """Use a lease from the local database or from a repair; this process does not hold it."""
        self._lease = lease

    async def read(self) -> Lease:
        """Return the lease in the bucket; if it shows that this process lost its hold, record that.

        A store without conditional writes may return an outdated lease; then the lease of this
        process is returned.

        Raises:
            UnfinishedFilesystemError: the lease is missing, because mkfs was interrupted or because
                the lease was lost.
            FormatError: the lease is damaged; the message says what to do.
        """
        try:
            found, etag = await self.find()
        except LostLeaseError as exc:
            if exc.etag is None:
                raise UnfinishedFilesystemError(self._store.url) from exc
            advice = "s3fs-meta fsck -y makes a new lease, and s3fs-meta mount -o ro needs none"
            raise FormatError(lease_codec.KEY, f"{exc.why}; {advice}") from exc
        if self.is_held and self._ends_hold(found):
            self._ended_by(found)  # Then ``release`` never releases another host's lease.
        elif self.is_held and found.epoch < self.epoch:
            return self.lease  # an outdated lease, see ``_ends_hold``
        self._etag, self._lease = etag, found
        return found

    async def reread(self) -> Lease:
        """Read the lease after a write by this process whose outcome is unknown.

        Raises:
            UnexpectedStoreError: a store without conditional writes returned an outdated lease, so
                the outcome remains unknown.
            The same errors as ``require_hold``.
        """
        found, etag = await self.require_hold()
        if found.epoch < self.epoch:
            what = f"the store returned an outdated lease of epoch {found.epoch}"
            raise UnexpectedStoreError(lease_codec.KEY, what)
        self._etag, self._lease = etag, found
        return found

    async def confirm(self) -> None:
        """Check that this host still holds the lease, at most once per *check_s*.

        The check ends the useless uploads of a fenced mount early, and nothing else depends on it.
        So the check is postponed if the lease is unavailable.

        Raises:
            FencedError: another process has acquired the lease.
        """
        if self.fenced is not None:
            raise self.fenced
        if trio.current_time() - self._checked_s < self._check_s:
            return
        self._checked_s = trio.current_time()
        try:
            await self.require_hold()
        except (StoreError, CorruptionError) as exc:
            _log.info("cannot read the lease from the bucket, will retry: %s", exc)

    async def require_hold(self) -> tuple[Lease, ETag]:
        """Read the lease and check that this host holds it, which confirms earlier writes.

        Returns:
            The lease in the bucket.

        Raises:
            FencedError: another process has acquired the lease.
            OlderBucketError: the lease is older than this host's lease, so the bucket was reset to
                an older copy. This host's lease was stored again.
            LostLeaseError: the lease is missing or damaged.
            StoreError: the lease cannot be read.
        """
        found, etag = await self.find()
        self._checked_s = trio.current_time()
        if self._conditional and self._came_before_ours(found):
            await self._put_again(found, etag)
        if self._ends_hold(found):
            raise self._ended_by(found)
        return found, etag

    def _ends_hold(self, found: Lease) -> bool:
        """Return whether a lease shows that another acquisition replaced this process's lease.

        A store without conditional writes may return an outdated lease for some time.
        """
        return found.epoch > self.epoch or (self._conditional and not _same_hold(found, self.lease))

    async def find(self) -> tuple[Lease, ETag]:
        """Read the lease in the bucket, only to examine it; return it with its ETag.

        Raises:
            LostLeaseError: the lease is missing or damaged.
            NewerFormatError: a newer version of the program wrote the lease.
        """
        etag = None
        try:
            fetched = await self._store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)
            etag = fetched.etag
            if self._last_found is None or self._last_found[0] != fetched.data:
                found = lease_codec.decode(lease_codec.KEY, fetched.data)
                self._last_found = fetched.data, found
            return self._last_found[1], etag
        except NewerFormatError:
            raise
        except ObjectMissingError as exc:
            raise LostLeaseError(self._store.url, "the lease object is missing", None) from exc
        except ObjectTooLargeError as exc:
            raise LostLeaseError(self._store.url, exc.what, exc.etag) from exc
        except FormatError as exc:
            raise LostLeaseError(self._store.url, exc.what, etag) from exc

    async def put_back(self, lost: LostLeaseError) -> None:
        """Store this host's lost lease again; this host must have written the last txg.

        The nonce stays the same, because another host may be taking over at the same time. If the
        other host's new lease was lost, that host recognises the stored lease as the lease that it
        replaced before, and replaces it again.

        A store without conditional writes is read first, because another host may have stored a
        lease since the loss was noticed. A lease that is stored after this read is overwritten.

        Raises:
            PreconditionError: the lease has changed since its loss was noticed.
            NewerFormatError: a newer version of the program wrote the lease.
        """
        data = lease_codec.encode(self.lease)
        if not self._conditional:
            with contextlib.suppress(LostLeaseError):
                await self.find()
                raise PreconditionError(lease_codec.KEY)
            await self._store.put(lease_codec.KEY, data)
        elif lost.etag is None:
            self._etag = await self._store.create(lease_codec.KEY, data)
        else:
            self._etag = await self._store.replace(lease_codec.KEY, data, lost.etag)

    def _came_before_ours(self, found: Lease) -> bool:
        """Return whether this host held or replaced the given lease before its present lease."""
        is_known = found.holder == self.lease.holder or found == self._replaced
        return found.epoch < self.epoch and is_known

    async def _put_again(self, found: Lease, etag: ETag) -> NoReturn:
        """Store this host's lease in place of its earlier lease, and raise OlderBucketError."""
        data, is_restored = lease_codec.encode(self.lease), False
        with contextlib.suppress(PreconditionError):
            self._etag = await self._store.replace(lease_codec.KEY, data, etag)
            is_restored = True
        if not is_restored:
            present, self._etag = await self.find()
            # Another task of this process may have restored the lease.
            if not _same_hold(present, self.lease):
                raise self._ended_by(present)
        txg = 0 if self.lease.head is None else self.lease.head.txg
        what = f"the lease has the old epoch {found.epoch} instead of {self.epoch}"
        raise OlderBucketError(
            self._store.url, txg, what, "the next txg will be an image of the local state"
        )

    def ended_by_object(self, key: ObjectKey) -> FencedError:
        """Record and return a FencedError: another writer has already used the next txg's key."""
        self.fenced = FencedError(self.epoch, self.epoch, f"the writer of {key}")
        return self.fenced

    def _ended_by(self, theirs: Lease) -> FencedError:
        self.fenced = FencedError(self.epoch, theirs.epoch, theirs.host)
        return self.fenced

    async def create(self, holder: str, head: Head | None) -> None:
        """Create the lease of a new filesystem, in the state "released".

        Raises:
            PreconditionError: a lease already exists.
        """
        self._hold = Hold(holder, (new_nonce(),))
        lease = self._ours(Epoch(0), head, released=True)
        self._etag = await self._store.create(lease_codec.KEY, lease_codec.encode(lease))
        self._lease = lease

    async def acquire(self, hold: Hold, *, force: bool, above: Epoch = _NO_EPOCH) -> Lease:
        """Increment the epoch and take the lease; return the lease that was replaced.

        A cancelled call waits for the reply to the write, because the caller must know whether it
        holds the lease. Without a reply within CLEANUP_S_MAX, this remains unknown.

        Args:
            hold: the proof of the state directory; its latest nonce is written to the lease.
            force: take the lease from any host that holds it.
            above: the latest epoch of the chain, so that no epoch is used twice. The lease may have
                an earlier epoch if the bucket is an older copy.

        Raises:
            HeldError: another host holds the lease; the message names the host and what to do.
        """
        self._hold = hold
        before = await self.read()
        refuse_held(before, hold, force=force)

        async def take() -> None:
            epoch = Epoch(max(before.epoch, above) + 1)
            await self._write(self._ours(epoch, before.head, released=False))
            self.fenced = None
            self._is_acquired = True
            self._replaced = before
            self._checked_s = trio.current_time()

        try:
            await finish(take, CLEANUP_S_MAX)
        except FencedError as exc:
            raise HeldError(f"another host acquired the lease at the same time: {exc}") from exc
        return before

    async def move_head(self, head: Head) -> None:
        """Make an image the head in the lease, unless another process has acquired the lease.

        Raises:
            FencedError: another process has acquired the lease.
            OlderBucketError: as in ``require_hold``; the lease has its former head.
        """
        if self.fenced is not None:
            raise self.fenced
        await self._write(replace(self.lease, head=head))

    async def release(self) -> None:
        """Release the lease, so that any host may take it. Raises the errors of ``move_head``."""
        if self.fenced is not None:
            raise self.fenced
        await self._write(replace(self.lease, released=True))

    async def _write(self, lease: Lease) -> None:
        data = lease_codec.encode(lease)
        if not self._conditional:
            await self._store.put(lease_codec.KEY, data)
            self._lease = lease
            return
        refusals = 0
        while True:
            with contextlib.suppress(PreconditionError):
                self._etag = await self._store.replace(lease_codec.KEY, data, self._etag)
                self._lease = lease
                return
            theirs, etag = await self.find()
            if self.is_held and self._came_before_ours(theirs):
                await self._put_again(theirs, etag)
            refusals += 1
            if refusals > _LATE_WRITES_MAX or not _same_hold(theirs, lease):
                self.fenced = FencedError(lease.epoch, theirs.epoch, theirs.host)
                raise self.fenced
            self._etag = etag
            if theirs == lease:  # the store had applied the write, but its reply was lost
                self._lease = lease
                return

    def _ours(self, epoch: Epoch, head: Head | None, *, released: bool) -> Lease:
        return _lease_of_this_process(epoch, self._hold, head, self._clock, released=released)


def released(epoch: Epoch, head: Head | None, clock: Clock) -> Lease:
    """Return a new, released lease for a filesystem that lost its lease."""
    hold = Hold(uuid.uuid4().hex, (new_nonce(),))
    return _lease_of_this_process(epoch, hold, head, clock, released=True)


def _lease_of_this_process(
    epoch: Epoch, hold: Hold, head: Head | None, clock: Clock, *, released: bool
) -> Lease:
    return Lease(
        epoch=epoch,
        holder=hold.holder,
        nonce=hold.nonces[-1],
        machine=hold.machine,
        host=socket.gethostname(),
        pid=os.getpid(),
        since_ns=clock.now_ns(),
        released=released,
        head=head,
    )


def _same_hold(one: Lease, other: Lease) -> bool:
    """Return whether one holder wrote both leases during one acquisition.

    If a server applies a write only after the write has timed out, the holder's next write finds
    the holder's own earlier lease.
    """
    return replace(one, head=None, released=False) == replace(other, head=None, released=False)


def describe_holder(lease: Lease) -> str:
    """Return the error message for a lease that another host holds."""
    return f"{_held_by(lease)}; unmount it there, or if that host is lost use --takeover"


def describe_copy(lease: Lease, why: str) -> str:
    """Return the error message for a state directory that is a copy."""
    return (
        f"{_held_by(lease)}, and the local state directory is only a copy or a backup of the"
        f" directory that holds the lease ({why}); unmount the filesystem where it is in use, or"
        " use --takeover if no host uses it"
    )


def _held_by(lease: Lease) -> str:
    since = datetime.fromtimestamp(lease.since_ns / 1e9, timezone.utc)
    return (
        f"held by host {lease.host!r} (process {lease.pid}, epoch {lease.epoch}) since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC"
    )
