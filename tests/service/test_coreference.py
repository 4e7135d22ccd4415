"""/v1/coreference by POST and GET with every option, and /v1/coreference/evaluate, on a tiny random model."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from attention_core import evaluation as core
from attention_core.evaluation import held_out
from service.schemas.coreference import CoreferenceAnswer, EvaluateAnswer
from tests.conftest import MakeApp
from tests.service.test_answers import eager, ids_of, post
from tests.service.test_negotiation import ok
from tests.service.test_requests import problem
from tests.tiny import HEADS, LAYERS

TEXT = "the cat sat on the mat, it is"
ITEM: dict[str, Any] = {
    "text": TEXT,
    "pronoun": {"text": "it"},
    "candidates": [{"text": "the cat"}, {"text": "mat"}],
    "gold": 1,
}
LATER: dict[str, Any] = {
    "text": "on the mat is the cat that it sat on",
    "pronoun": {"text": "it"},
    "candidates": [{"text": "mat"}, {"text": "cat"}],
    "gold": 0,
}


def read_csv(response: TestResponse) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(ok(response).text, newline="")))


def rows_of(result: dict[str, Any], layer: int, head: int) -> np.ndarray:
    """The pronoun's rows, [query, key]"""
    return np.asarray(
        eager(ids_of(result))[layer, head, result["pronoun"]["token_indices"]], dtype=np.float64
    )


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "last", "head_word"])
@pytest.mark.parametrize("query", ["last", "first", "mean"])
@pytest.mark.parametrize(
    ("normalize", "first_token"), [("none", "keep"), ("candidates", "keep"), ("exclude_sink", "drop")]
)
def test_every_option_does_to_eager_attention_what_it_says(
    client: FlaskClient, aggregate: str, query: str, normalize: str, first_token: str
) -> None:
    options = {"aggregate": aggregate, "query": query, "normalize": normalize, "first_token": first_token}
    body = {**ITEM, "heads": [[1, 2]], **options}
    (result,) = post(client, "/v1/coreference", body, CoreferenceAnswer)["results"]
    row = {"last": lambda r: r[-1], "first": lambda r: r[0], "mean": lambda r: r.mean(0)}[query](
        rows_of(result, 1, 2)
    )
    expected = []
    for candidate in result["candidates"]:
        keys = [key for key in candidate["token_indices"] if key > 0 or first_token == "keep"]
        if aggregate == "last":
            keys = keys[-1:]
        if aggregate == "head_word":
            word = candidate["text"].split()[-1]
            start = candidate["end"] - len(word)
            keys = [key for key in keys if result["tokens"][key]["start"] >= start]
        weights = row[keys]
        expected.append({"mean": weights.mean, "max": weights.max}.get(aggregate, weights.sum)())
    divisor = {"none": 1.0, "candidates": sum(expected), "exclude_sink": 1 - row[0]}[normalize]
    assert result["heads"][0]["scores"] == pytest.approx([one / divisor for one in expected], abs=1e-5)


def test_a_get_says_the_same_as_a_post(client: FlaskClient) -> None:
    options = {"aggregate": "mean", "query": "mean", "normalize": "candidates", "first_token": "drop"}
    posted = post(
        client, "/v1/coreference", {**ITEM, "heads": [[0, 1], [2, 4]], **options}, CoreferenceAnswer
    )
    query = {"text": TEXT, "pronoun": "it", "gold": "1", "heads": "L0H1,L2H4", **options}
    for candidates in ("the cat,mat", "0..7,19..22"):
        got = ok(client.get("/v1/coreference", query_string={**query, "candidates": candidates}))
        assert got.get_json() == posted
    every = ok(
        client.get("/v1/coreference", query_string={**query, "candidates": "the cat,mat", "heads": "all"})
    )
    assert len(every.get_json()["results"][0]["heads"]) == LAYERS * HEADS
    tag = every.headers["ETag"]
    again = client.get(
        "/v1/coreference",
        query_string={**query, "candidates": "the cat,mat", "heads": "all"},
        headers={"If-None-Match": tag},
    )
    assert again.status_code == 304


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"pronoun": None}, "/pronoun", "missing_field"),
        ({"candidates": None}, "/candidates", "missing_field"),
        ({"heads": "5,5"}, "/heads", "unknown_option"),
        ({"heads": "L9H0"}, "/heads/0/0", "layer_out_of_range"),
        ({"pronoun": "99..101"}, "/pronoun", "span_out_of_range"),
        ({"candidates": "cat,,mat"}, "/candidates/1", "empty_span"),
        ({"candidates": "cat,dog"}, "/candidates/1", "span_not_found"),
        ({"gold": "2"}, "/gold", "gold_out_of_range"),
        (
            {"method": "substitution", "heads": None, "aggregate": "mean"},
            "/aggregate",
            "incompatible_options",
        ),
        ({"method": "substitution", "heads": "all"}, "/heads", "incompatible_options"),
        ({"normalize": "softmax"}, "/normalize", "unknown_option"),
        ({"items": "[]"}, "/items", "unknown_field"),
    ],
)
def test_a_wrong_wish_in_a_url_is_named(
    client: FlaskClient, change: dict[str, str | None], pointer: str, code: str
) -> None:
    query = {"text": TEXT, "pronoun": "it", "candidates": "cat,mat", "heads": "L0H0", **change}
    given = {name: value for name, value in query.items() if value is not None}
    errors = problem(client.get("/v1/coreference", query_string=given), 422)["errors"]
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in errors]


