"""Foreign objects whose keys contain impossible txg or epoch numbers."""

from collections.abc import Callable

import pytest
import trio.testing

from s3fs_meta.check.from_packs import rebuild
from s3fs_meta.check.report import Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.limits import FOLLOW_LISTING_POLLS, FOLLOW_RESYNC_S, LEVEL_FAN_OUT
from s3fs_meta.model import Ino, ObjectKey
from s3fs_meta.mount_state import MountState
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import TAKEOVER, Power, unmount, write_file
from tests.sync.history.readers import bucket_of
from tests.sync.opening.histories import READ_ONLY, require_files, written

pytestmark = pytest.mark.thorough

MEND = OpenOptions(mend=Mend())
FOLLOW = OpenOptions(read_only=True, follow=True)
RANDOM = "0123456789abcdef"
NUMBERS = {
    "500 ahead": 500,
    "2^62": 1 << 62,
    "2^63-2": (1 << 63) - 2,
    "2^63-1": (1 << 63) - 1,
    "2^64": 1 << 64,
    "10^30": 10**30,
}


def level_name(number: int) -> str:
    """Return the key of the last level object that ends at or before a txg."""
    last = number // LEVEL_FAN_OUT * LEVEL_FAN_OUT
    return f"level/1/{last - LEVEL_FAN_OUT + 1:012d}-{last:012d}"


KINDS: dict[str, Callable[[int], str]] = {
    "changelog": lambda number: f"changelog/{number:012d}",
    "part": lambda number: f"changelog-part/{number:012d}-1-{RANDOM}/000000",
    "part's epoch": lambda number: f"changelog-part/000000000009-{number}-{RANDOM}/000000",
    "level": level_name,
    "manifest": lambda number: f"image/{number:012d}-1-{RANDOM}/manifest",
    "manifest's epoch": lambda number: f"image/000000000009-{number}-{RANDOM}/manifest",
    "piece": lambda number: f"image/{number:012d}-1-{RANDOM}/000000",
    "piece's epoch": lambda number: f"image/000000000009-{number}-{RANDOM}/000000",
    "pack's epoch": lambda number: f"pack/01/{number}-{RANDOM}{RANDOM}",
}
CONTENTS = {"junk": b"?", "newer": b"S3FSMETA\x00\x63" + bytes(100)}


@pytest.fixture(params=NUMBERS)
def number(request: pytest.FixtureRequest) -> int:
    """Return a number that is far above the txgs and epochs of the filesystem."""
    return NUMBERS[request.param]


@pytest.fixture(params=CONTENTS)
def content(request: pytest.FixtureRequest) -> bytes:
    """Return content for foreign objects, without an authenticator."""
    return CONTENTS[request.param]


def strew(power: Power, number: int, content: bytes = b"?") -> dict[ObjectKey, bytes]:
    """Create a foreign object of each kind with a given number in its key."""
    made = {ObjectKey(name(number)): content for name in KINDS.values()}
    power.store.objects.update(made)
    return made


@pytest.mark.parametrize("options", [OpenOptions(), MEND], ids=["mount", "fsck -y"])
@pytest.mark.parametrize("host", ["a", "b"])
async def test_mount_continues_the_chain_despite_object_keys_with_impossible_txgs(
    power: Power, number: int, content: bytes, host: str, options: OpenOptions
) -> None:
    """A mount and fsck -y continue with the next txg and do not change foreign objects."""
    inos = await written(power)
    made = strew(power, number, content)

    async with power.session(host, options=options, tasks=False) as session:
        assert session.link.txg == 10
        assert session.volume.mended == ()
        await require_files(session, inos, 9)
        inos[11] = write_file(session, b"11")
        await session.flush()
        await session.make_image()
        await session.reclaimer.reclaim()
        await unmount(session)
    assert {key: power.store.objects[key] for key in made} == made
    async with power.session("c", options=READ_ONLY, tasks=False) as session:
        await require_files(session, inos, 11)


async def test_killed_host_continues_despite_object_keys_with_impossible_txgs(
    power: Power, number: int
) -> None:
    """The next mount ships the unshipped changes of a killed host."""
    async with power.session("a", tasks=False) as session:
        inos = {2: write_file(session, b"2")}
        await session.flush()
        inos[3] = write_file(session, b"3")
        session.db.commit_durable()
    strew(power, number)

    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()
        await require_files(session, inos, 3)
        await unmount(session)


