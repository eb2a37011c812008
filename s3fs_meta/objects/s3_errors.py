"""Translation of boto3's exceptions into errors of this program, with one-line messages.

Owns: the tables of S3 error codes and botocore exceptions, and the advice for each.
Does not know: how requests are sent. An error that no table lists becomes UnexpectedStoreError.
Source: Amazon S3 API Reference, "Error responses"; botocore/exceptions.py.
"""

import errno
import socket
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.util import parse_url

from s3fs_meta.errors import (
    CredentialsError,
    FormatError,
    ObjectMissingError,
    PreconditionError,
    S3fsError,
    StoreAccessError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.objects.contract import STORE_FULL

_TRANSIENT_CODES: Final = frozenset(
    {
        "InternalError",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "TooManyRequests",
        "RequestTimeout",
        "RequestTimeoutException",
        "BadDigest",  # the server received other bytes than this client sent
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "IncompleteBody",
        "ConditionalRequestConflict",  # conflict of conditional writes: none was applied
        "OperationAborted",
        "NoSuchUpload",  # another client aborted the multipart upload; a retry begins a new upload
    }
)
# 520 to 527 and 530 come from a proxy that cannot reach the server.
# 304 comes from a cache, because no request asks whether an object has changed.
_TRANSIENT_STATUSES: Final = frozenset({304, 408, 429, 500, 502, 503, 504, *range(520, 528), 530})
# A store that is full may accept writes again after its owner has freed space.
_FULL_CODES: Final = frozenset(
    {
        "QuotaExceeded",  # Ceph, versitygw
        "InsufficientStorage",  # versitygw
        "XMinioStorageFull",
        "XMinioAdminBucketQuotaExceeded",
        str(int(HTTPStatus.INSUFFICIENT_STORAGE)),
    }
)
_SKEW_CODES: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_MISSING_CODES: Final = frozenset({"NoSuchKey", "NotFound"})
_PRECONDITION_CODES: Final = frozenset({"PreconditionFailed", "412"})
_RANGE_CODES: Final = frozenset({"InvalidRange", "416"})
_REGION_CODES: Final = frozenset(
    {
        "PermanentRedirect",
        "TemporaryRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "InvalidRegion",
    }
)
EXPIRED_CODES: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_UNKNOWN_KEY_CODES: Final = frozenset({"InvalidAccessKeyId", "XAdminUserNotFound"})  # versitygw
# After these errors, the credentials are read again: they may have been replaced.
RENEWABLE_CODES: Final = (
    EXPIRED_CODES
    | _UNKNOWN_KEY_CODES
    | {
        "InvalidToken",
        "SignatureDoesNotMatch",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
    }
)

_POLICY: Final = (
    "these credentials need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload"
    " and s3:ListBucket there"
)
_KEYS: Final = "check the credentials, or select another profile with --profile"
_EXPIRED: Final = "the credentials have expired and the AWS configuration has no newer ones"
_LOGIN: Final = "log in again, for example with: aws sso login"

_ADVICE: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket or correct the URL",
    "InvalidBucketName": "correct the bucket's name in the URL",
    "AccessDenied": _POLICY,
    "AllAccessDisabled": _POLICY,
    "Forbidden": _POLICY,
    "403": _POLICY,
    "AccountProblem": "the account is suspended or unpaid",
    **dict.fromkeys(_UNKNOWN_KEY_CODES, f"the store does not know the access key; {_KEYS}"),
    "InvalidSecurity": _KEYS,
    "InvalidToken": f"the session token is not valid; {_KEYS}",
    "SignatureDoesNotMatch": f"the secret key is wrong, or a proxy changes requests; {_KEYS}",
    **dict.fromkeys(EXPIRED_CODES, _EXPIRED),
}


