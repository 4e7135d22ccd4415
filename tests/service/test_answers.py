"""What the endpoints answer, on a tiny random model, checked against transformers' eager attentions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flask.testing import FlaskClient
from pydantic import BaseModel

from attention_core.heads import SCORES
from service.schemas.attention import AttentionAnswer, TokenizeAnswer
from service.schemas.coreference import CoreferenceAnswer
from service.schemas.heads import HeadsAnswer
from service.schemas.model import ModelAnswer
from tests.conftest import MakeApp, read_strictly
from tests.tiny import HEADS, KV_HEADS, LAYERS, tiny_backbone

TEXT = "the cat sat on the mat, it is"


def post(client: FlaskClient, path: str, body: dict[str, Any], schema: type[BaseModel]) -> Any:
    return read_strictly(client.post(path, json=body), schema)


def eager(ids: list[int]) -> np.ndarray:
    """[layer, head, query, key]"""
    backbone = tiny_backbone()
    backbone.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = backbone(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    return torch.stack(attentions)[:, 0].numpy()


def ids_of(result: dict[str, Any]) -> list[int]:
    return [token["id"] for token in result["tokens"]]


def test_maps_of_every_head_equal_eager_attention(client: FlaskClient) -> None:
    answer = post(client, "/v1/attention", {"text": TEXT, "decimals": 9}, AttentionAnswer)
    (result,) = answer["results"]
    expected = eager(ids_of(result))
    assert len(result["maps"]) == LAYERS * HEADS
    order = [(one["layer"], one["head"]) for one in result["maps"]]
    assert order == [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    for one in result["maps"]:
        assert np.abs(np.array(one["weights"]) - expected[one["layer"], one["head"]]).max() <= 1e-5
        assert one["kv_head"] == one["head"] // (HEADS // KV_HEADS)


def test_layers_and_heads_select_and_repeats_count_once(client: FlaskClient) -> None:
    body = {"text": TEXT, "layers": [2, 0, 2], "heads": [7, 3]}
    (result,) = post(client, "/v1/attention", body, AttentionAnswer)["results"]
    assert [(one["layer"], one["head"]) for one in result["maps"]] == [(0, 3), (0, 7), (2, 3), (2, 7)]
    expected = eager(ids_of(result))
    for one in result["maps"]:
        assert np.abs(np.array(one["weights"]) - expected[one["layer"], one["head"]]).max() <= 1e-5


def test_several_texts_keep_their_order_and_equal_single_requests(client: FlaskClient) -> None:
    texts = ["z", TEXT, "the mat", "the cat and the dog"]
    together = post(client, "/v1/attention", {"texts": texts}, AttentionAnswer)["results"]
    assert [result["text"] for result in together] == texts
    for text, result in zip(texts, together, strict=True):
        (alone,) = post(client, "/v1/attention", {"text": text}, AttentionAnswer)["results"]
        assert alone["tokens"] == result["tokens"]
        for one, other in zip(alone["maps"], result["maps"], strict=True):
            assert np.abs(np.array(one["weights"]) - np.array(other["weights"])).max() <= 1e-5


@pytest.mark.parametrize("decimals", [1, 3, 6])
def test_decimals_round_the_weights(client: FlaskClient, decimals: int) -> None:
    body = {"text": TEXT, "layers": [1], "heads": [2], "decimals": decimals}
    response = client.post("/v1/attention", json=body)
    exact = post(client, "/v1/attention", {**body, "decimals": 9}, AttentionAnswer)["results"][0]["maps"][0][
        "weights"
    ]
    weights = response.get_json()["results"][0]["maps"][0]["weights"]
    assert np.abs(np.array(weights) - np.array(exact)).max() <= 0.5001 * 10**-decimals
    assert all(
        len(repr(value).partition(".")[2]) <= decimals for row in weights for value in row if value > 1e-4
    )


def test_tokenize_gives_the_tokens_that_attention_is_about(client: FlaskClient) -> None:
    tokens = post(client, "/v1/tokenize", {"texts": [TEXT, "z"]}, TokenizeAnswer)["results"]
    (result,) = post(client, "/v1/attention", {"text": TEXT, "layers": [0]}, AttentionAnswer)["results"]
    assert tokens[0] == {name: result[name] for name in ("text", "tokens", "words")}
    assert [token["text"] for token in tokens[0]["tokens"][:3]] == ["the", "cat", " "]
    # this tokenizer knows no " s": the space before "sat" is a token, and so a word, of its own
    assert [word["text"] for word in tokens[0]["words"]][:4] == ["the", "cat", " ", "sat"]
    for token in tokens[0]["tokens"]:
        assert TEXT[token["start"] : token["end"]] == token["text"]
        assert token["index"] in tokens[0]["words"][token["word"]]["tokens"]


def test_special_token_text_is_ordinary_text(client: FlaskClient) -> None:
    (result,) = post(client, "/v1/tokenize", {"text": "<|im_end|>"}, TokenizeAnswer)["results"]
    assert len(result["tokens"]) == len("<|im_end|>")


def test_head_scores_equal_their_definition_on_eager_maps(client: FlaskClient) -> None:
    answer = post(client, "/v1/heads", {"text": TEXT}, HeadsAnswer)
    (tokens,) = post(client, "/v1/tokenize", {"text": TEXT}, TokenizeAnswer)["results"]
    attention = eager(ids_of(tokens)).astype(np.float64)
    size = attention.shape[-1]
    entropy = -(attention * np.log(np.where(attention > 0, attention, 1))).sum(-1)[..., 1:].mean(-1)
    expected = {
        "sink": attention[..., 1:, 0].mean(-1),
        "previous_token": np.diagonal(attention, -1, -2, -1).mean(-1),
        "current_token": np.diagonal(attention, 0, -2, -1)[..., 1:].mean(-1),
    }
    baseline = sum(1 / n for n in range(2, size + 1)) / (size - 1)
    assert len(answer["heads"]) == answer["summary"]["heads"] == LAYERS * HEADS
    for one in answer["heads"]:
        place = one["layer"], one["head"]
        assert list(one["scores"]) == list(SCORES)
        assert one["entropy"] == pytest.approx(entropy[place], abs=1e-5)
        for name in expected:
            score = one["scores"][name]
            assert score["score"] == pytest.approx(expected[name][place], abs=1e-5)
            assert score["baseline"] == pytest.approx(baseline, abs=1e-12)
            assert score["excess"] == pytest.approx(score["score"] - score["baseline"], abs=1e-12)
            assert (name in one["labels"]) == (score["score"] > 0.5 and score["excess"] > 0)
    for name, count in answer["summary"]["labels"].items():
        assert count["count"] == sum(name in one["labels"] for one in answer["heads"])
        assert count["fraction"] == count["count"] / (LAYERS * HEADS)


def test_thresholds_and_labels_change_labels_only(client: FlaskClient) -> None:
    plain = post(client, "/v1/heads", {"text": TEXT, "layers": [1]}, HeadsAnswer)
    body = {"text": TEXT, "layers": [1], "thresholds": {"sink": 0}, "labels": ["sink"]}
    answer = post(client, "/v1/heads", body, HeadsAnswer)
    assert list(answer["summary"]["labels"]) == ["sink"]
    assert answer["definitions"]["sink"]["threshold"] == 0
    for one, other in zip(answer["heads"], plain["heads"], strict=True):
        assert one["scores"] == other["scores"]
        assert one["labels"] == (["sink"] if one["scores"]["sink"]["excess"] > 0 else [])


def test_a_text_of_one_token_has_null_scores_and_says_so(client: FlaskClient) -> None:
    answer = post(client, "/v1/heads", {"text": "z"}, HeadsAnswer)
    for one in answer["heads"]:
        assert one["labels"] == []
        assert one["entropy"] is None
        first = one["scores"].pop("first_token")  # the only score that row 0 takes part in
        assert (first["score"], first["rows"], first["status"]) == (1, 1, "too_short")
        for score in one["scores"].values():
            assert score == {
                "score": None,
                "baseline": None,
                "excess": None,
                "argmax_rate": None,
                "rows": 0,
                "status": "not_applicable",
            }
    messages = [warning["message"] for warning in answer["warnings"] if warning["code"] == "too_short"]
    assert messages == ["text 0 has fewer than 4 tokens, and so no score that counts"]


def test_a_warning_names_the_score_that_has_too_few_rows_and_only_one_that_was_asked_for(
    client: FlaskClient,
) -> None:
    body = {"token_ids": [5, 6, 5, 7, 6, 8], "layers": [0]}  # two ids come again
    answer = post(client, "/v1/heads", body, HeadsAnswer)
    rows = answer["heads"][0]["scores"]["duplicate_token"]["rows"]
    assert rows == 2
    assert f"duplicate_token has {rows} rows to score and needs 3, so it gives no label" in [
        warning["message"] for warning in answer["warnings"]
    ]
    assert post(client, "/v1/heads", {**body, "labels": ["sink"]}, HeadsAnswer)["warnings"] == []


def test_texts_too_short_to_count_are_named_by_their_place_and_count_for_nothing(client: FlaskClient) -> None:
    long = "it is on the mat of the cat"
    alone = post(client, "/v1/heads", {"texts": [long], "layers": [1]}, HeadsAnswer)
    body = {"texts": ["it", " ", long, "on"], "layers": [1], "on_error": "skip"}
    answer = post(client, "/v1/heads", body, HeadsAnswer)
    assert answer["warnings"][0]["message"].startswith("texts 0, 3 have fewer than 4 tokens")
    for head, same in zip(answer["heads"], alone["heads"], strict=True):
        assert head["entropy"] == pytest.approx(same["entropy"], abs=1e-5)
        assert head["scores"]["broad"]["n"] == 1


def test_a_label_without_a_threshold_is_told_so(client: FlaskClient) -> None:
    response = client.post("/v1/heads", json={"text": "a", "labels": ["sink", "first_token"]})
    (error,) = response.get_json()["errors"]
    assert (error["pointer"], error["code"]) == ("/labels/1", "out_of_range")
    assert error["detail"] == "First_token has no threshold by default; give one in thresholds."


def test_a_probe_over_one_text_counts_the_draws_that_agree(client: FlaskClient) -> None:
    body = {"text": TEXT, "layers": [0], "probe": "repeat", "draws": 3, "thresholds": {"induction": 0.0}}
    answer = post(client, "/v1/heads", body, HeadsAnswer)
    for head in answer["heads"]:
        assert set(head["texts_agreeing"]) == {"induction", "duplicate_token"}
        assert 0 <= head["texts_agreeing"]["induction"] <= 3
    agreeing = [head["texts_agreeing"]["induction"] for head in answer["heads"]]
    assert max(agreeing) > 0  # with a threshold of 0 some random head is above its baseline in some draw


# --- heads over several texts, on a probe, with a pattern of one's own ---------------------------------------

TEXTS = [TEXT, "the mat, the mat: the cat", "it is the cat on the mat that is on the cat"]


def test_scores_over_several_texts_are_pooled(client: FlaskClient) -> None:
    pooled = post(client, "/v1/heads", {"texts": TEXTS, "layers": [1]}, HeadsAnswer)
    each = [post(client, "/v1/heads", {"text": text, "layers": [1]}, HeadsAnswer) for text in TEXTS]
    for place, head in enumerate(pooled["heads"]):
        singles = [one["heads"][place] for one in each]
        for name, score in head["scores"].items():
            values = [
                one["scores"][name]["score"] for one in singles if one["scores"][name]["status"] == "ok"
            ]
            assert score["n"] == len(values)
            if len(values) > 1:
                assert score["score"] == pytest.approx(np.mean(values), abs=1e-5)
                assert score["sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-5)
                assert score["ci95"][0] <= score["score"] <= score["ci95"][1]
        for name, count in head["texts_agreeing"].items():
            assert count == sum(name in one["labels"] for one in singles)
    assert "n" not in each[0]["heads"][0]["scores"]["sink"]


def test_the_probe_is_repeatable_and_scores_induction_on_repeats(client: FlaskClient) -> None:
    body = {"text": TEXT, "probe": "repeat", "seed": 3, "draws": 4, "layers": [1]}
    first, again = (post(client, "/v1/heads", body, HeadsAnswer) for _ in range(2))
    assert first == again
    other = post(client, "/v1/heads", {**body, "seed": 4}, HeadsAnswer)
    assert other["probe"]["sha256"] != first["probe"]["sha256"]
    assert first["probe"] | {"sha256": ""} == {"seed": 3, "draws": 4, "length": 50, "sha256": ""}
    plain = post(client, "/v1/heads", {"text": TEXT, "layers": [1]}, HeadsAnswer)
    for head, of_text in zip(first["heads"], plain["heads"], strict=True):
        for name in ("induction", "duplicate_token"):
            score = head["scores"][name]
            assert (score["n"], score["rows"]) == (4, 200)
            assert score["baseline"] == pytest.approx(0.01376, abs=1e-5)
        assert head["scores"]["sink"] == of_text["scores"]["sink"]


def test_a_pattern_of_ones_own_is_scored_by_its_share_of_mass_and_by_its_error(client: FlaskClient) -> None:
    (tokens,) = post(client, "/v1/tokenize", {"text": TEXT}, TokenizeAnswer)["results"]
    size = len(tokens["tokens"])
    pattern = [[int(key == max(query - 2, 0)) for key in range(size)] for query in range(size)]
    answer = post(client, "/v1/heads", {"text": TEXT, "pattern": pattern, "layers": [2]}, HeadsAnswer)
    attention = eager(ids_of(tokens))[2].astype(np.float64)
    causal = np.tril(np.ones((size, size), dtype=bool))
    for head in answer["heads"]:
        rows = attention[head["head"]]
        expected = np.mean([rows[query, max(query - 2, 0)] for query in range(size)])
        assert head["scores"]["custom"]["score"] == pytest.approx(expected, abs=1e-5)
        error = np.abs(rows - np.array(pattern))[causal].mean()
        assert head["scores"]["custom"]["mae_similarity"] == pytest.approx(1 - error, abs=1e-5)
    assert "custom" in answer["definitions"]
    assert "custom" not in answer["summary"]["labels"]


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"texts": ["a", "b"], "pattern": [[1]]}, "/pattern", "incompatible_options"),
        ({"text": "zz", "pattern": [[1]]}, "/pattern", "out_of_range"),
        ({"text": "zz", "pattern": [[1, 0], [1]]}, "/pattern", "out_of_range"),
        ({"text": "z", "pattern": [[2]]}, "/pattern/0/0", "out_of_range"),
        ({"text": "z", "probe": "never"}, "/probe", "unknown_option"),
        ({"text": "z", "draws": 1}, "/draws", "out_of_range"),
        ({"text": "z", "seed": -1}, "/seed", "out_of_range"),
        ({"texts": ["z", " "]}, "/texts/1", "empty_text"),
        ({"texts": ["", " "], "on_error": "skip"}, "/texts/0", "empty_text"),
        ({"text": "a", "seed": 7}, "/seed", "incompatible_options"),
        ({"text": "a", "draws": 7}, "/draws", "incompatible_options"),
        ({"text": "a", "probe": "repeat", "seed": 2**53}, "/seed", "out_of_range"),
        ({"text": "a", "thresholds": {"nope": 0.5}}, "/thresholds/nope", "unknown_option"),
        ({"token_ids": [307]}, "/token_ids/0", "out_of_range"),
    ],
)
def test_wrong_wishes_about_heads_are_named(
    client: FlaskClient, body: dict[str, Any], pointer: str, code: str
) -> None:
    response = client.post("/v1/heads", json=body)
    assert response.status_code == 422, response.text
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in response.get_json()["errors"]]


def test_a_bad_text_may_be_skipped_and_is_named(client: FlaskClient) -> None:
    body = {"texts": [TEXT, " ", TEXTS[1]], "layers": [0], "on_error": "skip"}
    answer = post(client, "/v1/heads", body, HeadsAnswer)
    without = post(client, "/v1/heads", {"texts": [TEXT, TEXTS[1]], "layers": [0]}, HeadsAnswer)
    assert [(one["pointer"], one["code"]) for one in answer["skipped"]] == [("/texts/1", "empty_text")]
    assert answer["heads"] == without["heads"]


def test_token_ids_and_messages_are_scored_as_the_text_they_stand_for(client: FlaskClient) -> None:
    (tokens,) = post(client, "/v1/tokenize", {"text": TEXT}, TokenizeAnswer)["results"]
    by_text, by_ids = (
        post(client, "/v1/heads", {**what, "layers": [1]}, HeadsAnswer)["heads"]
        for what in ({"text": TEXT}, {"token_ids": ids_of(tokens)})
    )
    assert by_text == by_ids
    messages = [{"role": "user", "content": TEXT}]
    assert post(client, "/v1/heads", {"messages": messages, "layers": [1]}, HeadsAnswer)["heads"]


ITEM = {"text": TEXT, "pronoun": {"text": "it"}, "candidates": [{"text": "cat"}, {"text": "mat"}], "gold": 1}


def test_coreference_sums_the_pronouns_row_over_each_candidate(client: FlaskClient) -> None:
    body = {**ITEM, "heads": [[2, 4], [0, 1], [2, 4]]}
    (result,) = post(client, "/v1/coreference", body, CoreferenceAnswer)["results"]
    attention = eager(ids_of(result))
    query = result["pronoun"]["token_indices"][-1]
    assert [(one["layer"], one["head"]) for one in result["heads"]] == [(0, 1), (2, 4)]
    for one in result["heads"]:
        row = attention[one["layer"], one["head"], query]
        expected = [row[candidate["token_indices"]].sum() for candidate in result["candidates"]]
        assert one["scores"] == pytest.approx(expected, abs=1e-5)
        assert one["predicted"] == int(np.argmax(expected))
        assert one["correct"] == (one["predicted"] == 1)
        assert one["margin"] == pytest.approx(abs(expected[0] - expected[1]), abs=1e-5)
        assert one["mass_on_first_token"] == pytest.approx(row[0], abs=1e-5)
    assert result["baselines"] == {"first": 0, "nearest": 1}
    assert "later_context_not_seen" in [warning["code"] for warning in result["warnings"]]


def test_items_equal_single_requests_and_all_means_every_head(client: FlaskClient) -> None:
    other = {
        "text": "mat, the cat it",
        "pronoun": {"text": "it"},
        "candidates": [{"start": 0, "end": 3}, {"text": "cat"}],
    }
    answer = post(client, "/v1/coreference", {"items": [ITEM, other], "heads": "all"}, CoreferenceAnswer)
    for item, result in zip((ITEM, other), answer["results"], strict=True):
        (alone,) = post(client, "/v1/coreference", {**item, "heads": "all"}, CoreferenceAnswer)["results"]
        assert len(result["heads"]) == LAYERS * HEADS
        for one, single in zip(result["heads"], alone["heads"], strict=True):
            assert one["scores"] == pytest.approx(single["scores"], abs=1e-5)
            assert ("correct" in one) == ("gold" in item)
        assert {**alone, "heads": []} == {**result, "heads": []}


def test_a_candidate_after_the_pronoun_is_not_visible_and_never_wins(client: FlaskClient) -> None:
    body = {
        "text": "it is the cat on the mat",
        "pronoun": {"text": "it"},
        "candidates": [{"text": "cat"}, {"text": "mat"}],
        "heads": "all",
    }
    (result,) = post(client, "/v1/coreference", body, CoreferenceAnswer)["results"]
    assert [candidate["visible"] for candidate in result["candidates"]] == [False, False]
    assert all(one["scores"] == [None, None] and one["predicted"] is None for one in result["heads"])
    codes = [warning["code"] for warning in result["warnings"]]
    assert {"candidate_after_pronoun", "no_visible_candidate"} <= set(codes)


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"pronoun": {"text": "she"}}, "/pronoun", "span_not_found"),
        ({"pronoun": {"text": "the"}}, "/pronoun", "ambiguous_span"),
        ({"pronoun": {"text": "the", "occurrence": 2}}, "/pronoun", "span_not_found"),
        ({"pronoun": {"start": 24, "end": 26, "text": "is"}}, "/pronoun", "span_text_mismatch"),
        ({"pronoun": {"start": 24, "end": 99}}, "/pronoun", "span_out_of_range"),
        ({"pronoun": {"start": 24, "end": 24}}, "/pronoun", "empty_span"),
        ({"pronoun": {"start": 23, "end": 24}}, "/pronoun", "span_covers_no_token"),
        ({"pronoun": {"start": 24}}, "/pronoun", "missing_field"),
        ({"pronoun": {}}, "/pronoun", "missing_field"),
        ({"pronoun": {"start": 24, "end": 26, "occurrence": 0}}, "/pronoun", "incompatible_options"),
        ({"candidates": []}, "/candidates", "too_few_candidates"),
        ({"candidates": [{"text": "cat"}, {"text": "cow"}]}, "/candidates/1", "span_not_found"),
        ({"candidates": [{"text": "cat"}, {"start": 5, "end": 9}]}, "/candidates/1", "overlapping_spans"),
        ({"candidates": [{"text": "cat"}, {"text": "it"}]}, "/candidates/1", "overlapping_spans"),
        ({"gold": 2}, "/gold", "gold_out_of_range"),
        ({"heads": None}, "/heads", "missing_field"),
        ({"heads": [[0, 0], [3, 0]]}, "/heads/1/0", "layer_out_of_range"),
        ({"heads": [[0, 10]]}, "/heads/0/1", "head_out_of_range"),
        ({"reduce": "mean"}, "/reduce", "unknown_field"),
    ],
)
@pytest.mark.parametrize("as_item", [False, True])
def test_every_fault_of_a_coreference_request_names_its_place(
    client: FlaskClient, change: dict[str, Any], pointer: str, code: str, as_item: bool
) -> None:
    body: dict[str, Any] = {**ITEM, "heads": [[0, 0]]} | change
    if as_item and "heads" not in change:
        heads = body.pop("heads")
        body, pointer = {"items": [ITEM, body], "heads": heads}, f"/items/1{pointer}"
    response = client.post("/v1/coreference", json=body)
    assert response.status_code == 422, response.text
    (error,) = response.get_json()["errors"]
    assert (error["pointer"], error["code"]) == (pointer, code)


def test_model_publishes_sizes_and_every_limit(make_app: MakeApp) -> None:
    response = make_app(max_texts=5, deadline_seconds=7).test_client().get("/v1/model")
    ModelAnswer.model_validate_json(response.data)
    answer = response.get_json()
    assert (answer["layers"], answer["heads"], answer["kv_heads"], answer["head_size"]) == (3, 10, 5, 14)
    assert (answer["vocabulary"], answer["max_tokens"]) == (307, 512)
    assert (answer["limits"]["max_texts"], answer["limits"]["deadline_seconds"]) == (5, 7)


def test_timings_tell_where_the_time_went(client: FlaskClient) -> None:
    timing = client.post("/v1/attention", json={"text": TEXT}).headers["Server-Timing"]
    assert [part.partition(";")[0] for part in timing.split(", ")] == ["tok", "queue", "fwd", "ser"]