def test_an_item_that_cannot_be_scored_may_be_skipped(client: FlaskClient) -> None:
    bad = {**ITEM, "pronoun": {"text": "she"}}
    body = {"items": [ITEM, bad, {**ITEM, "text": " "}, LATER], "heads": [[0, 0]]}
    errors = problem(client.post("/v1/coreference", json=body), 422)["errors"]
    assert {error["pointer"] for error in errors} == {"/items/1/pronoun", "/items/2/text"}
    answer = post(client, "/v1/coreference", {**body, "on_error": "skip"}, CoreferenceAnswer)
    assert [one.get("error", {}).get("code") for one in answer["results"]] == [
        None,
        "span_not_found",
        "empty_text",
        None,
    ]
    alone = post(client, "/v1/coreference", {**LATER, "heads": [[0, 0]]}, CoreferenceAnswer)["results"]
    assert answer["results"][3]["heads"][0]["scores"] == pytest.approx(
        alone[0]["heads"][0]["scores"], abs=1e-5
    )


@pytest.mark.parametrize("name", ["rows", "csv"])
def test_a_table_has_a_row_a_candidate_of_a_head(client: FlaskClient, name: str) -> None:
    body = {"items": [ITEM, {**ITEM, "text": ""}, LATER], "heads": [[0, 0], [1, 2]], "on_error": "skip"}
    answer = post(client, "/v1/coreference", body, CoreferenceAnswer)
    response = ok(client.post("/v1/coreference", query_string={"format": name}, json=body))
    records = (
        response.get_json()
        if name == "rows"
        else list(csv.DictReader(io.StringIO(response.text, newline="")))
    )
    assert [(int(one["item"]), int(one["layer"]), int(one["candidate"])) for one in records] == [
        (item, layer, candidate) for item in (0, 2) for layer in (0, 1) for candidate in (0, 1)
    ]
    for record in records:
        head = answer["results"][int(record["item"])]["heads"][int(record["layer"])]
        assert float(record["score"]) == head["scores"][int(record["candidate"])]
        assert float(record["margin"]) == head["margin"]


def test_cells_that_a_spreadsheet_would_run_are_defused_on_request(client: FlaskClient) -> None:
    query = {"text": "the =cat sat, it", "pronoun": "it", "candidates": "4..8,9..12", "heads": "L0H0"}
    texts = [
        [
            row["candidate_text"]
            for row in csv.DictReader(
                io.StringIO(ok(client.get("/v1/coreference.csv", query_string=one)).text)
            )
        ]
        for one in (query, {**query, "spreadsheet": "1"})
    ]
    assert texts == [["=cat", "sat"], ["'=cat", "sat"]]


def test_substitution_answers_without_attention(client: FlaskClient) -> None:
    body = {"items": [ITEM, {**LATER, "text": "on the mat sat the cat, it"}], "method": "substitution"}
    answer = post(client, "/v1/coreference", body, CoreferenceAnswer)
    first, last = answer["results"]
    assert first["heads"] == []
    scores = first["substitution"]["scores"]
    assert all(score < 0 for score in scores)
    assert first["substitution"]["predicted"] == int(np.argmax(scores))
    assert first["substitution"]["margin"] == pytest.approx(abs(scores[0] - scores[1]))
    assert first["warnings"] == []  # what comes later does matter here
    assert last["substitution"]["scores"] == [None, None]
    assert [warning["code"] for warning in last["warnings"]] == ["no_continuation"]
    (row, *_) = ok(
        client.post("/v1/coreference?format=rows", json={**ITEM, "method": "substitution"})
    ).get_json()
    assert (row["layer"], row["score"]) == (None, pytest.approx(scores[0], abs=1e-4))


