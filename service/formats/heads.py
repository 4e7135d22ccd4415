"""The formats of a heads answer."""

from __future__ import annotations

from service.formats import head_grid, head_table, json, page, records
from service.formats.negotiation import COLORMAP, WIDTH, Format, Parameter, picture_formats

COLOR = Parameter(
    "color",
    "What the cells of a picture show: every label of a head, or one of its scores.",
    choices={name: name for name in head_grid.COLORS},
)
PARAMETERS = (WIDTH, COLORMAP, COLOR)
FORMATS = (
    Format("json", json.MEDIA_TYPE, lambda payload, _: json.dumps(payload)),
    Format("rows", json.MEDIA_TYPE, lambda payload, _: json.dumps(head_table.rows(payload))),
    Format(
        "csv",
        records.CSV_MEDIA_TYPE,
        lambda payload, _: records.csv(head_table.rows(payload)),
        charset=True,
        file_name="heads.csv",
    ),
    *picture_formats(
        lambda payload, kind, options: head_grid.grid(
            payload, kind, width=options.width, colormap=options.colormap, color=options.color
        )
    ),
    Format(
        "html",
        page.MEDIA_TYPE,
        lambda payload, _: page.heads_page(payload),
        charset=True,
        content_security_policy=page.CONTENT_SECURITY_POLICY,
    ),
)
