"""The two secrets of the control API: trainer tokens (JWT) and signed service requests (HMAC).

A trainer token is a capability for one segment and epoch: the ledger decides on every call whether that epoch still
counts, so a leaked old token can read nothing and write nothing. An agent's token is one for a chain of processes, and
good for one thing: to report which of them are gone. Workers never see it, since slots become free by that report. A
service request is signed over method, path with query, time, a nonce, body, and for whom it acts; a captured one is
worth nothing after `SKEW_SECONDS`, and before that whoever has answered it once does not do so again. With the same
secret tasks sign what they leave for each other (`sign_text`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jwt

from elastic_core.errors import InfrastructureError, Unauthorized

TOKEN_SECONDS = 3600.0
RENEW_BELOW = 0.5  # a heartbeat's answer carries a new token once less than this part of its life is left
SKEW_SECONDS = 120.0
TIME_HEADER = "x-elastic-time"
NONCE_HEADER = "x-elastic-nonce"
SIGNATURE_HEADER = "x-elastic-signature"
BODY_HEADER = "x-elastic-body"  # its SHA-256, which is signed: so the signature is checked before the body comes
CALLER_HEADER = "x-elastic-caller"  # for whom the request acts (`protocol.callers.OnBehalf`); absent: the platform
NONCE_BYTES = 16
PRUNE_NONCES = 1024
BEFORE = ".before"  # beside a secret's file: until when the one before counts (Unix seconds), then itself
MIN_SECRET_BYTES = 32
MIN_DIFFERENT_BYTES = 8  # of a secret, besides words that stand for one; 32 random hexadecimal digits have 14
_STANDS_FOR_ONE = re.compile(rb"change[-_ ]?(me|this)|secret|password|placeholder|example|default", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    job_id: str
    segment_id: str
    epoch: int
    origin_epoch: int
    expires_at: float
    agent: bool = False  # of the agent that watches the processes, not of the processes themselves


class KeyFile:
    """A secret in a file, and the one before it while that still counts (`BEFORE`): read anew when either changed.

    So a secret is replaced while its users run: what the one before has signed is good until it counts no more. Safe to
    use from many threads.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._before = path.with_name(path.name + BEFORE)
        self._now = now
        self._read: tuple[tuple[int, ...], bytes, bytes | None, float] | None = None
        self()

    def __call__(self) -> tuple[bytes, ...]:
        """The secret that signs, then those that are accepted beside it. Raises `InfrastructureError`."""
        stamps = tuple(_stamp(path) for path in (self._path, self._before))
        known = self._read
        if known is None or known[0] != stamps:
            secret = read_secret(self._path)
            _check_secret(secret, self._path.name)
            before, until = _read_before(self._before)
            known = self._read = (stamps, secret, before, until)
        _, secret, before, until = known
        return (secret, before) if before is not None and self._now() < until else (secret,)


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _read_before(path: Path) -> tuple[bytes | None, float]:
    """The secret before, and until when it counts, Unix seconds."""
    try:
        until, _, secret = path.read_bytes().strip().partition(b"\n")
    except FileNotFoundError:
        return None, 0.0
    return secret, float(until)


def _keys(secret: bytes | KeyFile, name: str) -> Callable[[], tuple[bytes, ...]]:
    if isinstance(secret, KeyFile):
        return secret
    _check_secret(secret, name)
    return lambda: (secret,)