# --- evaluation ---------------------------------------------------------------------------------------------

ITEMS = [
    {**ITEM, "id": "a", "group": "g"},
    {**LATER, "id": "b"},
    {**ITEM, "gold": 0, "id": "c", "group": "g"},
    {**LATER, "candidates": [{"text": "cat"}], "gold": 0, "id": "alone"},
    {**ITEM, "pronoun": {"text": "she"}, "id": "bad"},
    {
        **LATER,
        "text": "the sat, mat the is on, it",
        "candidates": [{"text": "sat"}, {"text": "is"}],
        "gold": 1,
        "id": "d",
    },
]


SCORED = [
    {name: value for name, value in ITEMS[place].items() if name not in ("id", "group")}
    for place in (0, 1, 2, 5)
]


def test_an_evaluation_counts_what_single_requests_answer(client: FlaskClient) -> None:
    body = {"items": ITEMS, "split": None, "top": 10_000}
    answer = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    assert (answer["n"], answer["scored"]) == (6, 4)
    assert [(one["pointer"], one["id"], one["code"]) for one in answer["skipped"]] == [
        ("/items/3", "alone", "single_candidate"),
        ("/items/4/pronoun", "bad", "span_not_found"),
    ]
    single = post(client, "/v1/coreference", {"items": SCORED, "heads": "all"}, CoreferenceAnswer)["results"]
    assert len(answer["heads"]) == LAYERS * HEADS
    for judged in answer["heads"]:
        of_head = [
            head
            for result in single
            for head in result["heads"]
            if (head["layer"], head["head"]) == (judged["layer"], judged["head"])
        ]
        assert judged["all"]["correct"] == sum(head["correct"] for head in of_head)
        assert judged["all"]["n"] == 4
        assert answer["grid"]["accuracy"][judged["layer"]][judged["head"]] == judged["all"]["accuracy"]
    best = answer["best"]
    values = [head["all"]["correct"] for head in answer["heads"]]
    assert values == sorted(values, reverse=True)
    assert (best["layer"], best["head"], best["tied_heads"]) == (
        answer["heads"][0]["layer"],
        answer["heads"][0]["head"],
        values.count(values[0]),
    )
    assert "dev" not in best
    assert answer["ceiling"] == 3 / 4  # a and c are the same to every head
    assert {"no_held_out_split", "too_few_items", "ceiling_below_one"} <= {
        one["code"] for one in answer["warnings"]
    }
    assert answer["request"]["heads"] is None
    assert len(answer["request"]["items_sha256"]) == 64


def test_a_split_never_divides_a_group_and_follows_its_seed(client: FlaskClient) -> None:
    body = {"items": ITEMS, "split": {"test_fraction": 0.4, "seed": 3}, "heads": [[0, 1], [2, 3]]}
    answer = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    again = post(client, "/v1/coreference/evaluate", {**body, "items": ITEMS[::-1]}, EvaluateAnswer)
    sizes = {name: part["n"] for name, part in answer["parts"].items()}
    assert sizes["dev"] + sizes["test"] == sizes["all"] == 4
    assert answer["heads"] == again["heads"]
    assert answer["best"]["dev"]["n"] == sizes["dev"]
    assert answer["grid"]["layers"] == [0, 2]
    assert answer["grid"]["accuracy"][0][1] is None  # L0H3 was not evaluated


def lines(items: list[object]) -> str:
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in items)


