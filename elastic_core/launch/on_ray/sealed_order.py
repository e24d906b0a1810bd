"""A launch order on its way through Ray to the group's coordinator, closed to whoever lacks the cluster's token.

Ray keeps what is submitted (in its head, in Redis) and shows it (dashboard, lists, logs); an order holds the tokens of
a segment. Sealed with AES-GCM under a key derived from the token, for one submission id alone. Whoever has the token
may run code on all nodes, and so could read everything anyway.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_core.domain import from_json, to_json
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.process_groups import LaunchOrder

ORDER_VARIABLE = "ELASTIC_SEALED_ORDER"
MOST_BYTES = 120 * 1024  # the kernel takes 128 KiB for one variable
_NONCE_BYTES = 12
_TOKEN_VARIABLE, _TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_TOKEN_FILE = ".ray/auth_token"  # in the home folder, where Ray looks last


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLaunch:
    """All that nodes need to run a group."""

    order: LaunchOrder
    settings: dict[str, Any]  # as `Settings` are dumped, without secrets
    worker_command: tuple[str, ...]
    memory_secret: str  # of the memory tier's servers, in hexadecimal; "" for none

    def to_plain(self) -> dict[str, Any]:
        return {
            "order": to_json(self.order),
            "settings": self.settings,
            "worker_command": list(self.worker_command),
            "memory_secret": self.memory_secret,
        }

    @staticmethod
    def of_plain(value: Mapping[str, Any]) -> GroupLaunch:
        order = from_json(LaunchOrder, value["order"])
        return GroupLaunch(
            order=order, settings=value["settings"], worker_command=tuple(value["worker_command"]),
            memory_secret=value["memory_secret"],
        )  # fmt: skip


def seal(launch: GroupLaunch, token: str, submission_id: str) -> str:
    """Raises `InfrastructureError` for one that is too large."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    data = zlib.compress(json.dumps(launch.to_plain()).encode())
    sealed = base64.b64encode(nonce + AESGCM(_key(token)).encrypt(nonce, data, submission_id.encode())).decode()
    if len(sealed) > MOST_BYTES:
        raise InfrastructureError(
            f"the launch order of segment {launch.order.segment_id} has {len(sealed)} bytes, compressed; "
            f"Ray's driver takes {MOST_BYTES}"
        )
    return sealed


def unseal(sealed: str, token: str, submission_id: str) -> GroupLaunch:
    """Raises `InfrastructureError` for what another token, or another submission, has sealed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        raw = base64.b64decode(sealed)
        data = AESGCM(_key(token)).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], submission_id.encode())
    except (InvalidTag, ValueError) as error:
        raise InfrastructureError(
            f"the order of {submission_id} was not sealed with the token of this Ray cluster"
        ) from error
    return GroupLaunch.of_plain(json.loads(zlib.decompress(data)))


def token_of_node(environ: Mapping[str, str] = os.environ) -> str:
    """The cluster's token where Ray's own processes find it. Raises `InfrastructureError` where there is none."""
    if environ.get(_TOKEN_VARIABLE):
        return environ[_TOKEN_VARIABLE].strip()
    path = Path(environ.get(_TOKEN_PATH_VARIABLE) or Path(environ.get("HOME", "/")) / _TOKEN_FILE)
    try:
        return path.read_text().strip()
    except OSError as error:
        raise InfrastructureError(
            f"this Ray node has no token: {path} cannot be read ({error.strerror}). Start Ray with RAY_AUTH_MODE=token "
            f"and {_TOKEN_PATH_VARIABLE} on every node"
        ) from error


def _key(token: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"elastic launch order").derive(token.encode())
