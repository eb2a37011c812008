"""A helper that appends changelogs without changes to a chain."""

import trio

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Changelog, Kind
from s3fs_meta.codec.image import content_hash
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.session import Session


async def append_empty_changelogs(session: Session, count: int) -> None:
    """Append changelogs without changes, so that only the chain position advances."""
    link, opened = session.link, session.volume
    for _ in range(count):
        made = Changelog(
            kind=Kind.GROUP,
            txg=link.next_txg,
            epoch=opened.keeper.epoch,
            nonce="00" * 16,
            uuid=opened.superblock.uuid,
            schema_version=1,
            created_ns=link.created_ns + 1,
            previous=link.hash,
        )
        data = changelog_codec.encode(made, opened.keyring)
        await opened.store.create(changelog_codec.key_of(link.next_txg), data)
        link = Link(link.next_txg, content_hash(data), made.created_ns)
    session.volume.position.advance(link)
    session.db.begin_local()
    chain.record_own(session.db, link)
    session.db.commit()
    await trio.lowlevel.checkpoint()
