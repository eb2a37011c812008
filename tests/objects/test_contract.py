"""Object keys that every kind of store accepts or refuses, and the base class of wrappers."""

import pytest
from typing_extensions import override

from s3fs_meta.errors import InvalidRequestError
from s3fs_meta.limits import KEY_BYTES_MAX, KEY_COMPONENT_BYTES_MAX
from s3fs_meta.objects.contract import StoreWrapper, check_key, listing_of
from s3fs_meta.objects.memory import MemoryStore


@pytest.mark.parametrize(
    "key", ["a", "pack/3f/7-9a", "..a/b..", "a b+c%20&<>", "a/" * 249 + "ab", "c" * 255]
)
def test_valid_object_key_is_accepted(key: str) -> None:
    """A valid key is printable ASCII, and the key and its components have a limited length."""
    check_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "./a",
        "a/..",
        "a\\b",
        "a\x00",
        "a\x7f",
        "ä",
        "c" * (KEY_COMPONENT_BYTES_MAX + 1),
        "a/" * (KEY_BYTES_MAX // 2) + "a",
    ],
)
def test_invalid_object_key_is_refused(key: str) -> None:
    """The error about an invalid object key quotes the key."""
    with pytest.raises(InvalidRequestError) as caught:
        check_key(key)

    assert caught.value.value == key


@pytest.mark.parametrize(
    ("prefix", "name"), [("", "the list of objects"), ("pack/", "the list of objects pack/*")]
)
def test_error_of_a_listing_contains_its_prefix(prefix: str, name: str) -> None:
    """The error of a failed listing contains the prefix followed by an asterisk."""
    assert listing_of(prefix) == name


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
