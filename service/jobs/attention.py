"""Attention maps, and the tokens they are about."""

from __future__ import annotations

import numpy as np

from attention_core.capture import Rows
from service.engine import Session
from service.jobs.common import check_elements, choose, describe, tokenize
from service.schemas.attention import AttentionRequest, TokenizeRequest


def tokens(request: TokenizeRequest, session: Session) -> dict[str, object]:
    """The tokens of each text."""
    return {
        "model": session.model.provenance,
        "results": [describe(text) for text in tokenize(session, request.inputs)],
    }


def maps(request: AttentionRequest, session: Session) -> dict[str, object]:
    """The attention maps of the chosen layers and heads, of each text."""
    texts = tokenize(session, request.inputs)
    heads = choose(session, request.layers, request.heads)
    per_layer = len(next(iter(heads.values())))
    maps_per_text = len(heads) * per_layer
    check_elements(
        maps_per_text * sum(len(text) ** 2 for text in texts),
        session.limits.max_response_elements,
        f"{maps_per_text} maps of each text",
        "layers, heads or texts",
    )

    # One array a text, zeros above the diagonal; [layer, head, query, key]
    weights = [np.zeros((len(heads), per_layer, len(text), len(text)), dtype=np.float32) for text in texts]
    place = {layer: index for index, layer in enumerate(heads)}

    def keep(rows: Rows) -> None:
        start, stop = rows.queries[0], rows.queries[-1] + 1
        weights[rows.text][place[rows.layer], :, start:stop, :stop] = rows.weights.float().cpu().numpy()

    session.read([text.ids for text in texts], heads, keep)
    reader = session.model.reader
    results = []
    for text, array in zip(texts, weights, strict=True):
        np.round(array, request.decimals, out=array)
        maps_of_text = [
            {
                "layer": layer,
                "head": head,
                "kv_head": reader.kv_head(head),
                "weights": array[place[layer], index],
            }
            for layer, layer_heads in heads.items()
            for index, head in enumerate(layer_heads)
        ]
        results.append({**describe(text), "unit": "token", "maps": maps_of_text, "warnings": []})
    return {"model": session.model.provenance, "results": results}
