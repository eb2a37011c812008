"""The choice of the superblock if copies are damaged, exchanged, old or missing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from s3fs_meta.bucket_errors import (
    ExchangedSuperblockError,
    LostSuperblockError,
    OlderSuperblockError,
)
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec import text_object
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import KEY as LEASE
from s3fs_meta.codec.superblock import COPY_KEY, KEY, Superblock
from s3fs_meta.errors import (
    BeingRemovedError,
    FormatError,
    NewerFormatError,
    NotAFilesystemError,
    PassphraseError,
    SettingsError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.superblock.changes import accept_first, change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import open_first, open_keys, peek, require_proof
from s3fs_meta.sync.superblock.unlocking import Passphrase, RecoveryKey
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import flipped
from tests.sync.conftest import Power, read_file, write_file
from tests.sync.refusing_store import RefusingStore
from tests.sync.superblock.foreign import foreign_superblock

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first bit": lambda data: flipped(data, 0),
    "bit of the version": lambda data: flipped(data, data.index(b" 3\n") + 1, 2),
    "bit in the middle": lambda data: flipped(data, len(data) // 2),
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "huge": lambda data: data + bytes(TEXT_OBJECT_BYTES_MAX),
    "foreign": lambda data: foreign_superblock(),
}


def _retaining(seconds: int) -> Callable[[Superblock, Keyring], Superblock]:
    return lambda present, keyring: superblock_codec.amend(present, keyring, retention_s=seconds)


def _with(passphrase: bytes) -> Callable[[Superblock, Keyring], Superblock]:
    return lambda present, keyring: superblock_codec.rewrap(
        present, keyring, passphrase, cost=CHEAPEST_COST
    )


async def _mount_once(power: Power, host: str) -> None:
    async with power.session(host) as session:
        await session.flush()
        await session.close()


@pytest.mark.parametrize("key", [KEY, COPY_KEY])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_mount_succeeds_with_one_damaged_superblock_object(
    power: Power, key: ObjectKey, damage: str
) -> None:
    """A host without a local copy uses the intact object and does not repair the damaged one."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.close()
    healthy = power.store.objects[key]
    power.store.objects[key] = DAMAGES[damage](healthy)
    damaged = dict(power.store.objects)

    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT
        assert any(repr(key) in notice for notice in session.volume.notices)
        await session.close()

    assert power.store.objects[key] == damaged[key]


async def test_mount_for_writing_restores_missing_superblock_objects(power: Power) -> None:
    """Lost superblock objects are restored by a host that has mounted the filesystem before."""
    await _mount_once(power, "a")
    before = {key: power.store.objects.pop(key) for key in (KEY, COPY_KEY)}

    for options in (OpenOptions(read_only=True), OpenOptions(read_only=True, follow=True)):
        async with power.session("a", options=options, tasks=False):
            pass
        assert KEY not in power.store.objects
        assert COPY_KEY not in power.store.objects

    await _mount_once(power, "a")
    assert {key: power.store.objects[key] for key in (KEY, COPY_KEY)} == before
    await _mount_once(power, "b")


async def test_lost_superblock_is_not_reported_as_an_empty_bucket(power: Power) -> None:
    """While a lease, image or changelog exists, the error does not advise mkfs."""
    await _mount_once(power, "a")
    del power.store.objects[KEY], power.store.objects[COPY_KEY]

    for prefix in ("lease", "image/", "changelog/"):
        with pytest.raises(LostSuperblockError) as lost:
            await power.keys("b")
        assert "mkfs" not in lost.value.message
        assert "fsck -y" in lost.value.message
        for key in [key for key in power.store.objects if key.startswith(prefix)]:
            del power.store.objects[key]
    for host in ("a", "b"):
        with pytest.raises(NotAFilesystemError):
            await power.keys(host)


@pytest.mark.parametrize("damage", ["empty", "first bit"])
async def test_error_about_a_lost_superblock_names_each_fault(power: Power, damage: str) -> None:
    """The error names the faults of the superblock, of its copy and of the host's copy."""
    for key in (KEY, COPY_KEY):
        power.store.objects[key] = DAMAGES[damage](power.store.objects[key])
    power.remembered("b").path.parent.mkdir()
    power.remembered("b").path.write_bytes(b"torn")

    with pytest.raises(LostSuperblockError) as lost:
        await power.keys("b")

    assert lost.value.message.count("does not begin with the first line of a superblock") == 3
    assert str(power.remembered("b").path) in lost.value.message


