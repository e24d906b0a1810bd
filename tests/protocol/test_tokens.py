from __future__ import annotations

import base64
import hashlib
import stat
from pathlib import Path

import jwt
import pytest

from elastic_core.errors import InfrastructureError, Unauthorized
from elastic_core.protocol.tokens import (
    NONCE_HEADER,
    PRUNE_NONCES,
    SKEW_SECONDS,
    TOKEN_SECONDS,
    Claims,
    ServiceSigner,
    TrainerTokens,
    check_agent,
    check_trainer,
    near_end,
    read_secret,
)

SECRET = b"0123456789abcdef0123456789abcdef"


def a_token(tokens: TrainerTokens, now: float = 1000.0) -> str:
    return tokens.issue(job_id="j", segment_id="j__seg_0", epoch=7, origin_epoch=5, now=now)


def test_a_token_says_whose_it_is() -> None:
    claims = TrainerTokens(SECRET).read(a_token(TrainerTokens(SECRET)))
    assert claims == Claims(
        job_id="j", segment_id="j__seg_0", epoch=7, origin_epoch=5, expires_at=1000.0 + TOKEN_SECONDS
    )


def test_another_secret_or_algorithm_is_refused() -> None:
    tokens = TrainerTokens(SECRET)
    payload = {"job": "j", "segment": "s", "epoch": 1, "origin": 1, "exp": 10**12}
    for forged in (
        a_token(TrainerTokens(SECRET[::-1])),
        jwt.encode(payload, None, algorithm="none"),
        jwt.encode(payload, SECRET * 2, algorithm="HS512"),
        jwt.encode({"job": "j"}, SECRET, algorithm="HS256"),
        a_token(tokens)[:-2],
    ):
        with pytest.raises(Unauthorized, match="is not one of this control plane"):
            tokens.read(forged)


def test_a_token_ends_and_is_renewed_before() -> None:
    claims = TrainerTokens(SECRET).read(a_token(TrainerTokens(SECRET)))
    check_trainer(claims, 1000.0 + TOKEN_SECONDS - 1)
    with pytest.raises(Unauthorized, match="expired 5 s ago"):
        check_trainer(claims, 1000.0 + TOKEN_SECONDS + 5)
    assert not near_end(claims, 1000.0 + 0.4 * TOKEN_SECONDS)
    assert near_end(claims, 1000.0 + 0.6 * TOKEN_SECONDS)


def test_a_signature_is_of_one_request() -> None:
    signer = ServiceSigner(SECRET)
    headers = signer.headers("POST", "/service/job", b"body", 1000.0)
    signer.check("post", "/service/job", b"body", headers, 1100.0)
    for method, target, body in (
        ("GET", "/service/job", b"body"),
        ("POST", "/x", b"body"),
        ("POST", "/service/job", b""),
    ):
        with pytest.raises(Unauthorized):
            signer.check(method, target, body, headers, 1000.0)
    with pytest.raises(Unauthorized, match="121 s away"):
        signer.check("POST", "/service/job", b"body", headers, 1121.0)


def test_a_signed_request_is_let_pass_once() -> None:
    signer = ServiceSigner(SECRET)
    headers = signer.headers("POST", "/service/cancel", b"body", 1000.0)
    signer.check("POST", "/service/cancel", b"body", headers, 1000.0)
    for later in (1000.0, 1119.0):
        with pytest.raises(Unauthorized, match="was answered before"):
            signer.check("POST", "/service/cancel", b"body", headers, later)
    again = signer.headers("POST", "/service/cancel", b"body", 1000.0)
    signer.check("POST", "/service/cancel", b"body", again, 1000.0)


def test_another_nonce_makes_the_signature_wrong() -> None:
    signer = ServiceSigner(SECRET)
    headers = signer.headers("POST", "/service/cancel", b"body", 1000.0)
    for nonce in ({NONCE_HEADER: "0" * 32}, {NONCE_HEADER: ""}):
        with pytest.raises(Unauthorized, match="no valid service signature"):
            signer.check("POST", "/service/cancel", b"body", headers | nonce, 1000.0)


def test_a_refused_request_takes_no_nonce() -> None:
    """Else who replays with another body could keep the right one out."""
    signer = ServiceSigner(SECRET)
    headers = signer.headers("POST", "/service/cancel", b"body", 1000.0)
    with pytest.raises(Unauthorized):
        signer.check("POST", "/service/cancel", b"another", headers, 1000.0)
    signer.check("POST", "/service/cancel", b"body", headers, 1000.0)


def test_nonces_are_remembered_as_long_as_they_count_and_no_longer() -> None:
    signer = ServiceSigner(SECRET)
    first = signer.headers("POST", "/x", b"", 1000.0)
    signer.check("POST", "/x", b"", first, 1000.0)
    for second in range(2 * PRUNE_NONCES):
        at = 1000.0 + second / 100
        signer.check("POST", "/x", b"", signer.headers("POST", "/x", b"", at), at)
    with pytest.raises(Unauthorized, match="was answered before"):
        signer.check("POST", "/x", b"", first, 1000.0 + SKEW_SECONDS)
    later = 1e6
    for second in range(3 * len(signer._seen)):
        at = later + second
        signer.check("POST", "/x", b"", signer.headers("POST", "/x", b"", at), at)
    assert len(signer._seen) < 3 * PRUNE_NONCES


@pytest.mark.parametrize("make", [TrainerTokens, ServiceSigner])
@pytest.mark.parametrize(
    "secret", [b"x" * 40, b"changeme" * 5, b"CHANGE_ME-change-me-change_this-secret", b"secret" * 7, b"abcabc" * 8]
)
def test_a_placeholder_is_no_secret(make: type, secret: bytes) -> None:
    with pytest.raises(ValueError, match="is a placeholder"):
        make(secret)


@pytest.mark.parametrize("bits", [bytes(range(16)), hashlib.sha256(b"one").digest()])
def test_a_random_secret_is_taken_however_it_is_written(bits: bytes) -> None:
    for written in (bits.hex().encode(), base64.b64encode(bits * 2)):
        TrainerTokens(written)


@pytest.mark.parametrize("make", [TrainerTokens, ServiceSigner])
def test_a_short_secret_is_refused(make: type) -> None:
    with pytest.raises(ValueError, match="has 3 bytes, at least 32 are needed"):
        make(b"abc")


def test_a_secret_that_is_not_there_says_who_makes_it(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="`elastic up` makes it"):
        read_secret(tmp_path / "control")
    file = tmp_path / "control"
    file.write_bytes(SECRET + b"\n")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert read_secret(file) == SECRET


def test_an_agent_reports_the_end_and_does_nothing_else() -> None:
    tokens = TrainerTokens(SECRET)
    agent = tokens.read(tokens.issue(job_id="j", segment_id="s", epoch=7, origin_epoch=5, now=1000.0, agent=True))
    check_agent(agent)
    with pytest.raises(Unauthorized, match="token of an agent"):
        check_trainer(agent, 1000.0)
    trainer = tokens.read(a_token(tokens))
    check_trainer(trainer, 1000.0)
    with pytest.raises(Unauthorized, match="reported by the agent that watches them"):
        check_agent(trainer)