# Services that issue temporary credentials, by request name; all other requests go to AWS STS.
_ISSUERS: Final[Mapping[str, str]] = {
    "GetRoleCredentials": "AWS SSO",
    "CreateToken": "AWS SSO",
    "CreateOAuth2Token": "AWS sign-in",
}
_SOURCE_KEYS: Final = "check the credentials with which the AWS configuration requests the role"
_ISSUER_ADVICE: Final[Mapping[str, str]] = {
    "InvalidClientTokenId": _SOURCE_KEYS,
    "UnrecognizedClientException": _SOURCE_KEYS,
    "SignatureDoesNotMatch": _SOURCE_KEYS,
    "RegionDisabledException": "pass a --region in which AWS STS is active",
    **dict.fromkeys(EXPIRED_CODES, f"renew the token or the credentials of that request; {_LOGIN}"),
}
_ROLE: Final = "check the role in the AWS configuration, and who may assume that role"


class ExpiredCredentialsError(boto.BotoCoreError):
    """The AWS configuration has only expired credentials."""

    fmt = "the credentials have expired"


class UnreadableCredentialsError(boto.BotoCoreError):
    """The source of the credentials is missing, or its output is invalid."""

    fmt = "the credentials cannot be read: {error}"


class RefusedCredentialsError(boto.BotoCoreError):
    """A service refused to issue temporary credentials; *refusal* is its response."""

    fmt = "{refusal}"


# Specific classes precede general classes, because the first match is used.
# The text of a connection error may contain an address, but no secret.
_CREDENTIAL_EXCEPTIONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (
        boto.NoCredentialsError,
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials of the user "
        "who mounts (root for fstab), or select a profile of that file with --profile",
    ),
    (
        ExpiredCredentialsError,
        f"the AWS configuration has no newer ones, or this host's clock is wrong; {_LOGIN}",
    ),
    (
        UnreadableCredentialsError,
        "correct the AWS configuration, for example its credential_process",
    ),
    (boto.PartialCredentialsError, "the access key has no secret key"),
    (boto.ProfileNotFound, "select a profile of the AWS configuration files with --profile"),
    (boto.ConfigParseError, "correct the AWS configuration file"),
    (boto.UnauthorizedSSOTokenError, _LOGIN),
    (boto.SSOTokenLoadError, _LOGIN),
    (boto.TokenRetrievalError, _LOGIN),
)
_ACCESS_EXCEPTIONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (boto.InvalidConfigError, "correct the AWS configuration file"),
    (boto.InvalidS3AddressingStyleError, "correct the AWS configuration file"),
    (boto.InvalidRegionError, "pass a valid --region"),
    (boto.NoRegionError, "pass --region"),
    (boto.EndpointResolutionError, "check --region and --endpoint-url"),
)
_TRANSIENT_EXCEPTIONS: Final = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.FlexibleChecksumError,
    boto.CredentialRetrievalError,
    boto.MetadataRetrievalError,
    ResponseParserError,  # a response that cannot be parsed probably comes from a proxy
    OSError,
)
_SILENT: Final = "{0} accepts the connection, but does not respond"
# The first match is used; "{0}" is replaced with the address of the server.
_CONNECTION_PHRASES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (boto.ConnectTimeoutError, "{0} does not accept the connection"),
    (boto.ReadTimeoutError, _SILENT),
    (boto.ConnectionClosedError, "{0} closes the connection without a response"),
    (boto.SSLError, "the TLS connection to {0} failed"),
    (boto.EndpointConnectionError, "cannot connect to {0}"),
)
_UNCONNECTED: Final = frozenset({errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH})
_REDIRECTIONS: Final = frozenset({301, 302, 307, 308})
# HTTP statuses of requests to a wrong region.
# With other statuses, the region in a response proves nothing: MinIO always names its region.
_REGION_STATUSES: Final = _REDIRECTIONS | {400, 403}
_FOREIGN_SERVER: Final = "check the endpoint URL, and for a proxy"
_CHECK: Final = "check the network and the endpoint URL"
# Parts of OpenSSL's messages, each with the error code and the advice to report.
_TLS_ADVICE: Final[Mapping[str, tuple[str, str]]] = {
    "CERTIFICATE_VERIFY_FAILED": (
        "certificate verification failed",
        "this host does not trust the server; put its CA certificate into AWS_CA_BUNDLE",
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"),
        ("the server does not use TLS", "write http:// instead of https:// in the endpoint URL"),
    ),
}
FOREIGN: Final = (boto.ClientError, boto.BotoCoreError, ResponseParserError, OSError)


