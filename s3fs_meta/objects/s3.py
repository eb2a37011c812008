"""Objects stored in a bucket, through boto3.

Owns: the requests, and the checks that boto3 does not make: lengths of responses, the order of
listings, errors inside successful responses.
Does not know: retries (``objects.retry``); every method makes one attempt, except that an upload is
sent again if the bucket requires Content-MD5.

Requests run in at most STORE_THREADS_MAX threads. After a cancellation the thread still finishes
its request, or runs into a time limit. Until then the thread may use the bytes that it sends, so
these bytes are immutable.
"""

import io
import logging
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import trio
from botocore.exceptions import ClientError
from botocore.response import StreamingBody

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.errors import (
    FormatError,
    ObjectMissingError,
    PreconditionError,
    StoreError,
    ThreadShortageError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import (
    DELETE_BATCH_KEYS,
    LIST_PAGE_KEYS,
    MULTIPART_BYTES,
    OBJECT_BYTES_MAX,
    STORE_BODY_BYTES_PER_S_MIN,
    STORE_BODY_CHUNK_BYTES,
    STORE_CLEANUP_S_MAX,
    STORE_THREADS_MAX,
)
from s3fs_meta.memory_allocator import range_buffers
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.billing import Meter, RequestClass
from s3fs_meta.objects.contact import counting_sent
from s3fs_meta.objects.contract import (
    NUMBER_MAX,
    ETag,
    Fetched,
    ObjectInfo,
    check_key,
    check_range,
    check_size,
    listing_of,
    possible_time,
)
from s3fs_meta.objects.response_body import ResponseBody
from s3fs_meta.objects.s3_access import S3ClientHolder, S3Place, content_md5
from s3fs_meta.objects.s3_errors import (
    EXPIRED_CODES,
    FOREIGN,
    RENEWABLE_CODES,
    error_code,
    from_code,
    one_line,
    requires_md5,
    server_of,
    translate,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        GetObjectOutputTypeDef,
        ObjectIdentifierTypeDef,
        ObjectTypeDef,
    )

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Price class of each S3 operation; all operations that are not listed are billed as GET.
_CLASSES: Final = {
    "PutObject": RequestClass.PUT,
    "CreateMultipartUpload": RequestClass.PUT,
    "UploadPart": RequestClass.PUT,
    "CompleteMultipartUpload": RequestClass.PUT,
    "ListObjectsV2": RequestClass.LIST,
    "DeleteObjects": RequestClass.DELETE,
    "AbortMultipartUpload": RequestClass.DELETE,
}
# Maximum number of successive pages without a key; some servers send such a page when they are slow.
_EMPTY_PAGES_MAX: Final = 1000
# Content types of web pages and error documents.
_DOCUMENTS: Final = ("text/", "application/xml", "application/json")
_IF_FREE: Final = {"IfNoneMatch": "*"}
# Matches the object length in a Content-Range header; int() would refuse very long numbers.
_LENGTH: Final = re.compile("[0-9]{1,19}")


class _Page(NamedTuple):
    """One page of a listing."""

    found: Sequence[ObjectInfo]
    token: str | None  # token of the next page; None on the last page


class _Current(threading.local):
    """The key and body sizes of a thread's request; the meter counts them with the response."""

    def __init__(self) -> None:
        self.key = ""
        self.sent_bytes = 0
        self.received_bytes = 0

    def begin(self, key: str) -> None:
        """Set the key for this thread's next requests, and reset the body sizes to 0."""
        self.key, self.sent_bytes, self.received_bytes = key, 0, 0

    def carry(self, sent_bytes: int) -> None:
        """Set the body size of this thread's next request."""
        self.sent_bytes = sent_bytes


class S3Store:
    """A store in a bucket, below an optional prefix."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        place: S3Place | None = None,
        *,
        multipart_bytes: int = MULTIPART_BYTES,
        meter: Meter | None = None,
    ) -> None:
        """Configure the store; no connection is made before the first request.

        Args:
            bucket: name of a bucket, which must exist.
            prefix: a prefix without leading or trailing slash; may be empty.
            place: server, region, profile, timeouts.
            multipart_bytes: the size of parts; larger objects are uploaded in parts. S3 requires at
                least 5 MiB for every part but the last.
            meter: counts the billed requests.
        """
        self._bucket = bucket
        self._url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = place or S3Place()
        self._meter = meter or Meter()
        self._current = _Current()
        self._holder = S3ClientHolder(self._place, self._count_answer)
        self._limiter = trio.CapacityLimiter(STORE_THREADS_MAX)
        self._multipart_bytes = multipart_bytes
        self._needs_md5 = False  # True after the bucket has refused an upload without Content-MD5

    @property
    def url(self) -> str:
        """Return the URL ``s3://`` with the bucket and the prefix."""
        return self._url

    @property
    def endpoint(self) -> str:
        """Return the scheme, host and port of the server; "" until the first request."""
        return server_of(self._holder.endpoint_url)

    @property
    def has_own_clock(self) -> bool:
        """Return True, because the server's clock sets the times of objects."""
        return True

    async def now_ns(self) -> int | None:
        """Return the Date header of a response (RFC 9110, 6.6.1), or None if it is missing."""
        return await self._request("the store's clock", self._now_ns)

    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return a complete object."""
        return await self._request(key, partial(self._get, key, max_bytes))

    async def get_range(self, key: ObjectKey, start: int, stop: int) -> bytes | memoryview:
        """Return bytes ``[start, stop)`` of an object."""
        check_range(key, start, stop)
        return await self._request(key, partial(self._get_range, key, start, stop))

    async def put(self, key: ObjectKey, data: bytes | memoryview) -> None:
        """Store or replace an object; upload a large object in parts."""
        body = _immutable(data)
        if len(body) > self._multipart_bytes:
            await self._put_in_parts(key, bytes(body))
        else:
            await self._request(key, partial(self._put, key, body, {}))

    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object only if its key is still free."""
        return await self._request(key, partial(self._put, key, _immutable(data), _IF_FREE))

    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        """Store an object only if its current version is *etag*."""
        if not etag:  # a server may ignore an empty If-Match header
            raise UnexpectedStoreError(key, "the store's response to GET had no ETag")
        condition = {"IfMatch": etag}
        try:
            return await self._request(key, partial(self._put, key, _immutable(data), condition))
        except ObjectMissingError as exc:  # HTTP 404 instead of 412: no object has the key
            raise PreconditionError(key) from exc

    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Delete objects, up to a thousand with one request."""
        for key in keys:
            check_key(key)
        for begin in range(0, len(keys), DELETE_BATCH_KEYS):
            batch = keys[begin : begin + DELETE_BATCH_KEYS]
            await self._request(batch[0], partial(self._delete, batch))
        await trio.lowlevel.checkpoint()

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield objects in key order; skip duplicates in the server's listing."""
        name = listing_of(prefix)
        token: str | None = None
        before: set[str] = set()
        last, empty_pages = after, 0
        while True:
            page = await self._request(name, partial(self._list_page, prefix, after, token))
            before_page = last
            empty_pages = 0 if page.found else empty_pages + 1
            for info in page.found:
                if info.key > last:
                    last = info.key
                    yield info
                elif info.key not in before and info.key != last:
                    raise UnexpectedStoreError(
                        name, f"the keys of the listing are not sorted at {info.key!r}"
                    )
                before.add(info.key)
            if page.token is None:
                return
            # a server that ignores the page token sends the same page again
            if page.token == token or (page.found and last == before_page):
                raise UnexpectedStoreError(name, "the server sent a page of the listing twice")
            if empty_pages == _EMPTY_PAGES_MAX:
                text = f"the listing has {empty_pages} successive pages without a key"
                raise UnexpectedStoreError(name, text)
            before = {info.key for info in page.found}
            token = page.token

    async def close(self) -> None:
        """Close idle connections to the server."""
        await in_thread_or_here(self._holder.close)

    async def _request(self, key: str, work: "Callable[[S3Client], _Result]") -> _Result:
        try:
            return await in_thread(
                self._attempt, key, work, abandon_on_cancel=True, limiter=self._limiter
            )
        except ThreadShortageError as exc:
            raise TransientStoreError(key, exc.message) from exc

    # --- run requests in a thread ----------------------------------------------------------

    def _attempt(self, key: str, work: "Callable[[S3Client], _Result]") -> _Result:
        """Call a function with the boto3 client; record the transferred bytes in its error."""
        self._current.begin(key)
        with counting_sent() as sent:
            try:
                return self._translated(key, work)
            except StoreError as exc:
                exc.note_transfer(sent(), self._current.received_bytes)
                raise

    def _translated(self, key: str, work: "Callable[[S3Client], _Result]") -> _Result:
        """Call a function with the boto3 client; translate the errors of boto3."""
        try:
            client = self._holder.client()
            try:
                result = work(client)
            except FOREIGN as exc:
                code = error_code(exc)
                if code in RENEWABLE_CODES and self._holder.renew(
                    client, has_expired=code in EXPIRED_CODES
                ):
                    text = f"{code}: credentials were renewed"
                    raise TransientStoreError(key, text) from exc
                raise
            except KeyError as exc:
                raise UnexpectedStoreError(
                    key, f"the store's response lacks the field {exc}"
                ) from exc
            self._holder.accept(client)
        except FOREIGN as exc:
            raise translate(exc, key, self._holder.endpoint_url) from exc
        return result

    def _count_answer(self, operation: str, body_bytes: int) -> None:
        """Count a billed response; the body of an object is counted when it is read."""
        current, kind = self._current, _CLASSES.get(operation, RequestClass.GET)
        sent_bytes = current.sent_bytes if kind is RequestClass.PUT else 0
        self._meter.count(kind, current.key, sent_bytes=sent_bytes, received_bytes=body_bytes)

    def _named(self, key: ObjectKey) -> dict[str, Any]:
        check_key(key)
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{key}"}

    def _now_ns(self, client: "S3Client") -> int | None:
        answer = client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            return None if date is None else _in_ns(parsedate_to_datetime(date))
        except (ValueError, OverflowError):  # without a valid date, the time is unknown
            return None

    def _get(self, key: ObjectKey, max_bytes: int, client: "S3Client") -> Fetched:
        answer = client.get_object(**self._named(key))
        body, etag = answer["Body"], answer.get("ETag", "")
        # The stubs of boto3 require a length, but a chunked response has none.
        size_bytes: int | None = cast("dict[str, Any]", answer).get("ContentLength")
        try:
            _check_kind(key, answer, size_bytes)
            if size_bytes is None:
                return Fetched(self._read_chunked(key, body, max_bytes, etag), etag)
            check_size(key, size_bytes, max_bytes, etag)
        except BaseException:
            # close the connection: the server would still send the rest of the body
            body.close()
            raise
        # BytesIO returns its buffer as bytes without a copy.
        # A copy would hold the interpreter lock and block the event loop.
        target = io.BytesIO(bytes(size_bytes))
        self.read_body(key, body, target.getbuffer())
        return Fetched(target.getvalue(), etag)

    def _get_range(self, key: ObjectKey, start: int, stop: int, client: "S3Client") -> memoryview:
        answer = client.get_object(**self._named(key), Range=f"bytes={start}-{stop - 1}")
        body = answer["Body"]
        try:
            _check_range(key, answer.get("ContentRange", ""), start, stop)
        except BaseException:
            body.close()
            raise
        buffer = range_buffers.new(stop - start)
        self.read_body(key, body, buffer)
        return buffer.toreadonly()

    def _read_chunked(self, key: str, body: StreamingBody, max_bytes: int, etag: ETag) -> bytes:
        """Return a body whose response has no Content-Length, as from some proxies. Blocks.

        Raises:
            TransientStoreError: the body is not chunked either. Its end would be the end of the
                connection, so a truncated object would look complete.
            ObjectTooLargeError: the body has more than *max_bytes* bytes.
        """
        source = ResponseBody(body)
        if not source.is_chunked:
            raise TransientStoreError(key, "the response has no length")
        source.allow(max_bytes)
        piece = memoryview(bytearray(STORE_BODY_CHUNK_BYTES))
        target = io.BytesIO()
        try:
            while target.tell() <= max_bytes and (count := source.receive(piece)):
                target.write(piece[:count])
        finally:
            source.close()
            self._current.received_bytes += target.tell()
            self._meter.count(RequestClass.GET, key, 0, received_bytes=target.tell())
        check_size(key, target.tell(), max_bytes, etag)
        return target.getvalue()

    def read_body(self, key: str, body: StreamingBody, buffer: memoryview) -> None:
        """Read the body of a response, which must fill *buffer* exactly. The call blocks.

        Raises:
            TransientStoreError: the body was shorter or longer, or arrived below the minimum rate.
        """
        deadline_s = time.monotonic() + self._place.read_timeout_s
        deadline_s += len(buffer) / STORE_BODY_BYTES_PER_S_MIN
        source, received_bytes = ResponseBody(body), 0
        source.allow(len(buffer))
        beyond = memoryview(bytearray(1))  # extra byte, received only if the body is too long
        target = buffer or beyond
        try:
            while count := source.receive(target[:STORE_BODY_CHUNK_BYTES]):
                received_bytes += count
                if received_bytes > len(buffer):
                    break
                target = buffer[received_bytes:] or beyond
                if time.monotonic() > deadline_s:
                    raise TransientStoreError(
                        key, "the transfer of the response body took too long"
                    )
        finally:
            source.close()
            self._current.received_bytes += received_bytes
            self._meter.count(RequestClass.GET, key, 0, received_bytes=received_bytes)
        if received_bytes > len(buffer):
            raise TransientStoreError(
                key, f"the response body is longer than the expected {len(buffer)} bytes"
            )
        if received_bytes < len(buffer):
            raise TransientStoreError(
                key,
                f"the length of the response body is {received_bytes} bytes instead of"
                f" {len(buffer)}",
            )

    def _put(
        self,
        key: ObjectKey,
        body: bytes | memoryview,
        condition: dict[str, Any],
        client: "S3Client",
    ) -> ETag:
        assert len(body) <= OBJECT_BYTES_MAX, "an object must fit into one PUT"
        self._current.carry(len(body))
        answer = self._send(body, partial(client.put_object, **self._named(key), **condition))
        return cast("ETag", answer["ETag"])

    def _send(self, body: bytes | memoryview, request: Callable[..., Any]) -> Any:
        """Send an upload; retry it with Content-MD5 if the bucket requires that header.

        *body* may be any buffer, although the stubs of boto3 allow only types that would be copied.
        """
        if not self._needs_md5:
            try:
                return request(Body=body)
            except ClientError as exc:
                if not requires_md5(exc):
                    raise
            self._needs_md5 = True
        return request(Body=body, ContentMD5=content_md5(body))

    def _delete(self, keys: Sequence[ObjectKey], client: "S3Client") -> None:
        names: list[ObjectIdentifierTypeDef] = [{"Key": f"{self._prefix}{key}"} for key in keys]
        answer = client.delete_objects(
            Bucket=self._bucket, Delete={"Objects": names, "Quiet": True}
        )
        for failed in answer.get("Errors", []):
            key = (
                failed.get("Key", "").removeprefix(self._prefix) or f"one of {len(keys)} deletions"
            )
            code = failed.get("Code") or "an error without a code"
            error = from_code(code, failed.get("Message", ""), key)
            if not isinstance(error, ObjectMissingError):
                raise error

    def _list_page(self, prefix: str, after: str, token: str | None, client: "S3Client") -> _Page:
        place: dict[str, Any] = {"ContinuationToken": token} if token else {}
        if after and not token:
            place = {"StartAfter": f"{self._prefix}{after}"}
        answer = client.list_objects_v2(
            Bucket=self._bucket,
            Prefix=f"{self._prefix}{prefix}",
            MaxKeys=LIST_PAGE_KEYS,
            **place,
        )
        found = [
            self._listed(prefix, item)
            for item in answer.get("Contents", [])
            # skip the empty object with which a web console represents a folder
            if item["Key"] != self._prefix
        ]
        return _Page(found, answer["NextContinuationToken"] if answer["IsTruncated"] else None)

    def _listed(self, prefix: str, item: "ObjectTypeDef") -> ObjectInfo:
        """Return one entry of a listing.

        Raises:
            UnexpectedStoreError: the size is impossible, or the key does not begin with the prefix,
                so it could be an object of another filesystem.
        """
        key, size_bytes = item["Key"], item["Size"]
        if not key.startswith(f"{self._prefix}{prefix}"):
            raise UnexpectedStoreError(
                listing_of(prefix), f"the listing has the key {key!r}, which has another prefix"
            )
        if not 0 <= size_bytes <= NUMBER_MAX:
            raise UnexpectedStoreError(
                listing_of(prefix), f"the listing has an impossible size for {key!r}: {size_bytes}"
            )
        modified_ns = _in_ns(item["LastModified"]) if "LastModified" in item else None
        return ObjectInfo(ObjectKey(key.removeprefix(self._prefix)), size_bytes, modified_ns)

    # --- upload large objects in parts -----------------------------------------------------

    async def _put_in_parts(self, key: ObjectKey, body: bytes) -> None:
        """Store an object by a multipart upload; abort the upload after an error."""
        upload_id = await self._request(key, partial(self._begin_upload, key))
        try:
            parts = [
                await self._request(key, partial(self._put_part, key, upload_id, number, body))
                for number in range(1, -(-len(body) // self._multipart_bytes) + 1)
            ]
            await self._request(key, partial(self._finish_upload, key, upload_id, parts))
        except BaseException:
            with trio.move_on_after(STORE_CLEANUP_S_MAX) as scope:
                scope.shield = True
                await self._request(key, partial(self._give_up_upload, key, upload_id))
            raise

    def _begin_upload(self, key: ObjectKey, client: "S3Client") -> str:
        return client.create_multipart_upload(**self._named(key))["UploadId"]

    def _put_part(
        self, key: ObjectKey, upload_id: str, number: int, body: bytes, client: "S3Client"
    ) -> dict[str, Any]:
        begin = (number - 1) * self._multipart_bytes
        part = bytes(memoryview(body)[begin : begin + self._multipart_bytes])
        self._current.carry(len(part))
        answer = self._send(
            part,
            partial(client.upload_part, **self._named(key), UploadId=upload_id, PartNumber=number),
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _finish_upload(
        self, key: ObjectKey, upload_id: str, parts: Any, client: "S3Client"
    ) -> None:
        answer = client.complete_multipart_upload(
            **self._named(key), UploadId=upload_id, MultipartUpload={"Parts": parts}
        )
        # S3 sends the status 200 before it makes the object; only the ETag shows that it exists.
        if not answer.get("ETag"):
            raise TransientStoreError(key, "the response to CompleteMultipartUpload has no ETag")

    def _give_up_upload(self, key: ObjectKey, upload_id: str, client: "S3Client") -> None:
        try:
            client.abort_multipart_upload(**self._named(key), UploadId=upload_id)
        except FOREIGN as exc:
            _log.warning("parts of an unfinished upload of %r may remain: %s", key, one_line(exc))


def _in_ns(when: datetime) -> int | None:
    """Return a server's time in ns, or None if it is impossible; a time without a zone is UTC."""
    aware = when if when.tzinfo is not None else when.replace(tzinfo=timezone.utc)
    return possible_time(int(aware.timestamp()) * 1_000_000_000)


def _immutable(data: bytes | memoryview) -> bytes | memoryview:
    """Return *data*, copied if mutable, because the thread of a cancelled request may keep it."""
    return bytes(data) if isinstance(data, memoryview) and not data.readonly else data


def _check_kind(key: str, answer: "GetObjectOutputTypeDef", size_bytes: int | None) -> None:
    """Raise TransientStoreError unless a response to GET may have a complete object."""
    status, kind = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("ContentType", "")
    if status != HTTPStatus.OK:
        raise TransientStoreError(key, f"the response has the status {status} instead of 200")
    if not answer.get("ETag") and kind.startswith(_DOCUMENTS):
        raise TransientStoreError(
            key,
            f"the server sends a document of type {kind} instead of an object; check the endpoint"
            " URL, and for a proxy or a login page",
        )
    if size_bytes is not None and size_bytes < 0:
        raise TransientStoreError(key, f"the response has an invalid length: {size_bytes} bytes")


def _check_range(key: str, content_range: str, start: int, stop: int) -> None:
    """Compare the range in a response with the requested range.

    Raises:
        FormatError: the object ends before *stop*.
        TransientStoreError: the response has a different range.
    """
    span, _, total = content_range.removeprefix("bytes ").partition("/")
    if _LENGTH.fullmatch(total) and int(total) < stop:
        raise FormatError(
            key, f"the requested range ends at byte {stop}, but the object has only {total} bytes"
        )
    if span != f"{start}-{stop - 1}":
        asked = f"bytes {start}-{stop - 1}"
        raise TransientStoreError(
            key, f"the response has a wrong range: {content_range!r} instead of {asked!r}"
        )