class TrainerTokens:
    """Makes and checks trainer tokens."""

    def __init__(self, secret: bytes | KeyFile) -> None:
        self._keys = _keys(secret, "trainer")

    def issue(
        self, *, job_id: str, segment_id: str, epoch: int, origin_epoch: int, now: float, agent: bool = False
    ) -> str:
        payload = {"job": job_id, "segment": segment_id, "epoch": epoch, "origin": origin_epoch,
                   "exp": int(now + TOKEN_SECONDS), **({"agent": True} if agent else {})}  # fmt: skip
        return jwt.encode(payload, self._keys()[0], algorithm="HS256")

    def read(self, token: str) -> Claims:
        """Claims of a token that we signed, expired or not. Raises `Unauthorized` for any other."""
        try:
            payload = self._payload(token)
        except jwt.InvalidTokenError as error:
            raise Unauthorized(f"the trainer token is not one of this control plane: {error}") from error
        return Claims(
            job_id=str(payload["job"]),
            segment_id=str(payload["segment"]),
            epoch=int(payload["epoch"]),
            origin_epoch=int(payload["origin"]),
            expires_at=float(payload["exp"]),
            agent=payload.get("agent") is True,
        )

    def _payload(self, token: str) -> Mapping[str, Any]:
        *others, last = self._keys()
        for key in others:
            with suppress(jwt.InvalidSignatureError):
                return self._decoded(token, key)
        return self._decoded(token, last)

    @staticmethod
    @lru_cache(maxsize=4096)
    def _decoded(token: str, key: bytes) -> Mapping[str, Any]:
        """Of one that we signed remembered: a trainer sends the same with each of its requests."""
        payload: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=["HS256"],
            options={"require": ["job", "segment", "epoch", "origin", "exp"], "verify_exp": False},
        )
        return payload


def check_trainer(claims: Claims, now: float) -> None:
    """Raises `Unauthorized` unless this is a trainer's token that has not expired."""
    if claims.agent:
        raise Unauthorized("this is the token of an agent, which reports which processes are gone, and no more")
    if now >= claims.expires_at:
        raise Unauthorized(
            f"the trainer token of segment {claims.segment_id} expired {now - claims.expires_at:.0f} s ago. "
            "Heartbeats renew it: a process that could not send any for so long has lost its lease."
        )


def check_agent(claims: Claims) -> None:
    """Raises `Unauthorized` for a trainer's token. An agent's never expires: it may have been cut off for long."""
    if not claims.agent:
        raise Unauthorized(
            f"that processes of segment {claims.segment_id} are gone is reported by the agent that watches them, with "
            "its own token; a trainer's token cannot say so, since slots would be free while its processes run"
        )


def near_end(claims: Claims, now: float) -> bool:
    return claims.expires_at - now < RENEW_BELOW * TOKEN_SECONDS


