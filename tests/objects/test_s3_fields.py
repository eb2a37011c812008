"""Responses of an S3 server with missing, repeated or impossible fields."""

import pytest

from s3fs_meta.errors import StoreError, TransientStoreError, UnexpectedStoreError
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.objects.s3 import S3Store
from tests.contract.store_contract import keys_of
from tests.objects.s3_double import KEY, Reply, S3Double, listing

_END = "<IsTruncated>false</IsTruncated>"


def listing_with(text: str) -> Reply:
    """Return a listing that contains the given XML elements."""
    return Reply(200, f"<ListBucketResult>{text}</ListBucketResult>".encode())


async def test_listing_ends_with_an_error_after_a_thousand_empty_pages(
    double: S3Double, store: S3Store
) -> None:
    """A server may send a new page token with each empty page, so the token proves nothing."""
    double.answer_always(lambda _seen: listing([], token=f"t{len(double.seen)}"))

    with pytest.raises(UnexpectedStoreError, match="1000 successive pages without a key"):
        await keys_of(store)


@pytest.mark.parametrize(
    "text",
    [
        f"<Contents><Key>a</Key><Key>b</Key><Size>1</Size></Contents>{_END}",
        "<IsTruncated>true</IsTruncated>" + "<NextContinuationToken>t</NextContinuationToken>" * 2,
    ],
    ids=["key", "token"],
)
async def test_listing_with_two_values_for_one_field_is_a_transient_error(
    double: S3Double, store: S3Store, text: str
) -> None:
    double.answer(listing_with(text))

    with pytest.raises(TransientStoreError, match="has several values for one field"):
        await keys_of(store)


@pytest.mark.parametrize(
    ("fields", "error_class", "text"),
    [
        ("<Key>a</Key><Key>b</Key><Code>c</Code>", TransientStoreError, "several values"),
        ("<Key>a</Key><Code>c</Code><Code>d</Code>", TransientStoreError, "several values"),
        ("", UnexpectedStoreError, "one of 1 deletions: an error without a code"),
    ],
    ids=["two keys", "two codes", "no field"],
)
async def test_refused_deletion_with_missing_or_repeated_fields_is_a_store_error(
    double: S3Double, store: S3Store, fields: str, error_class: type[StoreError], text: str
) -> None:
    double.answer(Reply(200, f"<DeleteResult><Error>{fields}</Error></DeleteResult>".encode()))

    with pytest.raises(error_class, match=text):
        await store.delete([KEY])


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z"])
async def test_impossible_time_of_an_object_is_unknown(
    double: S3Double, store: S3Store, time: str
) -> None:
    """Changelogs and columns of SQLite cannot contain a time after the year 2262."""
    item = f"<Contents><Key>a</Key><Size>1</Size><LastModified>{time}</LastModified></Contents>"
    double.answer(listing_with(f"{item}{_END}"))

    assert [info async for info in store.list("")] == [ObjectInfo(ObjectKey("a"), 1, None)]


async def test_impossible_time_of_the_store_is_unknown(double: S3Double, store: S3Store) -> None:
    """The store's time may become the time of a txg."""
    page = listing([])
    date = "Fri, 31 Dec 9999 23:59:59 GMT"
    double.answer(page._replace(headers={**page.headers, "Date": date}))

    assert await store.now_ns() is None
