"""The formats of an attention answer."""

from __future__ import annotations

from typing import Literal

from service.errors import InvalidRequestError
from service.formats import json, npz, page, pictures, tables
from service.formats.negotiation import Format, Options, Payload

SVG_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

FORMATS = (
    Format("json", json.MEDIA_TYPE, lambda payload, _: json.dumps(payload, nulls=True), sparse=True),
    Format("rows", tables.ROWS_MEDIA_TYPE, lambda payload, _: tables.rows_json(payload)),
    Format(
        "csv",
        tables.CSV_MEDIA_TYPE,
        lambda payload, options: tables.csv(payload, spreadsheet=options.spreadsheet),
        charset=True,
        file_name="attention.csv",
    ),
    Format(
        "npz",
        npz.MEDIA_TYPE,
        lambda payload, _: npz.npz(payload),
        exact=True,
        compact=True,
        file_name="attention.npz",
    ),
    Format(
        "svg",
        pictures.SVG_MEDIA_TYPE,
        lambda payload, options: _picture(payload, "svg", options),
        compact=True,
        exact=True,
        content_security_policy=SVG_POLICY,
    ),
    Format(
        "png",
        pictures.PNG_MEDIA_TYPE,
        lambda payload, options: _picture(payload, "png", options),
        compact=True,
        exact=True,
    ),
    Format(
        "html",
        page.MEDIA_TYPE,
        lambda payload, _: page.page(payload),
        charset=True,
        sparse=True,
        content_security_policy=page.CONTENT_SECURITY_POLICY,
    ),
)


def _picture(payload: Payload, kind: Literal["svg", "png"], options: Options) -> bytes:
    if len(payload["results"]) > 1:  # type: ignore[arg-type]
        raise InvalidRequestError.at("/texts", "incompatible_options", "A picture shows one text.")
    try:
        return pictures.picture(payload, kind, width=options.width, colormap=options.colormap)
    except pictures.PictureError as error:
        raise InvalidRequestError.at(
            f"/{error.field}" if error.field else "", error.code, str(error)
        ) from None
