"""Signing requests to an S3 bucket on behalf of others, by their words: method, key, query and headers (SigV4).

For `state.store_access`, which decides whether a request may be signed. The address is made here from the key, never
taken from whoever asks: no spelling of a path can mean another object than the one that was looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.stores.keys import check_prefix
from elastic_core.state.stores.s3_store import credentials, new_client

SCHEME = "s3://"
_UNRESERVED = "/~"  # by S3: all else of a path but letters, digits, '-', '_' and '.' is quoted


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request to one bucket. `key` is an object's whole key, "" for the bucket itself; nothing in it is quoted."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: str = ""  # SHA-256 of the body in hexadecimal, or UNSIGNED-PAYLOAD

    @staticmethod
    def of(request: Any) -> Unsigned:
        """What a botocore `AWSRequest` asks for. Its headers are those that S3 wants signed."""
        address = urlsplit(request.url)
        bucket, _, key = unquote(address.path).removeprefix("/").partition("/")
        pairs = (pair.partition("=") for pair in address.query.split("&") if pair)
        headers = {name.lower(): str(value) for name, value in request.headers.items()}
        return Unsigned(
            request.method,
            bucket,
            key,
            {unquote(name): unquote(value) for name, _, value in pairs},
            {name: value for name, value in headers.items() if name.startswith("x-amz-") or name in _SIGNED},
            S3SigV4Auth(_NOBODY, "s3", "").payload(request),
        )

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Unsigned:
        """From plain JSON values. Raises `ValueError` for anything that would not be signed as the text that it is."""
        texts = [fields[name] for name in ("method", "bucket", "key", "payload")]
        query, headers = dict(fields["query"]), dict(fields["headers"])
        known = [*texts, *query, *query.values(), *headers, *headers.values()]
        if not all(isinstance(text, str) and text.isprintable() for text in known):
            raise ValueError("a request is made of printable texts")
        if not _PAYLOAD.fullmatch(fields["payload"]):
            raise ValueError(f"a payload is a SHA-256 or UNSIGNED-PAYLOAD, not {fields['payload']!r:.80}")
        method, bucket, key, payload = texts
        return Unsigned(method, bucket, key, query, headers, payload)


class _PayloadElsewhere(S3SigV4Auth):
    """Whose request's body is not in this process, only its checksum."""

    def __init__(self, credentials: ReadOnlyCredentials, region: str, payload: str) -> None:
        super().__init__(credentials, "s3", region)
        self._of_body = payload

    def payload(self, request: AWSRequest) -> str:  # noqa: ARG002 - botocore's
        return self._of_body


_NOBODY = ReadOnlyCredentials("", "", None)
_SIGNED = ("content-md5", "content-type")
_PAYLOAD = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD")


class RequestSigner:
    """Signs with this process's own credentials. Opening asks the server nothing."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        """`url`: s3://bucket/prefix. Raises `UserError` for another."""
        self.bucket, _, path = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not self.bucket:
            raise UserError(f"{url!r} is no S3 store: requests are signed for s3://bucket/prefix only.")
        self.prefix = check_prefix(path)
        meta = new_client(endpoint).meta
        self._endpoint, self._region = str(meta.endpoint_url).rstrip("/"), str(meta.region_name)
        self._credentials = credentials()

    def sign(self, request: Unsigned) -> tuple[str, dict[str, str]]:
        """The request's URL, and the headers that it needs. Raises `InfrastructureError` without credentials."""
        if self._credentials is None:
            raise InfrastructureError("no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        query = urlencode(sorted(request.query.items()), quote_via=quote, safe="~")
        path = quote("/".join(filter(None, (request.bucket, request.key))), safe=_UNRESERVED)
        url = f"{self._endpoint}/{path}{'?' if query else ''}{query}"
        signed = AWSRequest(method=request.method, url=url, headers=dict(request.headers))
        region = "us-east-1" if self._region == "aws-global" else self._region
        _PayloadElsewhere(self._credentials.get_frozen_credentials(), region, request.payload).add_auth(signed)
        return url, dict(signed.headers.items())


def complete(request: Any, url: str, headers: Mapping[str, str]) -> None:
    """Give a botocore `AWSRequest` the address and the headers that `RequestSigner.sign` made for it."""
    request.url = url
    for name, value in headers.items():
        del request.headers[name]  # a header that is set again is there twice
        request.headers[name] = value