def test_json_lines_are_the_same_and_a_bad_line_is_reported_by_number(client: FlaskClient) -> None:
    sent = [
        ITEMS[0],
        "",
        "{broken",
        ITEMS[1],
        {**ITEM, "gold": None},
        json.dumps(ITEMS[1])[:-1] + ', "gold": 1}',
        *ITEMS[2:],
    ]
    response = client.post(
        "/v1/coreference/evaluate",
        query_string={
            "heads": "L0H1,L2H3",
            "split": "test_fraction:0.4,seed:3",
            "top": "1",
            "rank_by": "balanced",
        },
        data=lines(sent),
        content_type="application/x-ndjson",
    )
    answer = ok(response).get_json()
    EvaluateAnswer.model_validate_json(response.data, strict=True)
    body = {
        "items": ITEMS,
        "heads": [[0, 1], [2, 3]],
        "split": {"test_fraction": 0.4, "seed": 3},
        "top": 1,
        "rank_by": "balanced",
    }
    as_json = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    for name in answer.keys() - {"n", "skipped"}:
        assert answer[name] == as_json[name], name
    assert answer["n"] == as_json["n"] + 3
    assert [(one["line"], one["code"]) for one in answer["skipped"]] == [
        (3, "malformed_line"),
        (5, "wrong_type"),
        (6, "malformed_line"),
        (8, "single_candidate"),
        (9, "span_not_found"),
    ]
    without = client.post(
        "/v1/coreference/evaluate?split=none&heads=all",
        data=lines([ITEMS[0]]),
        content_type="application/x-ndjson",
    )
    assert "dev" not in ok(without).get_json()["parts"]


def test_lines_without_a_single_item_are_refused(client: FlaskClient) -> None:
    def send(text: str) -> dict[str, Any]:
        return problem(
            client.post("/v1/coreference/evaluate", data=text, content_type="application/x-ndjson"), 422
        )

    assert send("{\n[1]\n")["errors"][0]["detail"].startswith("Line 1: ")
    assert send("\n \n")["errors"][0]["code"] == "missing_field"
    unresolved = send("{\n\n" + lines([ITEMS[4], {**ITEM, "candidates": [{"text": "dog"}]}]))["errors"]
    assert [(one["pointer"], one["detail"][:18]) for one in unresolved] == [
        ("", "Line 1: The line i"),
        ("", "Line 3: /pronoun: "),
        ("", "Line 4: /candidate"),
    ]
    url = "/v1/coreference/evaluate?heads=L0H0"  # options in the URL, but no JSON Lines
    for media_type in ("text/plain", "application/x-ndjson; charset=latin-1"):
        refused = client.post(url, data=lines([ITEM]), content_type=media_type)
        problem(refused, 415)
        assert refused.headers["Accept-Post"].endswith("application/x-ndjson")
    refused = client.post("/v1/coreference/evaluate", data="a", content_type="text/plain")
    assert refused.headers["Accept-Post"] == "application/json, application/x-ndjson"
    problem(refused, 415)
    problem(client.post("/v1/coreference", data="{}", content_type="application/x-ndjson"), 415)


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"items": []}, "/items", "out_of_range"),
        ({"items": [{**ITEM, "gold": None}]}, "/items/0/gold", "wrong_type"),
        ({"items": ITEMS, "heads": [[0, 99]]}, "/heads/0/1", "head_out_of_range"),
        ({"items": ITEMS, "split": {"test_fraction": 1.0}}, "/split/test_fraction", "out_of_range"),
        ({"items": ITEMS, "rank_by": "luck"}, "/rank_by", "unknown_option"),
        ({"items": ITEMS[:1], "split": {}}, "/split", "incompatible_options"),
        ({"items": ITEMS[4:5]}, "/items/0/pronoun", "span_not_found"),
        ({"items": ITEMS, "on_error": "skip"}, "/on_error", "unknown_field"),
    ],
)
def test_a_wrong_evaluation_is_refused(
    client: FlaskClient, body: dict[str, Any], pointer: str, code: str
) -> None:
    errors = problem(client.post("/v1/coreference/evaluate", json=body), 422)["errors"]
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in errors]


def test_an_evaluation_takes_more_items_than_a_request_takes_texts(make_app: MakeApp) -> None:
    client = make_app(max_texts=2, max_items=5, max_tokens_per_request=40).test_client()
    body = {"items": [ITEM] * 5, "heads": [[0, 0]], "split": None}
    assert post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)["scored"] == 5
    too_many = problem(client.post("/v1/coreference/evaluate", json={**body, "items": [ITEM] * 6}), 413)
    assert (too_many["limit"], too_many["actual"]) == (5, 6)
    assert "further requests" in too_many["detail"]
    too_many = problem(
        client.post("/v1/coreference/evaluate", data=lines([ITEM] * 6), content_type="application/x-ndjson"),
        413,
    )
    assert (too_many["limit"], too_many["actual"]) == (5, 6)


