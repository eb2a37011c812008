"""The base class of stores that wrap another store.

Owns: the methods that no wrapper changes. Does not know: requests.
"""

from s3fs_meta.objects.contract import ObjectStore


class StoreWrapper:
    """A store that wraps another store; subclasses implement the requests."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """Return the URL of the inner store."""
        return self.inner.url

    @property
    def has_own_clock(self) -> bool:
        """Return whether the inner store has its own clock."""
        return self.inner.has_own_clock

    @property
    def endpoint(self) -> str:
        """Return the address of the inner store's server."""
        return self.inner.endpoint

    async def close(self) -> None:
        """Close the inner store."""
        await self.inner.close()