async def test_host_refuses_a_superblock_older_than_its_known_superblock(power: Power) -> None:
    """The error about an old superblock advises --accept-superblock; the bucket is unchanged."""
    old = dict(power.store.objects)
    await power.retain(100)
    await _mount_once(power, "a")
    power.store.objects |= {key: old[key] for key in (KEY, COPY_KEY)}
    before = dict(power.store.objects)

    for options in (OpenOptions(), OpenOptions(read_only=True)):
        with pytest.raises(OlderSuperblockError, match="--accept-superblock"):
            async with power.session("a", options=options):
                pass
    assert power.store.objects == before
    assert (await power.keys("a", repairing=True)).superblock.retention_s == 100
    # A new host cannot recognise an old superblock.
    assert (await power.keys("b")).superblock.generation == 1


async def test_older_of_two_superblock_objects_is_not_used(power: Power) -> None:
    """A host uses the authentic superblock with the highest generation."""
    old = power.store.objects[KEY]
    await power.retain(100)
    for key in (KEY, COPY_KEY):
        newest = power.store.objects[key]
        power.store.objects[key] = old
        keys = await power.keys()
        assert keys.superblock.retention_s == 100
        [notice] = keys.notices
        assert "generation 1, the newest has 2" in notice
        power.store.objects[key] = newest


async def test_replaced_passphrase_is_refused(power: Power) -> None:
    """After a change of the passphrase, superblock objects with the old passphrase are refused."""
    if not power.encrypted:
        pytest.skip("an unencrypted filesystem has no passphrase")
    old = dict(power.store.objects)
    await change(power.store, power.remembered("-"), power.secret, _with(b"new"))
    power.store.objects[KEY] = old[KEY]

    with pytest.raises(PassphraseError, match="the passphrase was changed"):
        await power.keys()
    power.passphrase = b"new"
    assert (await power.keys()).superblock.generation == 2
    await _mount_once(power, "a")
    power.store.objects |= {key: old[key] for key in (KEY, COPY_KEY)}
    for passphrase in (b"secret", b"new"):
        power.passphrase = passphrase
        with pytest.raises(OlderSuperblockError):
            await power.keys("a")
    secret = Passphrase(lambda: b"secret")
    keys, newest = await open_first(power.store, power.remembered("a"), secret)
    assert (keys.superblock.generation, newest) == (1, 2)


async def test_replaced_recovery_key_is_refused(encrypted: Power) -> None:
    """If recover-key --renew was interrupted, the error says that an old recovery key was typed."""
    keys = await encrypted.keys()
    made, old_key = superblock_codec.renew_recovery_key(keys.superblock, keys.keyring)
    renewed, new_key = superblock_codec.renew_recovery_key(made, keys.keyring)
    encrypted.store.objects[KEY] = superblock_codec.encode(renewed)
    encrypted.store.objects[COPY_KEY] = superblock_codec.encode(made)
    store, remembered = encrypted.store, encrypted.remembered("-")

    with pytest.raises(PassphraseError, match="the recovery key was changed: the given recovery "):
        await open_keys(store, remembered, RecoveryKey(old_key.encode))

    found = await open_keys(store, remembered, RecoveryKey(new_key.encode))
    assert found.superblock.generation == renewed.generation


async def test_forged_superblock_with_a_high_generation_is_not_used(power: Power) -> None:
    """The generation of an encrypted superblock can be changed only with its keys."""
    if not power.encrypted:
        pytest.skip("the fields of an unencrypted superblock are not protected")
    present = superblock_codec.decode(KEY, power.store.objects[KEY])
    fields = superblock_codec.fields_of(present) | {"generation": 9, "retention_s": 0}
    power.store.objects[COPY_KEY] = text_object.encode("superblock", 3, fields)

    keys = await power.keys()

    assert keys.superblock == present
    assert keys.faults == ("", "the fields of the superblock are not authentic")


async def test_host_without_a_newer_superblock_accepts_an_older_superblock(
    encrypted: Power,
) -> None:
    """A new host accepts two old superblock objects with the old passphrase (see SECURITY.md)."""
    old = {key: encrypted.store.objects[key] for key in (KEY, COPY_KEY)}
    await change(encrypted.store, encrypted.remembered("-"), encrypted.secret, _with(b"new"))
    with pytest.raises(PassphraseError):
        await encrypted.keys("new")
    encrypted.store.objects |= old

    assert (await encrypted.keys("new")).faults == ("", "")


