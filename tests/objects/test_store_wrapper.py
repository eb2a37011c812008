"""Methods and properties that the base class of store wrappers forwards to the store."""

from typing_extensions import override

from s3fs_meta.objects.contract import StoreWrapper
from s3fs_meta.objects.memory import MemoryStore


class Closable(MemoryStore):
    """A store that records that it was closed."""

    has_own_clock = True
    endpoint = "http://nas:9000"

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    @override
    async def close(self) -> None:
        """Record that this store was closed."""
        self.is_closed = True


async def test_store_wrapper_delegates_url_and_endpoint_and_clock_and_close() -> None:
    inner = Closable()
    wrapper = StoreWrapper(inner)

    await wrapper.close()

    assert (wrapper.url, wrapper.endpoint) == (inner.url, "http://nas:9000")
    assert (wrapper.has_own_clock, wrapper.inner) == (True, inner)
    assert inner.is_closed
