"""What a job's processes may do in an S3 store: a text that only the installation can have made, and its checks.

The text goes to the broker in the clear, and whoever shows it proves to know its key, an HMAC of the text under the
installation's secret. So the broker remembers no grant, and a restarted one honours those of before.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.host.messages import Message
from elastic_core.host.rundir import RunDir
from elastic_core.state.stores.keys import check_key, is_key

if TYPE_CHECKING:  # it loads boto3, which processes with another store do without
    from elastic_core.state.stores.s3_signing import Unsigned

# Requests for an object, by method and the names in their query. What is not here is not signed: nor are headers by
# which S3 would copy from another key, or hand out rights.
_READING = {("GET", ""), ("HEAD", "")}
_WRITING = {
    ("PUT", ""),
    ("DELETE", ""),
    ("POST", "uploads"),
    ("PUT", "partNumber uploadId"),
    ("POST", "uploadId"),
    ("DELETE", "uploadId"),
}
_LISTING = {"list-type": "2", "uploads": ""}
_PAGES = {"prefix", "encoding-type", "continuation-token", "key-marker", "upload-id-marker", "max-keys", "max-uploads"}
_HEADERS = {"content-md5", "content-type"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGrant:
    """Folders of a store, relative to it, that `who` may write and read, and those that it may only read.

    `origin_epoch`: of the process group for which it holds, as long as that lives; 0 for none. Raises `UserError` for a
    folder that is no key: "" would be the whole store.
    """

    who: str
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    origin_epoch: int = 0

    def __post_init__(self) -> None:
        for folder in (*self.write, *self.read):
            check_key(folder)

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def parse(text: str) -> StoreGrant:
        """Raises `UserError`, `ValueError`, `KeyError` or `TypeError` for what `text` did not make."""
        fields = json.loads(text)
        write, read = tuple(map(str, fields["write"])), tuple(map(str, fields["read"]))
        return StoreGrant(who=str(fields["who"]), write=write, read=read, origin_epoch=int(fields["origin_epoch"]))

    def ended(self, home: Path) -> bool:
        """Whether the group for which it holds is over: it has ended, or its run dir, which lay there before the grant
        was made and is removed some days after the end, is no more."""
        if self.origin_epoch == 0:
            return False
        run_dir = RunDir.of(home, self.origin_epoch)
        return run_dir.ended_at() is not None or not run_dir.path.is_dir()

    def refusal(self, request: Unsigned, bucket: str, base: str) -> str | None:
        """Why a request is not covered; None where it is. `base`: the store's own prefix in the bucket."""
        store = f"s3://{bucket}/{base}".rstrip("/")
        strange = sorted(set(request.headers) - _HEADERS)
        if request.bucket != bucket:
            return self._says(f"reach the bucket {request.bucket!r}", store)
        if strange:
            return self._says(f"send the header {strange[0]}", store)
        if not request.key:
            return self._refused_list(request, base, store)
        kind = (request.method, " ".join(sorted(request.query)))
        may = self.write if kind in _WRITING else (*self.write, *self.read) if kind in _READING else ()
        if is_key(request.key) and any(request.key.startswith(_below(base, folder)) for folder in may):
            return None
        query = f"?{'&'.join(sorted(request.query))}" if request.query else ""
        return self._says(f"{request.method} {request.key!r}{query}", store)

    def narrowed(self, request: Unsigned, base: str) -> Unsigned:
        """The request, covered by this grant, as it is to be sent: a list of a whole folder holds what is below it.

        The folder's name alone also begins names of other folders.
        """
        prefix = request.query.get("prefix", "")
        if request.key or f"{prefix}/" not in [_below(base, folder) for folder in (*self.write, *self.read)]:
            return request
        return replace(request, query={**request.query, "prefix": f"{prefix}/"})

    def _refused_list(self, request: Unsigned, base: str, store: str) -> str | None:
        if (request.method, dict(request.query)) == ("HEAD", {}):
            return None  # whether the bucket is there
        query: Mapping[str, str] = request.query
        kinds = [name for name, value in _LISTING.items() if query.get(name) == value]
        prefix = query.get("prefix", "")
        known = request.method == "GET" and len(kinds) == 1 and set(query) - set(kinds) <= _PAGES
        if known and any(f"{prefix}/".startswith(_below(base, folder)) for folder in (*self.write, *self.read)):
            return None
        return self._says(f"{request.method} the list of {prefix!r}", store)

    def _says(self, what: str, store: str) -> str:
        writes, reads = _names(self.write), _names(self.read)
        return f"{self.who} may not {what}: in {store} it may write {writes}, and besides that read {reads}"


@dataclass(frozen=True, slots=True)
class StoreAccess(Message):
    """How the processes of a group reach an S3 store, as store.json in its run dir says. `key` is the grant's."""

    FILE = "store.json"
    socket: str  # name of the broker's abstract Unix socket
    grant: str
    key: bytes

    @staticmethod
    def of(secret: bytes, grant: StoreGrant) -> StoreAccess:
        return StoreAccess(socket_name(secret), grant.text(), grant_key(secret, grant.text()))


def grant_key(secret: bytes, text: str) -> bytes:
    return hmac.digest(secret, b"store access\0" + text.encode(), "sha256")


def socket_name(secret: bytes) -> str:
    """The same for every broker of the installation, so that its clients find the next one."""
    return f"elastic-store-{hmac.digest(secret, b'store socket', 'sha256').hex()[:32]}"


def _below(base: str, folder: str) -> str:
    return "/".join(filter(None, (base, folder))) + "/"


def _names(folders: Sequence[str]) -> str:
    return " and ".join(f"{folder}/" for folder in folders) or "nothing"
