"""Foreign objects that have the key of the next changelog."""

import pytest

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import FencedError
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.mount_state import MountState
from tests.sync.conftest import TAKEOVER, Power, unmount, write_file
from tests.sync.opening.histories import READ_ONLY, require_files

pytestmark = pytest.mark.thorough

JUNK = [b"?", b"S3FSMETA\x00\x63" + bytes(100)]


@pytest.mark.parametrize("content", JUNK, ids=["junk", "newer"])
@pytest.mark.parametrize("ahead", [1, 3])
async def test_writer_continues_if_an_invalid_object_has_the_next_changelog_key(
    power: Power, ahead: int, content: bytes
) -> None:
    """If a foreign object has the key of the next changelog, the writer makes an image instead."""
    async with power.session("a", tasks=False) as session:
        inos = {2: write_file(session, b"2")}
        await session.flush()
        taken = key_of(Txg(session.link.txg + ahead))
        power.store.objects[taken] = content
        for txg in range(3, 9):
            inos[txg] = write_file(session, b"%d" % txg)
            await session.flush()
            # A reader of an earlier txg considers the foreign object a damaged changelog.
            if key_of(session.link.txg) > taken:
                async with power.session(f"at-{txg}", options=READ_ONLY, tasks=False) as other:
                    await require_files(other, inos, txg)
        assert session.status.state is MountState.SERVING
        await unmount(session)
    assert power.store.objects[taken] == content
    async with power.session("b", tasks=False) as session:
        await require_files(session, inos, 9)


async def test_authentic_changelog_of_another_host_at_the_next_key_fences_the_writer(
    power: Power,
) -> None:
    """An authentic changelog at the next key proves that another host writes."""
    async with power.session("a", tasks=False) as session:
        lease = power.store.objects[ObjectKey("lease")]
        async with power.session("b", options=TAKEOVER, tasks=False) as other:
            assert other.link.txg == session.link.next_txg
        power.store.objects[ObjectKey("lease")] = lease
        write_file(session, b"2")
        with pytest.raises(FencedError):
            await session.flush()
        assert session.status.state is MountState.FENCED
