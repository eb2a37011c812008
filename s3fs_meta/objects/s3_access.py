"""The boto3 client of one store.

Owns: configuring and creating the client, and renewing it when credentials expire.
Does not know: the contract of stores.

The client is created in a thread at its first use, after the daemon has forked. A process
that inherits its parent's client creates a new client. All threads of a process share one client
(boto3 documents clients, not sessions, as thread-safe).
"""

import base64
import contextlib
import functools
import hashlib
import os
import re
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from xml.etree.ElementTree import Element

import boto3
import botocore.loaders
import botocore.session
from botocore.awsrequest import AWSPreparedRequest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleProvider,
    ContainerProvider,
    InstanceMetadataProvider,
    ProcessProvider,
)
from botocore.endpoint import Endpoint
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    InvalidConfigError,
)
from botocore.handlers import add_expect_header
from botocore.loaders import Loader
from botocore.parsers import ResponseParser, ResponseParserError, ResponseParserFactory
from botocore.response import StreamingBody
from typing_extensions import override

from s3fs_meta.limits import (
    CREDENTIAL_PROCESS_S_MAX,
    CREDENTIALS_BYTES_MAX,
    STORE_CONNECT_TIMEOUT_S,
    STORE_READ_TIMEOUT_S,
    STORE_TEXT_BYTES_MAX,
    STORE_THREADS_MAX,
)
from s3fs_meta.objects.response_body import BoundedSession
from s3fs_meta.objects.s3_errors import (
    ExpiredCredentialsError,
    RefusedCredentialsError,
    UnreadableCredentialsError,
    server_of,
)

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3 import S3Client

USER_AGENT: Final = "s3fs-meta"
_HTML: Final = re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype )?html\b", re.IGNORECASE | re.DOTALL)
_S3: Final = "S3"
# With these statuses a response is a refusal, whether or not its body is a web page.
_FINAL_STATUSES: Final = frozenset({401, 403, 405, 407, 413})
# Maximum number of attempts of botocore to fetch credentials from AWS STS or SSO.
# objects.retry does not repeat these requests, because some failures of STS are not S3 errors.
_CREDENTIAL_ATTEMPTS_MAX: Final = 3


