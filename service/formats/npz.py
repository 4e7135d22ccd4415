"""Maps as numpy arrays, exact."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from service.formats.views import TextView, text_views

MEDIA_TYPE = "application/octet-stream"
LABEL_WIDTH = 64  # a unicode array is as wide as its longest string: one long word would cost gigabytes


def npz(payload: Mapping[str, object]) -> bytes:
    """A .npz that `numpy.load(allow_pickle=False)` reads. Of text i it holds

        weights_i   float32 [layer, head, query, key], or [query, key] for an aggregate; NaN: no value
        layers_i    int64 [layer]    absent for an aggregate
        heads_i     int64 [head]     absent for an aggregate
        queries_i   int64 [query]    which tokens, or words, the rows belong to
        tokens_i    str [token]      cut after 64 characters
        words_i     str [word]       likewise

    With `top_k`, `weights_i` holds NaN wherever a key is not among the row's highest. `metadata` is the JSON
    answer without its maps, in UTF-8: `json.loads(archive["metadata"].item())` gives the model's provenance,
    whole tokens and words with their offsets, warnings, and the error of a text that was skipped.
    """
    arrays: dict[str, npt.NDArray[Any]] = {"metadata": np.array(_metadata(payload))}
    results = cast(Sequence[Mapping[str, Any]], payload["results"])
    for text in text_views(payload):
        arrays |= {f"{name}_{text.index}": array for name, array in _maps(text).items()}
        arrays[f"queries_{text.index}"] = text.queries
        for name in ("tokens", "words"):
            labels = [one["text"][:LABEL_WIDTH] for one in results[text.index][name]]
            arrays[f"{name}_{text.index}"] = np.array(labels, dtype=np.str_)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _maps(text: TextView) -> dict[str, npt.NDArray[Any]]:
    """Raises ValueError unless the maps are one aggregate, or every chosen head of every chosen layer in order."""
    if len(text.maps) == 1 and text.maps[0].aggregate:
        return {"weights": text.maps[0].weights}
    layers = sorted({view.layer for view in text.maps if view.layer is not None})
    heads = sorted({view.head for view in text.maps if view.head is not None})
    if [(view.layer, view.head) for view in text.maps] != list(itertools.product(layers, heads)):
        raise ValueError("the maps are not layers × heads in order")
    stacked = np.stack([view.weights for view in text.maps])
    return {
        "weights": stacked.reshape(len(layers), len(heads), *stacked.shape[1:]),
        "layers": np.array(layers),
        "heads": np.array(heads),
    }


def _metadata(payload: Mapping[str, object]) -> bytes:
    results = cast(Sequence[Mapping[str, Any]], payload["results"])
    without_maps = [{name: value for name, value in one.items() if name != "maps"} for one in results]
    return orjson.dumps({**payload, "results": without_maps})
