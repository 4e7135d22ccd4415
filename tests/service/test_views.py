"""Every view of /v1/attention against an independent computation in numpy, from transformers' eager attentions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flask.testing import FlaskClient

from service.schemas.attention import AttentionAnswer, TokenizeAnswer
from tests.conftest import MakeApp
from tests.service.test_answers import eager, ids_of, post
from tests.tiny import HEADS, LAYERS, tiny_backbone

TEXT = "the cat sat on the mat, it is"


def ask(client: FlaskClient, **options: Any) -> dict[str, Any]:
    body = {"text": TEXT, "decimals": 9, **options}
    if {"texts", "token_ids", "messages"} & set(options):
        del body["text"]
    (result,) = post(client, "/v1/attention", body, AttentionAnswer)["results"]
    return result


def array(result: dict[str, Any]) -> np.ndarray:
    """[map, row, key]"""
    return np.array([one["weights"] for one in result["maps"]], dtype=np.float64)


def words_of(result: dict[str, Any]) -> list[list[int]]:
    return [word["tokens"] for word in result["words"]]


def dropped(maps: np.ndarray) -> np.ndarray:
    kept = maps.astype(np.float64)
    kept[..., 1:, 0] = 0
    kept[..., 1:, :] /= kept[..., 1:, :].sum(-1, keepdims=True)
    return kept


def merged(maps: np.ndarray, words: list[list[int]]) -> np.ndarray:
    sums = np.stack([maps[..., word].sum(-1) for word in words], -1)
    return np.stack([sums[..., word, :].mean(-2) for word in words], -2)


def rolled(maps: np.ndarray) -> np.ndarray:
    result = np.eye(maps.shape[-1])
    for layer in maps:
        result = (0.5 * layer.mean(0) + 0.5 * np.eye(maps.shape[-1])) @ result
    return result


def test_words_sum_to_and_average_from(client: FlaskClient) -> None:
    result = ask(client, unit="word")
    expected = merged(eager(ids_of(result)), words_of(result)).reshape(
        LAYERS * HEADS, *[len(result["words"])] * 2
    )
    assert np.abs(array(result) - expected).max() <= 1e-5
    assert np.abs(array(result).sum(-1) - 1).max() <= 1e-5
    assert result["unit"] == "word"
    assert any(len(word) > 1 for word in words_of(result))


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("first_token", ["keep", "drop"])
@pytest.mark.parametrize("aggregate", ["none", "mean", "max", "rollout"])
def test_every_combination_of_unit_first_token_and_aggregate(
    client: FlaskClient, unit: str, first_token: str, aggregate: str
) -> None:
    result = ask(
        client, unit=unit, first_token=first_token, aggregate=aggregate, layers=[0, 2], heads=[1, 4, 7]
    )
    expected = eager(ids_of(result))[[0, 2]][:, [1, 4, 7]].astype(np.float64)
    if first_token == "drop":
        expected = dropped(expected)
    if unit == "word":
        expected = merged(expected, words_of(result))
    if aggregate == "none":
        expected = expected.reshape(6, *expected.shape[2:])
        assert [(one["layer"], one["head"]) for one in result["maps"]] == [
            (x, y) for x in (0, 2) for y in (1, 4, 7)
        ]
    else:
        joined = {
            "mean": lambda: expected.mean((0, 1)),
            "max": lambda: expected.max((0, 1)),
            "rollout": lambda: rolled(expected),
        }
        expected = joined[aggregate]()[None]
        assert [set(one) for one in result["maps"]] == [{"aggregate", "weights"}]
        assert result["maps"][0]["aggregate"] == aggregate
    assert np.abs(array(result) - expected).max() <= 2e-5
    codes = [warning["code"] for warning in result["warnings"]]
    assert ("rows_exceed_one" in codes) == (aggregate == "max")


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("aggregate", ["none", "mean", "max", "rollout"])
def test_chosen_queries_are_those_rows_of_the_whole(client: FlaskClient, unit: str, aggregate: str) -> None:
    options = {"unit": unit, "aggregate": aggregate, "layers": [1, 2], "first_token": "drop"}
    whole = array(ask(client, **options))
    some = ask(client, queries=[5, 2, 5], **options)
    assert some["queries"] == [2, 5]
    assert np.abs(array(some) - whole[:, [2, 5]]).max() <= 1e-6


def test_queries_may_be_a_span_of_the_text(client: FlaskClient) -> None:
    whole = ask(client, layers=[1])
    mat = next(token["index"] for token in whole["tokens"] if token["text"] == "mat")
    for queries in ({"text": "mat"}, {"start": 19, "end": 22}, [mat]):
        some = ask(client, layers=[1], queries=queries)
        assert some["queries"] == [mat]
        assert np.abs(array(some) - array(whole)[:, [mat]]).max() <= 1e-6
    by_word = ask(client, layers=[1], unit="word", queries={"text": "mat"})
    assert by_word["queries"] == [whole["tokens"][mat]["word"]]


def test_top_k_holds_the_largest_weights_descending_without_zeros(client: FlaskClient) -> None:
    whole = array(ask(client, layers=[2], heads=[3]))[0]
    (one,) = ask(client, layers=[2], heads=[3], top_k=3)["maps"]
    assert "weights" not in one
    for row, top in zip(whole, one["top"], strict=True):
        expected = sorted((key for key in range(len(row)) if row[key] > 0), key=lambda key: (-row[key], key))[
            :3
        ]
        assert [entry["key"] for entry in top] == expected
        assert [entry["weight"] for entry in top] == pytest.approx([row[key] for key in expected], abs=1e-6)


def test_scores_are_queries_times_keys_and_null_in_the_future(client: FlaskClient) -> None:
    result = ask(client, weighting="scores", layers=[1])
    scores = np.array([one["weights"] for one in result["maps"]], dtype=np.float64)  # None becomes NaN
    future = np.triu(np.ones(scores.shape[1:], dtype=bool), 1)
    assert np.isnan(scores[:, future]).all()
    assert not np.isnan(scores[:, ~future]).any()
    softmax = np.exp(np.where(future, -np.inf, scores))
    softmax /= softmax.sum(-1, keepdims=True)
    assert np.abs(softmax - eager(ids_of(result))[1]).max() <= 1e-5
    mean = ask(client, weighting="scores", layers=[1], aggregate="mean")
    assert np.nanmax(np.abs(array(mean)[0] - scores.mean(0))) <= 1e-4


def test_value_norm_weighs_by_what_the_value_writes(client: FlaskClient) -> None:
    result = ask(client, weighting="value_norm", layers=[0])
    backbone = tiny_backbone()
    ids = ids_of(result)
    with torch.inference_mode():
        x = backbone.layers[0].input_layernorm(backbone.embed_tokens(torch.tensor(ids)))
        module = backbone.layers[0].self_attn
        values = module.v_proj(x).view(len(ids), -1, 14)  # [token, kv head, d]
        for one in result["maps"]:
            head = one["head"]
            written = values[:, head // 2] @ module.o_proj.weight[:, 14 * head : 14 * (head + 1)].T
            expected = eager(ids)[0, head] * written.norm(dim=-1).numpy()
            expected /= expected.sum(-1, keepdims=True)
            assert np.abs(np.array(one["weights"]) - expected).max() <= 1e-5


def test_a_pair_is_one_sequence_with_segments_and_offsets_in_each_text(client: FlaskClient) -> None:
    pair = ask(client, text="the cat", text_pair="it sat on the mat", layers=[1])
    alone = [
        post(client, "/v1/tokenize", {"text": text}, TokenizeAnswer)["results"][0]
        for text in ("the cat", "it sat on the mat")
    ]
    first = len(alone[0]["tokens"])
    assert pair["text_pair"] == "it sat on the mat"
    assert ids_of(pair) == ids_of(alone[0]) + ids_of(alone[1])
    assert [token["segment"] for token in pair["tokens"]] == [0] * first + [1] * len(alone[1]["tokens"])
    for token, own in zip(pair["tokens"][first:], alone[1]["tokens"], strict=True):
        assert (token["start"], token["end"], token["text"]) == (own["start"], own["end"], own["text"])
        assert pair["words"][token["word"]]["segment"] == 1
        assert token["index"] in pair["words"][token["word"]]["tokens"]
    assert np.abs(array(pair) - eager(ids_of(pair))[1]).max() <= 1e-5
    assert (array(pair)[:, :first, first:] == 0).all()  # causal: the first never sees the second
    by_word = ask(client, text="the cat", text_pair="it sat on the mat", layers=[1], unit="word")
    assert np.abs(array(by_word) - merged(eager(ids_of(pair))[1], words_of(pair))).max() <= 1e-5


def test_token_ids_are_read_as_they_are_and_have_no_offsets(client: FlaskClient) -> None:
    plain = ask(client, layers=[1])
    given = ask(client, layers=[1], token_ids=ids_of(plain))
    assert given["text"] == TEXT
    assert [token["text"] for token in given["tokens"]] == [token["text"] for token in plain["tokens"]]
    assert all(token["start"] is None and token["end"] is None for token in given["tokens"] + given["words"])
    assert np.abs(array(given) - array(plain)).max() <= 1e-6


def test_special_tokens_are_parsed_and_marked_on_request_only(client: FlaskClient) -> None:
    text = "the<|im_end|>cat"
    (literal,) = post(client, "/v1/tokenize", {"text": text}, TokenizeAnswer)["results"]
    (parsed,) = post(client, "/v1/tokenize", {"text": text, "special_tokens": "parse"}, TokenizeAnswer)[
        "results"
    ]
    assert not any("special" in token for token in literal["tokens"])
    marked = [token for token in parsed["tokens"] if token.get("special")]
    assert [(token["text"], token["start"], token["end"]) for token in marked] == [("<|im_end|>", 3, 13)]
    assert len(parsed["tokens"]) < len(literal["tokens"])


def test_messages_go_through_the_chat_template_and_offsets_point_into_its_text(client: FlaskClient) -> None:
    result = ask(
        client,
        messages=[{"role": "user", "content": "the cat"}, {"role": "bot", "content": "it"}],
        layers=[0],
    )
    assert result["text"] == "<|im_end|>user: the cat\n<|im_end|>bot: it\n"
    assert [token["text"] for token in result["tokens"] if token.get("special")] == ["<|im_end|>"] * 2
    for token in result["tokens"]:
        assert result["text"][token["start"] : token["end"]] == token["text"]
    assert np.abs(array(result) - eager(ids_of(result))[0]).max() <= 1e-5


def test_one_bad_text_does_not_sink_the_rest_where_it_may_be_skipped(make_app: MakeApp) -> None:
    client = make_app(max_tokens_per_text=20).test_client()
    body = {"texts": ["the cat", " ", "z" * 21, TEXT], "layers": [0], "queries": [1]}
    assert client.post("/v1/attention", json=body).status_code == 422
    results = post(client, "/v1/attention", {**body, "on_error": "skip"}, AttentionAnswer)["results"]
    assert [result.get("error", {}).get("code") for result in results] == [
        None,
        "empty_text",
        "text_too_long",
        None,
    ]
    assert [result["error"]["pointer"] for result in results[1:3]] == ["/texts/1", "/texts/2"]
    for text, result in ((body["texts"][0], results[0]), (TEXT, results[3])):
        (alone,) = post(client, "/v1/attention", {**body, "texts": [text]}, AttentionAnswer)["results"]
        assert alone["tokens"] == result["tokens"]
        assert np.abs(array(alone) - array(result)).max() <= 1e-5


def test_all_texts_may_be_skipped(client: FlaskClient) -> None:
    answer = post(client, "/v1/attention", {"texts": ["", " "], "on_error": "skip"}, AttentionAnswer)
    assert [result["error"]["code"] for result in answer["results"]] == ["empty_text", "empty_text"]


def test_blocks_of_rows_give_the_same_view(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    import attention_core.capture as capture

    views = [
        {"unit": "word", "aggregate": "max", "first_token": "drop"},
        {"aggregate": "rollout", "first_token": "drop"},
        {"unit": "word", "queries": [3, 1]},
        {"weighting": "value_norm", "aggregate": "mean"},
    ]
    whole = [array(ask(client, **view)) for view in views]
    monkeypatch.setitem(capture.AttentionReader.read.__kwdefaults__, "block_weights", 60)
    for view, expected in zip(views, whole, strict=True):
        assert np.abs(array(ask(client, **view)) - expected).max() <= 2e-6


def test_the_limit_counts_what_the_view_holds(make_app: MakeApp) -> None:
    client = make_app(max_response_elements=100).test_client()
    text = {"text": "zzzzzzzzzz"}  # ten tokens
    for options, status in (
        ({"layers": [0], "heads": [0]}, 200),
        ({"layers": [0], "heads": [0, 1]}, 413),
        ({"aggregate": "mean"}, 200),
        ({"layers": [0], "queries": [3]}, 200),
        ({"queries": [3]}, 413),
        ({"queries": [3], "top_k": 3}, 200),
        ({"unit": "word"}, 200),  # one word
    ):
        assert client.post("/v1/attention", json={**text, **options}).status_code == status, options


def replaced_reader(app: Any, weights: Any) -> Any:
    """The app's reader, giving every head the same rows: `weights(size)` is [query, key]."""
    from attention_core.capture import Rows

    reader = app.extensions["engine"].model.reader

    def read(sequences: Any, heads: Any, consume: Any, *, queries: Any, **options: Any) -> None:
        for layer, chosen in heads.items():
            for text, ids in enumerate(sequences):
                rows = weights(len(ids))[None, list(queries[text])].expand(len(chosen), -1, -1).clone()
                consume(Rows(text, layer, tuple(chosen), queries[text], rows))

    reader.read = read
    return reader


