"""Files that browsers take from here: of the page, and of the docs."""

from __future__ import annotations

from flask import Response

from service.routes.common import cacheable
from service.security import OWN_FILES

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def file(name: str, content: bytes | str, cache_control: str = "no-cache") -> Response:
    """A file, typed by its name's ending.

    Browsers keep it and ask for it again each time: a 304 takes no time, and files of two versions never meet.
    """
    suffix = name[name.rindex(".") :]
    response = Response(content, content_type=TYPES[suffix])
    response.headers["Cache-Control"] = cache_control
    if suffix == ".html":
        response.headers["Content-Security-Policy"] = OWN_FILES
    return cacheable(response)
