"""A checkpoint store in an S3 bucket, by boto3.

Objects above one part go up by multipart upload, a few parts at a time, so that a shard need not fit memory; S3
shows an object when its upload completes and not before. Ranges above some MiB come down in parts, several at a time,
since one connection to a far server is slow. Each request has timeouts and is tried again a few
times with growing waits; what no retry can mend (credentials, a missing bucket) fails at once. Nothing here
relies on conditional requests, which not every server honours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from tenacity import Retrying, retry_if_exception, stop_after_attempt
from urllib3.exceptions import HTTPError

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.buffers import portions, size_of
from elastic_core.state.contract import Entry, Source
from elastic_core.state.keys import check_key, check_prefix, is_key
from elastic_core.waiting import growing

T = TypeVar("T")

_PART_BYTES = 32 << 20
_MAX_PARTS = 10_000  # S3's own limit
_UPLOADERS = 4
_RANGE_BYTES = 4 << 20  # of one request, where a range is read in parts
_CONNECTIONS = 32  # of 8 threads that each read 16 MiB
_ATTEMPTS = 5
_PERMANENT = {
    "AccessDenied": "the credentials are not allowed to do this",
    "AllAccessDisabled": "the credentials are not allowed to do this",
    "InvalidAccessKeyId": "the server does not know the access key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired",
    "NoSuchBucket": "the bucket does not exist: create it, or correct the store's address",
    "403": "the server refuses the credentials: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their rights",
}
_MISSING = ("NoSuchKey", "404", "NotFound")


class S3Store:
    """See `CheckpointStore`."""

    def __init__(self, bucket: str, prefix: str, endpoint: str = "") -> None:
        if not bucket:
            raise UserError("An S3 store needs a bucket: s3://bucket/prefix.")
        self._bucket = bucket
        self._base = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._endpoint = endpoint
        self._s3: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint or None,
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"total_max_attempts": 1},  # tenacity tries again, once and for all requests alike
                max_pool_connections=_CONNECTIONS,
                s3={"addressing_style": "path" if endpoint else "auto"},
                # Checksums in trailers are beyond many servers; ours are in the manifest.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def put(self, key: str, source: Source) -> None:
        target = self._key(key)
        parts = _parts(source)
        head = list(islice(parts, 2))
        if len(head) < 2:
            body = head[0] if head else b""
            self._try(f"write {key}", lambda: self._s3.put_object(Bucket=self._bucket, Key=target, Body=body))
        else:
            self._put_parts(key, target, chain(head, parts))

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:  # no range is empty
            self._require(key)
            return b""

        def read() -> bytes:
            body = self._open(key, offset, length)
            if body is None:
                return b""
            with body:
                data: bytes = body.read()
                return data

        return self._try(f"read {key}", read)

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        ranges = list(portions(buffers, _RANGE_BYTES))
        if len(ranges) < 2:
            return self._read_range(key, offset, buffers)
        starts = accumulate((size_of(part) for part in ranges[:-1]), initial=offset)
        with ThreadPoolExecutor(len(ranges), thread_name_prefix="s3-ranges") as pool:
            return sum(pool.map(partial(self._read_range, key), starts, ranges))

    def _read_range(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        length = size_of(buffers)
        if length == 0:  # no range is empty
            self._require(key)
            return 0

        def read() -> int:
            body = self._open(key, offset, length)
            if body is None:
                return 0
            with body:
                return _fill(body, buffers)

        return self._try(f"read {key}", read)

    def size(self, key: str) -> int | None:
        target = self._key(key)

        def look() -> int | None:
            try:
                return int(self._s3.head_object(Bucket=self._bucket, Key=target)["ContentLength"])
            except ClientError as error:
                if _code(error) not in _MISSING:
                    raise
            try:
                self._s3.head_bucket(Bucket=self._bucket)  # HEAD does not say which of the two is missing
            except ClientError as error:
                if _status(error) != 403:  # credentials for a prefix may not look at the bucket: then it is the object
                    raise
            return None

        return self._try(f"look at {key}", look)

    def list(self, prefix: str) -> Iterable[str]:
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> Iterable[Entry]:
        found = self._pages("list_objects_v2", "Contents", prefix)
        # What is no key is not ours: some servers show the temporary files of their own uploads.
        return [Entry(key, int(item["Size"]), item["LastModified"].timestamp()) for key, item in found if is_key(key)]

    def unfinished(self, prefix: str) -> Iterable[Entry]:
        found = self._pages("list_multipart_uploads", "Uploads", prefix)
        return [Entry(key, 0, item["Initiated"].timestamp()) for key, item in found]

    def delete(self, prefix: str) -> None:
        if not check_prefix(prefix):
            raise UserError(f"Deleting everything in {self.url} is not done: name a prefix.")
        for key, item in self._pages("list_multipart_uploads", "Uploads", prefix):
            self._abort(self._base + key, item["UploadId"])
        keys = [self._base + key for key, _ in self._pages("list_objects_v2", "Contents", prefix)]
        for at in range(0, len(keys), 1000):
            batch = {"Objects": [{"Key": key} for key in keys[at : at + 1000]], "Quiet": True}
            request = partial(self._s3.delete_objects, Bucket=self._bucket, Delete=batch)
            answer = self._try(f"delete {prefix}", request)
            for error in answer.get("Errors", ()):
                raise InfrastructureError(
                    f"Cannot delete {error.get('Key')} of {self.url}: {error.get('Code')} {error.get('Message', '')}"
                )

    def _key(self, key: str) -> str:
        return self._base + check_key(key)

    def _require(self, key: str) -> None:
        if self.size(key) is None:
            raise FileNotFoundError(f"{self.url} holds no object {key}")

    def _open(self, key: str, offset: int, length: int | None) -> Any:
        """The body of a ranged GET, None where the range starts at or behind the object's end."""
        ranged = {}
        if offset or length is not None:
            ranged["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        try:
            return self._s3.get_object(Bucket=self._bucket, Key=self._key(key), **ranged)["Body"]
        except ClientError as error:
            if _code(error) in _MISSING:
                raise FileNotFoundError(f"{self.url} holds no object {key}") from error
            if _code(error) in ("InvalidRange", "416"):
                return None
            raise

    def _pages(self, operation: str, field: str, prefix: str) -> Sequence[tuple[str, Any]]:
        """(key, item) of everything under the prefix that a paged listing gives, sorted by key."""
        trimmed = check_prefix(prefix)
        paginator = self._s3.get_paginator(operation)

        def pages() -> list[Any]:
            try:
                return [*paginator.paginate(Bucket=self._bucket, Prefix=self._base + trimmed)]
            except ClientError as error:
                if _code(error) in ("NoSuchUpload", "NotImplemented"):  # some servers' words for "no uploads"
                    return []
                raise

        items = [item for page in self._try(f"list {prefix or 'everything'}", pages) for item in page.get(field, ())]
        found = [(str(item["Key"]).removeprefix(self._base), item) for item in items]
        return sorted(
            ((key, item) for key, item in found if not trimmed or key == trimmed or key.startswith(f"{trimmed}/")),
            key=lambda pair: pair[0],
        )

    def _put_parts(self, key: str, target: str, parts: Iterable[bytes]) -> None:
        started = self._try(f"write {key}", lambda: self._s3.create_multipart_upload(Bucket=self._bucket, Key=target))
        upload = started["UploadId"]
        try:
            with ThreadPoolExecutor(_UPLOADERS, thread_name_prefix="s3-parts") as pool:
                done = _in_order(pool, (self._part_sender(key, target, upload, *part) for part in enumerate(parts, 1)))
            self._complete(key, target, upload, done)
        except BaseException:
            # The fault being raised is the one to tell; parts that could not be removed either are swept later.
            with suppress(InfrastructureError):
                self._abort(target, upload)
            raise

    def _part_sender(self, key: str, target: str, upload: str, number: int, body: bytes) -> Callable[[], _Part]:
        if number > _MAX_PARTS:
            raise UserError(
                f"{key} has more than {_MAX_PARTS} parts of {_PART_BYTES} bytes: S3 does not take it. Use more writers."
            )

        def send() -> _Part:
            answer = self._try(
                f"write part {number} of {key}",
                lambda: self._s3.upload_part(
                    Bucket=self._bucket, Key=target, UploadId=upload, PartNumber=number, Body=body
                ),
            )
            return _Part(number, answer["ETag"], len(body))

        return send

    def _complete(self, key: str, target: str, upload: str, parts: Sequence[_Part]) -> None:
        listed = {"Parts": [{"PartNumber": part.number, "ETag": part.etag} for part in parts]}

        def complete() -> None:
            try:
                self._s3.complete_multipart_upload(
                    Bucket=self._bucket, Key=target, UploadId=upload, MultipartUpload=listed
                )
            except ClientError as error:
                # Completed already, and the answer was lost on its way.
                if _code(error) != "NoSuchUpload" or self.size(key) != sum(part.size for part in parts):
                    raise

        self._try(f"complete {key}", complete)

    def _abort(self, target: str, upload: str) -> None:
        def abort() -> None:
            try:
                self._s3.abort_multipart_upload(Bucket=self._bucket, Key=target, UploadId=upload)
            except ClientError as error:
                if _code(error) != "NoSuchUpload":
                    raise

        self._try(f"abort the upload of {target}", abort)

    def _try(self, action: str, request: Callable[[], T]) -> T:
        """The request's answer, after some attempts if need be; what still fails is an `InfrastructureError`."""
        attempts = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=growing(0.2, 5.0),
            retry=retry_if_exception(_transient),
            reraise=True,
        )
        try:
            return attempts(request)
        except FileNotFoundError:
            raise
        except (ClientError, BotoCoreError, HTTPError, OSError) as error:
            server = f" at {self._endpoint}" if self._endpoint else ""
            raise InfrastructureError(f"Cannot {action} in {self.url}{server}: {_reason(error)}.") from error


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    etag: str
    size: int


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _transient(error: BaseException) -> bool:
    if isinstance(error, ClientError):
        return _status(error) in (408, 429, 500, 502, 503, 504) or _code(error) == "RequestTimeout"
    if isinstance(error, (FileNotFoundError, NoCredentialsError, PartialCredentialsError, ParamValidationError)):
        return False
    return isinstance(error, (BotoCoreError, HTTPError, OSError))


