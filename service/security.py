"""Who may ask, and from which pages: API keys, signed links, CORS, and what browsers are told of every answer."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote

from flask import Flask, Response, current_app, request
from pydantic import SecretStr

from service.errors import UnauthorizedError
from service.settings import Settings

# Routes that describe or show the service and hold no answers: a browser, a probe or a scraper needs no key.
# They are told by the route, not by the path asked for, so that whatever is no route of these needs a key.
OPEN = ("/health/", "/metrics", "/openapi.", "/docs", "/problems/", "/static/")

EXPIRES, SIGNATURE = "expires", "signature"
LINK_PARAMETERS = frozenset({EXPIRES, SIGNATURE})

SCHEMES: dict[str, Any] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of `ATTENTION_API_KEYS`. Where an instance has none, everybody may ask.",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
    "link": {
        "type": "apiKey",
        "in": "query",
        "name": SIGNATURE,
        "description": "Of a link from `POST /v1/links`, together with its `expires`.",
    },
}

PREFLIGHT = {"Origin", "Access-Control-Request-Method"}  # the headers that make OPTIONS one
EXPOSED = "X-Request-ID, Server-Timing, ETag, Retry-After, X-Content-ID, X-Cache"
ALLOWED = "Content-Type, Authorization, X-API-Key, X-Request-ID, If-None-Match"
ALL_METHODS = "GET, HEAD, OPTIONS, POST"
PREFLIGHT_SECONDS = 7200  # Chromium keeps one no longer

REFERRER = "no-referrer"  # the address may hold a text, or be a signed link
# Of every answer that brings none of its own: should a browser ever show it as a page, the page can do nothing
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Of a page that takes everything from here. Nobody frames it: it may hold a key. `data:` and `blob:` are pictures
OWN_FILES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def needs_key(rule: str) -> bool:
    """Whether a route is answered only to holders of a key, where there are keys."""
    return rule != "/" and not rule.startswith(OPEN)


def requirements(path: str, method: str) -> list[dict[str, list[str]]]:
    """OpenAPI's `security` of an operation. `{}` is one of the alternatives: an instance may have no keys."""
    if not needs_key(path):
        return []
    alternatives: list[dict[str, list[str]]] = [{}, {"bearer": []}, {"apiKey": []}]
    return [*alternatives, {"link": []}] if method == "get" else alternatives


@dataclass(frozen=True)
class Keys:
    """The API keys, as digests: all of one length, so that comparing them tells nothing about theirs."""

    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, keys: Sequence[SecretStr]) -> Keys:
        """Those of the settings."""
        return cls(tuple(_digest(key.get_secret_value()) for key in keys))

    def hold(self, given: Sequence[str]) -> bool:
        """Whether any of what is given is a key. All are compared with all, so that time tells nothing either."""
        found = [hmac.compare_digest(_digest(one), key) for one in given for key in self.digests]
        return any(found)


@dataclass(frozen=True)
class Links:
    """Signs and checks links: HMAC-SHA256 over path and query as they stand in the URL, `expires` among them."""

    key: SecretStr

    def signed(self, path: str, query: str, expires: int) -> str:
        """The link: `path` (decoded) and `query` (percent-encoded), with `expires` and `signature` at its end."""
        target = f"{quote(path)}?{query}{'&' if query else ''}{EXPIRES}={expires}"
        return f"{target}&{SIGNATURE}={self._signature(target)}"

    def check(self, path: bytes, query: bytes) -> None:
        """Raise UnauthorizedError unless this was signed here and has not expired."""
        content, _, signature = query.decode("latin-1").rpartition(f"&{SIGNATURE}=")
        expires = re.search(rf"(?:^|&){EXPIRES}=(\d{{1,12}})$", content, re.ASCII)
        if not expires or not re.fullmatch("[0-9a-f]{64}", signature):
            raise UnauthorizedError(
                "The link is cut, or something was put at its end: it ends with its signature."
            )
        target = f"{quote(path)}?{content}"
        if not hmac.compare_digest(self._signature(target).encode(), signature.encode()):
            raise UnauthorizedError(
                "The link's signature is not right: it was changed, or signed with another key."
            )
        if int(expires[1]) < time.time():
            raise UnauthorizedError("The link has expired.")

    def _signature(self, target: str) -> str:
        key = self.key.get_secret_value().encode()
        return hmac.new(key, target.encode("latin-1"), hashlib.sha256).hexdigest()


def policies(media_type: str) -> dict[str, str]:
    """What an answer tells browsers, whichever page asked."""
    # Pictures and pages are there to be embedded; the rest is read by scripts, for which CORS speaks
    embedded = media_type.startswith(("image/", "text/html"))
    return {
        "Referrer-Policy": REFERRER,
        "Content-Security-Policy": NOTHING,
        "Cross-Origin-Resource-Policy": "cross-origin" if embedded else "same-origin",
    }