def translate(exc: Exception, key: str, endpoint: str = "") -> S3fsError:
    """Return an S3fsError for an exception of boto3 or botocore (``FOREIGN``).

    Args:
        exc: the exception.
        key: the object of the request.
        endpoint: URL of the server, added to the message if the server refused the request.
    """
    error = _translate(exc, key)
    if endpoint and type(error) is StoreAccessError:
        return StoreAccessError(key, error.code, f"{error.advice} (endpoint {server_of(endpoint)})")
    return error


def _translate(exc: Exception, key: str) -> S3fsError:
    if isinstance(exc, boto.ClientError):
        return _from_answer(exc.response, key)
    if isinstance(exc, RefusedCredentialsError):
        return _from_issuer(exc.kwargs["refusal"], key)
    text = _proxy_text(exc) or _connection_text(exc) or one_line(exc)
    for sign, (what, advice) in _TLS_ADVICE.items():
        if isinstance(exc, boto.SSLError) and sign in one_line(exc):
            return StoreAccessError(key, what, advice)
    refusal = _access_error(exc, text, key) or _malformed_proxy(exc, key)
    if refusal is not None:
        return refusal
    unresolved = _resolution_error(exc)
    if unresolved is not None:
        what = f"the server's name in {_origin(exc)} cannot be resolved"
        text = f"{what}: {unresolved.strerror}; {_CHECK}"
        return TransientStoreError(key, text, unresolved=True)
    if isinstance(exc, _TRANSIENT_EXCEPTIONS):
        return TransientStoreError(key, text, unconnected=_is_unconnected(exc))
    return UnexpectedStoreError(key, f"{type(exc).__name__}: {text}")


def _access_error(exc: Exception, text: str, key: str) -> StoreAccessError | None:
    """Return an error for an exception that a wrong configuration causes, or None."""
    for kind, advice in _CREDENTIAL_EXCEPTIONS:
        if isinstance(exc, kind):
            return CredentialsError(key, text, advice)
    for kind, advice in _ACCESS_EXCEPTIONS:
        if isinstance(exc, kind):
            return StoreAccessError(key, text, advice)
    return None


def _malformed_proxy(exc: Exception, key: str) -> StoreAccessError | None:
    """Return an error if an environment variable contains a malformed URL of a proxy, or None.

    botocore reports such a URL as a ValueError of its HTTP client, or adds ``http://`` to the URL. All
    other errors are failures of the network, even if a variable for another protocol is malformed.
    The URL is not shown, because it may contain a password.
    """
    if isinstance(exc, boto.ProxyConnectionError):
        used = str(exc.kwargs["proxy_url"])
        if _is_url_of_proxy(used) and used.count("://") == 1:
            return None
    elif type(exc) is not boto.HTTPClientError or not isinstance(exc.kwargs["error"], ValueError):
        return None
    proxies = getproxies()
    for scheme in ("http", "https"):
        if not _is_url_of_proxy(proxies.get(scheme, "")):
            name = f"{scheme.upper()}_PROXY"
            advice = f"write for example {name}=http://proxy.example:3128"
            return StoreAccessError(key, f"{name} is not the URL of an HTTP proxy", advice)
    return None


def _is_url_of_proxy(url: str) -> bool:
    """Return whether botocore accepts the URL of a proxy; "" means no proxy."""
    scheme, colon, _rest = url.partition("://")
    if colon and scheme.lower() not in {"http", "https"}:
        return False
    try:
        return not url or bool(parse_url(url if colon else f"http://{url}").host)
    except ValueError:
        return False


