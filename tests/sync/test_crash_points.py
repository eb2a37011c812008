"""Kills at every step of the write order, after which the next mount finds all data."""

from pathlib import Path

import pytest

from s3fs_meta.codec import changelog, image
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import COPY_KEY, KEY, Superblock
from s3fs_meta.errors import (
    BeingRemovedError,
    FencedError,
    NotAFilesystemError,
    NotEmptyError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import HISTORY_FAN_OUT, LEVEL_FAN_OUT
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import Ino, ObjectKey, Txg
from s3fs_meta.sync.administration import removal
from s3fs_meta.sync.history.garbage.own_objects import own_objects
from s3fs_meta.sync.hooks import (
    REMOVAL_STEPS,
    ROLLBACK_STEPS,
    STEPS,
    SUPERBLOCK_STEPS,
    TAKEOVER_STEPS,
    Hook,
    no_hook,
)
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.changes import change
from s3fs_meta.sync.upload.bounds import DEFAULT_BOUNDS, UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, read_file, remove_file, write_file
from tests.sync.kills import KillAt, Killed

pytestmark = pytest.mark.thorough

# Some steps occur only if objects are older than the retention and two later images exist.
_RECLAIM_STEPS = frozenset(STEPS[STEPS.index("packs condemned") :]) - {"level put", "history put"}


async def _kill_in_flush(
    power: Power, kill: KillAt, bounds: UploadBounds = DEFAULT_BOUNDS
) -> dict[Ino, bytes]:
    """Run a session until the simulated kill; return the committed files."""
    expected: dict[Ino, bytes] = {}
    try:
        async with power.session("a", hook=kill, bounds=bounds) as session:
            if kill.step in {"level put", "levels deleted"}:
                await append_empty_changelogs(session, LEVEL_FAN_OUT)
                kill.armed = kill.step == "level put"
                await session.leveler.make_due()
                kill.armed = True  # Reclaim deletes level objects together with the first image.
            if kill.step in {"history put", "history deleted"}:
                await append_empty_changelogs(session, HISTORY_FAN_OUT)
                kill.armed = kill.step == "history put"
                await session.indexer.make_due()
                kill.armed = True  # Reclaim deletes index objects together with the first image.
            if kill.step in _RECLAIM_STEPS:
                await _let_a_pack_die(session)
            for number in range(3):
                content = b"%d" % number * 5000
                expected[write_file(session, content)] = content
            session.durability.commit()
            kill.armed = True
            await session.make_image()
    except BaseException:  # noqa: ASYNC103 - the simulated kill is expected
        if not kill.reached:
            raise
    return expected


async def _let_a_pack_die(session: Session) -> None:
    ino = write_file(session, b"soon gone")
    await session.make_image()
    remove_file(session, ino)
    await session.make_image()


@pytest.mark.parametrize("step", STEPS)
async def test_next_mount_after_a_kill_finds_all_data(power: Power, step: str) -> None:
    """After a kill at any step, two hosts can read all content, and no garbage remains."""
    few = step == "changelog parts put"
    await power.retain(0)
    kill = KillAt(step)
    expected = await _kill_in_flush(
        power, kill, UploadBounds(locations=2) if few else DEFAULT_BOUNDS
    )
    assert kill.reached

    async with power.session("a") as session:
        for ino, content in expected.items():
            assert await read_file(session, ino) == content
        await session.make_image()
        for _ in range(2):  # Reclaim deletes the leftovers of the kill after two more images.
            write_file(session, b"more")
            await session.make_image()
        await session.reclaimer.reclaim()
        assert (await session.reclaimer.plan()).total == 0
        known = {key for _pack, key in packs.all_keys(session.db)}
        end = session.link.txg
        await session.close()

    stored = {key for key in power.store.objects if key.startswith("pack/")}
    assert stored == known
    _require_no_leftovers(set(power.store.objects), end)
    async with power.session("b") as session:
        for ino, content in expected.items():
            assert await read_file(session, ino) == content


async def test_blocks_with_committed_locations_are_not_uploaded_again_after_a_kill(
    power: Power,
) -> None:
    kill, sessions = KillAt("locations recorded"), list[Session]()

    def hook(step: str) -> None:
        if kill.armed and step == kill.step:
            sessions[0].durability.commit()
        kill(step)

    ino = Ino(0)
    try:
        async with power.session("a", hook=hook) as session:
            sessions.append(session)
            ino = write_file(session, b"content" * 900)
            session.durability.commit()
            kill.armed = True
            await session.flush()
    except BaseException:  # noqa: ASYNC103 - the simulated kill is expected
        if not kill.reached:
            raise
    stored = {key for key in power.store.objects if key.startswith("pack/")}

    async with power.session("a") as session:
        await session.flush()
        assert await read_file(session, ino) == b"content" * 900
    assert len(stored) == 1
    assert {key for key in power.store.objects if key.startswith("pack/")} == stored


def _require_no_leftovers(keys: set[ObjectKey], end: Txg) -> None:
    """Require two images, all changelogs since the older image, and no other metadata."""
    images = [image.parse_manifest_key(key) for key in keys]
    first, _last = sorted(name.txg for name in images if name is not None)
    assert {key for key in keys if key.startswith("changelog")} == {
        changelog.key_of(Txg(txg)) for txg in range(first, end + 1)
    }
    assert not any(key.startswith("level/") for key in keys)
    names = [image.parse_piece_key(key) for key in keys]
    assert {name.txg for name in names if name is not None} <= {first, _last}


@pytest.mark.parametrize("step", ["image manifest put", "lease head moved", "locations recorded"])
async def test_takeover_after_a_kill_finds_a_complete_image(power: Power, step: str) -> None:
    """After a kill, a host that takes over finds a complete image and all of its packs."""
    async with power.session("a") as session:
        ino = write_file(session, b"first")
        await session.flush()
    kill = KillAt(step)
    await _kill_in_flush(power, kill)
    assert kill.reached

    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, ino) == b"first"
        for _pack, key in packs.all_keys(session.db):
            assert key in power.store.objects