async def test_running_writer_continues_despite_object_keys_with_impossible_txgs(
    power: Power, number: int, content: bytes
) -> None:
    """Despite foreign objects, the writer ships, makes images, reclaims and restores its lease."""
    async with power.session("a", tasks=False) as session:
        inos = {2: write_file(session, b"2")}
        await session.flush()
        strew(power, number, content)
        for txg in range(3, 9):
            inos[txg] = write_file(session, b"%d" % txg)
            await session.flush()
        del power.store.objects[ObjectKey("lease")]
        inos[9] = write_file(session, b"9")
        await session.flush()
        await session.make_image()
        await session.reclaimer.reclaim()
        assert session.status.state is MountState.SERVING
        await unmount(session)
    async with power.session("b", tasks=False) as session:
        await require_files(session, inos, 9)


async def test_running_follower_continues_despite_object_keys_with_impossible_txgs(
    power: Power, number: int, content: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Despite foreign objects, a follower serves the last txg and follows the next writer."""
    inos = await written(power)
    async with power.session(
        "f", options=FOLLOW, session_options=SessionOptions(follow=True), tasks=False
    ) as session:
        assert session.follower is not None
        strew(power, number, content)
        for _ in range(FOLLOW_LISTING_POLLS + 2):
            await session.follower.poll_once()
        autojump_clock.jump(FOLLOW_RESYNC_S + 1)
        assert session.follower.last_error == ""
        assert session.link.txg == 9
        await require_files(session, inos, 9)
        async with power.session("b", options=TAKEOVER, tasks=False) as other:
            await other.close()
        await session.follower.poll_once()
        assert session.link.txg == 10


async def test_search_for_points_in_time_ignores_object_keys_with_impossible_txgs(
    power: Power, number: int, content: bytes
) -> None:
    """The search finds the newest and the oldest point in time of the real chain."""
    await written(power)
    strew(power, number, content)
    bucket = await bucket_of(power)
    assert (await bucket.points.newest()).txg == 9
    assert bucket.points.unreadable_end == []
    assert (await bucket.points.oldest()).txg == 0
    await bucket.restore(await bucket.points.newest(), power.home / "restored.db")


@pytest.mark.parametrize("deep", [False, True])
async def test_fsck_counts_objects_with_impossible_txgs_as_foreign(
    power: Power, number: int, deep: bool
) -> None:
    """Objects with impossible txgs are not reported as faults of the chain."""
    await written(power)
    made = strew(power, number)
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        volume = session.volume
        examined = Examined(volume.db, power.store, volume.keyring)
        report = await check_filesystem(examined, FsckOptions(deep=deep), Report(), SystemClock())
        left = [verdict.invariant for verdict in report.verdicts if verdict.left]
        # The test files have no names, so only I26 (inodes without a name) is broken.
        assert left == ["I26"], report.lines()
        foreign = {row[0] for row in volume.db.all("SELECT object_key FROM temp.seen_foreign")}
    of_chain = {key for key in made if key.startswith(("changelog/", "level/"))}
    assert of_chain <= foreign


async def test_filesystem_rebuilt_despite_object_keys_with_impossible_txgs_is_usable(
    power: Power, number: int
) -> None:
    """A filesystem rebuilt despite impossible numbers still has room for later epochs and txgs."""
    inos: dict[int, Ino] = await written(power)
    for key in list(power.store.objects):
        if not key.startswith(("pack/", "superblock")):
            del power.store.objects[key]
    strew(power, number)
    keys = await power.keys()
    (power.home / "scratch").mkdir()
    made = await rebuild(
        power.store,
        keys.keyring,
        keys.superblock,
        power.home / "scratch",
        SystemClock(),
        no_progress,
        lambda: None,
    )
    assert made.files == len(inos)
    for host in ("c", "d"):
        async with power.session(host, options=TAKEOVER, tasks=False) as session:
            assert session.link.txg < 1 << 40
            assert session.volume.keeper.epoch < 1 << 40
            write_file(session, b"new")
            await unmount(session)
