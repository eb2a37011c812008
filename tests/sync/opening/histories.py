"""Helpers that create a history of txgs, damage it and check what hosts can read."""

from collections.abc import Mapping

from s3fs_meta.codec.changelog import key_of
from s3fs_meta.model import Ino, Txg
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.damage import flipped
from tests.sync.conftest import Power, read_file, write_file


def end_at(txg: int) -> OpenOptions:
    """Return the options that fsck -y --end-at=TXG uses to open the filesystem."""
    return OpenOptions(mend=Mend(Txg(txg)))


def rot(power: Power, *txgs: int) -> None:
    """Flip one bit in the changelog of each given txg."""
    for txg in txgs:
        data = power.store.objects[key_of(Txg(txg))]
        power.store.objects[key_of(Txg(txg))] = flipped(data, len(data) // 2)


async def written(power: Power, host: str = "a", last: int = 9) -> dict[int, Ino]:
    """Ship txgs with one file each, one of them as an image; unmount; return the files."""
    inos: dict[int, Ino] = {}
    async with power.session(host, tasks=False) as session:
        while session.link.txg < last:
            txg = session.link.next_txg
            if txg == last // 2:
                await session.imager.make()
            else:
                inos[txg] = write_file(session, b"%d" % txg)
                await session.flush()
        await session.close()
        assert session.volume.keeper.lease.released
    assert max(key for key in power.store.objects if key.startswith("changelog/")) == key_of(
        Txg(last)
    )
    return inos


READ_ONLY = OpenOptions(read_only=True)


async def require_files(session: Session, inos: Mapping[int, Ino], last: int) -> None:
    """Require that the files of all txgs up to a given txg are readable."""
    for txg, ino in inos.items():
        if txg <= last:
            assert await read_file(session, ino) == b"%d" % txg


async def require_healthy(power: Power, inos: Mapping[int, Ino], last: int, host: str) -> None:
    """Require that a new host reads all files up to a txg without a notice."""
    async with power.session(host, options=READ_ONLY, tasks=False) as session:
        await require_files(session, inos, last)
        assert session.volume.notices == ()
