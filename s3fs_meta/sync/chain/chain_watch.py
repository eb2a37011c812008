"""A check that this writer's last changelog is still in the bucket: one small request per append.

If the bucket of a running writer is replaced by an older copy, the last changelogs are lost. A
changelog that the writer appends afterwards has no predecessor, so no host could restore it.

Owns: reading the last bytes of the changelog and comparing them. Does not know: what follows from a
loss.
Tasks: the shipper's task, under its lock; any task may call ``require``.
"""

from typing import NamedTuple

from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.image import NO_HASH, content_hash
from s3fs_meta.errors import FormatError, ObjectMissingError
from s3fs_meta.limits import WATCHED_TAIL_BYTES
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link


class _Tail(NamedTuple):
    """The last bytes of a changelog object, which depend on all bytes before them."""

    link: Link
    start: int
    data: bytes


class ChainWatch:
    """Records the last changelog that one writer appended, and checks that it exists."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        # the last bytes of the newest changelog; None until they are known
        self._tail: _Tail | None = None

    def note(self, link: Link, data: bytes) -> None:
        """Record the last bytes of a changelog that has just been confirmed."""
        start = max(len(data) - WATCHED_TAIL_BYTES, 0)
        self._tail = _Tail(link, start, data[start:])

    async def require(self, link: Link) -> None:
        """Raise OlderBucketError if the changelog at a chain position is missing from the bucket.

        Raises:
            OlderBucketError: two requests in a row found the changelog missing or replaced.
            StoreError: the store returned another error, so it is unknown whether the changelog
                exists.
        """
        if link.hash == NO_HASH:
            return
        if await self._why_lost(link) and (why := await self._why_lost(link)):
            advice = "the local state becomes the next txg"
            raise OlderBucketError(self._store.url, link.txg, why, advice)

    async def _why_lost(self, link: Link) -> str:
        key, tail = key_of(link.txg), self._tail
        try:
            if tail is None or tail.link != link:
                data = await chain.bytes_of(self._store, link.txg)
                is_same = content_hash(data) == link.hash
                if is_same:
                    self.note(link, data)
            else:
                stop = tail.start + len(tail.data)
                is_same = await self._store.get_range(key, tail.start, stop) == tail.data
        except ObjectMissingError:
            return f"{key} is missing"
        except FormatError as exc:
            return exc.message
        return "" if is_same else f"another object has replaced {key}"
