"""objects.s3: what a bucket can do to us, each with one clear error."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from time import time

import pytest
import trio

from s3fs_meta.errors import (
    FormatError,
    ObjectMissingError,
    PreconditionError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import DELETE_BATCH_KEYS, STORE_ATTEMPTS_MAX, STORE_THREADS_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.probe import probe
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_client import S3ClientHolder, S3Place
from tests.objects.s3_double import (
    Drop,
    Forward,
    Hang,
    ReadSlowly,
    Reply,
    S3Double,
    Seen,
    error,
    listing,
    s3_double,
)
from tests.servers import Certificate, S3Server

BUCKET = "bucket"
KEY = ObjectKey("pack/3f/7-9a")
AT_ONCE = RetryPolicy(delay_s_min=0, delay_s_max=0)
PUT_DONE = Reply(200, headers={"ETag": '"1"'})


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the standard chain find the test's credentials and nothing of the user's."""
    for name, value in S3Server("", "", None, None).environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def lasting_double() -> Iterator[S3Double]:
    """Return one server for all tests that only need made-up answers."""
    with s3_double() as double:
        yield double


@pytest.fixture
def double(lasting_double: S3Double) -> Iterator[S3Double]:
    """Return a server that answers 500 until told otherwise."""
    lasting_double.reset()
    yield lasting_double
    lasting_double.reset()


@pytest.fixture(scope="session")
def lasting_proxy(s3_server: S3Server) -> Iterator[S3Double]:
    """Return one double before the real server."""
    s3_server.make_bucket(BUCKET)
    with s3_double(s3_server.endpoint_url) as double:
        yield double


@pytest.fixture
def proxy(lasting_proxy: S3Double) -> S3Double:
    """Return a server that passes everything on until told otherwise."""
    lasting_proxy.reset()
    return lasting_proxy


@pytest.fixture(scope="session")
def holders() -> dict[str, S3ClientHolder]:
    """Return clients by address: making one takes a seventh of a second."""
    return {}


@pytest.fixture
def store(double: S3Double, holders: dict[str, S3ClientHolder]) -> S3Store:
    """Return a store on the double."""
    return store_at(double.url, "", holders)


@pytest.fixture
def real_store(
    proxy: S3Double, holders: dict[str, S3ClientHolder], request: pytest.FixtureRequest
) -> S3Store:
    """Return an empty store on the real server, behind the double."""
    return store_at(proxy.url, request.node.name, holders)


def store_at(url: str, prefix: str, holders: dict[str, S3ClientHolder]) -> S3Store:
    """Return a store with a shared client."""
    opened = S3Store(BUCKET, prefix)
    opened._holder = holders.setdefault(url, S3ClientHolder(S3Place(url)))
    return opened


async def keys_of(store: ObjectStore, prefix: str = "") -> list[str]:
    """Return the listed keys."""
    return [info.key async for info in store.list(prefix)]


# --- what is sent --------------------------------------------------------------------------------


async def test_put_waits_for_no_permission_to_send(double: S3Double, store: S3Store) -> None:
    """There is no Expect header, and a checksum that every server verifies."""
    double.answer(PUT_DONE)

    await store.put(KEY, b"content")

    (seen,) = double.seen
    assert seen.body == b"content"
    assert "expect" not in seen.headers
    assert seen.headers["content-md5"] == "mgNkuembtIDdJeHwKEyFVQ=="
    assert seen.path == f"/{BUCKET}/{KEY}"


