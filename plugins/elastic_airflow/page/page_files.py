"""The page's files. Behind login like everything else; no CDN, no inline script, so a strict policy holds."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

FOLDER = Path(__file__).parent / "ui"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)


def page_router() -> APIRouter:
    router = APIRouter()
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.suffix in TYPES}

    @router.get("/", include_in_schema=False)
    def index() -> Response:
        return _file(FOLDER / "index.html")

    @router.get("/{name:path}", include_in_schema=False)
    def asset(name: str) -> Response:
        return _file(files[name]) if name in files else Response(status_code=404)

    return router


def _file(path: Path) -> Response:
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return FileResponse(path, media_type=TYPES[path.suffix], headers=headers)
