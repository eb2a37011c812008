"""Errors of a bucket: each is one line that names the problem and a remedy."""

import os
import socket
from email.utils import formatdate
from time import time

import pytest
from botocore import exceptions as boto

from s3fs_meta.errors import (
    PermanentStoreError,
    PreconditionError,
    StoreAccessError,
    StoreError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from s3fs_meta.objects.s3_errors import translate
from tests.contract.store_contract import keys_of
from tests.objects.s3_double import (
    AT_ONCE,
    BUCKET,
    DELETED,
    KEY,
    PUT_DONE,
    Drop,
    Reply,
    S3Double,
    error,
    listing,
    s3_double,
)
from tests.servers import Certificate, S3Server


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDown"),
        (500, "InternalError"),
        (502, "BadGateway"),
        (504, "GatewayTimeout"),
        (429, "TooManyRequests"),
        (400, "RequestTimeout"),
        (400, "BadDigest"),
        (409, "ConditionalRequestConflict"),
        (409, "OperationAborted"),
    ],
)
async def test_transient_s3_error_is_retried(
    double: S3Double, store: S3Store, status: int, code: str
) -> None:
    """A transient error contains the S3 error code, and the retried write succeeds."""
    double.answer(error(status, code))
    with pytest.raises(TransientStoreError) as caught:
        await store.create(KEY, b"content")
    assert caught.value.code == code

    double.answer(error(status, code), PUT_DONE)
    await RetryingStore(store, AT_ONCE).create(KEY, b"content")


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (404, "NoSuchBucket", "create the bucket or correct the URL"),
        (403, "AccessDenied", "s3:PutObject"),
        (403, "InvalidAccessKeyId", "check the credentials"),
        (403, "SignatureDoesNotMatch", "secret key is wrong"),
        (301, "PermanentRedirect", "--region"),
    ],
)
async def test_permanent_s3_error_suggests_a_remedy(
    double: S3Double, store: S3Store, status: int, code: str, advice: str
) -> None:
    """A permanent error is one line with its code and a remedy; the request is not retried."""
    double.answer_always(error(status, code))

    with pytest.raises(StoreAccessError, match=advice) as caught:
        await RetryingStore(store, AT_ONCE).put(KEY, b"content")

    assert caught.value.code == code
    assert "\n" not in caught.value.message


async def test_s3_error_with_an_unknown_code_is_permanent(double: S3Double, store: S3Store) -> None:
    """If an error has an unknown code, the request is not retried, and the error is quoted."""
    double.answer(error(418, "Teapot"))

    with pytest.raises(UnexpectedStoreError, match="Teapot: as ordered"):
        await RetryingStore(store, AT_ONCE).get(KEY, PACK_BYTES_MAX)

    assert len(double.seen) == 1