class S3Place(NamedTuple):
    """The server, region, profile and timeouts of a store; None means the AWS configuration."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    connect_timeout_s: float = STORE_CONNECT_TIMEOUT_S
    read_timeout_s: float = STORE_READ_TIMEOUT_S
    process_timeout_s: float = CREDENTIAL_PROCESS_S_MAX


class _Made(NamedTuple):
    client: "S3Client"
    credentials: "ReadOnlyCredentials | None"
    pid: int


OnAnswer = Callable[[str, int], None]


def _ignore_answer(_operation: str, _body_bytes: int) -> None:
    """Ignore a billed response; the default of ``on_answer``."""


class S3ClientHolder:
    """Holds the current boto3 client; thread-safe."""

    def __init__(self, place: S3Place, on_answer: OnAnswer = _ignore_answer) -> None:
        """Prepare the holder, without creating a client.

        Args:
            place: server, region, profile, timeouts.
            on_answer: called in the request's thread for each billed response, with the operation
                and the size of the body; 0 if the body is not read yet.
        """
        self._place = place
        self._on_answer = on_answer
        self._guard = threading.Lock()
        self._made: _Made | None = None
        # Clients with renewed credentials that the store has not accepted yet.
        self._unproven = weakref.WeakSet["S3Client"]()

    def client(self) -> "S3Client":
        """Return the client of this process; fetching credentials may block on the network."""
        with self._guard:
            if self._made is None or self._made.pid != os.getpid():
                self._made = _make(self._place, self._on_answer)
            return self._made.client

    @property
    def endpoint_url(self) -> str:
        """Return the URL of the server; "" before the first client is created."""
        made = self._made
        return self._place.endpoint_url or ("" if made is None else made.client.meta.endpoint_url)

    def accept(self, client: "S3Client") -> None:
        """Record that the store has accepted the credentials of a client."""
        self._unproven.discard(client)

    def renew(self, failed: "S3Client", *, has_expired: bool) -> bool:
        """Replace a client with refused credentials; return whether the request may be repeated.

        The request is not repeated if there are no newer credentials. It is also not repeated if
        the store refuses renewed credentials at their first use, unless they have expired. Another
        cause is then likely, such as a wrong endpoint. Each renewal for a role returns new
        credentials, so further renewals would never end.

        Args:
            failed: the client whose request was refused. If another thread has already replaced
                this client, nothing is done.
            has_expired: whether the store refused the credentials because they have expired.
        """
        with self._guard:
            may_repeat = has_expired or failed not in self._unproven
            if self._made is None or self._made.client is not failed:
                return may_repeat
            renewed = _make(self._place, self._on_answer)
            if renewed.credentials == self._made.credentials:
                renewed.client.close()
                return False
            self._made = renewed  # requests in other threads continue with the old client
            self._unproven.add(renewed.client)
            return may_repeat

    def close(self) -> None:
        """Close idle connections to the server."""
        with self._guard:
            made, self._made = self._made, None
        if made is not None and made.pid == os.getpid():
            made.client.close()


def _make(place: S3Place, on_answer: OnAnswer) -> _Made:
    inner = botocore.session.Session()
    inner.register_component("data_loader", _descriptions())
    # The client of AWS STS or SSO, with which botocore fetches credentials, has the same limits.
    inner.register("creating-client-class", _bound_responses)
    inner.set_default_client_config(_credentials_config(place))
    session = boto3.Session(
        profile_name=place.profile, region_name=place.region, botocore_session=inner
    )
    resolver = inner.get_component("credential_provider")
    _bound_sources(resolver.providers, place.process_timeout_s)
    inner.register_component("credential_provider", _CredentialProvider(resolver))
    credentials = session.get_credentials()
    settings = inner.get_scoped_config().get("s3") or {}
    if not isinstance(settings, dict):  # for a text, botocore would raise AttributeError
        raise InvalidConfigError(
            error_msg=f"the setting s3 of the profile is not a section: {settings!r}"
        )
    style: Any = settings.get("addressing_style")
    client = session.client("s3", endpoint_url=place.endpoint_url, config=_config(place, style))
    # The header "Expect: 100-continue" would add a round trip to each PUT.
    # With a server that ignores the header, each PUT would wait 1 s.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
    client.meta.events.register("before-parse.s3.DeleteObjects", _require_delete_result)
    client.meta.events.register_last("before-parameter-build.s3", _end_redirections)
    client.meta.events.register(
        "response-received.s3", functools.partial(_report_billed, on_answer)
    )
    frozen = credentials.get_frozen_credentials() if credentials is not None else None
    return _Made(client, frozen, os.getpid())


@contextlib.contextmanager
def _listed_errors() -> Iterator[None]:
    """Convert the errors of reading credentials to errors that ``s3_errors`` lists.

    botocore raises RuntimeError for new credentials that have expired. Invalid output of a
    credential_process raises many kinds of errors.
    """
    try:
        yield
    except (BotoCoreError, ResponseParserError):
        raise
    except ClientError as exc:
        raise RefusedCredentialsError(refusal=exc) from exc
    except RuntimeError as exc:
        raise ExpiredCredentialsError from exc
    except OSError as exc:
        if isinstance(exc, (FileNotFoundError, NotADirectoryError, PermissionError)):
            raise UnreadableCredentialsError(error=exc) from exc
        raise  # the error may be temporary, for example a lack of memory
    except Exception as exc:
        raise UnreadableCredentialsError(error=f"{type(exc).__name__}: {exc}") from exc


def _bound_sources(sources: Iterable[Any], process_timeout_s: float) -> None:
    """Limit the time of credential sources that send requests without a boto3 client.

    For a metadata server, botocore limits only the pause between two pieces of a response. It does
    not limit the time of a credential_process. The attributes set here are private, and a version
    of botocore may lack them.
    """
    for source in sources:
        if isinstance(source, ContainerProvider):
            _bound_session(getattr(source, "_fetcher", None))
        elif isinstance(source, InstanceMetadataProvider):
            _bound_session(getattr(source, "_role_fetcher", None))
        elif isinstance(source, ProcessProvider):
            popen = functools.partial(_TimedProcess, limit_s=process_timeout_s)
            # botocore creates the provider itself. So an attribute of the provider is replaced.
            vars(source).update(_popen=popen)
        elif isinstance(source, AssumeRoleProvider):
            _bound_builder(source, process_timeout_s)


def _bound_session(fetcher: Any) -> None:
    """Limit the time of each response that a credential fetcher of botocore receives."""
    session = getattr(fetcher, "_session", None)
    if session is not None:
        timeout_s = getattr(session, "_timeout", STORE_READ_TIMEOUT_S)
        bounded = BoundedSession(session, timeout_s, CREDENTIALS_BYTES_MAX)
        # botocore itself creates the session, so the attribute is replaced.
        vars(fetcher).update(_session=bounded)


def _bound_builder(source: Any, process_timeout_s: float) -> None:
    """Limit the time of the credential sources with which a profile assumes a role."""
    builder = getattr(source, "_profile_provider_builder", None)
    if builder is not None:
        bounded = _BoundedBuilder(builder, process_timeout_s)
        # botocore itself creates the builder, so the attribute is replaced.
        vars(source).update(_profile_provider_builder=bounded)


class _BoundedBuilder:
    """Makes credential sources with time limits, for a profile that assumes a role."""

    def __init__(self, inner: Any, process_timeout_s: float) -> None:
        self._inner, self._process_timeout_s = inner, process_timeout_s

    def providers(self, *arguments: Any, **options: Any) -> "list[Any]":
        """Return the credential sources of a profile, with time limits."""
        found: list[Any] = self._inner.providers(*arguments, **options)
        _bound_sources(found, self._process_timeout_s)
        return found


class _TimedProcess(subprocess.Popen[bytes]):
    """A credential_process that is killed if it does not end in time."""

    def __init__(self, *arguments: Any, limit_s: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit_s = limit_s

    @override
    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes, bytes]:
        """Return the output of the process.

        Raises:
            CredentialRetrievalError: the process did not end in time.
        """
        try:
            return super().communicate(input, timeout or self._limit_s)
        except subprocess.TimeoutExpired as exc:
            self.kill()
            with self:  # the exit closes the pipes and waits for the process
                pass
            raise CredentialRetrievalError(
                provider=ProcessProvider.METHOD,
                error_msg=f"the credential_process did not end within {self._limit_s:g} s",
            ) from exc


class _Delegate:
    """An object whose other attributes are those of *inner*."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CredentialProvider(_Delegate):
    """Loads the credentials of a session; raises only errors that ``s3_errors`` lists."""

    def load_credentials(self) -> "_Credentials | None":
        """Return the credentials, or None if there are none."""
        with _listed_errors():
            found = self._inner.load_credentials()
        return None if found is None else _Credentials(found)


