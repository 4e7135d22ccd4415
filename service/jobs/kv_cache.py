"""How many bytes does a KV cache take? Arithmetic only: needs no model."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from attention_core.kv_cache import (
    CacheInputError,
    CacheModel,
    CacheReport,
    Dims,
    EngineOptions,
    Gpu,
    MlaDims,
    Preset,
    UnknownNameError,
    find_preset,
    kv_cache,
    presets,
    read_config,
)
from service.errors import InvalidRequestError, pointer_of
from service.formats.negotiation import Format
from service.schemas.kv_cache import ComparedModel, KvCacheRequest

LARGEST_INTEGER = 2**63 - 1  # more than most readers of JSON take
MOST_ROWS = 20_000  # kinds of layers x lengths: a second's work at most, beside the requests of others
Place = tuple[str | int, ...]

OPTIONS = (  # that the core knows by the same names
    "encoder_tokens",
    "batch",
    "shared_prefix_tokens",
    "dtype",
    "k_dtype",
    "v_dtype",
    "state_dtype",
    "tensor_parallel",
    "page_size",
    "include_mtp",
    "engine",
)


def size(request: KvCacheRequest, written: Format) -> dict[str, object]:
    """The cache of a preset, a config, or given sizes; for a picture with the curves between the tokens asked for."""
    models = _models(request)
    kinds = max(1, *(len({*model.layers, *model.mtp_layers}) for _, model in models))
    if isinstance(request.tokens, list) and kinds * len(request.tokens) > MOST_ROWS:
        detail = f"With {kinds} kinds of layers, no more than {MOST_ROWS // kinds} lengths at a time."
        raise InvalidRequestError.at("/tokens", "out_of_range", detail)
    report, *others = (_report(request, place, model) for place, model in models)
    answer = {name: value for name, value in asdict(report).items() if name != "layers" or value is not None}
    if request.compare_models is not None:
        answer["models"] = [
            {name: value for name, value in asdict(other).items() if name in ComparedModel.model_fields}
            for other in others
        ]
    if written.dense:
        answer["request"] = json.loads(request.model_dump_json(exclude_defaults=True))
        answer["curves"] = _curves(request, models, (report, *others), min(POINTS, MOST_ROWS // (2 * kinds)))
    return answer


# --- the models asked about ---------------------------------------------------------------------------------


def _models(request: KvCacheRequest) -> list[tuple[Place, CacheModel]]:
    """The model asked about and those it is compared with, each with its place in the request."""
    compared = [("compare_models", index) for index in range(len(request.compare_models or ()))]
    return [
        _source(request),
        *(
            (place, _named(place, name).model())
            for place, name in zip(compared, request.compare_models or (), strict=True)
        ),
    ]


def _source(request: KvCacheRequest) -> tuple[Place, CacheModel]:
    if request.model is not None:
        return ("model",), _named(("model",), request.model).model()
    if request.config is not None:
        try:
            return request.config_place, read_config(request.config)
        except CacheInputError as error:
            raise _refused(error, request.config_place) from None
    try:
        return ("dims",), CacheModel.from_dims(_dims(request))
    except CacheInputError as error:
        raise _refused(error, ("dims",)) from None


def _dims(request: KvCacheRequest) -> Dims:
    given: dict[str, Any] = request.dims.model_dump(exclude_none=True) if request.dims else {}
    if "mla" in given:
        given["mla"] = MlaDims(**given["mla"])
    if "layer_types" in given:
        given["layer_types"] = tuple(given["layer_types"])
    return Dims(**given)


def _named(place: Place, name: str) -> Preset:
    try:
        return find_preset(name)
    except UnknownNameError as error:
        hint = f" Close names: {', '.join(error.close)}." if error.close else ""
        detail = f"No model of this name is known; GET /v1/kv-cache/models lists all.{hint}"
        raise InvalidRequestError.at(pointer_of(place), "unknown_model", detail) from None


# --- the answer ---------------------------------------------------------------------------------------------


def _report(request: KvCacheRequest, place: Place, model: CacheModel) -> CacheReport:
    try:
        options = request.engine_options
        report = kv_cache(
            model,
            tokens=request.tokens,
            engine_options=EngineOptions(**options.model_dump()) if options else EngineOptions(),
            memory_budget_bytes=request.memory_budget_bytes,
            gpu=Gpu(**request.gpu.model_dump()) if request.gpu else None,
            layers=request.detail == "layers" and place[:1] != ("compare_models",),
            **{name: getattr(request, name) for name in OPTIONS},
        )
    except CacheInputError as error:
        if place[:1] == ("compare_models",):  # the request itself suits the model asked about
            raise InvalidRequestError.at(pointer_of(place), error.code, _sentence(error)) from None
        raise _refused(error) from None
    _check_integers(request, place, report)
    return report


def _check_integers(request: KvCacheRequest, place: Place, report: CacheReport) -> None:
    """Refuse what most readers of JSON could not read: at the tokens that are too many, else at the model."""
    if not _overflows(asdict(report)):
        return
    detail = "The size would not fit into a 64-bit integer; ask for fewer tokens or sequences."
    for index, one in enumerate(report.sizes):
        if _overflows(asdict(one)) and not _overflows(report.bytes_per_token * request.batch):
            at: Place = ("tokens", index) if isinstance(request.tokens, list) else ("tokens",)
            raise InvalidRequestError.at(pointer_of(at), "out_of_range", detail)
    raise InvalidRequestError.at(pointer_of(place), "out_of_range", detail)


def _overflows(value: object) -> bool:
    match value:
        case int():
            return abs(value) > LARGEST_INTEGER
        case dict():
            return any(map(_overflows, value.values()))
        case list() | tuple():
            return any(map(_overflows, value))
    return False


def _refused(error: CacheInputError, within: Place = ()) -> InvalidRequestError:
    """A fault that the core found, at its place in the request."""
    return InvalidRequestError.at(pointer_of((*within, *error.place)), error.code, _sentence(error))


def _sentence(error: CacheInputError) -> str:
    message = str(error).rstrip(".")
    return f"{message[:1].upper()}{message[1:]}."


# --- curves, for a picture ----------------------------------------------------------------------------------

POINTS = (
    160  # on a logarithmic axis, where the layers are not of very many kinds; half as many are spaced evenly
)
MOST_WINDOWS = 16
ASSUMED_LONGEST = 131_072  # where neither the models nor the request say how far to draw


def _curves(
    request: KvCacheRequest,
    models: Sequence[tuple[Place, CacheModel]],
    reports: Sequence[CacheReport],
    density: int,
) -> list[dict[str, object]]:
    """A rank's bytes against tokens: of every model; of one by itself also the ideal and without windows."""
    known = [model.max_tokens for _, model in models if model.max_tokens is not None]
    longest = max((*known, *(one.tokens for report in reports for one in report.sizes)))
    corners = {
        *known,
        *(one.tokens for report in reports for one in report.sizes),
        *(window for report in reports for window in _windows(report)),
    }
    shortest = max(1, request.shared_prefix_tokens)
    grid = _grid(shortest, longest if longest > 1 else ASSUMED_LONGEST, density, corners)
    curves: list[dict[str, object]] = []
    for (place, model), report in zip(models, reports, strict=True):
        points = _points(request, place, model, grid, request.engine)
        curves.append(
            {
                "model": report.model,
                "engine": request.engine,
                "points": points,
                "asked": [(one.tokens, one.per_rank_bytes) for one in report.sizes],
                "windows": _windows(report),
                "max_tokens": model.max_tokens,
            }
        )
        for engine in ("ideal", "no-swa"):
            if len(models) == 1 and engine != request.engine:
                bound = _points(request, place, model, grid, engine)
                if _differ(bound, points):
                    curves.append({"engine": engine, "points": bound})
    return curves