async def test_request_is_retried_after_an_html_response_from_a_proxy(
    double: S3Double, store: S3Store
) -> None:
    """A request is retried if a proxy responds with HTML instead of XML."""
    page = b"<html><p>Please log in<br></html>"
    double.answer(Reply(200, page), Reply(503, page), Reply(522, page), listing(["a"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a"]


PAGE = Reply(200, b"<html><body>Please log in</body></html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize(
    "foreign",
    [
        PAGE,
        PAGE._replace(body=b" <!DOCTYPE html><html/>"),
        PAGE._replace(status=404),
        PAGE._replace(status=302, headers={"Location": "http://login.example/?from=bucket"}),
        Reply(404),
        Reply(404, b'{"message": "no route"}'),
        Reply(304),
        Reply(200, b"<Error><Code>InternalError</Code></Error>", {"Content-Type": "text/xml"}),
        Reply(200, b'{"message": "Please log in"}', {"Content-Type": "application/json"}),
        Reply(204),
        Reply(206, b"cont", {"ETag": '"1"', "Content-Range": "bytes 0-3/7"}),
    ],
)
async def test_web_page_instead_of_an_object_is_not_reported_as_damage_or_a_missing_object(
    double: S3Double, store: S3Store, foreign: Reply
) -> None:
    """While a proxy or a login page responds, reads are retried until the real response arrives."""
    double.answer(foreign, Reply(200, b"content", {"ETag": '"1"'}))

    fetched = await RetryingStore(store, AT_ONCE).get(KEY, PACK_BYTES_MAX)

    assert fetched.data == b"content"


@pytest.mark.parametrize("status", [200, 404])
async def test_change_is_repeated_if_the_response_is_a_web_page(
    double: S3Double, store: S3Store, status: int
) -> None:
    """A web page does not confirm a deletion or an upload, so the request is retried."""
    repeated = RetryingStore(store, AT_ONCE)
    double.answer(PAGE._replace(status=status), DELETED)
    await repeated.delete([KEY])
    double.answer(PAGE._replace(status=status), PUT_DONE)
    await repeated.put(KEY, b"content")

    assert len(double.seen) == 4


@pytest.mark.parametrize(
    "other",
    [
        Reply(200),
        Reply(204),
        Reply(200, b"<ListBucketResult/>"),
        Reply(202, b"<Error><Code>InternalError</Code></Error>"),
    ],
)
async def test_delete_is_repeated_unless_the_response_is_the_result_of_a_delete(
    double: S3Double, store: S3Store, other: Reply
) -> None:
    """Otherwise the object would remain in the bucket, although its deletion was recorded."""
    double.answer(other, DELETED)

    await RetryingStore(store, AT_ONCE).delete([KEY])

    assert len(double.seen) == 2


async def test_error_about_a_redirection_to_another_server_is_reported(
    double: S3Double, store: S3Store
) -> None:
    double.answer_always(Reply(301, headers={"Location": "https://s3.example/bucket"}))

    with pytest.raises(StoreAccessError, match=r"redirects to https://s3\.example; cor"):
        await store.get(KEY, PACK_BYTES_MAX)


@pytest.mark.parametrize(
    ("status", "text"),
    [(407, "the proxy requires a user and a password"), (405, "HTTP 405 without an error code")],
)
async def test_error_without_a_code_contains_its_http_status(
    double: S3Double, store: S3Store, status: int, text: str
) -> None:
    double.answer_always(Reply(status, b"<a>no</a>"))

    with pytest.raises(StoreError, match=text):
        await store.get(KEY, PACK_BYTES_MAX)


@pytest.mark.parametrize("body", [PAGE.body, b"<!DOCTYPE html><html><p>No<br></html>", b""])
@pytest.mark.parametrize("status", [401, 403, 405, 413])
async def test_refusal_by_a_different_server_is_permanent_with_and_without_a_web_page(
    double: S3Double, store: S3Store, status: int, body: bytes
) -> None:
    double.answer_always(Reply(status, body, {"Content-Type": "text/html"}))

    expected = f"HTTP {status} without an error code of S3.*, and for a proxy"
    with pytest.raises(PermanentStoreError, match=expected):
        await RetryingStore(store, AT_ONCE).put(KEY, b"content")

    assert len(double.seen) == 1


@pytest.mark.parametrize("status", [520, 521, 523, 527, 530])
async def test_request_is_retried_if_a_proxy_reports_that_its_server_is_unreachable(
    double: S3Double, store: S3Store, status: int
) -> None:
    double.answer(Reply(status, b""), listing(["a"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a"]


@pytest.mark.parametrize(
    "damaged",
    [
        Reply(200, b"content", {"Last-Modified": "yesterday"}),
        Reply(200, b"content", {"Last-Modified": ""}),
        Reply(200, b"content", {"Last-Modified": "9" * 20}),
        Reply(200, b"content", {"x-amz-missing-meta": "none"}),
        Reply(200, b"content", declared_bytes=-5),
        Reply(404, b"<Error><Code><Code/></Code></Error>"),
    ],
)
async def test_read_is_repeated_after_a_response_with_an_invalid_header(
    double: S3Double, store: S3Store, damaged: Reply
) -> None:
    """A header that a proxy damaged is a transient error; a permanent error degrades the mount."""
    double.answer(damaged, Reply(200, b"content", {"ETag": '"1"'}))

    fetched = await RetryingStore(store, AT_ONCE).get(KEY, PACK_BYTES_MAX)
    assert fetched.data == b"content"


@pytest.mark.parametrize(
    "fields",
    [
        "<Key>a</Key><Size>many</Size>",
        "<Key>a</Key><Size/>",
        "<Key>a</Key><Size>1</Size><LastModified>yesterday</LastModified>",
        "<Key>a</Key><Size>1</Size><LastModified/>",
        "<Key>a</Key><Size>1</Size><Size>2</Size>",
    ],
)
async def test_listing_is_repeated_after_a_page_with_an_invalid_value(
    double: S3Double, store: S3Store, fields: str
) -> None:
    items = f"<Contents>{fields}</Contents><IsTruncated>false</IsTruncated>"
    page = f"<ListBucketResult>{items}</ListBucketResult>"
    double.answer(Reply(200, page.encode()), listing(["a"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a"]


@pytest.mark.parametrize(("offset_s", "word"), [(-7200, "ahead of"), (7200, "behind")])
async def test_clock_skew_is_measured_before_the_request_is_retried(
    double: S3Double, store: S3Store, offset_s: int, word: str
) -> None:
    """The error about a clock skew contains the difference between the two clocks."""
    date = {"Date": formatdate(time() + offset_s, usegmt=True)}
    refusal = error(403, "RequestTimeTooSkewed", headers=date)
    double.answer(refusal)
    with pytest.raises(TransientStoreError, match=rf"clock is 7[12]\d\d s {word} the store's"):
        await store.put(KEY, b"content")

    double.answer(refusal, PUT_DONE)
    await RetryingStore(store, AT_ONCE).put(KEY, b"content")


@pytest.mark.parametrize(
    "headers", [{}, {"Date": "yesterday"}, {"Date": f"Mon, 01 Jan 2024 00:00:00 +{'9' * 16}"}]
)
async def test_clock_skew_is_reported_even_without_a_valid_date_header(
    double: S3Double, store: S3Store, headers: dict[str, str]
) -> None:
    double.answer(error(403, "RequestTimeTooSkewed", headers=headers))

    with pytest.raises(TransientStoreError, match="clock differs from the store's; set the clock"):
        await store.put(KEY, b"content")


def test_unknown_exception_of_the_s3_client_is_a_permanent_error() -> None:
    """An unknown exception is quoted in one line with its type."""
    error = translate(boto.UnknownSignatureVersionError(signature_version="v\n9"), KEY)

    assert type(error) is UnexpectedStoreError
    assert error.code == "UnknownSignatureVersionError: Unknown Signature Version: v 9."


@pytest.mark.s3
@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("AWS_ACCESS_KEY_ID", "does not know the access key"),
        ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch; the secret key is wrong"),
    ],
)
async def test_wrong_credentials_are_refused_by_a_real_server(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, variable: str, advice: str
) -> None:
    if s3_server.make == "moto":
        pytest.skip("moto does not check credentials")
    monkeypatch.setenv(variable, "wrong")

    with pytest.raises(StoreAccessError, match=advice):
        await S3Store(BUCKET, place=S3Place(s3_server.endpoint_url)).get(KEY, PACK_BYTES_MAX)


@pytest.mark.s3
async def test_request_to_a_missing_bucket_is_refused_by_a_real_server(proxy: S3Double) -> None:
    """A missing bucket is not reported as a missing object, because the store would seem empty."""
    store = S3Store("no-such-bucket", place=S3Place(proxy.url))

    for request in (
        store.get(KEY, PACK_BYTES_MAX),
        store.put(KEY, b""),
        keys_of(store),
        store.delete([KEY]),
    ):
        with pytest.raises(StoreAccessError, match="create the bucket or correct the URL"):
            await request


async def test_error_about_a_wrong_region_names_the_correct_region(
    double: S3Double, store: S3Store
) -> None:
    """The error about a wrong region names the correct region and the option --region."""
    double.answer_always(error(400, "AuthorizationHeaderMalformed", Region="eu-north-1"))

    with pytest.raises(StoreAccessError, match="pass --region eu-north-1"):
        await S3Store(BUCKET, place=S3Place(double.url)).put(KEY, b"1")


REGION = {"x-amz-bucket-region": "us-east-1"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "QuotaExceeded"),
        (507, "InsufficientStorage"),
        (507, "XMinioStorageFull"),
        (400, "XMinioAdminBucketQuotaExceeded"),
        (507, ""),
    ],
)
async def test_error_of_a_full_store_is_transient_and_says_what_to_do(
    double: S3Double, store: S3Store, status: int, code: str
) -> None:
    """Uploads are retried, because the owner of the store may free space."""
    double.answer(error(status, code) if code else Reply(status))

    with pytest.raises(TransientStoreError, match=f"{code or status}: the store is full"):
        await store.put(KEY, b"content")


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_request_is_retried_although_an_error_without_a_code_names_the_region(
    double: S3Double, store: S3Store, status: int
) -> None:
    """The header does not mean that the region is wrong, because MinIO always sends it."""
    double.answer(Reply(status, headers=REGION), listing(["a"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a"]


async def test_unmet_condition_is_reported_although_an_error_without_a_code_names_the_region(
    double: S3Double, store: S3Store
) -> None:
    double.answer_always(Reply(412, headers=REGION))

    with pytest.raises(PreconditionError):
        await store.create(KEY, b"content")


@pytest.mark.parametrize("status", [301, 400, 403])
async def test_error_about_a_refusal_without_a_code_advises_the_region_in_the_response(
    double: S3Double, store: S3Store, status: int
) -> None:
    double.answer_always(Reply(status, headers={"x-amz-bucket-region": "eu-north-1"}))

    with pytest.raises(StoreAccessError, match="pass --region eu-north-1"):
        await store.put(KEY, b"content")


async def test_refused_connection_is_retried(store: S3Store) -> None:
    """A refused connection is a transient error."""
    with s3_double() as gone:
        url = gone.url

    text = rf"cannot connect to {url} \(Connection refused"
    with pytest.raises(TransientStoreError, match=text) as failed:
        await S3Store(BUCKET, place=S3Place(url)).get(KEY, PACK_BYTES_MAX)

    assert failed.value.unconnected


async def test_error_about_an_unresolvable_host_names_the_host() -> None:
    store = S3Store(BUCKET, place=S3Place("http://nowhere.invalid:9"))

    text = "the server's name in http://nowhere.invalid:9 cannot be resolved"
    with pytest.raises(TransientStoreError, match=text) as failed:
        await store.get(KEY, PACK_BYTES_MAX)

    assert failed.value.unresolved
    assert not _is_resolution_trouble(boto.EndpointConnectionError(endpoint_url="u", error="e"))


def _is_resolution_trouble(exc: Exception) -> bool:
    found = translate(exc, KEY)
    assert isinstance(found, TransientStoreError)
    return found.unresolved


async def test_untrusted_certificate_is_reported_with_a_remedy(certificate: Certificate) -> None:
    """An untrusted certificate is reported without retries; the error names a variable to set."""
    with s3_double(certificate=certificate) as secure:
        store = S3Store(BUCKET, place=S3Place(secure.url))

        with pytest.raises(StoreAccessError, match="AWS_CA_BUNDLE"):
            await store.get(KEY, PACK_BYTES_MAX)

        assert list(secure.seen) == []


async def test_error_about_a_wrong_endpoint_scheme_advises_a_remedy(
    double: S3Double, store: S3Store, certificate: Certificate
) -> None:
    """If the scheme of the endpoint is wrong, the error suggests http:// or https://."""
    place = S3Place(double.url.replace("http://", "https://"))
    with pytest.raises(StoreAccessError, match="write http:// instead of https://"):
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)

    with s3_double(certificate=certificate) as secure:
        url = secure.url.replace("https://", "http://")
        with pytest.raises(TransientStoreError, match=f"{url} closes the connection without"):
            await S3Store(BUCKET, place=S3Place(url)).get(KEY, PACK_BYTES_MAX)


async def test_error_about_a_large_request_that_is_never_read_names_the_server(
    store: S3Store,
) -> None:
    """The error says that the server does not respond, although the kernel took some bytes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place = S3Place(url, read_timeout_s=0.1, connect_timeout_s=0.1)

        with pytest.raises(TransientStoreError, match=f"{url} accepts the connection, but does"):
            await S3Store(BUCKET, place=place).put(KEY, bytes(PACK_BYTES_MAX))


async def test_error_about_a_refusal_shows_the_server_url_without_its_password(
    double: S3Double, store: S3Store
) -> None:
    """An error omits the user name and password in an endpoint URL."""
    double.answer_always(error(404, "NoSuchBucket"))

    with pytest.raises(StoreAccessError, match=rf"correct the URL \(endpoint {double.url}\)"):
        await store.get(KEY, PACK_BYTES_MAX)

    exc = boto.ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")
    message = str(translate(exc, KEY, "https://me:secret@s3.example:8443/path"))
    assert message.endswith("(endpoint https://s3.example:8443)")


@pytest.mark.parametrize(
    ("code", "kind"),
    [("AccessDenied", StoreAccessError), ("InternalError", TransientStoreError)],
)
async def test_delete_response_that_lists_failed_keys_is_an_error(
    double: S3Double, store: S3Store, code: str, kind: type[StoreError]
) -> None:
    """If the response to a delete lists remaining objects, the delete fails despite status 200."""
    inner = f"<Error><Key>{KEY}</Key><Code>{code}</Code></Error>"
    double.answer(Reply(200, f"<DeleteResult>{inner}</DeleteResult>".encode()))

    with pytest.raises(kind, match=KEY):
        await store.delete([KEY])


async def test_url_and_errors_of_a_store_do_not_contain_the_secret_access_key(
    double: S3Double, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    double.answer(error(403, "SignatureDoesNotMatch"), Drop())

    messages = [store.url]
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            await store.get(KEY, PACK_BYTES_MAX)
        messages.append(caught.value.message)

    assert not any(os.environ["AWS_SECRET_ACCESS_KEY"] in message for message in messages)