def framing(policy: str, ancestors: Sequence[str]) -> dict[str, str]:
    """Who may hold an HTML answer in a frame: `ancestors`, but of a policy that says itself that nobody may.

    Where all may, nothing is said: `*` would leave out pages from disk.
    """
    who = ("'none'",) if "frame-ancestors" in policy else tuple(ancestors)
    said = "frame-ancestors" in policy or who == ("*",)
    return {
        "Content-Security-Policy": policy if said else f"{policy}; frame-ancestors {' '.join(who)}",
        "Cross-Origin-Resource-Policy": "same-origin" if {*who} <= {"'self'", "'none'"} else "cross-origin",
    }


def cors(allowed: Collection[str], origin: str | None) -> dict[str, str]:
    """The headers by which a page of an origin may read an answer, where that is allowed."""
    # Vary also to those whose origin is not allowed, or who send none: a cache must not give them each other's
    headers = {"Vary": "Origin"} if allowed else {}
    if origin is not None and ("*" in allowed or origin in allowed):
        headers["Access-Control-Allow-Origin"] = "*" if "*" in allowed else origin
        headers["Access-Control-Expose-Headers"] = EXPOSED
    return headers


def origin_in(head: bytes) -> str | None:
    """The Origin that a request's head names, as far as it has come; None where it names none, or several."""
    fields, end, _ = head.partition(b"\r\n\r\n")
    found = re.findall(rb"\r\norigin:[ \t]*([!-~]*)[ \t]*(?=\r\n)", fields + end, re.IGNORECASE)
    return found[0].decode("ascii") if len(found) == 1 else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _given_keys() -> list[str]:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return [*bearer, *request.headers.getlist("X-API-Key")]


def register(app: Flask) -> None:
    """Refuse who may not ask before anything else is done, and give every answer its headers."""
    settings: Settings = app.extensions["settings"]
    keys = Keys.of(settings.api_keys)
    links = Links(settings.signing_key) if settings.signing_key else None
    origins = frozenset(settings.cors_origins)

    @app.before_request
    def admit() -> Response | None:
        if request.method == "OPTIONS":  # browsers ask this without a key
            return _preflight() if set(request.headers.keys()) >= PREFLIGHT else None
        rule = request.url_rule
        if (rule is not None and not needs_key(rule.rule)) or keys.hold(_given_keys()):
            return None
        if links is not None and request.method in ("GET", "HEAD") and _is_link():
            # Also where there are no keys: a link that has expired is not answered, whoever serves it
            links.check(request.environ["PATH_INFO"].encode("latin-1"), request.query_string)
            return None
        if keys.digests:
            raise UnauthorizedError(_what_is_missing())
        return None

    @app.after_request
    def tell_browsers(response: Response) -> Response:
        headers = response.headers
        if response.status_code != 304:  # whose headers would replace those of the answer that the client has
            for name, value in policies(response.mimetype or "").items():
                headers.setdefault(name, value)
            if response.mimetype == "text/html":
                headers.update(framing(headers["Content-Security-Policy"], settings.frame_ancestors))
        headers["Referrer-Policy"] = REFERRER
        if keys.digests and (request.url_rule is None or needs_key(request.url_rule.rule)):
            headers.setdefault("Cache-Control", "private")  # no shared cache gives it to who has no key
        told = cors(origins, request.headers.get("Origin"))
        response.vary.update([told.pop("Vary")] if "Vary" in told else [])
        headers.update(told)
        return response

    def _preflight() -> Response:
        """204; whether the origin may ask is said by the headers that every answer to it has."""
        response = Response(status=204)
        del response.headers["Content-Type"]
        if request.headers.get("Origin") in origins or "*" in origins:
            # Of no path of ours the real request is let through: its 404 is for the page to see
            allowed = sorted(current_app.make_default_options_response().allow)
            response.headers["Access-Control-Allow-Methods"] = ", ".join(allowed) or ALL_METHODS
            response.headers["Access-Control-Allow-Headers"] = ALLOWED
            response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
        return response

    def _what_is_missing() -> str:
        if request.method in ("GET", "HEAD") and _is_link():
            return "This instance signs no links; send a key as Authorization: Bearer KEY, or as X-API-Key."
        if _given_keys():
            return "The key is not one of this instance's."
        return "Send a key as Authorization: Bearer KEY, or as X-API-Key: KEY."


def _is_link() -> bool:
    given = parse_qs(request.query_string.decode("latin-1"), keep_blank_values=True)
    return not LINK_PARAMETERS.isdisjoint(given)
