"""The configuration of boto3: timeouts, credentials, regions and profiles."""

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import (
    CredentialsError,
    StoreAccessError,
    StoreError,
    TransientStoreError,
)
from s3fs_meta.limits import KIB, MIB, PACK_BYTES_MAX, PACK_BYTES_TARGET
from s3fs_meta.objects.contact import reporting_sent
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from tests.contract.store_contract import keys_of
from tests.faults import no_threads
from tests.objects.s3_double import (
    AT_ONCE,
    BUCKET,
    KEY,
    PUT_DONE,
    Drip,
    Hang,
    ReadSlowly,
    Reply,
    S3Double,
    Seen,
    error,
    s3_double,
)
from tests.polling import WAIT_S_MAX
from tests.servers import Certificate

# --- headers and signatures of requests ----------------------------------------------------------


async def test_put_sends_no_expect_header(double: S3Double, store: S3Store) -> None:
    """An upload does not wait for the response "100 Continue"."""
    double.answer(PUT_DONE)

    await store.put(KEY, b"content")

    (seen,) = double.seen
    assert seen.body == b"content"
    assert "expect" not in seen.headers
    assert seen.path == f"/{BUCKET}/{KEY}"


async def test_signature_of_a_put_contains_the_hash_of_its_body(
    double: S3Double, store: S3Store, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature contains the SHA-256 of the body, for HTTP and HTTPS; no other hash is sent."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    double.answer(PUT_DONE)
    await store.put(KEY, b"content")
    with s3_double(certificate=certificate) as secure:
        secure.answer(PUT_DONE)
        await S3Store(BUCKET, place=S3Place(secure.url)).put(KEY, b"content")

    for seen in (double.seen[0], secure.seen[0]):
        assert seen.headers["x-amz-content-sha256"] == hashlib.sha256(b"content").hexdigest()
        assert not {"content-md5", "x-amz-trailer"} & seen.headers.keys()


async def test_boto3_makes_only_one_attempt_for_each_call(double: S3Double, store: S3Store) -> None:
    """Retries are made only by RetryingStore, so boto3 must not retry."""
    for request in (
        store.get(KEY, PACK_BYTES_MAX),
        store.put(KEY, b""),
        store.create(KEY, b""),
        keys_of(store),
    ):
        double.seen.clear()
        with pytest.raises(TransientStoreError):
            await request
        assert len(double.seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [bytes, memoryview])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_upload_over_a_slow_network_does_not_time_out(
    certificate: Certificate,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[bytes | memoryview],
    scheme: str,
) -> None:
    """Timeouts apply to each piece that is sent, not to the complete upload of a pack."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    content = bytes(range(256)) * (32 << 12)
    with s3_double(certificate=certificate if scheme == "https" else None) as double:
        double.answer_always(ReadSlowly(pause_s=0.2))
        place = S3Place(double.url, connect_timeout_s=4, read_timeout_s=4)

        await S3Store(BUCKET, place=place).put(KEY, kind(content))

        assert double.seen[0].body == content


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_each_piece_of_an_upload_has_the_read_timeout(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A piece of an upload may take longer than the connect timeout, which urllib3 sets."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    content = bytes(2 * MIB)
    with s3_double(certificate=certificate if scheme == "https" else None) as double:
        double.answer_always(ReadSlowly(pause_s=3))
        place = S3Place(double.url, connect_timeout_s=2, read_timeout_s=WAIT_S_MAX)
        store = S3Store(BUCKET, place=place)

        await store.put(KEY, memoryview(content))
        await store.put(KEY, memoryview(content))

        assert [seen.body for seen in double.seen] == [content, content]


async def test_kernel_buffers_few_bytes_of_an_upload() -> None:
    """The kernel must not buffer MiBs of an upload, because later pieces would time out."""
    sent = list[int]()
    with socket.create_server(("127.0.0.1", 0)) as server:  # The server accepts no connection.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * KIB)
        host, port = server.getsockname()
        place = S3Place(f"http://{host}:{port}", read_timeout_s=0.5)
        with reporting_sent(sent.append), pytest.raises(TransientStoreError):
            await S3Store(BUCKET, place=place).put(KEY, memoryview(bytes(PACK_BYTES_TARGET)))

    assert 64 * KIB < sum(sent) < 512 * KIB


async def test_unresponsive_server_times_out(double: S3Double) -> None:
    """A request without a response ends with a transient error after the read timeout."""
    double.answer(Hang())
    store = S3Store(BUCKET, place=S3Place(double.url, read_timeout_s=0.05))

    with pytest.raises(TransientStoreError, match=f"{double.url} accepts the connection, but"):
        await store.get(KEY, PACK_BYTES_MAX)


# --- search for credentials -----------------------------------------------------------------------


@pytest.fixture
def credentials_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that writes an access key to the AWS configuration."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    def write(access_key: str) -> None:
        secret = "aws_secret_access_key = secret\naws_session_token = token\n"
        path.write_text(f"[default]\naws_access_key_id = {access_key}\n{secret}")

    return write


def expired_unless(access_key: str, code: str = "ExpiredToken") -> Callable[[Seen], Reply]:
    """Return a function that responds with an error unless a request has this access key."""

    def choose(seen: Seen) -> Reply:
        good = f"Credential={access_key}/" in seen.headers["authorization"]
        return PUT_DONE if good else error(400, code)

    return choose


async def test_expired_credentials_are_replaced_by_renewed_credentials(
    double: S3Double, credentials_file: Callable[[str], None]
) -> None:
    """After an ExpiredToken error, the next attempt reads the credentials again."""
    credentials_file("OLD")
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE)
    double.answer_always(expired_unless("OLD"))
    await store.put(KEY, b"1")

    double.answer_always(expired_unless("NEW"))
    credentials_file("NEW")
    await store.put(KEY, b"2")

    assert [seen.body for seen in double.seen] == [b"1", b"2", b"2"]


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"])
async def test_access_key_is_read_again_after_the_store_refuses_the_old_key(
    double: S3Double, credentials_file: Callable[[str], None], code: str
) -> None:
    """A mount survives the rotation of its access key even if the old key is deleted first."""
    credentials_file("OLD")
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE)
    double.answer_always(expired_unless("OLD", code))
    await store.put(KEY, b"1")

    double.answer_always(expired_unless("NEW", code))
    with pytest.raises(StoreAccessError, match=code):
        await store.put(KEY, b"2")
    credentials_file("NEW")
    await store.put(KEY, b"3")

    assert [seen.body for seen in double.seen] == [b"1", b"2", b"3", b"3"]


async def test_expired_credentials_without_a_renewal_are_reported(
    double: S3Double, credentials_file: Callable[[str], None]
) -> None:
    """Expired credentials are not retried; the next request uses new credentials."""
    credentials_file("OLD")
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE)
    double.answer_always(expired_unless("NEW"))

    with pytest.raises(StoreAccessError, match="ExpiredToken; the credentials have expired"):
        await store.put(KEY, b"1")
    assert [seen.body for seen in double.seen] == [b"1"]

    credentials_file("NEW")
    await store.put(KEY, b"2")


async def test_error_about_missing_credentials_names_the_environment_variable(
    double: S3Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without credentials no request is sent, and the error names the environment variable."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(StoreAccessError, match="set AWS_ACCESS_KEY_ID"):
        await S3Store(BUCKET, place=S3Place(double.url)).get(KEY, PACK_BYTES_MAX)

    assert double.seen == []


async def test_error_about_an_unknown_profile_names_the_profile(double: S3Double) -> None:
    """The error about an unknown profile contains its name and the option --profile."""
    place = S3Place(double.url, profile="absent")

    with pytest.raises(StoreAccessError, match=r"\(absent\).*--profile"):
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)


async def test_profile_overrides_credentials_in_environment_variables(
    double: S3Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credentials of a profile are used even if the environment has others."""
    path = tmp_path / "credentials"
    path.write_text("[other]\naws_access_key_id = OTHER\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    double.answer(PUT_DONE)

    await S3Store(BUCKET, place=S3Place(double.url, profile="other")).put(KEY, b"")

    assert "Credential=OTHER/" in double.seen[0].headers["authorization"]


# Sources of credentials, each with the environment variables that select it; {url} is the server.
DRIPPING_SOURCES = {
    "sts": {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/token",
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/backup",
        "AWS_ENDPOINT_URL_STS": "{url}",
    },
    "instance metadata": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "{url}"},
    "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{url}/role"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin",
    [b"HTTP/1.1 200 OK\r\nX-Slow:", b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"],
    ids=["header", "body"],
)
@pytest.mark.parametrize("source", DRIPPING_SOURCES)
async def test_credential_server_that_responds_byte_by_byte_times_out(
    double: S3Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, begin: bytes
) -> None:
    """A thread that fetches credentials does not wait without limit."""
    (tmp_path / "token").write_text("token")
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "1")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name, value in DRIPPING_SOURCES[source].items():
        monkeypatch.setenv(name, value.format(url=double.url, folder=tmp_path))
    double.answer_always(Drip(begin, pause_s=0.01))
    store = S3Store(BUCKET, place=S3Place("http://127.0.0.1:1", read_timeout_s=0.2))

    with trio.fail_after(WAIT_S_MAX), pytest.raises(StoreError):
        await store.get(KEY, PACK_BYTES_MAX)

    assert double.seen


@pytest.fixture
def web_identity(double: S3Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boto3 request the credentials of a role from the server with programmed responses."""
    (tmp_path / "token").write_text("token")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/backup")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", double.url)


def refusal(status: int, code: str) -> Reply:
    """Return an error response of AWS STS."""
    inner = f"<Error><Code>{code}</Code><Message>as ordered</Message></Error>"
    return Reply(status, f"<ErrorResponse>{inner}</ErrorResponse>".encode())


@pytest.mark.usefixtures("web_identity")
@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "AccessDenied", "who may assume that role"),
        (400, "ExpiredTokenException", "renew the token"),
        (403, "InvalidClientTokenId", "check the credentials with which"),
    ],
)
async def test_error_about_a_refusal_of_sts_names_the_service_and_the_request(
    double: S3Double, status: int, code: str, advice: str
) -> None:
    """The error advises how to repair the role, and does not blame the bucket."""
    double.answer_always(refusal(status, code))
    place = S3Place("http://127.0.0.1:1")

    expected = f"AWS STS refused AssumeRoleWithWebIdentity: {code}: as ordered; .*{advice}"
    with pytest.raises(CredentialsError, match=expected) as caught:
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)

    assert "store refused" not in caught.value.message
    assert "s3:" not in caught.value.message
    assert "127.0.0.1" not in caught.value.message


@pytest.mark.usefixtures("web_identity")
@pytest.mark.parametrize(("status", "code"), [(400, "Throttling"), (503, "ServiceUnavailable")])
async def test_overload_of_sts_is_transient(double: S3Double, status: int, code: str) -> None:
    double.answer_always(refusal(status, code))

    expected = f"AWS STS failed at AssumeRoleWithWebIdentity: {code}"
    with pytest.raises(TransientStoreError, match=expected):
        await S3Store(BUCKET, place=S3Place("http://127.0.0.1:1")).get(KEY, PACK_BYTES_MAX)


@pytest.mark.usefixtures("web_identity")
@pytest.mark.parametrize("status", [200, 403, 502, 503])
async def test_web_page_instead_of_a_response_of_sts_is_transient(
    double: S3Double, status: int
) -> None:
    """A load balancer or a login page may send a web page for a while."""
    double.answer_always(Reply(status, b"<html><body>Bad gateway<br></body></html>"))

    expected = rf"web page \(HTTP {status}\) instead of a response of AWS STS"
    with pytest.raises(TransientStoreError, match=expected):
        await S3Store(BUCKET, place=S3Place("http://127.0.0.1:1")).get(KEY, PACK_BYTES_MAX)


# --- credentials of a program ---------------------------------------------------------------------

ACCESS = '"Version": 1, "AccessKeyId": "KEY", "SecretAccessKey": "secret"'


def expiring(age: timedelta) -> str:
    """Return the output of a credential_process with credentials that expired *age* ago."""
    time = datetime.now(timezone.utc) - age
    return f'{{{ACCESS}, "SessionToken": "token", "Expiration": "{time.isoformat()}"}}'


@pytest.fixture
def print_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the output of the configured credential_process."""
    config, output = tmp_path / "config", tmp_path / "output"
    config.write_text(f"[default]\ncredential_process = cat {output}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "absent"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    def write(text: str) -> None:
        output.write_text(text)

    return write


UNUSABLE = {
    "expired": (expiring(timedelta(minutes=5)), "the credentials have expired"),
    "no JSON": ("log in first", "the credentials cannot be read"),
    "no object": ("[]", "the credentials cannot be read"),
    "invalid time": (f'{{{ACCESS}, "Expiration": "soon"}}', "the credentials cannot be read"),
}


@pytest.mark.parametrize(("output", "expected"), UNUSABLE.values(), ids=UNUSABLE)
async def test_unusable_output_of_a_credential_process_is_reported(
    double: S3Double, print_credentials: Callable[[str], None], output: str, expected: str
) -> None:
    """The first request and a refresh fail with an error; a later request can succeed.

    botocore refreshes credentials that expire within the next minutes before it signs a request.
    """
    double.answer_always(PUT_DONE)
    store = S3Store(BUCKET, place=S3Place(double.url))
    usable = expiring(-timedelta(minutes=5))

    for text in (output, usable, output, usable):
        print_credentials(text)
        if text == usable:
            await store.put(KEY, text.encode())
        else:
            with pytest.raises(StoreAccessError, match=expected):
                await store.put(KEY, text.encode())

    assert [seen.body for seen in double.seen] == [usable.encode()] * 2


@pytest.mark.usefixtures("print_credentials")
async def test_missing_credential_process_is_reported_without_retries(
    double: S3Double, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\ncredential_process = /absent/program\n")

    with pytest.raises(StoreAccessError, match=r"/absent/program.*credential_process"):
        await S3Store(BUCKET, place=S3Place(double.url)).put(KEY, b"")


@pytest.mark.usefixtures("print_credentials")
@pytest.mark.parametrize("profile", [None, "role"])
async def test_credential_process_that_does_not_end_is_killed(
    double: S3Double, tmp_path: Path, profile: str | None
) -> None:
    """A hanging credential_process is killed, even if its credentials serve to assume a role."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "config").write_text(
        f"[default]\ncredential_process = sh -c 'exec sleep 1000 >{pipe}'\n"
        "[profile role]\nrole_arn = arn:aws:iam::1:role/backup\nsource_profile = default\n"
    )
    place = S3Place(double.url, profile=profile, process_timeout_s=0.2)

    with (
        trio.fail_after(WAIT_S_MAX),
        pytest.raises(TransientStoreError, match="did not end within"),
    ):
        await S3Store(BUCKET, place=place).put(KEY, b"")

    try:
        assert os.read(reader, 1) == b""  # The pipe ends when no process has it open (pipe(7)).
    finally:
        os.close(reader)


@pytest.fixture
def issue_credentials(print_credentials: Callable[[str], None], tmp_path: Path) -> None:
    """Configure a credential_process that prints a new access key at each call."""
    script = ACCESS.replace("KEY", "$$", 1).replace('"', '\\"')
    (tmp_path / "issue").write_text(f'echo "{{{script}}}"\n')
    (tmp_path / "config").write_text(f"[default]\ncredential_process = sh {tmp_path / 'issue'}\n")


@pytest.mark.usefixtures("issue_credentials")
@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch"])
async def test_request_is_not_retried_if_renewed_credentials_are_refused_at_once(
    double: S3Double, code: str
) -> None:
    """If new credentials are refused, the endpoint may be wrong, so the request is not retried."""
    store = RetryingStore(S3Store(BUCKET, place=S3Place(double.url)), AT_ONCE)
    double.answer_always(error(403, code))
    for body in (b"1", b"2"):
        with pytest.raises(StoreAccessError, match=code):
            await store.put(KEY, body)
    refused = [seen.body for seen in double.seen]

    double.answer_always(PUT_DONE)
    await store.put(KEY, b"3")
    double.answer(error(403, code))
    await store.put(KEY, b"4")

    assert refused == [b"1", b"1", b"2"]
    assert [seen.body for seen in double.seen[3:]] == [b"3", b"4", b"4"]
    assert len({seen.headers["authorization"].split("/")[0] for seen in double.seen}) == 5


# --- choice of the region -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, memoryview])
async def test_store_uses_the_region_that_the_server_returns(
    double: S3Double, kind: type[bytes | memoryview]
) -> None:
    """If a response names a different region, all later requests are signed for that region."""
    refusal = error(400, "AuthorizationHeaderMalformed", Region="eu-north-1")
    double.answer(refusal, PUT_DONE, PUT_DONE)
    store = S3Store(BUCKET, place=S3Place(double.url, region="us-west-2"))

    await store.put(KEY, kind(b"1"))
    await store.put(KEY, kind(b"2"))

    assert [seen.body for seen in double.seen] == [b"1", b"1", b"2"]
    regions = [seen.headers["authorization"].split("/")[2] for seen in double.seen]
    assert regions == ["us-west-2", "eu-north-1", "eu-north-1"]


# --- settings of a profile ------------------------------------------------------------------------

PROFILES = {
    "endpoint": ("endpoint_url = {url}", f"/{BUCKET}/{KEY}", ""),
    "services": (
        "services = mine\n[services mine]\ns3 =\n  endpoint_url = {url}",
        f"/{BUCKET}/{KEY}",
        "",
    ),
    "path": ("s3 =\n  addressing_style = path", f"/{BUCKET}/{KEY}", "{url}"),
    "virtual": ("s3 =\n  addressing_style = virtual", f"/{KEY}", "{url}"),
}


@pytest.mark.parametrize(("settings", "path", "endpoint_url"), PROFILES.values(), ids=PROFILES)
async def test_store_uses_the_server_and_the_addressing_style_of_a_profile(
    double: S3Double,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    path: str,
    endpoint_url: str,
) -> None:
    """The test server also acts as the proxy, because the bucket's host name does not resolve."""
    (tmp_path / "config").write_text(f"[profile x]\n{settings.format(url=double.url)}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "x")
    place = S3Place(None)
    if endpoint_url:
        place = S3Place("http://s3.invalid")
        monkeypatch.setenv("HTTP_PROXY", double.url)
    double.answer(PUT_DONE)

    await S3Store(BUCKET, place=place).put(KEY, b"content")

    assert double.seen[0].path == path
    assert double.seen[0].headers["host"].startswith(f"{BUCKET}.") is (path == f"/{KEY}")


@pytest.mark.parametrize("settings", ["s3 = path", "s3 =\n  addressing_style = odd"])
async def test_invalid_settings_of_a_profile_are_reported(
    double: S3Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    (tmp_path / "config").write_text(f"[profile x]\n{settings}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    with pytest.raises(StoreAccessError, match="correct the AWS configuration file"):
        await S3Store(BUCKET, place=S3Place(double.url, profile="x")).put(KEY, b"")


# --- connections of processes ---------------------------------------------------------------------


async def test_connections_can_be_closed_and_reopened(double: S3Double) -> None:
    """A store can be closed twice, also without threads, and the next request connects again."""
    double.answer_always(PUT_DONE)
    store = S3Store(BUCKET, place=S3Place(double.url))
    await store.put(KEY, b"")

    await store.close()
    with no_threads():
        await store.close()
    await store.put(KEY, b"")


@pytest.mark.slow
def test_forked_process_creates_its_own_s3_client() -> None:
    """A daemon that forks after a request must not share the connection with its parent."""
    script = (
        "import os, sys\n"
        "from s3fs_meta.objects.s3_access import S3ClientHolder, S3Place\n"
        "holder = S3ClientHolder(S3Place('http://127.0.0.1:1'))\n"
        "client = holder.client()\n"
        "assert holder.client() is client\n"
        "if os.fork() == 0:\n"
        "    os._exit(0 if holder.client() is not client else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