class _Credentials(_Delegate):
    """Credentials whose refresh raises only errors that ``s3_errors`` lists.

    botocore refreshes temporary credentials when it signs a request.
    """

    def get_frozen_credentials(self) -> "ReadOnlyCredentials":
        """Return the credentials for one request, after a refresh if they expire soon."""
        with _listed_errors():
            found: ReadOnlyCredentials = self._inner.get_frozen_credentials()
        return found


class _BoundedClient(BaseClient):
    """A client with limits for responses; see ``BoundedSession``."""

    def __init__(self, **parts: Any) -> None:
        endpoint, model = parts["endpoint"], parts["service_model"]
        service, name = model.endpoint_prefix, str(model.service_id)
        text_bytes_max = STORE_TEXT_BYTES_MAX if service == "s3" else CREDENTIALS_BYTES_MAX
        session: Any = BoundedSession(
            endpoint.http_session, parts["client_config"].read_timeout, text_bytes_max
        )
        parts["endpoint"] = _Endpoint(
            endpoint.host,
            service,
            parts["event_emitter"],
            _Parsers(name if name == _S3 else f"AWS {name}"),
            session,
        )
        super().__init__(**parts)


class _Request(AWSPreparedRequest):
    """A request whose body may be a memoryview, which has no position to reset."""

    @override
    def reset_stream(self) -> None:
        """Prepare to send the body again, because a response named the bucket's region."""
        body: Any = self.body
        if not isinstance(body, memoryview):
            super().reset_stream()


class _Endpoint(Endpoint):
    """An endpoint whose requests may have a memoryview as their body."""

    @override
    def create_request(self, params: Mapping[str, Any], operation_model: Any = None) -> _Request:
        """Return a signed request of class ``_Request``."""
        made: Any = super().create_request(params, operation_model)
        made.__class__ = _Request  # keeps all attributes of any botocore version
        return cast("_Request", made)


def _bound_responses(**event: Any) -> None:
    """Add a base class to the class of a client that is being created.

    Source: boto3 documentation, "Extensibility guide", the event creating-client-class.
    """
    event["base_classes"].insert(0, _BoundedClient)


@functools.cache
def _descriptions() -> Loader:
    """Return botocore's descriptions of services, which are read and parsed once per process.

    Making a client takes 5 ms with cached descriptions and 140 ms without them, nearly all with the
    interpreter lock held. While credentials stay expired, every attempt makes a client.
    """
    return botocore.loaders.create_loader()


