"""Attention maps in every view, and the tokens they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attention_core.capture import Rows
from attention_core.maps import Aggregation, Largest, drop_first_token, largest, merge_words
from service.engine import Session
from service.errors import InvalidRequestError
from service.jobs.common import (
    all_or_raise,
    check_elements,
    choose,
    describe,
    resolve,
    skipped,
    tokenize,
)
from service.schemas.attention import AttentionRequest, TokenizeRequest
from service.texts import TokenizedText


def tokens(request: TokenizeRequest, session: Session) -> dict[str, object]:
    """The tokens of each text."""
    found = tokenize(session, request.inputs, parse_special=request.special_tokens == "parse")
    if request.on_error == "fail":
        all_or_raise(found)
    results = [skipped(one) if isinstance(one, InvalidRequestError) else describe(one) for one in found]
    return {"model": session.model.provenance, "results": results}


def maps(request: AttentionRequest, session: Session) -> dict[str, object]:
    """The attention maps of the chosen layers and heads, of each text, in the chosen view."""
    heads = choose(session, request.layers, request.heads)
    found = tokenize(session, request.inputs, parse_special=request.special_tokens == "parse")
    if request.on_error == "fail":
        all_or_raise(found)
    chosen = [
        one if isinstance(one, InvalidRequestError) else _rows(request, one, place)
        for place, one in enumerate(found)
    ]
    if request.on_error == "fail":
        all_or_raise([one for one in chosen if isinstance(one, InvalidRequestError)])
    views = [
        _View(request, text, rows, heads, session=session)
        for text, rows in zip(found, chosen, strict=True)
        if isinstance(text, TokenizedText) and not isinstance(rows, InvalidRequestError)
    ]
    maps_per_text = 1 if request.aggregate != "none" else sum(map(len, heads.values()))
    narrow = ["queries" if len(views) == 1 else "texts or queries", "top_k", "NPZ instead of text"]
    if request.aggregate == "none":
        narrow = ["fewer layers or heads", "an aggregate", *narrow]
    check_elements(
        sum(view.elements for view in views),
        session.max_elements,
        f"{maps_per_text} {'map' if maps_per_text == 1 else 'maps'} of each text",
        ", ".join(narrow),
    )
    session.read(
        [view.text.ids for view in views],
        heads,
        lambda rows: views[rows.text].add(rows),
        queries=[view.token_rows for view in views],
        weighting=request.weighting,
    )
    answered = iter(views)
    reader = session.model.reader
    results = [
        skipped(rows) if isinstance(rows, InvalidRequestError) else next(answered).result(reader.kv_head)
        for rows in chosen
    ]
    return {"model": session.model.provenance, "results": results}


def _rows(request: AttentionRequest, text: TokenizedText, place: int) -> list[int] | InvalidRequestError:
    """The rows to return, in the request's unit."""
    of = f"Text {place}: " if request.texts is not None else ""
    size = len(text) if request.unit == "token" else len(text.words)
    if request.queries is None:
        return list(range(size))
    if isinstance(request.queries, list):
        beyond = [place for place, row in enumerate(request.queries) if row >= size]
        if beyond:
            detail = f"{of}the {request.unit}s are 0 to {size - 1}."
            return InvalidRequestError.at(f"/queries/{beyond[0]}", "query_out_of_range", detail)
        return sorted(set(request.queries))
    if text.text_pair is not None or not text.has_offsets:
        detail = "A span needs a single text with offsets; give row indices."
        return InvalidRequestError.at("/queries", "incompatible_options", detail)
    try:
        found = resolve("/queries", request.queries, text, of=of)
    except InvalidRequestError as error:
        return error
    if request.unit == "token":
        return list(found.token_indices)
    return sorted({text.tokens[index].word for index in found.token_indices})