async def test_payload_is_signed_only_where_nothing_else_protects_it(
    double: S3Double, store: S3Store, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over https the hash of each pack is saved."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    double.answer(PUT_DONE)
    await store.put(KEY, b"content")
    with s3_double(certificate=certificate) as secure:
        secure.answer(PUT_DONE)
        await S3Store(BUCKET, place=S3Place(secure.url)).put(KEY, b"content")

    assert len(double.seen[0].headers["x-amz-content-sha256"]) == 64
    assert secure.seen[0].headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-trailer" not in secure.seen[0].headers


async def test_conditions_are_sent_as_headers(double: S3Double, store: S3Store) -> None:
    """Create needs a free key, replace the version that it read."""
    double.answer_always(PUT_DONE)

    etag = await store.create(KEY, b"content")
    await store.replace(KEY, b"content", etag)

    assert double.seen[0].headers["if-none-match"] == "*"
    assert double.seen[1].headers["if-match"] == '"1"'


async def test_each_call_is_one_attempt(double: S3Double, store: S3Store) -> None:
    """boto3 repeats nothing by itself, least of all a conditional write."""
    for request in (store.get(KEY), store.put(KEY, b""), store.create(KEY, b""), keys_of(store)):
        double.seen.clear()
        with pytest.raises(TransientStoreError):
            await request
        assert len(double.seen) == 1


@pytest.mark.slow
async def test_slow_uplink_is_no_timeout(double: S3Double) -> None:
    """The timeouts hold for each piece that is sent, not for a whole pack."""
    double.answer_always(ReadSlowly(pause_s=0.2))
    place = S3Place(double.url, connect_timeout_s=2, read_timeout_s=2)

    await S3Store(BUCKET, place=place).put(KEY, bytes(32 << 20))

    assert len(double.seen[0].body) == 32 << 20


# --- answers that are errors ---------------------------------------------------------------------


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
async def test_passing_trouble_is_tried_again(
    double: S3Double, store: S3Store, status: int, code: str
) -> None:
    """The error names the code and is of the kind that is repeated; then the write succeeds."""
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
async def test_lasting_trouble_says_what_to_do(
    double: S3Double, store: S3Store, status: int, code: str, advice: str
) -> None:
    """One line with the code and the advice, and no second attempt."""
    double.answer_always(error(status, code))

    with pytest.raises(StoreAccessError, match=advice) as caught:
        await RetryingStore(store, AT_ONCE).put(KEY, b"content")

    assert caught.value.code == code
    assert "\n" not in caught.value.message


async def test_unlisted_trouble_is_permanent(double: S3Double, store: S3Store) -> None:
    """What no table knows is neither repeated nor passed over, and is quoted."""
    double.answer(error(418, "Teapot"))

    with pytest.raises(UnexpectedStoreError, match="Teapot: as ordered"):
        await RetryingStore(store, AT_ONCE).get(KEY)

    assert len(double.seen) == 1


async def test_answer_of_a_proxy_is_tried_again(double: S3Double, store: S3Store) -> None:
    """HTML where XML should be comes from something between us and the store."""
    page = b"<html><p>Please log in<br></html>"
    double.answer(Reply(200, page), Reply(503, page), listing(["a"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a"]


@pytest.mark.parametrize(("offset_s", "word"), [(-7200, "ahead of"), (7200, "behind")])
async def test_clock_skew_is_measured_and_tried_again(
    double: S3Double, store: S3Store, offset_s: int, word: str
) -> None:
    """The text says how wrong the clock is; once it is set, the same request succeeds."""
    date = {"Date": formatdate(time() + offset_s, usegmt=True)}
    refusal = error(403, "RequestTimeTooSkewed", headers=date)
    double.answer(refusal)
    with pytest.raises(TransientStoreError, match=rf"clock is 7[12]\d\d s {word} the store's"):
        await store.put(KEY, b"content")

    double.answer(refusal, PUT_DONE)
    await RetryingStore(store, AT_ONCE).put(KEY, b"content")


# --- credentials ---------------------------------------------------------------------------------


@pytest.fixture
def credentials_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return how to write the access key that the configuration chain finds."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    def write(access_key: str) -> None:
        secret = "aws_secret_access_key = secret\naws_session_token = token\n"
        path.write_text(f"[default]\naws_access_key_id = {access_key}\n{secret}")

    return write


def expired_unless(access_key: str) -> Callable[[Seen], Reply]:
    """Return a server's choice: only one access key is still good."""

    def choose(seen: Seen) -> Reply:
        good = f"Credential={access_key}/" in seen.headers["authorization"]
        return PUT_DONE if good else error(400, "ExpiredToken")

    return choose


async def test_expired_credentials_are_renewed(
    double: S3Double, credentials_file: Callable[[str], None]
) -> None:
    """New ones in the configuration are taken up by the next attempt, without a restart."""
    credentials_file("OLD")
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE)
    double.answer_always(expired_unless("OLD"))
    await store.put(KEY, b"1")

    double.answer_always(expired_unless("NEW"))
    credentials_file("NEW")
    await store.put(KEY, b"2")

    assert [seen.body for seen in double.seen] == [b"1", b"2", b"2"]


async def test_expired_credentials_without_newer_ones_say_so(
    double: S3Double, credentials_file: Callable[[str], None]
) -> None:
    """The same old ones are not tried again and again; later new ones are found nevertheless."""
    credentials_file("OLD")
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE)
    double.answer_always(expired_unless("NEW"))

    with pytest.raises(StoreAccessError, match="ExpiredToken; the credentials have expired"):
        await store.put(KEY, b"1")

    credentials_file("NEW")
    await store.put(KEY, b"2")


async def test_missing_credentials_say_so(
    double: S3Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No environment, no file, no instance: one line."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(StoreAccessError, match="set AWS_ACCESS_KEY_ID"):
        await S3Store(BUCKET, place=S3Place(double.url)).get(KEY)

    assert double.seen == []


async def test_unknown_profile_says_so(double: S3Double) -> None:
    """The name of the profile is in the line."""
    place = S3Place(double.url, profile="nobody")

    with pytest.raises(StoreAccessError, match=r"\(nobody\).*--profile"):
        await S3Store(BUCKET, place=place).get(KEY)


async def test_profile_chooses_the_credentials(
    double: S3Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile named wins over the environment."""
    path = tmp_path / "credentials"
    path.write_text("[other]\naws_access_key_id = OTHER\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    double.answer(PUT_DONE)

    await S3Store(BUCKET, place=S3Place(double.url, profile="other")).put(KEY, b"")

    assert "Credential=OTHER/" in double.seen[0].headers["authorization"]


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
    """A wrong access key and a wrong secret key are told apart."""
    if s3_server.make == "moto":
        pytest.skip("moto checks no credentials")
    monkeypatch.setenv(variable, "wrong")

    with pytest.raises(StoreAccessError, match=advice):
        await S3Store(BUCKET, place=S3Place(s3_server.endpoint_url)).get(KEY)


@pytest.mark.s3
async def test_missing_bucket_is_refused_by_a_real_server(proxy: S3Double) -> None:
    """Reading, writing, listing: never a missing object, which would look like an empty store."""
    store = S3Store("no-such-bucket", place=S3Place(proxy.url))

    for request in (store.get(KEY), store.put(KEY, b""), keys_of(store), store.delete([KEY])):
        with pytest.raises(StoreAccessError, match="create the bucket or correct the URL"):
            await request


# --- region --------------------------------------------------------------------------------------


async def test_wrong_region_that_is_named_is_followed(double: S3Double) -> None:
    """The second attempt is signed for the region that the answer names, and so are all later."""
    refusal = error(400, "AuthorizationHeaderMalformed", Region="eu-north-1")
    double.answer(refusal, PUT_DONE, PUT_DONE)
    store = S3Store(BUCKET, place=S3Place(double.url, region="us-west-2"))

    await store.put(KEY, b"1")
    await store.put(KEY, b"2")

    regions = [seen.headers["authorization"].split("/")[2] for seen in double.seen]
    assert regions == ["us-west-2", "eu-north-1", "eu-north-1"]


async def test_wrong_region_that_is_not_cured_says_which_is_right(
    double: S3Double, store: S3Store
) -> None:
    """One line with the option to pass."""
    double.answer_always(error(400, "AuthorizationHeaderMalformed", Region="eu-north-1"))

    with pytest.raises(StoreAccessError, match="pass --region eu-north-1"):
        await S3Store(BUCKET, place=S3Place(double.url)).put(KEY, b"1")


# --- the network ---------------------------------------------------------------------------------


async def test_refused_connection_is_tried_again(store: S3Store) -> None:
    """Nobody listens there for the moment."""
    with s3_double() as gone:
        url = gone.url

    with pytest.raises(TransientStoreError, match="Could not connect"):
        await S3Store(BUCKET, place=S3Place(url)).get(KEY)


async def test_server_that_never_answers_is_given_up(double: S3Double) -> None:
    """After the read timeout, as something to try again."""
    double.answer(Hang())
    store = S3Store(BUCKET, place=S3Place(double.url, read_timeout_s=0.05))

    with pytest.raises(TransientStoreError, match="Read timeout"):
        await store.get(KEY)


async def test_cancelled_request_returns_at_once(double: S3Double, store: S3Store) -> None:
    """The thread is left to its timeout; other requests go on."""
    double.answer(Hang(), PUT_DONE)

    with trio.move_on_after(0.05) as scope:
        await store.get(KEY)
    await store.put(KEY, b"")

    assert scope.cancelled_caught


async def test_hanging_requests_are_bounded(double: S3Double, store: S3Store) -> None:
    """No more threads than the bound, however many tasks wait."""
    double.answer_always(Hang())

    with trio.move_on_after(0.1):
        async with trio.open_nursery() as nursery:
            for _ in range(3 * STORE_THREADS_MAX):
                nursery.start_soon(store.get, KEY)

    assert len(double.seen) == STORE_THREADS_MAX


async def test_untrusted_certificate_says_so(certificate: Certificate) -> None:
    """It is not tried again; the advice names the variable."""
    with s3_double(certificate=certificate) as secure:
        store = S3Store(BUCKET, place=S3Place(secure.url))

        with pytest.raises(StoreAccessError, match="AWS_CA_BUNDLE"):
            await store.get(KEY)


# --- answers that are wrong ----------------------------------------------------------------------


@pytest.mark.s3
async def test_short_answer_is_tried_again(proxy: S3Double, real_store: S3Store) -> None:
    """A connection that ends early gives an error, never fewer bytes."""
    await real_store.put(KEY, bytes(range(100)))
    for request in (real_store.get(KEY), real_store.get_range(KEY, 20, 80)):
        proxy.answer(Forward(keep_bytes=30))
        with pytest.raises(TransientStoreError, match="30"):
            await request

    proxy.answer(Forward(keep_bytes=30))
    retrying = RetryingStore(real_store, AT_ONCE)
    assert await retrying.get_range(KEY, 20, 80) == bytes(range(20, 80))


@pytest.mark.parametrize(
    ("content_range", "body"),
    [
        ("bytes 0-4/100", b"01234"),  # fewer than asked for, and true to itself
        ("bytes 0-9/100", b"01234"),  # fewer than it says
        ("bytes 5-14/100", b"0123456789"),  # others
        ("", b"0123456789"),  # the whole object: ranges are not known there
    ],
)
async def test_range_that_was_not_asked_for_is_tried_again(
    double: S3Double, store: S3Store, content_range: str, body: bytes
) -> None:
    """An honest Content-Length makes no answer right."""
    headers = {"Content-Range": content_range} if content_range else {}
    double.answer(Reply(206, body, headers))

    with pytest.raises(TransientStoreError):
        await store.get_range(KEY, 0, 10)


async def test_object_that_ends_early_is_damage(double: S3Double, store: S3Store) -> None:
    """A server answers a range across the end with what there is: not worth another attempt."""
    double.answer(Reply(206, b"01234", {"Content-Range": "bytes 0-4/5"}))

    with pytest.raises(FormatError, match="ends at byte 5, before 10"):
        await store.get_range(KEY, 0, 10)


@pytest.mark.s3
async def test_corrupt_answer_has_the_right_length(proxy: S3Double, real_store: S3Store) -> None:
    """Nothing on the way checks the bytes of an answer: whoever reads them must (codec does)."""
    await real_store.put(KEY, b"content")
    proxy.answer(Forward(flip=True), Forward(flip=True))

    assert (await real_store.get(KEY)).data == b"bontent"
    assert await real_store.get_range(KEY, 0, 3) == b"bon"


# --- conditional writes whose answer is lost -----------------------------------------------------


@pytest.mark.s3
async def test_lost_answer_of_a_create_is_ours_when_asked_again(
    proxy: S3Double, real_store: S3Store
) -> None:
    """The write was done unseen; its repetition is refused, and finds our bytes."""
    proxy.answer(Forward(lose=True))

    etag = await RetryingStore(real_store, AT_ONCE).create(KEY, b"nonce 1")

    assert await real_store.get(KEY) == (b"nonce 1", etag)
    assert [seen.method for seen in proxy.seen] == ["PUT", "PUT", "GET", "GET"]


@pytest.mark.s3
async def test_lost_answer_of_a_replace_is_ours_when_asked_again(
    proxy: S3Double, real_store: S3Store
) -> None:
    """And the tag that comes back is good for the next replacement."""
    store = RetryingStore(real_store, AT_ONCE)
    etag = await store.create(KEY, b"nonce 1")
    proxy.answer(Forward(lose=True))

    etag = await store.replace(KEY, b"nonce 2", etag)

    await store.replace(KEY, b"nonce 3", etag)
    assert (await store.get(KEY)).data == b"nonce 3"


@pytest.mark.s3
async def test_lost_answer_after_a_foreign_write_is_a_lost_race(
    proxy: S3Double, real_store: S3Store
) -> None:
    """Somebody else's bytes are not taken for ours."""
    await real_store.create(KEY, b"theirs")
    proxy.answer(Forward(lose=True))

    with pytest.raises(PreconditionError):
        await RetryingStore(real_store, AT_ONCE).create(KEY, b"ours")


async def test_store_that_ignores_conditions_is_found_out(double: S3Double, store: S3Store) -> None:
    """It accepts the second create; and one that knows no conditions says so."""
    double.answer(PUT_DONE, PUT_DONE, _deleted())
    assert not await probe(store, "c0ffee")

    double.answer(error(501, "NotImplemented"), _deleted())
    assert not await probe(store, "c0ffee")


def _deleted() -> Reply:
    return Reply(200, b"<DeleteResult/>", {"Content-Type": "application/xml"})


# --- outages -------------------------------------------------------------------------------------


async def test_outage_longer_than_a_retry_quota_leaves_nothing_behind(
    double: S3Double, store: S3Store
) -> None:
    """After hundreds of failures every request still gets all its attempts, and then succeeds."""
    retrying = RetryingStore(store, AT_ONCE)
    double.answer_always(error(503, "SlowDown"))
    for _ in range(25):
        with pytest.raises(StoreUnavailableError) as caught:
            await retrying.put(KEY, b"content")
        assert caught.value.attempts == STORE_ATTEMPTS_MAX
    assert len(double.seen) == 25 * STORE_ATTEMPTS_MAX

    double.answer(*[error(503, "SlowDown")] * (STORE_ATTEMPTS_MAX - 1), PUT_DONE)
    await retrying.put(KEY, b"content")


# --- listings ------------------------------------------------------------------------------------


async def test_key_that_is_listed_twice_comes_once(double: S3Double, store: S3Store) -> None:
    """Within a page, and across the border of two."""
    double.answer(listing(["a", "b", "b", "c"], token="t"), listing(["b", "c", "c", "d"]))

    assert await keys_of(store) == ["a", "b", "c", "d"]
    assert double.seen[1].query["continuation-token"] == "t"


async def test_listing_out_of_order_is_an_error(double: S3Double, store: S3Store) -> None:
    """Whoever relies on the order would take objects for missing."""
    double.answer(listing(["b", "c"], token="t"), listing(["a", "d"]))

    with pytest.raises(UnexpectedStoreError, match="not in order at 'a'"):
        await keys_of(store)


async def test_listing_goes_on_behind_what_it_has(double: S3Double, store: S3Store) -> None:
    """A page that fails is asked for anew, by key: its token may have died with the server."""
    double.answer(listing(["a", "b"], token="t"), error(503, "SlowDown"), listing(["c"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a", "b", "c"]
    assert double.seen[2].query["start-after"] == "b"
    assert "continuation-token" not in double.seen[2].query


async def test_folder_object_of_a_web_console_is_not_ours(
    double: S3Double, holders: dict[str, S3ClientHolder]
) -> None:
    """The object named like the prefix with its slash is passed over."""
    double.answer(listing(["prefix/", "prefix/lease"]))

    assert await keys_of(store_at(double.url, "prefix", holders)) == ["lease"]


@pytest.mark.s3
async def test_stores_of_two_prefixes_are_strangers(
    proxy: S3Double, holders: dict[str, S3ClientHolder]
) -> None:
    """Also where one prefix begins like the other."""
    near, far = (store_at(proxy.url, prefix, holders) for prefix in ("two/ab", "two/a"))
    await near.put(KEY, b"near")

    assert await keys_of(far) == []
    with pytest.raises(ObjectMissingError):
        await far.get(KEY)
    await far.delete([KEY])
    assert await keys_of(near) == [KEY]


# --- batch deletes -------------------------------------------------------------------------------


async def test_deletes_go_in_batches_with_a_checksum(double: S3Double, store: S3Store) -> None:
    """One request for each thousand keys, with the header that older servers insist on."""
    double.answer_always(_deleted())

    await store.delete([ObjectKey(f"a/{number}") for number in range(DELETE_BATCH_KEYS + 1)])

    assert [seen.body.count(b"<Key>") for seen in double.seen] == [DELETE_BATCH_KEYS, 1]
    assert all("content-md5" in seen.headers for seen in double.seen)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("AccessDenied", StoreAccessError), ("InternalError", TransientStoreError)],
)
async def test_failure_inside_of_a_successful_delete_is_an_error(
    double: S3Double, store: S3Store, code: str, kind: type[StoreError]
) -> None:
    """S3 answers 200 and lists what it did not delete."""
    inner = f"<Error><Key>{KEY}</Key><Code>{code}</Code></Error>"
    double.answer(Reply(200, f"<DeleteResult>{inner}</DeleteResult>".encode()))

    with pytest.raises(kind, match=KEY):
        await store.delete([KEY])


# --- large objects -------------------------------------------------------------------------------


@pytest.mark.s3
async def test_large_object_is_put_in_parts(proxy: S3Double, real_store: S3Store) -> None:
    """And is one object afterwards."""
    real_store._multipart_bytes = 5 << 20
    data = os.urandom(11 << 20)

    await real_store.put(KEY, data)

    assert (await real_store.get(KEY)).data == data
    parts = [seen for seen in proxy.seen if "partNumber" in seen.query]
    assert [len(seen.body) for seen in parts] == [5 << 20, 5 << 20, 1 << 20]
    assert all("content-md5" in seen.headers for seen in parts)


@pytest.mark.s3
async def test_failed_upload_in_parts_is_given_up(proxy: S3Double, real_store: S3Store) -> None:
    """Its parts are removed, and the key has no object."""
    real_store._multipart_bytes = 5 << 20
    proxy.answer(Forward(), Forward(), error(503, "SlowDown"))

    with pytest.raises(TransientStoreError):
        await real_store.put(KEY, bytes(11 << 20))

    assert proxy.seen[-1].method == "DELETE"
    assert "uploadId" in proxy.seen[-1].query
    with pytest.raises(ObjectMissingError):
        await real_store.get(KEY)


@pytest.mark.s3
async def test_cancelled_upload_in_parts_is_given_up(proxy: S3Double, real_store: S3Store) -> None:
    """Its parts are removed in the time that cleaning up may take."""
    real_store._multipart_bytes = 5 << 20
    proxy.answer(Forward(), Hang())

    with trio.move_on_after(0.5):
        await real_store.put(KEY, bytes(11 << 20))

    assert proxy.seen[-1].method == "DELETE"


# --- the client ----------------------------------------------------------------------------------


async def test_connections_close_and_come_back(double: S3Double) -> None:
    """A closed store holds no socket; nothing breaks if it is asked once more."""
    double.answer_always(PUT_DONE)
    store = S3Store(BUCKET, place=S3Place(double.url))
    await store.put(KEY, b"")

    await store.close()
    await store.close()
    await store.put(KEY, b"")


@pytest.mark.slow
def test_forked_process_makes_its_own_client() -> None:
    """A daemon that forked after the first request does not share sockets with its parent."""
    script = (
        "import os, sys\n"
        "from s3fs_meta.objects.s3_client import S3ClientHolder, S3Place\n"
        "holder = S3ClientHolder(S3Place('http://127.0.0.1:1'))\n"
        "client = holder.client()\n"
        "assert holder.client() is client\n"
        "if os.fork() == 0:\n"
        "    os._exit(0 if holder.client() is not client else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_url_and_errors_carry_no_secrets(
    double: S3Double, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the secret key nor the session token comes near a message."""
    double.answer(error(403, "SignatureDoesNotMatch"), Drop())

    messages = [store.url]
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            await store.get(KEY)
        messages.append(caught.value.message)

    assert not any(os.environ["AWS_SECRET_ACCESS_KEY"] in message for message in messages)
