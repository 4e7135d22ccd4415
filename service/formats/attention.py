"""The formats of an attention answer."""

from __future__ import annotations

from dataclasses import replace

from service.errors import InvalidRequestError
from service.formats import drawing, json, npz, page, pictures, tables
from service.formats.negotiation import (
    COLORMAP,
    SPREADSHEET,
    WIDTH,
    Format,
    Options,
    Parameter,
    Payload,
    picture_formats,
)
from service.schemas.common import AsksAboutTexts

PARAMETERS = (WIDTH, COLORMAP, SPREADSHEET)


def _picture(payload: Payload, kind: drawing.Kind, options: Options) -> bytes:
    return pictures.picture(payload, kind, width=options.width, colormap=options.colormap)


def _check_texts(question: AsksAboutTexts, options: Options) -> None:
    if len(question.inputs) > 1:
        raise InvalidRequestError.at("/texts", "incompatible_options", "A picture shows one text.")


PAGE = Format(
    "html",
    page.MEDIA_TYPE,
    lambda payload, _: page.page(payload),
    charset=True,
    sparse=True,
    content_security_policy=page.CONTENT_SECURITY_POLICY,
)
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
    *picture_formats(_picture, _check_texts),
    PAGE,
)

EMBEDDED = replace(PAGE, write=page.embedded)  # the page, for a frame
EMBEDDING = (
    Parameter(
        "theme", "Light or dark, or as the visitor's system.", choices={name: name for name in page.THEMES}
    ),
    Parameter(
        "view", "Arcs between the tokens, the heat map, or both.", choices={name: name for name in page.VIEWS}
    ),
)