@pytest.mark.parametrize("goes_on", ["a", "b", "c"])
# The last step occurs only during a promotion.
@pytest.mark.parametrize("step", TAKEOVER_STEPS[:-1])
async def test_kill_during_a_takeover_loses_no_shipped_data(
    power: Power, step: str, goes_on: str
) -> None:
    """After a killed takeover, shipped data is readable; host a still has its unshipped changes."""
    async with power.session("a", tasks=False) as old:
        shipped = write_file(old, b"shipped")
        await old.flush()
        unshipped = write_file(old, b"unshipped")
        await old.durability.sync()
    kill = KillAt(step, armed=True)
    with pytest.raises(Killed):
        async with power.session("b", options=OpenOptions(force_takeover=True, hook=kill)):
            pass

    async with power.session(goes_on, options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, shipped) == b"shipped"
        if goes_on == "a":
            aside = any("kept" in notice for notice in session.volume.notices)
            assert aside == (step in {"fence put", "fence confirmed"})
            assert aside or await read_file(session, unshipped) == b"unshipped"
        else:
            assert session.volume.notices == ()
        more = write_file(session, b"more")
        await session.flush()
        await session.close()
    async with power.session("d") as session:
        assert await read_file(session, shipped) == b"shipped"
        assert await read_file(session, more) == b"more"


@pytest.mark.parametrize("step", ["lease taken", "epoch noted", "fence attempted"])
async def test_changelog_that_the_old_writer_appends_after_a_killed_takeover_is_kept(
    power: Power, step: str
) -> None:
    """Until the fence record is appended, changelogs of the old writer extend the chain."""
    kill = KillAt(step, armed=True)
    async with power.session("a", tasks=False) as old:
        with pytest.raises(Killed):
            async with power.session("b", options=OpenOptions(force_takeover=True, hook=kill)):
                pass
        ino = write_file(old, b"just in time")
        with pytest.raises(FencedError):
            await old.flush()

    async with power.session("b") as session:
        assert session.volume.notices == ()
        assert await read_file(session, ino) == b"just in time"


@pytest.mark.parametrize("step", SUPERBLOCK_STEPS)
async def test_kill_during_a_change_of_the_superblock_leaves_a_valid_superblock(
    power: Power, step: str
) -> None:
    """After a kill, both hosts accept the superblock, and the next mount updates all copies."""
    async with power.session("a", tasks=False) as session:
        await session.close()
    kill = KillAt(step, armed=True)

    def labelled(superblock: Superblock, keyring: Keyring) -> Superblock:
        return superblock_codec.amend(superblock, keyring, label="changed")

    with pytest.raises(Killed):
        await change(power.store, power.remembered("a"), power.secret, labelled, kill)

    for host in ("a", "b"):
        assert (await power.keys(host)).superblock.label == "changed"
    async with power.session("a", tasks=False) as session:
        await session.close()
    assert power.store.objects[COPY_KEY] == power.store.objects[KEY]
    assert power.remembered("a").read() == power.store.objects[KEY]


