"""Proof of the lease: a copied state directory cannot acquire the lease of its original."""

import shutil
from pathlib import Path

import pytest

from s3fs_meta import machine
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import text_object
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import UNKNOWN_MACHINE, Lease
from s3fs_meta.errors import FencedError, HeldError
from s3fs_meta.limits import LEASE_NONCES_MAX
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import Epoch
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.hooks import TAKEOVER_STEPS
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.lease.keeper import Hold
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import TAKEOVER, Power, read_file, ship, unmount, write_file
from tests.sync.follower.following import following
from tests.sync.kills import KillAt, Killed

pytestmark = pytest.mark.thorough


def copy_state(power: Power, source: str, target: str) -> None:
    """Copy a state directory, as a backup or a clone of the machine does."""
    shutil.copytree(power.home / source, power.home / target)


def lease_of(power: Power) -> Lease:
    """Return the lease in the bucket."""
    return lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY])


def names_in(power: Power, host: str) -> list[str]:
    """Return the entries of a state directory except the WAL, which SQLite removes at close."""
    names = (path.name for path in (power.home / host).iterdir())
    return sorted(name for name in names if not name.startswith("meta.db-"))


async def require_refused(power: Power, host: str, why: str) -> None:
    """Require that a mount is refused, and that bucket and host are unchanged."""
    objects = dict(power.store.objects)
    names = names_in(power, host)
    with pytest.raises(HeldError, match=f"copy or a backup .*{why}.*--takeover"):
        async with power.session(host):
            pass
    assert power.store.objects == objects
    assert names_in(power, host) == names


# --- copied state directories ------------------------------------------------------------------


async def test_backup_of_a_state_directory_from_before_the_last_mount_needs_a_takeover(
    power: Power,
) -> None:
    """The nonce in the backup of a state directory is older than the nonce in the lease."""
    async with power.session("a") as session:
        write_file(session, b"before")
        session.durability.commit()
    copy_state(power, "a", "copy")
    async with power.session("a", tasks=False) as writer:
        await require_refused(power, "copy", "acquired again")
        ino = write_file(writer, b"goes on")
        await writer.flush()

        async with power.session("copy", options=TAKEOVER) as session:
            assert await read_file(session, ino) == b"goes on"
            write_file(writer, b"too late")
            with pytest.raises(FencedError):
                await writer.flush()


async def test_copied_state_needs_a_takeover_after_the_running_writer_ships_a_txg(
    power: Power,
) -> None:
    """The copy has the nonce of the lease, but it does not have the last txg of the chain."""
    async with power.session("a", tasks=False) as writer:
        copy_state(power, "a", "copy")
        ino = write_file(writer, b"goes on")
        await writer.flush()

        await require_refused(
            power, "copy", r"the last txg of the chain is 2, but this directory.s last txg is 1"
        )
        write_file(writer, b"and on")
        await writer.flush()
        assert await read_file(writer, ino) == b"goes on"


@pytest.mark.parametrize("restored", [False, True])
async def test_follower_on_a_copied_state_needs_a_takeover_for_a_promotion(
    power: Power, *, restored: bool
) -> None:
    """A follower has read the last txg, which does not prove that its host wrote the txg."""
    async with power.session("a", tasks=False) as writer:
        copy_state(power, "a", "copy")
        if restored:
            # Without its WAL, the copied database is older.
            (power.home / "copy" / "meta.db-wal").unlink()
        write_file(writer, b"goes on")
        txg = await ship(writer)
        async with following(power, "copy") as (session, listener):
            await listener.wait_for(txg)
            with pytest.raises(HeldError, match="the last txg of the chain is"):
                await session.promote()
            assert session.status.state is MountState.FOLLOWING
            write_file(writer, b"and on")
            await listener.wait_for(await ship(writer))

        await require_refused(power, "copy", "the last txg of the chain is")
        write_file(writer, b"still")
        await writer.flush()