class _View:
    """One text's maps, put together from the rows that arrive, in the request's view.

    A layer's rows are reduced as they come: what the answer holds is kept, and, while a layer's rows of words or of an
    aggregate come in, that layer's.
    """

    def __init__(
        self,
        request: AttentionRequest,
        text: TokenizedText,
        rows: Sequence[int],
        heads: Mapping[int, Sequence[int]],
        *,
        session: Session,
    ) -> None:
        self.request, self.text, self.rows, self.heads = request, text, rows, heads
        self.exact, self.sparse = session.exact, session.sparse
        by_word = request.unit == "word"
        self.words = [word.tokens for word in text.words] if by_word else []
        self.size = len(text.words) if by_word else len(text)
        self.aggregated = request.aggregate != "none"
        # A rollout goes through every row; otherwise only the tokens of the rows asked for are read.
        needed = range(self.size) if request.aggregate == "rollout" else rows
        self.token_rows = (
            sorted(token for row in needed for token in self.words[row]) if by_word else list(needed)
        )
        self.needed = list(needed)
        self.place = {row: place for place, row in enumerate(self.needed)}
        self.maps: dict[
            int, torch.Tensor | Largest
        ] = {}  # by layer, where not aggregated; each [head, row, key]
        self.top_blocks: list[Largest] = []  # of the layer that is coming in
        self.aggregation = Aggregation(request.aggregate) if request.aggregate != "none" else None
        self.layer = torch.zeros(0)
        self.emptied = 0

    @property
    def elements(self) -> int:
        """How many numbers the answer will hold."""
        maps = 1 if self.aggregated else sum(map(len, self.heads.values()))
        # Of the largest weights only JSON and the page hold no more than those
        keys = min(self.size, self.request.top_k) if self.request.top_k and self.sparse else self.size
        return maps * len(self.rows) * keys

    def add(self, block: Rows) -> None:
        """Take the next rows of a layer."""
        weights = block.weights.float().cpu()  # [head, query, key]
        if not self._numbers_where_they_belong(weights, block.queries):
            raise ValueError("the model gave a weight that is no number")
        if self.request.first_token == "drop":
            fill = "identity" if self.request.aggregate == "rollout" else "zeros"
            dropped = drop_first_token(weights, block.queries, emptied=fill)  # type: ignore[arg-type]
            weights, self.emptied = dropped.weights, self.emptied + int(dropped.emptied.sum())
        if self._early():
            weights = (weights.amax if self.request.aggregate == "max" else weights.mean)(0, keepdim=True)
        last = block.queries[-1] == self.token_rows[-1]
        if self._row_by_row():
            self.top_blocks.append(largest(weights, self.request.top_k or 1))
            if last:
                self.maps[block.layer] = _joined(self.top_blocks)
                self.top_blocks = []
            return
        if block.queries[0] == self.token_rows[0]:
            empty = float("nan") if self.request.weighting == "scores" else 0.0
            self.layer = torch.full((len(weights), len(self.needed), self.size), empty)
        if self.words:
            padded = torch.zeros(*weights.shape[:2], len(self.text))
            padded[..., : weights.shape[2]] = weights
            self.layer += merge_words(padded, self.words, block.queries, rows=self.needed)
        else:
            first = self.place[block.queries[0]]
            self.layer[:, first : first + len(block.queries), : weights.shape[2]] = weights
        if last:
            self._finish_layer(block.layer)

    def _row_by_row(self) -> bool:
        """Whether a row is done when it comes, and only its largest weights need be kept."""
        return self.request.top_k is not None and self.aggregation is None and not self.words

    def _early(self) -> bool:
        """Whether heads can be joined row by row: a mean always, a maximum unless words are averaged after it."""
        return self.request.aggregate in ("mean", "rollout") or (
            self.request.aggregate == "max" and not self.words
        )

    def _finish_layer(self, layer: int) -> None:
        if self.aggregation is not None:
            self.aggregation.add(self.layer)
        elif self.request.top_k is not None:
            self.maps[layer] = largest(self.layer, self.request.top_k)
        else:
            self.maps[layer] = self.layer

    def result(self, kv_head: Callable[[int], int]) -> dict[str, object]:
        """The text's part of the answer."""
        request = self.request
        if self.aggregation is not None:
            whole = self.aggregation.finish()
            rows = whole[[self.place[row] for row in self.rows]]
            found = rows if request.top_k is None else largest(rows, request.top_k)
            maps: list[dict[str, object]] = [{"aggregate": request.aggregate, **self._shown(found)}]
        else:
            maps = [
                {
                    "layer": layer,
                    "head": head,
                    "kv_head": kv_head(head),
                    **shown,
                }
                for layer, heads in self.heads.items()
                for head, shown in zip(heads, self._shown_by_head(self.maps[layer]), strict=True)
            ]
        result = {**describe(self.text), "unit": request.unit, "maps": maps, "warnings": self._warnings()}
        return result if request.queries is None else {**result, "queries": list(self.rows)}

    def _shown_by_head(self, found: torch.Tensor | Largest) -> list[dict[str, object]]:
        """The same of each map of a layer, [head, row, key]."""
        if isinstance(found, torch.Tensor):  # rounded together: each by itself takes ten times as long
            return [{"weights": weights} for weights in self._rounded(found.numpy())]
        by_head = zip(found.weights, found.keys, strict=True)
        return [self._shown(Largest(weights, keys)) for weights, keys in by_head]

    def _shown(self, found: torch.Tensor | Largest) -> dict[str, object]:
        """`weights`, or `top`, of one map [row, key]."""
        if isinstance(found, torch.Tensor):
            return {"weights": self._rounded(found.numpy())}
        rows = zip(found.keys.tolist(), self._rounded(found.weights.double().numpy()).tolist(), strict=True)
        pairs = (zip(keys, weights, strict=True) for keys, weights in rows)
        return {
            "top": [[{"key": key, "weight": weight} for key, weight in row if weight > 0] for row in pairs]
        }

    def _rounded(self, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # No -0.0
        return weights if self.exact else np.round(weights, self.request.decimals) + weights.dtype.type(0)

    def _numbers_where_they_belong(self, weights: torch.Tensor, queries: Sequence[int]) -> bool:
        """Finite everywhere; among scores, all but the future keys, which have none."""
        expected: torch.Tensor | bool = True
        if self.request.weighting == "scores":
            expected = torch.arange(weights.shape[-1]) <= torch.tensor(list(queries))[:, None]
        return bool((weights.isfinite() == expected).all())

    def _warnings(self) -> list[dict[str, str]]:
        found = []
        if self.emptied:
            message = f"{self.emptied} rows of the layers read had attention for the first token only; "
            message += (
                "they are zeros" if self.request.aggregate != "rollout" else "they pass on what they had"
            )
            found.append({"code": "emptied_rows", "message": message})
        if self.request.aggregate == "max":
            found.append(
                {
                    "code": "rows_exceed_one",
                    "message": "the largest weights of many heads: rows do not sum to 1",
                }
            )
        return found


def _joined(blocks: Sequence[Largest]) -> Largest:
    """Blocks of rows [head, query, up to k], joined: early rows have fewer keys than k, and end in zeros."""

    def widened(one: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(
            one, (0, max(block.keys.shape[-1] for block in blocks) - one.shape[-1])
        )

    return Largest(
        torch.cat([widened(one.weights) for one in blocks], 1),
        torch.cat([widened(one.keys) for one in blocks], 1),
    )