@pytest.mark.parametrize("step", SUPERBLOCK_STEPS[:-1])
async def test_next_mount_completes_a_killed_restore_of_the_superblock(
    power: Power, step: str
) -> None:
    async with power.session("a", tasks=False) as session:
        await session.close()
    before = {key: power.store.objects.pop(key) for key in (KEY, COPY_KEY)}
    kill = KillAt(step, armed=True)
    with pytest.raises(Killed):
        async with power.session("a", options=OpenOptions(hook=kill), tasks=False):
            pass

    async with power.session("a", tasks=False) as session:
        await session.close()
    assert {key: power.store.objects[key] for key in (KEY, COPY_KEY)} == before


@pytest.mark.parametrize("step", SUPERBLOCK_STEPS[:-1])
async def test_unfinished_filesystem_of_a_killed_mkfs_can_be_destroyed(
    power: Power, step: str
) -> None:
    """A mount refuses a filesystem whose mkfs was killed, but destroy removes it."""
    power.store.objects.clear()
    kill = KillAt(step, armed=True)
    with pytest.raises(Killed):
        await power.make(kill)

    with pytest.raises(UnfinishedFilesystemError, match="destroy"):
        async with power.session("b"):
            pass
    with pytest.raises(NotEmptyError, match="destroy"):
        await power.make()
    await removed(power)
    assert power.store.objects == {}
    await power.make()


async def removed(power: Power, hook: Hook = no_hook) -> None:
    """Remove the filesystem as destroy does, even if a removal was interrupted before."""
    before = await removal.superblock_versions(power.store)
    contents = await removal.list_contents(power.store)
    try:
        keys = await power.keys(repairing=True)
    except BeingRemovedError:
        opened = await removal.keys_of_removed(power.store, power.remembered("-"), power.secret)
    else:
        opened = keys.keyring, keys.data
    own, data = [key for key in contents.keys if key in removal.LAST], None
    if opened is not None:
        keyring, data = opened
        own = await own_objects(power.store, keyring, contents.named)
    nothing_shown = lambda _done, _total: None  # noqa: E731
    await removal.remove(
        power.store, own, "test", nothing_shown, hook, before=before, superblock=data
    )


@pytest.mark.parametrize("step", REMOVAL_STEPS)
async def test_next_destroy_command_completes_a_killed_destroy_command(
    power: Power, step: str
) -> None:
    """A partly removed filesystem cannot be restored; a second destroy completes the removal."""
    async with power.session("a", tasks=False) as session:
        await session.close()
    kill = KillAt(step, armed=True)
    before = set(power.store.objects)
    with pytest.raises(Killed):
        await removed(power, kill)

    left = dict(power.store.objects)
    if step == REMOVAL_STEPS[0]:
        assert set(left) == before
        return
    gone = step == REMOVAL_STEPS[-1]
    for host in ("a", "b"):
        with pytest.raises(NotAFilesystemError if gone else BeingRemovedError):
            async with power.session(host):
                pass
        with pytest.raises(NotAFilesystemError if gone else BeingRemovedError):
            await power.keys(host, repairing=True)
    assert power.store.objects == left
    if not gone:
        await removed(power)
    assert power.store.objects == {}
    await power.make()


@pytest.mark.parametrize(
    "steps", [STEPS, TAKEOVER_STEPS, ROLLBACK_STEPS, SUPERBLOCK_STEPS, REMOVAL_STEPS]
)
def test_documentation_of_the_write_order_lists_every_step(steps: tuple[str, ...]) -> None:
    """The tables in docs/design/durability.md list all steps in the order of the code."""
    root = Path(__file__).parents[2]
    text = (root / "docs/design/durability.md").read_text("utf-8")
    found = [step for step in steps if f"| `{step}`" in text]

    assert found == list(steps)
    places = [text.index(f"| `{step}`") for step in steps]
    assert places == sorted(places)
