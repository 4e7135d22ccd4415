"""Collected cases: 22 published models, and questions whose answers were logged or derived elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from attention_core.kv_cache import CacheInputError, CacheModel, Dims, MlaDims, kv_cache, read_config

CASES = Path(__file__).parents[2] / "cases/kv"
MODELS = json.loads((CASES / "models.json").read_text())
# Which of model, config and dims is sent is the service's question: the core is handed a model
FIXTURES = [
    row
    for row in json.loads((CASES / "fixtures.json").read_text())
    if len(row["request"].keys() & {"model", "config", "dims"}) == 1
]


def answer(request: dict[str, Any]) -> Any:
    """The core's answer to a request's body; an error's place is put under the source that it lies in."""
    options = dict(request)
    if (config := options.pop("config", None)) is not None:
        source = "config"
    else:
        source, dims = "dims", dict(options.pop("dims"))
    try:
        if source == "config":
            model = read_config(config)
        else:
            dims["mla"] = MlaDims(**dims["mla"]) if "mla" in dims else None
            dims["layer_types"] = tuple(dims["layer_types"]) if "layer_types" in dims else None
            model = CacheModel.from_dims(Dims(**dims))
    except CacheInputError as error:
        raise error.under(source) from None
    return kv_cache(model, **options)


def at(report: Any, path: str) -> Any:
    """What a dotted path such as sizes.0.batch_bytes leads to."""
    for step in path.split("."):
        report = report[int(step)] if step.isdigit() else getattr(report, step)
    return report


def test_all_collected_cases_are_here():
    assert len(MODELS) == 22
    assert len(FIXTURES) == 19


@pytest.mark.parametrize("case", MODELS, ids=[case["model_id"] for case in MODELS])
def test_a_published_model_gives_the_collected_figures(case):
    report, expected = answer(case["request"]), case["expected"]
    assert report.bytes_per_token == expected["bytes_per_token"]
    assert report.bytes_per_token_beyond_window == expected["bytes_per_token_beyond_window"]
    assert report.fixed_bytes_per_sequence == expected["fixed_bytes_per_sequence"]
    sizes = {size.tokens: size.per_sequence_bytes for size in report.sizes}
    assert sizes[expected["at_tokens"]] == expected["bytes_at_tokens"]


@pytest.mark.parametrize("case", FIXTURES, ids=[case["name"] for case in FIXTURES])
def test_a_question_gets_the_collected_answer(case):
    expected = dict(case["expected"])
    if expected.pop("status", 200) == 422:
        with pytest.raises(CacheInputError) as refused:
            answer(case["request"])
        if "pointer" in expected:
            assert "/" + "/".join(map(str, refused.value.place)) == expected["pointer"]
        return
    report = answer(case["request"])
    assert {path: at(report, path) for path in expected} == expected