class _Parsers(ResponseParserFactory):
    """Makes parsers that raise ResponseParserError for every invalid response.

    botocore raises ValueError, TypeError or RuntimeError for an invalid number or time in the
    headers or the XML of a response, and leaves the connection open.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    @override
    def create_parser(self, protocol_name: str) -> ResponseParser:
        """Return a parser for the responses of one protocol, such as rest-xml."""
        return _Parser(super().create_parser(protocol_name), self._service)


class _Parser(ResponseParser):
    """A parser that raises only ResponseParserError."""

    def __init__(self, inner: ResponseParser, service: str) -> None:
        super().__init__()
        self._inner, self._service = inner, service

    @override
    def parse(self, response: Any, shape: Any) -> Any:
        """Parse a response; return its values."""
        if _is_web_page(response):
            if self._service == _S3 and response["status_code"] in _FINAL_STATUSES:
                return self._inner.parse({**response, "body": b""}, shape)
            raise ResponseParserError(
                f"the server sends a web page (HTTP {response['status_code']}{_target(response)})"
                f" instead of a response of {self._service}; check the endpoint URL, and for a proxy"
                " or a login page"
            )
        try:
            parsed = self._inner.parse(response, shape)
        except ResponseParserError:
            raise
        except Exception as exc:
            if isinstance(response["body"], StreamingBody):
                response["body"].close()
            raise ResponseParserError(f"the response has an invalid value: {exc}") from exc
        if not isinstance(parsed.get("Error", {}).get("Code", ""), str):
            raise ResponseParserError("the response has an invalid error code")
        if _has_elements(parsed):
            raise ResponseParserError("the response has several values for one field")
        return parsed


def _has_elements(value: Any) -> bool:
    """Return whether a parsed response contains XML elements.

    If a text element occurs more than once, botocore returns the list of these elements.
    """
    if isinstance(value, dict):
        return any(map(_has_elements, value.values()))
    if isinstance(value, list):
        return any(map(_has_elements, value))
    return isinstance(value, Element)


def _is_web_page(response: Mapping[str, Any]) -> bool:
    """Return whether a response is an HTML page."""
    body = response["body"]
    return isinstance(body, bytes) and _HTML.match(body) is not None


def _target(response: Mapping[str, Any]) -> str:
    """Return the server to which a response redirects, as part of a message; "" for none."""
    server = server_of(response["headers"].get("location") or "")
    return f", a redirection to {server}" if server else ""


def _config(place: S3Place, addressing_style: Any) -> Config:
    """Return the configuration of the client.

    Args:
        place: server, timeouts.
        addressing_style: the setting in the profile; None to choose a style by the server.
    """
    return Config(
        signature_version="s3v4",
        # Only objects.retry retries requests, because it knows which writes are conditional.
        # botocore's retry quota would stop all retries after about 35 failures.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=place.connect_timeout_s,
        read_timeout=place.read_timeout_s,
        max_pool_connections=STORE_THREADS_MAX,
        tcp_keepalive=True,
        parameter_validation=False,
        # The signature protects uploads, and the hashes in the objects protect downloads.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            # The signature contains the SHA-256 of the payload, which every S3 server verifies.
            # SHA-256 takes half the time of Content-MD5 on processors with SHA instructions.
            "payload_signing_enabled": True,
            # Few self-hosted servers have a separate DNS name for each bucket.
            "addressing_style": addressing_style or ("path" if place.endpoint_url else "auto"),
        },
        user_agent_extra=USER_AGENT,
    )


def _credentials_config(place: S3Place) -> Config:
    return Config(
        retries={"mode": "standard", "total_max_attempts": _CREDENTIAL_ATTEMPTS_MAX},
        connect_timeout=place.connect_timeout_s,
        read_timeout=place.read_timeout_s,
    )


def content_md5(data: bytes | memoryview) -> str:
    """Return the value of a Content-MD5 header, for servers that refuse requests without it."""
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _end_redirections(model: Any, context: dict[str, Any], **_: object) -> None:
    """Prevent botocore from following a redirection of its own HeadBucket request.

    If a response is a redirection, botocore sends HeadBucket to find the bucket's region. If
    HeadBucket is redirected as well, for example by a web server from http to https, botocore would
    loop forever.
    """
    if model.name == "HeadBucket":
        context["s3_redirect"]["redirected"] = True


def _report_billed(
    on_answer: OnAnswer, event_name: str, response_dict: Mapping[str, Any] | None, **_: object
) -> None:
    """Report a response that S3 bills: a success, or a client error (4xx).

    Redirections, server errors and requests without a response are not billed.
    Source: Amazon S3 user guide, "Billing for Amazon S3 error responses".
    """
    if response_dict is None:
        return
    status, body = response_dict["status_code"], response_dict["body"]
    if status < HTTPStatus.MULTIPLE_CHOICES or (
        HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        on_answer(event_name.rpartition(".")[2], len(body) if isinstance(body, bytes) else 0)


def _add_content_md5(params: dict[str, Any], **_: object) -> None:
    """Add Content-MD5 to a batch delete: older servers require it, and boto3 sends only a CRC."""
    params["headers"]["Content-MD5"] = content_md5(params["body"])


def _require_delete_result(response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise ResponseParserError for a success that does not confirm the deletion.

    botocore parses an empty text, or the text of another request, as a result without errors.
    """
    status, text = response_dict["status_code"], response_dict["body"]
    is_other = b"DeleteResult" not in text and not _is_web_page(response_dict)
    if status < HTTPStatus.MULTIPLE_CHOICES and is_other:
        raise ResponseParserError("the response to DeleteObjects has no DeleteResult")
