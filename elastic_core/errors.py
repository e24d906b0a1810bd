"""Errors that a person reads: what happened, the value seen, what is allowed, what to do.

`UserError` is what a user got wrong (retrying cannot help); `InfrastructureError` is a fault of machines or
services (retrying can). Everything the platform raises on purpose is one of the two. Over HTTP an error keeps
its class by `code`. The exit code of a command says its kind, for scripts: docs/guide/operate.md lists them.
"""

from __future__ import annotations


class ElasticError(Exception):
    """Base of the platform's own errors."""

    code = "error"
    http_status = 500
    exit_code = 70  # a fault of the platform itself, as EX_SOFTWARE of sysexits.h


class UserError(ElasticError):
    """Something the caller must change: trying again gives the same answer."""

    code = "user_error"
    http_status = 422
    exit_code = 2  # as of a wrong option


class NotFound(UserError):
    code = "not_found"
    http_status = 404
    exit_code = 4


class Conflict(UserError):
    """The request contradicts what the ledger holds (another spec under the same job id, a finished job, ...)."""

    code = "conflict"
    http_status = 409
    exit_code = 3


class UnsupportedMediaType(UserError):
    code = "unsupported_media_type"
    http_status = 415


class Forbidden(UserError):
    """Who asks is known, and may not: asking again gives the same answer."""

    code = "forbidden"
    http_status = 403
    exit_code = 5


class Unauthorized(ElasticError):
    code = "unauthorized"
    http_status = 401
    exit_code = 5


class Fenced(ElasticError):
    """The caller's lease is over: another epoch may own the segment. Stop at once, commit nothing."""

    code = "fenced"
    http_status = 409
    exit_code = 3


class InfrastructureError(ElasticError):
    """A machine or service did not do its part; the same request may succeed later."""

    code = "infrastructure"
    http_status = 503
    exit_code = 6


class TooMany(InfrastructureError):
    """More is asked for than is taken at once: the same request is taken a moment later."""

    http_status = 429


class CorruptCheckpoint(InfrastructureError):
    """A checkpoint's bytes are not what its manifest says. The one before it is used, and it is said."""

    code = "corrupt_checkpoint"
    exit_code = 7


BY_CODE: dict[str, type[ElasticError]] = {
    kind.code: kind
    for kind in (
        ElasticError,
        UserError,
        NotFound,
        Conflict,
        UnsupportedMediaType,
        Unauthorized,
        Forbidden,
        Fenced,
        InfrastructureError,
        CorruptCheckpoint,
    )
}