def test_the_substitution_method_is_judged_like_a_head(client: FlaskClient) -> None:
    body = {"items": ITEMS, "method": "substitution", "split": None}
    answer = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    single = post(client, "/v1/coreference", {"items": SCORED, "method": "substitution"}, CoreferenceAnswer)
    assert answer["substitution"]["all"]["correct"] == sum(
        bool(result["substitution"]["correct"]) for result in single["results"]
    )
    assert (answer["heads"], answer["best"], answer["ceiling"]) == ([], None, None)
    assert "grid" not in answer


@pytest.mark.parametrize("body", [{"items": ITEMS}, {"items": ITEMS, "method": "substitution"}])
def test_an_evaluation_is_a_table_with_a_row_a_head(client: FlaskClient, body: dict[str, Any]) -> None:
    answer = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    response = ok(client.post("/v1/coreference/evaluate?format=csv", json=body))
    records = list(csv.DictReader(io.StringIO(response.text, newline="")))
    judges = answer["heads"] or [answer["substitution"]]
    assert len(records) == len(judges)
    for record, judge in zip(records, judges, strict=True):
        assert int(record["all_correct"]) == judge["all"]["correct"]
        assert float(record["test_ci95_low"]) == judge["test"]["ci95"][0]
        assert record["layer"] == str(judge.get("layer", ""))


