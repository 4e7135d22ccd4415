"""/v1/heads by GET and in every format; what each holds is compared with the JSON answer."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from flask.testing import FlaskClient
from PIL import Image

from attention_core.heads import LABELS, SCORES, HeadResult
from service.jobs import heads
from service.schemas.heads import HeadsAnswer
from tests.conftest import MakeApp
from tests.service.test_answers import post
from tests.service.test_negotiation import ok
from tests.service.test_requests import problem
from tests.tiny import HEADS, LAYERS

TEXT = "the cat sat on the mat, it is"
TEXTS = {"texts": [TEXT, "the mat, the mat, the mat", "it"]}
TYPES = {
    "json": "application/json",
    "rows": "application/json",
    "csv": "text/csv; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "html": "text/html; charset=utf-8",
}


def records(client: FlaskClient, body: dict[str, Any]) -> list[dict[str, str]]:
    response = ok(client.post("/v1/heads?format=csv", json=body))
    return list(csv.DictReader(io.StringIO(response.data.decode(), newline="")))


@pytest.mark.parametrize("name", TYPES)
def test_a_format_is_named_by_the_query_or_by_the_ending(client: FlaskClient, name: str) -> None:
    body = {"text": TEXT, "layers": [0, 2], "heads": [1]}
    posted = ok(client.post("/v1/heads", query_string={"format": name}, json=body))
    query = {"text": TEXT, "layers": "0,2", "head": "1"}
    got = ok(client.get(f"/v1/heads.{name}", query_string=query))
    named = ok(client.get("/v1/heads", query_string={**query, "format": name}))
    for response in (posted, got, named):
        assert response.content_type == TYPES[name]
        assert response.data == posted.data


def test_every_wish_that_a_url_can_say_is_the_bodys(client: FlaskClient) -> None:
    wishes = {
        "labels": ["induction", "broad", "first_token"],
        "thresholds": {"induction": 0.25, "first_token": 1e-3, "broad": 0.5},
        "probe": "repeat",
        "seed": 2**53 - 1,
        "draws": 2,
        "special_tokens": "parse",
    }
    query = {
        "labels": "induction,broad,first_token",
        "thresholds": "induction:.25,first_token:1e-3,broad:0.5",
        "probe": "repeat",
        "seed": str(2**53 - 1),
        "draws": "2",
        "special_tokens": "parse",
    }
    body = {"text": TEXT, "layers": [1], "heads": [3], **wishes}
    posted = post(client, "/v1/heads", body, HeadsAnswer)
    got = ok(
        client.get("/v1/heads", query_string={"text": TEXT, "layer": "1", "head": "3", **query})
    ).get_json()
    assert got == posted
    assert set(got["summary"]["labels"]) == {"induction", "broad", "first_token"}


@pytest.mark.parametrize(
    ("query", "pointer", "code"),
    [
        ({}, "/text", "missing_field"),
        ({"text": "a", "labels": "sink,nope"}, "/labels/1", "unknown_option"),
        ({"text": "a", "labels": "first_token"}, "/labels/0", "out_of_range"),
        ({"text": "a", "thresholds": "sink:2"}, "/thresholds/sink", "out_of_range"),
        ({"text": "a", "thresholds": "sink:1e999"}, "/thresholds/sink", "out_of_range"),
        ({"text": "a", "thresholds": "sink:high"}, "/thresholds/sink", "wrong_type"),
        ({"text": "a", "thresholds": "sink"}, "/thresholds", "wrong_type"),
        ({"text": "a", "thresholds": "sink:0.1,sink:0.2"}, "/thresholds", "wrong_type"),
        ({"text": "a", "seed": "one"}, "/seed", "wrong_type"),
        ({"text": "a", "probe": "repeat", "seed": "9" * 19}, "/seed", "out_of_range"),
        ({"text": "a", "seed": "5"}, "/seed", "incompatible_options"),
        ({"text": "a", "draws": "1"}, "/draws", "out_of_range"),
        ({"text": "a", "probe": "other"}, "/probe", "unknown_option"),
        ({"text": "a", "format": "svg", "color": "mauve"}, "/color", "unknown_option"),
        ({"text": "a", "format": "svg", "color": "coreference"}, "/color", "unknown_option"),
        ({"text": "a", "format": "png", "color": "custom"}, "/color", "incompatible_options"),
        ({"text": "a", "format": "png", "color": "induction"}, "/color", "nothing_to_draw"),
        ({"text": "a", "pattern": "1"}, "/pattern", "unknown_field"),
        ({"text": "a", "spreadsheet": "1"}, "/spreadsheet", "unknown_field"),
        ({"text": "a", "decimals": "3"}, "/decimals", "unknown_field"),
    ],
)
def test_a_wrong_parameter_is_named(
    client: FlaskClient, query: dict[str, str], pointer: str, code: str
) -> None:
    errors = problem(client.get("/v1/heads", query_string=query), 422)["errors"]
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in errors]


def test_no_such_format_is_406_or_404(client: FlaskClient) -> None:
    assert "text/csv" in problem(client.get("/v1/heads?text=a&format=npz"), 406)["formats"]
    problem(client.get("/v1/heads.npz?text=a"), 404)


@pytest.mark.parametrize("body", [{"text": TEXT}, TEXTS, {"text": "it", "probe": "repeat", "draws": 3}])
def test_rows_are_one_flat_record_a_head_with_the_numbers_of_the_json(
    client: FlaskClient, body: dict[str, Any]
) -> None:
    answer = post(client, "/v1/heads", body, HeadsAnswer)
    rows = ok(client.post("/v1/heads?format=rows", json=body)).get_json()
    assert [(row["layer"], row["head"]) for row in rows] == [
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    ]
    assert len({tuple(row) for row in rows}) == 1  # the same columns in the same order
    for row, head in zip(rows, answer["heads"], strict=True):
        assert all(not isinstance(value, dict | list) for value in row.values())
        assert [name for name in row["labels"].split(";") if name] == head["labels"]
        assert (row["kv_head"], row["entropy"]) == (head["kv_head"], head["entropy"])
        for name, score in head["scores"].items():
            assert row[name] == score["score"]
            for member in ("baseline", "excess", "argmax_rate", "rows", "status", "sd", "n"):
                assert row.get(f"{name}_{member}") == score.get(member)
            if "ci95" in score:
                assert [row[f"{name}_ci95_low"], row[f"{name}_ci95_high"]] == (score["ci95"] or [None, None])
        for name, count in head.get("texts_agreeing", {}).items():
            assert row[f"{name}_texts"] == count
        assert row["model_id"] == answer["model"]["id"]
        assert row["version_torch"] == answer["model"]["versions"]["torch"]


def test_csv_is_the_rows_with_empty_cells_where_there_is_no_number(client: FlaskClient) -> None:
    body = {"text": TEXT, "layers": [2]}
    rows = ok(client.post("/v1/heads?format=rows", json=body)).get_json()
    read = records(client, body)
    assert read == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]
    assert {row["coreference"] for row in read} == {""}
    assert {row["coreference_status"] for row in read} == {"not_applicable"}
    response = client.post("/v1/heads?format=csv", json=body)
    assert response.headers["Content-Disposition"] == 'attachment; filename="heads.csv"'


def test_a_picture_shows_what_color_names_and_says_which_request_it_answers(client: FlaskClient) -> None:
    query = {"text": TEXT, "layers": "0,2", "color": "sink", "width": "640"}
    svg = ok(client.get("/v1/heads.svg", query_string=query)).text
    assert ">sink<" in svg
    assert html.unescape(svg).count('"layers":[0,2]') == 1
    assert ">labels<" in ok(client.get("/v1/heads.svg", query_string={"text": TEXT})).text
    png = Image.open(io.BytesIO(ok(client.get("/v1/heads.png", query_string=query)).data))
    assert png.size[0] == 640
    asked = json.loads(png.info["Description"])["request"]
    posted = ok(client.post("/v1/heads?format=png&color=sink&width=640", json=asked))
    assert posted.data == client.get("/v1/heads.png", query_string=query).data


def test_a_pattern_can_be_drawn(client: FlaskClient) -> None:
    body = {"token_ids": [5, 7, 9, 11], "pattern": [[1, 0, 0, 0]] * 4}
    assert ">custom<" in ok(client.post("/v1/heads?format=svg&color=custom", json=body)).text


def test_a_pattern_has_its_columns(client: FlaskClient) -> None:
    body = {"token_ids": [5, 7, 9], "layers": [0], "heads": [2], "pattern": [[1, 0, 0], [1, 0, 0], [0, 1, 0]]}
    (head,) = post(client, "/v1/heads", body, HeadsAnswer)["heads"]
    (row,) = records(client, body)
    assert float(row["custom"]) == head["scores"]["custom"]["score"]
    assert float(row["custom_mae_similarity"]) == head["scores"]["custom"]["mae_similarity"]


@pytest.mark.parametrize(
    "body",
    [
        {"text": TEXT, "thresholds": {"sink": 0.125}, "labels": ["sink", "broad"]},
        {**TEXTS, "probe": "repeat", "seed": 7, "draws": 2, "layers": [1]},
        {"messages": [{"role": "user", "content": "the cat"}], "layers": [0], "on_error": "skip"},
        {"token_ids": [3, 4], "pattern": [[1, 0], [0, 1]]},
    ],
)
def test_the_request_in_an_answer_sent_again_gives_the_same_answer(
    client: FlaskClient, body: dict[str, Any]
) -> None:
    first = ok(client.post("/v1/heads", json=body))
    asked = first.get_json()["request"]
    assert {name: asked[name] for name in body if name != "thresholds"} == {
        name: value for name, value in body.items() if name != "thresholds"
    }
    assert asked["probe"] == body.get("probe", "none")  # defaults are written out
    defaults = {name: rule.threshold for name, rule in SCORES.items() if rule.threshold is not None}
    assert asked["thresholds"] == defaults | body.get("thresholds", {})
    again = ok(client.post("/v1/heads", json=asked))
    assert again.get_json() == first.get_json()


def test_the_strongest_heads_of_a_label_are_the_five_highest_scores_labelled_or_not(
    client: FlaskClient,
) -> None:
    answer = post(client, "/v1/heads", {"text": TEXT, "thresholds": {"sink": 0.99}}, HeadsAnswer)
    for name, label in answer["summary"]["labels"].items():
        ranked = sorted(
            (-head["scores"][name]["score"], head["layer"], head["head"])
            for head in answer["heads"]
            if head["scores"][name]["status"] == "ok"
        )
        assert [(-top["score"], top["layer"], top["head"]) for top in label["top"]] == ranked[:5]
    assert answer["summary"]["labels"]["sink"]["count"] == 0
    assert len(answer["summary"]["labels"]["sink"]["top"]) == 5


def test_no_head_is_strongest_where_the_text_is_too_short(client: FlaskClient) -> None:
    labels = post(client, "/v1/heads", {"text": "it"}, HeadsAnswer)["summary"]["labels"]
    assert set(labels) == {name for name in LABELS if SCORES[name].threshold is not None}
    assert all(label["top"] == [] for label in labels.values())


def test_a_get_has_an_etag_and_is_answered_304_without_the_model(make_app: MakeApp) -> None:
    app = make_app()
    client = app.test_client()
    query = {"text": "the cat", "layer": "1"}
    first = ok(client.get("/v1/heads.csv", query_string=query))
    app.extensions["engine"].model.reader.read = None  # would be a 500
    again = client.get("/v1/heads.csv", query_string=query, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    del app.extensions["engine"].model.reader.read
    other = ok(client.get("/v1/heads.csv", query_string={**query, "thresholds": "sink:0.4"}))
    assert other.headers["ETag"] != first.headers["ETag"]


@pytest.mark.parametrize("name", TYPES)
def test_a_number_that_is_not_finite_is_never_written(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    described = heads._as_dicts

    def broken(results: Sequence[HeadResult]) -> list[dict[str, Any]]:
        every = described(results)
        every[0]["scores"]["sink"]["score"] = math.nan
        return every

    client = make_app().test_client()
    monkeypatch.setattr(heads, "_as_dicts", broken)
    problem(client.post("/v1/heads", query_string={"format": name}, json={"text": TEXT, "layers": [0]}), 500)


def test_what_cannot_be_drawn_is_refused_before_the_model_is_asked(make_app: MakeApp) -> None:
    app = make_app()
    app.extensions["engine"].model.reader.read = None  # would be a 500
    client = app.test_client()
    try:
        problem(client.post("/v1/heads?format=png&color=custom", json={"text": TEXT}), 422)
        problem(client.post("/v1/attention?format=png", json={"texts": ["a", "b"]}), 422)
    finally:
        del app.extensions["engine"].model.reader.read
