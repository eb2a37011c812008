"""Opening an older state of the filesystem."""

from pathlib import Path

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import FormatError, HeldError, SettingsError
from s3fs_meta.meta.tables import inodes
from s3fs_meta.settings import SessionOptions
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.session import Session
from tests.damage import flipped
from tests.sync.conftest import Power, read_file, remove_file, write_file
from tests.sync.history.readers import open_at


async def test_point_in_time_has_the_files_of_its_txg_and_leaves_no_trace(
    power: Power, tmp_path: Path
) -> None:
    """Closing the older state removes its directory; the bucket does not change."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"first")
        first = await session.flush()
        await session.make_image()
        remove_file(session, ino)
        other = write_file(session, b"second")
        second = await session.flush()
        assert first is not None
        assert second is not None
        objects = dict(power.store.objects)
        for link, there, gone in ((first, ino, other), (second, other, ino)):
            opened = await open_at(power, link.txg, tmp_path / "then")
            past = Session(opened, SessionOptions(), SystemClock())
            past.recover()
            assert opened.link == link
            assert inodes.find(past.db, gone) is None
            assert await read_file(past, there) == (b"first" if there == ino else b"second")
            await close_filesystem(opened, release=False)
            assert not (tmp_path / "then").exists()

    assert power.store.objects == objects


async def test_state_directory_of_a_point_in_time_that_is_in_use_is_refused(
    power: Power, tmp_path: Path
) -> None:
    """Two mounts never share the state directory of a point in time."""
    first = await open_at(power, 0, tmp_path / "then")

    with pytest.raises(HeldError):
        await open_at(power, 0, tmp_path / "then")

    assert first.state_dir.database.exists()
    await close_filesystem(first, release=False)


async def test_unavailable_point_in_time_leaves_no_database(power: Power, tmp_path: Path) -> None:
    """A txg of the future or a damaged changelog is refused."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.flush()
    with pytest.raises(SettingsError, match="txg 9 does not exist yet"):
        await open_at(power, 9, tmp_path / "then")
    key = next(key for key in power.store.objects if key.endswith("changelog/000000000001"))
    power.store.objects[key] = flipped(power.store.objects[key], -1)

    with pytest.raises(FormatError, match="000000000001"):
        await open_at(power, 2, tmp_path / "then")

    assert not (tmp_path / "then" / "meta.db").exists()