def test_items_are_read_in_runs_and_every_text_once(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    client = app.test_client()
    body = {"items": [*ITEMS[:3], *ITEMS[:3], ITEMS[5]], "split": None, "heads": "all"}
    whole = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    monkeypatch.setattr("service.jobs.evaluate.RUN_TOKENS", 1)  # a run for every text
    reader = app.extensions["engine"].model.reader
    read: list[int] = []
    original = reader.read

    def counting(sequences: list[list[int]], *arguments: Any, **options: Any) -> None:
        read.append(len(sequences))
        original(sequences, *arguments, **options)

    reader.read = counting
    try:
        runs = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    finally:
        del reader.read
    assert read == [1, 1, 1]
    assert runs["heads"] == whole["heads"]


EASY = [
    {
        "text": f"the {first} sat on the {second}, it is {place}",
        "pronoun": {"text": "it"},
        "candidates": [{"text": first}, {"text": second}],
        "gold": place % 2,
        "group": f"g{place // 2}",
    }
    for place, (first, second) in enumerate(
        (a, b)
        for a in ("cat", "dog", "ox")
        for b in ("mat", "on", "hat", "is", "up")
        if a != b and b != "on" and b != "is"
    )
]


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("fraction", [0.25, 0.6])
@pytest.mark.parametrize("rank_by", ["accuracy", "balanced"])
def test_an_evaluation_is_the_cores_of_single_answers(
    client: FlaskClient, seed: int, fraction: float, rank_by: str
) -> None:
    split = {"test_fraction": fraction, "seed": seed}
    body = {"items": EASY, "split": split, "rank_by": rank_by, "top": 10_000}
    answer = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    plain = [{name: value for name, value in item.items() if name != "group"} for item in EASY]
    single = post(client, "/v1/coreference", {"items": plain, "heads": "all"}, CoreferenceAnswer)["results"]
    right = {
        (head["layer"], head["head"]): [result["heads"][place]["correct"] for result in single]
        for place, head in enumerate(single[0]["heads"])
    }
    groups = sorted({item["group"] for item in EASY})
    held = held_out(groups, core.Split(fraction, seed))
    test = [dict(zip(groups, held, strict=True))[item["group"]] for item in EASY]
    assert 0 < sum(test) < len(EASY)
    assert answer["parts"]["test"]["n"] == sum(test)

    def value(head: tuple[int, int]) -> float:
        """On dev"""
        sides = [
            [
                ok
                for ok, item, out in zip(right[head], EASY, test, strict=True)
                if not out and item["gold"] in golds
            ]
            for golds in (((0, 1),) if rank_by == "accuracy" else ((0,), (1,)))
        ]
        return float(np.mean([np.mean(side) for side in sides]))

    ranked = sorted(right, key=lambda head: (-round(value(head), 9), head))
    assert [(one["layer"], one["head"]) for one in answer["heads"]] == ranked
    assert answer["best"]["value"] == pytest.approx(value(ranked[0]))
    for one in answer["heads"]:
        correct = right[one["layer"], one["head"]]
        on_test = sum(ok for ok, out in zip(correct, test, strict=True) if out)
        assert (one["all"]["correct"], one["test"]["correct"]) == (sum(correct), on_test)
        assert answer["grid"]["accuracy"][one["layer"]][one["head"]] == pytest.approx(on_test / sum(test))
    assert answer["request"]["split"] == split


def test_the_sha256_of_the_items_changes_with_a_gold(client: FlaskClient) -> None:
    one, other = (
        post(client, "/v1/coreference/evaluate", {"items": items, "heads": [[0, 0]]}, EvaluateAnswer)[
            "request"
        ]
        for items in (EASY, [{**EASY[0], "gold": 1}, *EASY[1:]])
    )
    assert one["items_sha256"] != other["items_sha256"]
    assert {**one, "items_sha256": ""} == {**other, "items_sha256": ""}


@pytest.mark.parametrize("method", ["attention", "substitution"])
def test_an_evaluation_tells_the_log_how_far_it_is(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for module in ("evaluate", "coreference"):
        monkeypatch.setattr(f"service.jobs.{module}.RUN_TOKENS", 60)
    with caplog.at_level("INFO", logger="service.jobs.evaluate"):
        post(client, "/v1/coreference/evaluate", {"items": EASY, "method": method}, EvaluateAnswer)
    done = [(record.items_done, record.items) for record in caplog.records if record.message == "evaluation"]  # type: ignore[attr-defined]
    assert len(done) > 2
    assert done == sorted(done)
    assert done[-1] == (len(EASY), len(EASY))


def test_many_candidates_do_not_make_a_substitution_evaluation_too_long(make_app: MakeApp) -> None:
    client = make_app(max_tokens_per_request=100).test_client()
    body = {"items": EASY, "method": "substitution", "split": None}
    answer = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)
    assert answer["scored"] == len(EASY)
    refused = problem(
        make_app(max_tokens_per_evaluation=300).test_client().post("/v1/coreference/evaluate", json=body), 422
    )
    assert (refused["errors"][0]["pointer"], refused["errors"][0]["code"]) == ("/items", "text_too_long")
    assert refused["limit"] == 300


def test_a_text_that_a_candidate_makes_too_long_does_not_sink_the_rest(make_app: MakeApp) -> None:
    short = {"text": "the cat, it", "pronoun": {"text": "it"}, "candidates": [{"text": "the cat"}]}
    long = {**ITEM, "gold": 0}
    tokens = (
        make_app().test_client().post("/v1/tokenize", json={"text": TEXT}).get_json()["results"][0]["tokens"]
    )
    client = make_app(max_tokens_per_text=len(tokens)).test_client()
    items = {
        "items": [{**long, "pronoun": {"text": "mat"}, "candidates": [{"text": "the cat sat on"}]}, short]
    }
    problem(client.post("/v1/coreference", json={**items, "method": "substitution"}), 422)
    body = {**items, "method": "substitution", "on_error": "skip"}
    first, second = post(client, "/v1/coreference", body, CoreferenceAnswer)["results"]
    assert (first["error"]["code"], first["error"]["pointer"]) == ("text_too_long", "/items/0/text")
    assert "substitution" in second


def test_a_split_that_cannot_be_is_refused_before_the_model_is_asked(make_app: MakeApp) -> None:
    app = make_app()
    app.extensions["engine"].model.reader.read = None  # would be a 500
    try:
        body = {"items": [{**item, "group": "one"} for item in EASY]}
        errors = problem(app.test_client().post("/v1/coreference/evaluate", json=body), 422)["errors"]
    finally:
        del app.extensions["engine"].model.reader.read
    assert (errors[0]["pointer"], errors[0]["code"]) == ("/split", "incompatible_options")


def test_substitution_is_warned_of_in_words_that_hold_for_it(client: FlaskClient) -> None:
    body = {"items": [*EASY, {**EASY[0], "text": "the cat sat on the mat, it"}], "method": "substitution"}
    warnings = post(client, "/v1/coreference/evaluate", body, EvaluateAnswer)["warnings"]
    assert {one["code"] for one in warnings} == {"too_few_items", "no_continuation"}
    assert not any("head" in one["message"] for one in warnings)
    assert "in 1 items nothing follows the pronoun" in warnings[-1]["message"]