def _windows(report: CacheReport) -> list[int]:
    """The windows of its layers, the shortest of very many."""
    return sorted({group.window for group in report.groups if group.window is not None})[:MOST_WINDOWS]


def _grid(shortest: int, longest: int, density: int, corners: Iterable[int]) -> list[int]:
    """Tokens from the shortest to the longest: dense on both kinds of axis, and the corners among them."""
    longest = max(longest, shortest + 1)
    tokens = {round(shortest * (longest / shortest) ** (step / density)) for step in range(density + 1)}
    tokens |= {shortest + (longest - shortest) * step * 2 // density for step in range(density // 2 + 1)}
    tokens |= {*corners}
    return sorted(one for one in tokens if shortest <= one <= longest)


def _points(
    request: KvCacheRequest, place: Place, model: CacheModel, grid: list[int], engine: str
) -> list[tuple[int, int]]:
    change: dict[str, object] = {"tokens": grid, "engine": engine, "detail": "summary"}
    change |= {"memory_budget_bytes": None, "gpu": None}
    if engine != request.engine:
        change["page_size"] = None
    report = _report(request.model_copy(update=change), place, model)
    return [(one.tokens, one.per_rank_bytes) for one in report.sizes]


def _differ(ones: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Whether two curves can be told apart: by 2 % somewhere."""
    return any(
        abs(one - other) > 0.02 * max(one, other) for (_, one), (_, other) in zip(ones, others, strict=True)
    )


# --- presets ------------------------------------------------------------------------------------------------


@functools.cache
def known_models() -> dict[str, object]:
    """Every preset, with what its cache takes and its source."""
    return {"models": [_described(preset) for preset in presets()]}


def known_model(name: str) -> dict[str, object] | None:
    """One preset with its config, None where the name is not known."""
    try:
        preset = find_preset(name)
    except UnknownNameError:
        return None
    return {**_described(preset), "config": dict(preset.config)}


def _described(preset: Preset) -> dict[str, object]:
    model = preset.model()
    fixed_known = True
    try:
        report = kv_cache(model, tokens=1)
    except CacheInputError:  # its cross-attention's length is the request's to say
        report, fixed_known = kv_cache(model, tokens=1, encoder_tokens=1), False
    attending = [layer for layer in model.layers if layer.attends]
    widths = {layer.k_dim for layer in attending} if report.attention != "mla" else set()
    return {
        "id": preset.id,
        "aliases": list(preset.aliases),
        "attention": report.attention,
        "layers": sum(layer.kind != "cross_attention" for layer in model.layers),
        "heads": max((layer.heads for layer in attending), default=0),
        "kv_heads": max((layer.kv_heads for layer in attending), default=0),
        "head_dim": widths.pop() if len(widths) == 1 else None,
        "bytes_per_token": report.bytes_per_token,
        "bytes_per_token_beyond_window": report.bytes_per_token_beyond_window,
        "fixed_bytes_per_sequence": report.fixed_bytes_per_sequence if fixed_known else None,
        "max_tokens": model.max_tokens,
        "dtype": report.dtype,
        "status": preset.status,
        "source": preset.source,
        "checked": preset.checked,
        "released": preset.released,
    }