def _proxy_text(exc: Exception) -> str:
    """Return the cause of a failed connection to a proxy, or "" for other errors."""
    if not isinstance(exc, boto.ProxyConnectionError):
        return ""
    # The innermost error contains the refusal of the proxy, for example status 407.
    reason = _reason(exc) or one_line([exc, *_causes(exc)][-1])
    proxy = server_of(str(exc.kwargs.get("proxy_url", ""))) or "the proxy"
    what = f"cannot connect through the proxy {proxy} ({reason})"
    return f"{what}; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"


def _connection_text(exc: Exception) -> str:
    """Return the cause of a failed connection, with the server's address; "" for other errors."""
    for kind, what in _CONNECTION_PHRASES:
        if isinstance(exc, kind):
            is_silent = kind is boto.ConnectionClosedError and _has_timed_out(exc)
            reason = _reason(exc)
            phrase = (_SILENT if is_silent else what).format(_origin(exc))
            return f"{phrase}{f' ({reason})' if reason else ''}; {_CHECK}"
    return ""


def _origin(exc: Exception) -> str:
    """Return the scheme, host and port of the server in a connection error of botocore."""
    return server_of(str(getattr(exc, "kwargs", {}).get("endpoint_url", ""))) or "the server"


def server_of(url: str) -> str:
    """Return the scheme, host and port in a URL, without a password, or "" if it has no host."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if host else ""


def _reason(exc: Exception) -> str:
    """Return the text of the OSError that caused a connection error of botocore, or ""."""
    for cause in _causes(exc):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return ""


def _has_timed_out(exc: Exception) -> bool:
    """Return whether a request timed out before the server received all of it.

    botocore reports this timeout as a closed connection.
    """
    return any(isinstance(cause, TimeoutError) for cause in _causes(exc))


def _is_unconnected(exc: Exception) -> bool:
    """Return whether the connection failed immediately, because no server accepted it."""
    return isinstance(exc, (boto.EndpointConnectionError, boto.ProxyConnectionError)) and any(
        isinstance(cause, OSError) and cause.errno in _UNCONNECTED for cause in _causes(exc)
    )


def _causes(exc: Exception) -> Iterator[BaseException]:
    """Yield the causes of a botocore connection error, outermost first."""
    error = getattr(exc, "kwargs", {}).get("error")
    while isinstance(error, BaseException):
        yield error
        error = error.__cause__ or error.__context__


def _resolution_error(exc: Exception) -> socket.gaierror | None:
    """Return the name resolution error that caused *exc*, or None if there was none."""
    if not isinstance(exc, boto.EndpointConnectionError):
        return None
    return next((one for one in _causes(exc) if isinstance(one, socket.gaierror)), None)


def error_code(exc: Exception) -> str:
    """Return the error code of an error response, or '' if it has none."""
    if isinstance(exc, RefusedCredentialsError):
        return error_code(exc.kwargs["refusal"])
    if isinstance(exc, boto.ClientError):
        return str(exc.response.get("Error", {}).get("Code", ""))
    return ""


def requires_md5(exc: boto.ClientError) -> bool:
    """Return whether a bucket accepts only uploads with Content-MD5, as with Object Lock.

    Amazon S3 has no error code for this case, only the message. MinIO has a code.
    """
    message = str(exc.response.get("Error", {}).get("Message", ""))
    return error_code(exc) == "MissingContentMD5" or (
        error_code(exc) == "InvalidRequest" and "content-md5" in message.lower()
    )


def from_code(code: str, text: str, key: str) -> S3fsError:
    """Return an S3fsError for an S3 error code of a request, or of one key in a batch."""
    if code in _TRANSIENT_CODES:
        return TransientStoreError(key, code)
    if code in _FULL_CODES:
        return TransientStoreError(key, f"{code}: {STORE_FULL}")
    if code in _MISSING_CODES:
        return ObjectMissingError(key)
    if code in _PRECONDITION_CODES:
        return PreconditionError(key)
    if code in _RANGE_CODES:
        return FormatError(key, "the object ends before the requested range of bytes")
    if code in _ADVICE:
        return StoreAccessError(key, code, _ADVICE[code])
    return UnexpectedStoreError(key, f"{code}: {text}" if text else code)


def _from_answer(response: Mapping[str, Any], key: str) -> S3fsError:
    error = response.get("Error", {})
    metadata = response.get("ResponseMetadata", {})
    headers = metadata.get("HTTPHeaders", {})
    code, status = str(error.get("Code", "")), metadata.get("HTTPStatusCode")
    if code in {"", str(status)}:
        return _from_status(status, headers, key)
    if code in _SKEW_CODES:
        return TransientStoreError(key, f"{code}: {_skew(headers.get('date'))}")
    if code in _REGION_CODES:
        region = error.get("Region") or headers.get("x-amz-bucket-region")
        advice = f"the bucket is in another region; pass --region {region}"
        if not region:
            advice = "the bucket is in another region; check --region and --endpoint-url"
        return StoreAccessError(key, code, advice)
    if status in _TRANSIENT_STATUSES and code not in _ADVICE:
        return TransientStoreError(key, code)
    return from_code(code, one_line(error.get("Message", "")), key)


def _from_status(status: int, headers: Mapping[str, str], key: str) -> S3fsError:
    """Return an S3fsError for a response whose body has no error code of S3.

    An S3 server sends a code with each error of the requests that this program makes. Without a
    code, the response to a read does not prove that the object is missing.
    """
    region, server = headers.get("x-amz-bucket-region"), server_of(headers.get("location") or "")
    what = f"HTTP {status} without an error code of S3"
    if region and status in _REGION_STATUSES:
        return StoreAccessError(
            key, what, f"the bucket may be in another region; pass --region {region}"
        )
    if status in _REDIRECTIONS and server:
        advice = f"the server redirects to {server}; correct the endpoint URL"
        return StoreAccessError(key, what, advice)
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return StoreAccessError(key, what, "the proxy requires a user and a password in its URL")
    if status == HTTPStatus.FORBIDDEN:
        return StoreAccessError(key, what, f"{_FOREIGN_SERVER}; {_POLICY}")
    if status == HTTPStatus.NOT_FOUND or status in _TRANSIENT_STATUSES:
        return TransientStoreError(key, f"{what}; {_FOREIGN_SERVER}")
    error = from_code(str(status), "", key)
    if isinstance(error, UnexpectedStoreError):
        return UnexpectedStoreError(key, f"{what}; {_FOREIGN_SERVER}")
    return error


def _from_issuer(refusal: boto.ClientError, key: str) -> S3fsError:
    """Return an S3fsError for an error response of a service that issues credentials."""
    operation = refusal.operation_name
    issuer = _ISSUERS.get(operation, "AWS STS")
    metadata = refusal.response.get("ResponseMetadata", {})
    code = error_code(refusal)
    if code in _SKEW_CODES:
        skew = _skew(metadata.get("HTTPHeaders", {}).get("date"))
        return TransientStoreError(key, f"{issuer} refused {operation}: {code}: {skew}")
    status: int | None = metadata.get("HTTPStatusCode")
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
        return TransientStoreError(
            key, f"{issuer} failed at {operation}: {code or f'HTTP {status}'}"
        )
    text = one_line(refusal.response.get("Error", {}).get("Message", ""))
    what = f"{issuer} refused {operation}: {f'{code}: {text}' if text else code}"
    return CredentialsError(key, what, _ISSUER_ADVICE.get(code, _ROLE))


def _skew(date: str | None) -> str:
    """Return a message with the difference between this host's clock and the time in a response."""
    try:
        theirs_s = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):  # the header is not a date
        return "this host's clock differs from the store's; set the clock"
    ahead_s = round(time.time() - theirs_s)
    direction = "ahead of" if ahead_s > 0 else "behind"
    return f"this host's clock is {abs(ahead_s)} s {direction} the store's; set the clock"


def one_line(value: object) -> str:
    """Return the text of *value* on one line."""
    return " ".join(str(value).split())