def test_rows_with_nothing_but_the_sink_are_zeros_or_pass_on_what_they_had_and_say_so(
    make_app: MakeApp,
) -> None:
    app = make_app()
    reader = replaced_reader(
        app,
        lambda size: (
            torch.eye(size)[:, :1] * 0
            + torch.nn.functional.one_hot(torch.zeros(size, dtype=torch.long), size).float()
        ),
    )
    try:
        client = app.test_client()
        plain = ask(client, first_token="drop", layers=[0], heads=[1])
        rollout = ask(client, first_token="drop", aggregate="rollout", layers=[0, 1])
    finally:
        del reader.read
    size = len(plain["tokens"])
    expected = np.zeros((size, size))
    expected[0, 0] = 1  # the row of token 0 stays
    assert np.array_equal(array(plain)[0], expected)
    assert np.array_equal(array(rollout)[0], np.eye(size))
    assert [warning["code"] for warning in plain["warnings"]] == ["emptied_rows"]
    assert [warning["code"] for warning in rollout["warnings"]] == ["emptied_rows"]


@pytest.mark.parametrize("name", ["json", "rows", "csv", "npz", "svg", "png", "html"])
@pytest.mark.parametrize(
    "options", [{}, {"weighting": "scores"}, {"top_k": 2}, {"aggregate": "mean"}, {"unit": "word"}]
)
def test_a_weight_that_is_no_number_is_500_in_every_format(
    make_app: MakeApp, name: str, options: dict[str, Any]
) -> None:
    app = make_app()
    reader = replaced_reader(app, lambda size: torch.full((size, size), float("nan")))
    try:
        body = {"text": TEXT, "layers": [0], "heads": [0], **options}
        response = app.test_client().post("/v1/attention", query_string={"format": name}, json=body)
    finally:
        del reader.read
    assert response.status_code == 500


def test_the_largest_weights_are_reduced_as_they_come(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import attention_core.capture as capture

    whole = ask(client, top_k=4, layers=[0, 2])
    monkeypatch.setitem(capture.AttentionReader.read.__kwdefaults__, "block_weights", 60)
    blocks = ask(client, top_k=4, layers=[0, 2])
    for one, other in zip(whole["maps"], blocks["maps"], strict=True):
        for row, same in zip(one["top"], other["top"], strict=True):
            assert [entry["key"] for entry in row] == [entry["key"] for entry in same]
    assert [len(row) for row in whole["maps"][0]["top"][:5]] == [1, 2, 3, 4, 4]


def test_of_the_largest_weights_zeros_after_rounding_are_left_out(client: FlaskClient) -> None:
    tops = ask(client, top_k=9, decimals=1)["maps"]
    weights = [entry["weight"] for one in tops for row in one["top"] for entry in row]
    assert all(weight > 0 for weight in weights)
    assert {len(repr(weight)) for weight in weights} == {3}  # 0.4, not 0.4000000059604645
