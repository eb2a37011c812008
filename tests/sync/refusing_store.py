"""A store that cannot return one of its objects."""

from typing_extensions import override

from s3fs_meta.errors import StoreError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import Fetched, ObjectStore
from s3fs_meta.testing.faulty_store import FaultyStore


class RefusingStore(FaultyStore):
    """A store that raises an error when a chosen object is read."""

    def __init__(self, inner: ObjectStore, key: ObjectKey, error: StoreError) -> None:
        super().__init__(inner)
        self._key, self._error = key, error

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return an object, or raise the error if the object is the chosen one."""
        if key == self._key:
            raise self._error
        return await super().get(key, max_bytes)
