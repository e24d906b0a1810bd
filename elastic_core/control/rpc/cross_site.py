"""Requests that change something on behalf of a person: refused where another site's page may have made them.

A browser sends the cookie of Airflow's login with every request, whoever's page asked for it. What a foreign page
cannot do without this server's leave is set the content type application/json, name this site as its origin, or send
an Authorization header (OWASP, Cross-Site Request Forgery Prevention).
"""

from __future__ import annotations

from fastapi import Request

from elastic_core.errors import Forbidden, UnsupportedMediaType

OWN_SITE = ("same-origin", "none")  # of Sec-Fetch-Site; none: typed, or a bookmark


async def refuse_other_sites(request: Request) -> None:
    """Raises `UnsupportedMediaType` or `Forbidden`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType(
            f"the body is sent as {kind or 'nothing'!r}; what changes something takes application/json only. Set the "
            "header 'Content-Type: application/json'"
        )
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in OWN_SITE:
        raise Forbidden(f"the request comes from a page of another site (Sec-Fetch-Site: {site}); use this site's own")
    host = request.headers.get("host", "")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):  # a proxy may speak TLS before us
        raise Forbidden(
            f"the request comes from a page of {origin}, and this server is {host}; use this "
            "site's own. A proxy in front has to pass on the header Host"
        )
    if site is None and origin is None and "authorization" not in request.headers:
        raise Forbidden(
            "the request has a cookie at most, and does not say which site it comes from. A program sends its token in "
            "the header 'Authorization: Bearer ...'; a browser's page sends 'Origin' by itself"
        )