class ServiceSigner:
    """Signs and checks requests of operators, triggers and the CLI. Safe to use from many threads.

    It remembers the nonces of what it has let pass, while the time of a request alone would let it pass again. So a
    replay is refused by the process that took the request, until that is started anew.
    """

    def __init__(self, secret: bytes | KeyFile) -> None:
        self._keys = _keys(secret, "control")
        self._seen: dict[str, float] = {}  # by nonce: until when it counts
        self._prune_at = PRUNE_NONCES
        self._lock = threading.Lock()

    def headers(self, method: str, target: str, body: bytes, now: float, caller: str = "") -> dict[str, str]:
        """`target` is the path below the API's base URL, with its query: a proxy may add a prefix."""
        at, nonce = f"{now:.3f}", secrets.token_hex(NONCE_BYTES)
        digest = hashlib.sha256(body).hexdigest()
        signature = self._signature(self._keys()[0], method, target, at, nonce, digest, caller)
        on_behalf = {CALLER_HEADER: caller} if caller else {}
        return {TIME_HEADER: at, NONCE_HEADER: nonce, BODY_HEADER: digest, SIGNATURE_HEADER: signature, **on_behalf}

    def check_headers(self, method: str, target: str, headers: Mapping[str, str], now: float) -> None:
        """What can be checked before the body is read. Raises `Unauthorized` unless they carry a right and recent
        signature."""
        at, nonce, digest = (headers.get(name, "") for name in (TIME_HEADER, NONCE_HEADER, BODY_HEADER))
        signature = headers.get(SIGNATURE_HEADER, "")
        caller = headers.get(CALLER_HEADER, "")
        expected = [self._signature(key, method, target, at, nonce, digest, caller) for key in self._keys()]
        if not any([hmac.compare_digest(one.encode(), signature.encode()) for one in expected]):
            raise Unauthorized(
                "the request carries no valid service signature. Sign it with the secret file 'control' "
                "(elastic_core.protocol.http_client.HttpControl of this release does)."
            )
        skew = abs(now - float(at))
        if not skew <= SKEW_SECONDS:
            raise Unauthorized(
                f"the request was signed {skew:.0f} s away from this server's time, allowed are {SKEW_SECONDS:.0f} s. "
                "Set both clocks (NTP)."
            )

    def check(self, method: str, target: str, body: bytes, headers: Mapping[str, str], now: float) -> None:
        """Raises `Unauthorized` as `check_headers`, and unless they are this body's, for the first time."""
        self.check_headers(method, target, headers, now)
        digest = hashlib.sha256(body).hexdigest()
        if digest != headers[BODY_HEADER]:
            raise Unauthorized(f"the body has the SHA-256 {digest}; another one was signed: {headers[BODY_HEADER]}")
        if not self._is_new(headers[NONCE_HEADER], float(headers[TIME_HEADER]) + SKEW_SECONDS, now):
            raise Unauthorized(
                "the request was answered before: a copy of it is refused. To ask again, sign again "
                "(elastic_core.protocol.http_client.HttpControl does, at each try)."
            )

    def _is_new(self, nonce: str, counts_until: float, now: float) -> bool:
        with self._lock:
            if nonce in self._seen:
                return False
            self._seen[nonce] = counts_until
            if len(self._seen) >= self._prune_at:
                self._seen = {nonce: until for nonce, until in self._seen.items() if until >= now}
                self._prune_at = 2 * len(self._seen) + PRUNE_NONCES
            return True

    @staticmethod
    def _signature(key: bytes, method: str, target: str, at: str, nonce: str, digest: str, caller: str) -> str:
        signed = (method.upper(), target, at, nonce, digest)
        message = "\n".join((*signed, caller) if caller else signed)  # no header holds a line break
        return hmac.new(key, message.encode(), hashlib.sha256).hexdigest()


def sign_text(key: bytes, text: str) -> str:
    """Of what is left where others may write, for whoever comes for it. By a key of its own, so that no request's
    signature is one."""
    own = hmac.new(key, b"a text that was left", hashlib.sha256).digest()
    return hmac.new(own, text.encode(), hashlib.sha256).hexdigest()


def is_signed(keys: Sequence[bytes], text: str, signature: str) -> bool:
    """Whether the text was signed with one of these."""
    return any([hmac.compare_digest(sign_text(key, text).encode(), signature.encode()) for key in keys])


def _check_secret(secret: bytes, name: str) -> None:
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"the secret {name!r} has {len(secret)} bytes, at least {MIN_SECRET_BYTES} are needed; "
            "`elastic up` makes one"
        )
    if is_placeholder(secret):
        raise ValueError(
            f"the secret {name!r} is a placeholder: besides words like 'changeme' or 'secret' it has fewer than "
            f"{MIN_DIFFERENT_BYTES} different bytes. Remove its file; `elastic up` makes a random one"
        )


def is_placeholder(secret: bytes) -> bool:
    """Whether this is what an example has in the place of a secret: such words, or a few bytes again and again."""
    return len(set(_STANDS_FOR_ONE.sub(b"", secret))) < MIN_DIFFERENT_BYTES


def read_secret(path: Path) -> bytes:
    """The secret in a file below `<home>/secrets`. Raises `InfrastructureError` where there is none yet."""
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise InfrastructureError(
            f"the secret file {path} cannot be read ({error.strerror}). `elastic up` makes it; is ELASTIC_HOME right?"
        ) from error
