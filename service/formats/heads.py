"""The formats of a heads answer."""

from __future__ import annotations

from service.formats import head_table, json, page
from service.formats.negotiation import COLORMAP, WIDTH, Format

PARAMETERS = (WIDTH, COLORMAP)
FORMATS = (
    Format("json", json.MEDIA_TYPE, lambda payload, _: json.dumps(payload)),
    Format("rows", json.MEDIA_TYPE, lambda payload, _: json.dumps(head_table.rows(payload))),
    Format(
        "csv",
        head_table.CSV_MEDIA_TYPE,
        lambda payload, _: head_table.csv(payload),
        charset=True,
        file_name="heads.csv",
    ),
    Format(
        "html",
        page.MEDIA_TYPE,
        lambda payload, _: page.heads_page(payload),
        charset=True,
        content_security_policy=page.CONTENT_SECURITY_POLICY,
    ),
)