def _reason(error: Exception) -> str:
    if isinstance(error, ClientError):
        code = _code(error)
        if error.operation_name == "HeadBucket" and code in _MISSING:
            code = "NoSuchBucket"
        known = _PERMANENT.get(code) or _PERMANENT.get(str(_status(error)))
        return f"{code}, {known}" if known else str(error).rstrip(".")
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return str(error).rstrip(".") or type(error).__name__


def _parts(source: Source) -> Iterator[bytes]:
    """The source in parts of `_PART_BYTES`, the last one shorter; nothing for an empty source."""
    if isinstance(source, bytes):
        yield from (source[at : at + _PART_BYTES] for at in range(0, len(source), _PART_BYTES))
    elif isinstance(source, Path):
        with open(source, "rb") as file:
            while part := file.read(_PART_BYTES):
                yield part
    else:
        yield from _regrouped(source)


def _regrouped(buffers: Iterable[memoryview]) -> Iterator[bytes]:
    part = bytearray()
    for buffer in buffers:
        at = 0
        while at < buffer.nbytes:
            taken = min(_PART_BYTES - len(part), buffer.nbytes - at)
            part += buffer[at : at + taken]
            at += taken
            if len(part) == _PART_BYTES:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


def _in_order(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], _Part]]) -> list[_Part]:
    """Results of the jobs, of which only a few are drawn ahead: each holds a part in memory."""
    pending: deque[Future[_Part]] = deque()
    done: list[_Part] = []
    try:
        for job in jobs:
            if len(pending) >= _UPLOADERS:
                done.append(pending.popleft().result())
            pending.append(pool.submit(job))
        done.extend(future.result() for future in pending)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return done


def _fill(body: Any, buffers: Sequence[memoryview]) -> int:
    """Read a response into the buffers until it or they end; the number of bytes."""
    done = 0
    for buffer in buffers:
        filled = 0
        while filled < buffer.nbytes:
            num = body.readinto(buffer[filled:])
            if not num:
                return done + filled
            filled += num
        done += filled
    return done