async def test_new_host_without_a_passphrase_accepts_an_unencrypted_superblock(
    encrypted: Power,
) -> None:
    """A new host cannot know that a filesystem was encrypted (see SECURITY.md)."""
    plain = _exchange(encrypted, KEY, COPY_KEY)

    keys = await open_keys(encrypted.store, encrypted.remembered("new"), Passphrase(bytes))

    assert keys.data == plain
    # A command that changes the superblock reads objects that prove its authenticity.
    with pytest.raises(LostSuperblockError):
        await require_proof(encrypted.store, keys)


async def test_forged_unencrypted_superblock_with_a_higher_generation_is_used(plain: Power) -> None:
    """A forged label or retention is accepted, but keys that the host does not know are refused."""
    await _mount_once(plain, "a")
    present = (await plain.keys("a")).superblock
    higher = replace(present, generation=9, retention_s=0, label="forged")
    for forged, counts in (
        (higher, True),
        (replace(higher, hash_key="11" * 32), False),
        (replace(higher, block_bytes=present.block_bytes // 2), False),
    ):
        plain.store.objects |= dict.fromkeys((KEY, COPY_KEY), superblock_codec.encode(forged))

        keys = await plain.keys("a")

        assert (keys.superblock.label, keys.retention_s) == (
            ("forged", 0) if counts else ("test", 7 * 86_400)
        )
        assert keys.superblock.block_bytes == present.block_bytes
        assert all(keys.faults) != counts


@pytest.mark.parametrize("key", [KEY, COPY_KEY])
async def test_unencrypted_superblock_with_wrong_keys_is_ignored(
    plain: Power, key: ObjectKey
) -> None:
    """If two superblocks differ, a new host uses the one whose keys open the images."""
    good = await plain.keys()
    forged = replace(good.superblock, generation=9, hash_key="11" * 32)
    plain.store.objects[key] = superblock_codec.encode(forged)

    keys = await plain.keys("new")

    assert keys.data == good.data
    assert [bool(fault) for fault in keys.faults] == [key == KEY, key == COPY_KEY]


async def test_superblock_copy_is_not_used_after_a_tombstone_replaced_the_superblock(
    power: Power,
) -> None:
    await _mount_once(power, "a")
    power.store.objects[KEY] = superblock_codec.encode_tombstone("test")

    for host in ("a", "b"):
        with pytest.raises(BeingRemovedError, match="destroy"):
            await power.keys(host)


async def test_superblock_copy_without_other_objects_is_not_a_filesystem(power: Power) -> None:
    """The destroy command of an older program does not delete the superblock copy."""
    await _mount_once(power, "a")
    for key in [key for key in power.store.objects if key != COPY_KEY]:
        del power.store.objects[key]

    with pytest.raises(NotAFilesystemError):
        await power.keys("a")


async def test_superblock_of_a_newer_version_is_refused(power: Power) -> None:
    """The error about a superblock of a newer version advises an upgrade."""
    power.store.objects[KEY] = text_object.encode("superblock", 4, {})

    with pytest.raises(NewerFormatError, match="upgrade"):
        await power.keys()


async def test_superblock_copy_of_a_newer_version_is_not_used(power: Power) -> None:
    """A newer program writes the superblock before its copy, so a newer copy alone is damaged."""
    power.store.objects[COPY_KEY] = text_object.encode("superblock", 4, {})

    keys = await power.keys()
    assert keys.data == power.store.objects[KEY]
    [notice] = keys.notices
    assert "upgrade" in notice
    await _mount_once(power, "a")
    power.store.objects[KEY] = b"rotten"
    for host in ("a", "b"):
        with pytest.raises(NewerFormatError, match="upgrade"):
            await power.keys(host)


@pytest.mark.parametrize(
    "error",
    [StoreAccessError(KEY, "403", ""), StoreUnavailableError(KEY, 1, 0.0, "away")],
    ids=["403", "away"],
)
async def test_unreachable_superblock_is_not_treated_as_damaged(
    power: Power, error: StoreError
) -> None:
    """A mount must read the superblock, because it may be a tombstone; the copy may be missing."""
    with pytest.raises(type(error)):
        await open_keys(RefusingStore(power.store, KEY, error), power.remembered("-"), power.secret)
    refusing = RefusingStore(power.store, COPY_KEY, error)
    keys = await open_keys(refusing, power.remembered("-"), power.secret)
    assert keys.faults[0] == ""
    assert "cannot be read" in keys.faults[1]
    del power.store.objects[KEY]
    with pytest.raises(type(error)):
        await open_keys(refusing, power.remembered("-"), power.secret)


async def test_superblocks_of_another_filesystem_are_not_used(power: Power) -> None:
    """The superblock whose keys open the images is used, even if it is only on this host."""
    await _mount_once(power, "a")
    mine = {key: power.store.objects[key] for key in (KEY, COPY_KEY)}
    foreign = foreign_superblock()
    power.store.objects |= {KEY: foreign, COPY_KEY: foreign}

    keys = await power.keys("a")
    assert keys.data == mine[KEY]
    assert [fault.split(",")[0] for fault in keys.faults] == [
        "the superblock belongs to another filesystem"
    ] * 2

    power.store.objects |= mine
    Remembered(power.home / "a").path.write_bytes(foreign)
    with pytest.raises(SettingsError, match="another filesystem"):
        await power.keys("a")


def _plain_of(data: bytes) -> bytes:
    """Make an unencrypted superblock with the same UUID, as an attacker can."""
    found = superblock_codec.decode(KEY, data)
    made, _keyring, _key = superblock_codec.create(
        found.uuid, found.label, found.block_bytes, found.page_size, False, None
    )
    return superblock_codec.encode(replace(made, generation=9))


@pytest.fixture
async def encrypted(tmp_path: Path) -> Power:
    """Return an encrypted filesystem with a file, which host a has mounted before."""
    made = Power(MemoryStore(), tmp_path)
    made.encrypted = True
    await made.make()
    async with made.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
        await session.close()
    return made


def _exchange(power: Power, *keys: ObjectKey) -> bytes:
    plain = _plain_of(power.store.objects[KEY])
    power.store.objects |= dict.fromkeys(keys, plain)
    return plain


@pytest.mark.parametrize("keys", [(KEY,), (COPY_KEY,)])
async def test_unencrypted_superblock_next_to_an_encrypted_superblock_is_not_used(
    encrypted: Power, keys: list[ObjectKey]
) -> None:
    _exchange(encrypted, *keys)

    for host in ("a", "b"):
        found = await encrypted.keys(host)
        assert found.keyring.encrypted
        assert any("is not encrypted" in notice for notice in found.notices)
        assert (await peek(encrypted.store, encrypted.remembered(host))).encrypted


async def test_newer_superblock_copy_next_to_a_forged_superblock_is_refused(
    encrypted: Power,
) -> None:
    """A newer superblock copy must not be ignored, because a repair would replace it."""
    await _mount_once(encrypted, "a")
    present = superblock_codec.decode(KEY, encrypted.store.objects[KEY])
    forged = replace(present, label="forged")
    encrypted.store.objects[KEY] = superblock_codec.encode(forged)
    encrypted.store.objects[COPY_KEY] = text_object.encode("superblock", 4, {})
    for repairing in (False, True):
        with pytest.raises(NewerFormatError, match="upgrade"):
            await encrypted.keys("a", repairing=repairing)


async def test_unencrypted_superblock_is_refused_if_a_passphrase_is_given(encrypted: Power) -> None:
    _exchange(encrypted, KEY, COPY_KEY)
    before = dict(encrypted.store.objects)

    for host in ("a", "b"):
        secret = Passphrase(lambda: b"secret", given="in a file")
        with pytest.raises((PassphraseError, ExchangedSuperblockError)):
            await open_keys(encrypted.store, encrypted.remembered(host), secret)
    secret = Passphrase(lambda: b"secret", given="in a file")
    why = "is not encrypted, although a passphrase is given in a file; leave the passphrase out"
    with pytest.raises(PassphraseError, match=why):
        await open_first(encrypted.store, encrypted.remembered("a"), secret)
    key = RecoveryKey(lambda: b"key", given="as a recovery key")
    with pytest.raises(PassphraseError, match="not encrypted, so it has neither a recovery key"):
        await open_first(encrypted.store, encrypted.remembered("a"), key)
    assert encrypted.store.objects == before


@pytest.mark.parametrize("forgets", ["nothing", "its copy"])
@pytest.mark.parametrize("options", [OpenOptions(), OpenOptions(read_only=True, follow=True)])
async def test_host_that_mounted_an_encrypted_filesystem_refuses_an_unencrypted_superblock(
    encrypted: Power, options: OpenOptions, forgets: str
) -> None:
    """The host's superblock copy, or its database, shows that the filesystem is encrypted."""
    _exchange(encrypted, KEY, COPY_KEY)
    if forgets == "its copy":
        encrypted.remembered("a").path.unlink()
    else:
        with pytest.raises(ExchangedSuperblockError):
            await peek(encrypted.store, encrypted.remembered("a"))
    before = dict(encrypted.store.objects)

    with pytest.raises(ExchangedSuperblockError, match="--accept-superblock"):
        async with encrypted.session("a", options=options):
            pass

    assert encrypted.store.objects == before


async def test_local_state_without_a_record_of_keys_refuses_an_unencrypted_superblock(
    encrypted: Power,
) -> None:
    """If local state has no record of keys, a superblock must have the keys of an image."""
    healthy = dict(encrypted.store.objects)
    _forget_keys(encrypted, "a")
    _exchange(encrypted, KEY, COPY_KEY)
    before = dict(encrypted.store.objects)

    with pytest.raises(ExchangedSuperblockError):
        async with encrypted.session("a"):
            pass

    assert encrypted.store.objects == before
    encrypted.store.objects |= healthy
    await _mount_once(encrypted, "a")
    assert encrypted.remembered("a").read() == healthy[KEY]
    encrypted.remembered("a").path.unlink()
    _exchange(encrypted, KEY, COPY_KEY)
    with pytest.raises(ExchangedSuperblockError):
        async with encrypted.session("a"):
            pass


async def test_mount_records_the_keys_of_local_state_made_by_an_older_program(power: Power) -> None:
    await _mount_once(power, "a")
    _forget_keys(power, "a")

    await _mount_once(power, "a")

    assert power.remembered("a").read() == power.store.objects[KEY]
    assert _key_check(power, "a") == (await power.keys()).keyring.check_value


async def test_accepting_an_unencrypted_superblock_uploads_no_encrypted_state(
    encrypted: Power,
) -> None:
    """If the user accepts an unencrypted superblock, encrypted local state is quarantined."""
    [manifest] = [key for key in encrypted.store.objects if key.endswith("/manifest")]
    opened = image_codec.decode(
        manifest, encrypted.store.objects[manifest], (await encrypted.keys("a")).keyring
    )
    plain = superblock_codec.decode(KEY, _exchange(encrypted, KEY, COPY_KEY))
    # The keys of the unencrypted superblock open no object in the bucket.
    with pytest.raises(LostSuperblockError):
        await accept_first(encrypted.store, encrypted.remembered("a"), Passphrase(bytes))
    encrypted.store.objects[manifest] = image_codec.encode(
        opened, manifest, superblock_codec.unlock_plain(plain)
    )
    await accept_first(encrypted.store, encrypted.remembered("a"), Passphrase(bytes))
    before = dict(encrypted.store.objects)

    with pytest.raises(FormatError):  # The wrong keys open no image piece.
        async with encrypted.session("a", options=OpenOptions(accept_superblock=True)):
            pass

    assert encrypted.store.objects.keys() - before.keys() == set()
    [kept] = (encrypted.home / "a").glob("kept-*")
    assert (kept / "meta.db").exists()


def _database(power: Power, host: str) -> Database:
    return Database.open(StateDir(power.home / host).database, Pragmas())


def _key_check(power: Power, host: str) -> str | None:
    db = _database(power, host)
    try:
        return local_state.get(db, "key_check")
    finally:
        db.close()


def _forget_keys(power: Power, host: str) -> None:
    """Remove all superblock records from a state directory, as an older program would leave it."""
    db = _database(power, host)
    db.begin_local()
    local_state.delete(db, "key_check")
    db.commit()
    db.close()
    power.remembered(host).path.unlink()


async def test_longest_retention_is_used_until_the_superblock_copies_agree(power: Power) -> None:
    """After an interrupted change, the longer retention of both superblock objects applies."""
    old = power.store.objects[COPY_KEY]
    await change(power.store, power.remembered("-"), power.secret, _retaining(0))
    assert (await power.keys()).retention_s == 0

    power.store.objects[COPY_KEY] = old

    keys = await power.keys()
    assert (keys.superblock.retention_s, keys.retention_s) == (0, 7 * 86_400)


async def test_fields_of_the_superblock_are_readable_without_keys(power: Power) -> None:
    """Without a passphrase, the status reports the fields of the newest readable superblock."""
    power.store.objects[KEY] = b""
    assert (await peek(power.store, power.remembered("-"))).label == "test"


async def test_wrong_passphrase_is_not_reported_as_damage(power: Power, tmp_path: Path) -> None:
    """A wrong passphrase is requested once, not once for each superblock copy."""
    if not power.encrypted:
        pytest.skip("an unencrypted filesystem has no passphrase")
    asked = []

    def ask() -> bytes:
        asked.append(1)
        return b"wrong"

    with pytest.raises(PassphraseError, match="does not open"):
        await open_keys(power.store, Remembered(tmp_path), Passphrase(ask))
    assert len(asked) == 1
    assert LEASE in power.store.objects
