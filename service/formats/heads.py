"""The formats of a heads answer."""

from __future__ import annotations

from service.errors import InvalidRequestError
from service.formats import drawing, head_grid, head_table, json, page
from service.formats.negotiation import (
    COLORMAP,
    WIDTH,
    Format,
    Options,
    Parameter,
    Payload,
    picture_formats,
    table_formats,
)
from service.schemas.common import AsksAboutTexts
from service.schemas.heads import HeadsRequest

COLOR = Parameter(
    "color",
    "What the cells of a picture show: every label of a head, or one of its scores.",
    choices={name: name for name in head_grid.COLORS},
)
PARAMETERS = (WIDTH, COLORMAP, COLOR)


def _picture(payload: Payload, kind: drawing.Kind, options: Options) -> bytes:
    json.check_finite(payload)
    return head_grid.grid(payload, kind, width=options.width, colormap=options.colormap, color=options.color)


def _check_color(question: AsksAboutTexts, options: Options) -> None:
    if options.color == "custom" and not (isinstance(question, HeadsRequest) and question.pattern):
        raise InvalidRequestError.at("/color", "incompatible_options", "The color custom needs a pattern.")


FORMATS = (
    *table_formats(head_table.rows, "heads.csv"),
    *picture_formats(_picture, _check_color),
    Format(
        "html",
        page.MEDIA_TYPE,
        lambda payload, _: page.heads_page(payload),
        charset=True,
        content_security_policy=page.CONTENT_SECURITY_POLICY,
    ),
)