async def test_copied_state_on_another_machine_needs_a_takeover(
    power: Power, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The copy has the nonce and the last txg, but its machine has a different identity."""
    identity = tmp_path / "machine-id"
    monkeypatch.setattr(machine, "MACHINE_ID", identity)
    monkeypatch.setattr(machine, "CONTAINER_MARKS", ())
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    identity.write_text("0123456789abcdef0123456789abcdef\n")
    async with power.session("a", tasks=False):
        copy_state(power, "a", "copy")
        identity.write_text("another")
        await require_refused(power, "copy", "on another machine")
        async with power.session("copy", options=TAKEOVER) as session:
            assert session.status.writable


@pytest.mark.parametrize("then", ["known", "unknown"])
async def test_host_with_an_unknown_machine_identity_needs_no_takeover(
    power: Power, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str
) -> None:
    """A container may restart on another machine with the same volume, so no takeover is needed."""
    identity = tmp_path / "machine-id"
    monkeypatch.setattr(machine, "MACHINE_ID", identity)
    monkeypatch.setattr(machine, "CONTAINER_MARKS", ())
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if then == "unknown":
        identity.write_text("0123456789abcdef0123456789abcdef\n")
    async with power.session("a"):
        pass
    if then == "known":
        identity.write_text("0123456789abcdef0123456789abcdef\n")
    else:
        identity.unlink()

    async with power.session("a") as session:
        assert session.status.writable


async def test_original_state_directory_cannot_be_mounted_while_a_copy_holds_the_lease(
    power: Power,
) -> None:
    """While a copy holds the lease, the original cannot be mounted, even at the same txg."""
    async with power.session("a") as session:
        first = write_file(session, b"first")
        await session.flush()
        await session.close()
    copy_state(power, "a", "copy")

    async with power.session("copy") as session:
        second = write_file(session, b"second")
        await session.flush()
        await require_refused(power, "a", "acquired again")
        await session.close()
    async with power.session("a") as session:
        assert session.volume.notices == ()
        assert await read_file(session, first) == b"first"
        assert await read_file(session, second) == b"second"


async def test_copied_state_at_the_same_txg_on_the_same_machine_fences_the_original(
    power: Power,
) -> None:
    """A copy on the same machine acquires the lease and fences the original (see SECURITY.md)."""
    async with power.session("a", tasks=False) as original:
        copy_state(power, "a", "copy")
        async with power.session("copy", tasks=False) as copy:
            ino = write_file(copy, b"of the copy")
            await copy.flush()
            write_file(original, b"of the original")
            with pytest.raises(FencedError):
                await original.flush()
            assert await read_file(copy, ino) == b"of the copy"


async def test_older_database_with_a_newer_holder_file_needs_a_takeover(power: Power) -> None:
    """The nonces in the database prove the lease; a newer holder file does not."""
    async with power.session("a", tasks=False):
        pass
    database = (power.home / "a" / "meta.db").read_bytes()
    async with power.session("a", tasks=False):
        pass
    StateDir(power.home / "a").drop_contents()
    (power.home / "a" / "meta.db").write_bytes(database)

    await require_refused(power, "a", "acquired again")


@pytest.mark.parametrize("junk", [b"\xff\xfe abc", b"a" * 5000, b"\0\0\0", b"", b"junk junk"])
async def test_damaged_holder_file_proves_no_lease(power: Power, junk: bytes) -> None:
    """The file is needed only without a database; the next mount then uses a new holder name."""
    async with power.session("a") as session:
        ino = write_file(session, b"content")
        await unmount(session)
    StateDir(power.home / "a").drop_contents()
    (power.home / "a" / "holder").write_bytes(junk)

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == b"content"
        assert session.status.writable
    StateDir(power.home / "a").drop_contents()
    (power.home / "a" / "holder").write_bytes(junk)

    with pytest.raises(HeldError, match="use --takeover"):
        async with power.session("a"):
            pass


# --- crashes of the lease holder ---------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True], ids=["database kept", "database lost"])
@pytest.mark.parametrize("held", [False, True], ids=["released before", "held before"])
@pytest.mark.parametrize("step", TAKEOVER_STEPS[:-1])
async def test_host_killed_while_it_acquires_the_lease_recovers_its_lease(
    power: Power, step: str, *, held: bool, lost: bool
) -> None:
    """The nonce is on the host's disk before the lease is written, so a kill locks no host out."""
    async with power.session("a") as session:
        ino = write_file(session, b"kept")
        await session.flush()
        if not held:
            await session.close()
    for _ in range(2):
        kill = KillAt(step, armed=True)
        with pytest.raises(Killed):
            async with power.session("a", options=OpenOptions(hook=kill)):
                pass
    if lost:
        StateDir(power.home / "a").drop_contents()

    async with power.session("a") as session:
        assert session.volume.notices == ()
        assert await read_file(session, ino) == b"kept"


async def test_late_changelog_of_a_fenced_writer_does_not_stop_the_new_writer(power: Power) -> None:
    """Until the fence record is appended, the old writer may still append a changelog."""
    kill = KillAt("lease taken", armed=True)
    async with power.session("a", tasks=False) as old:
        with pytest.raises(Killed):
            async with power.session("b", options=OpenOptions(force_takeover=True, hook=kill)):
                pass
        ino = write_file(old, b"just in time")
        with pytest.raises(FencedError):
            await old.flush()

    async with following(power, "b") as (session, _listener):
        assert await read_file(session, ino) == b"just in time"
        await session.promote()
        assert session.status.writable


async def test_database_that_may_be_stale_does_not_prove_ownership_of_the_lease(
    power: Power,
) -> None:
    """After a crash without a journal, only the nonces in the holder file prove the lease."""
    options = OpenOptions(pragmas=Pragmas(journal_mode="memory"))
    async with power.session("a", options=options) as session:
        session.db.begin_local()
        local_state.put(session.db, "nonces", "00" * 16)
        session.db.commit()

    async with power.session("a", options=options) as session:
        assert "kept in" in session.volume.notices[0]
        assert session.status.writable


async def test_chain_is_not_compared_with_a_database_that_may_be_stale(power: Power) -> None:
    """With journal_mode=memory, a copy can acquire the writer's lease (see SECURITY.md)."""
    options = OpenOptions(pragmas=Pragmas(journal_mode="memory"))
    async with power.session("a", options=options, tasks=False) as writer:
        copy_state(power, "a", "copy")
        write_file(writer, b"goes on")
        await writer.flush()

        async with power.session("copy", options=options) as session:
            assert session.status.writable
            write_file(writer, b"too late")
            with pytest.raises(FencedError):
                await writer.flush()


async def test_last_txg_of_a_killed_writer_is_recognised_after_a_read_only_command(
    power: Power,
) -> None:
    """The last txg of a killed writer is in the bucket, but the host did not record it."""
    kill = KillAt("changelog put")
    async with power.session("a", tasks=False, hook=kill) as session:
        ino = write_file(session, b"just in time")
        kill.armed = True
        with pytest.raises(Killed):
            await session.flush()

    async with power.session("a", options=OpenOptions(read_only=True)) as session:
        assert await read_file(session, ino) == b"just in time"
    async with power.session("a") as session:
        assert session.status.writable
        assert await read_file(session, ino) == b"just in time"


async def test_crashed_writer_that_mounts_as_a_follower_can_be_promoted(power: Power) -> None:
    """A crashed writer can be promoted, because no other host has added a txg."""
    async with power.session("a") as session:
        ino = write_file(session, b"shipped")
        await session.flush()

    async with following(power, "a") as (session, _listener):
        await session.promote()
        assert await read_file(session, ino) == b"shipped"


# --- versions of the lease ---------------------------------------------------------------------


def as_version_1(lease: Lease) -> bytes:
    """Return a lease in format version 1."""
    fields = {
        "epoch": lease.epoch,
        "holder": lease.holder,
        "host": lease.host,
        "pid": lease.pid,
        "since_ns": lease.since_ns,
        "released": lease.released,
        "head": lease.head and lease.head._asdict(),
    }
    return text_object.encode("lease", 1, fields)


async def test_version_1_lease_is_upgraded_by_the_next_mount_for_writing(power: Power) -> None:
    """In a lease of version 1, which has no nonce, the holder name decides."""
    async with power.session("a") as session:
        session.db.begin_local()
        local_state.delete(session.db, "nonces")
        local_state.delete(session.db, "own_txg")
        session.db.commit()
    (power.home / "a" / "holder").write_text(lease_of(power).holder)
    power.store.objects[lease_codec.KEY] = as_version_1(lease_of(power))

    with pytest.raises(HeldError, match="held by host"):
        async with power.session("b"):
            pass
    async with power.session("b", options=OpenOptions(read_only=True)):
        assert power.store.objects[lease_codec.KEY].startswith(b"s3fs-meta lease 1\n")
    async with power.session("a"):
        assert power.store.objects[lease_codec.KEY].startswith(b"s3fs-meta lease 2\n")


# --- values that the lease contains ------------------------------------------------------------


def lease_with(nonce: str) -> Lease:
    """Return a held lease with a nonce."""
    return Lease(Epoch(1), "h", "h", 1, 1, released=False, head=None, nonce=nonce)


def test_list_of_nonces_is_limited_and_includes_the_nonce_of_the_lease() -> None:
    """Acquisitions with an unknown result add nonces, but the number of nonces is limited."""
    held = lease_proof.with_new_nonce(Hold("h", ()), lease_with("of another"))
    [first] = held.nonces
    for _ in range(3 * LEASE_NONCES_MAX):
        held = lease_proof.with_new_nonce(held, lease_with(first))

    assert first in held.nonces
    assert len(set(held.nonces)) == LEASE_NONCES_MAX
    assert "of another" not in held.nonces


def test_hashed_machine_identifiers_differ_between_filesystems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hashes of machine identifiers depend on the filesystem and on the kind of identifier."""
    for name in ("MACHINE_ID", "PRODUCT_UUID"):
        path = tmp_path / name
        path.write_text("0123456789abcdef0123456789abcdef\n")
        monkeypatch.setattr(machine, name, path)
    monkeypatch.setattr(machine, "CONTAINER_MARKS", ())
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    one = lease_proof.machine_marks(Keyring(None, b"1" * 32))
    other = lease_proof.machine_marks(Keyring(None, b"2" * 32))

    assert one == lease_proof.machine_marks(Keyring(None, b"1" * 32))
    assert len({*one, *other}) == 4
    assert not any("0123" in str(mark) for mark in (*one, *other))
    monkeypatch.setenv("container", "podman")
    assert lease_proof.machine_marks(Keyring(None, b"1" * 32)) == UNKNOWN_MACHINE
