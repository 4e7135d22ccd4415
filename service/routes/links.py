"""POST /v1/links: a GET that needs no key until it expires, for what sends no headers, such as `<img>`."""

from __future__ import annotations

import math
import time
from urllib.parse import parse_qs, quote, unquote

from flask import Blueprint, Response, current_app
from werkzeug.exceptions import HTTPException, NotFound

from service.body import read_json, refuse_parameters
from service.errors import InvalidRequestError, LinksOffError
from service.routes.common import describes, settings, uncached
from service.schemas.links import LinkAnswer, LinkRequest
from service.security import LINK_PARAMETERS, Links

bp = Blueprint("links", __name__)

# What a browser leaves as it is in a query; an apostrophe is not among it
UNCHANGED = "%!$&()*+,-./:;=?@_~"


@bp.post("/v1/links")
@describes(
    "A link that needs no key until it expires",
    tag="operations",
    request=LinkRequest,
    answer=LinkAnswer,
    problems=(LinksOffError,),
    cacheable=False,
)
def link() -> Response:
    """Signs path and query of a GET, so that it is answered without a key: for what is embedded elsewhere."""
    key = settings().signing_key
    if key is None:
        raise LinksOffError("This instance has no key to sign links with.")
    refuse_parameters()
    asked = read_json(LinkRequest)
    path, query = _resource(asked.path)
    expires = math.ceil(time.time()) + asked.expires_in_seconds
    url = settings().root_path + Links(key).signed(path, query, expires)
    if len(url) > settings().max_url_bytes:
        detail = "The link would be longer than a URL may be."
        raise InvalidRequestError.at(
            "/path", "out_of_range", detail, limit=settings().max_url_bytes, actual=len(url)
        )
    return uncached({"url": url, "expires": expires})


def _resource(given: str) -> tuple[str, str]:
    """Path, decoded, and query, percent-encoded, of a GET of ours. Raises InvalidRequestError."""
    path, _, query = given.partition("?")
    root = settings().root_path
    path = unquote(path.removeprefix(root) if root and path.startswith(root + "/") else path)
    try:
        if "#" in given or not path.startswith("/"):
            raise NotFound
        current_app.url_map.bind("").match(path, method="GET")
    except HTTPException:
        detail = "It must be path and query of a GET of this service: from the slash after its host, up to any `#`."
        raise InvalidRequestError.at("/path", "unknown_path", detail) from None
    if not LINK_PARAMETERS.isdisjoint(parse_qs(query, keep_blank_values=True)):
        raise InvalidRequestError.at("/path", "incompatible_options", "This is a signed link already.")
    return path, quote(query, safe=UNCHANGED)
