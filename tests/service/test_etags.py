"""Every GET whose answer lasts carries an ETag and answers 304; the list of them is the URL map's."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient
from werkzeug.routing import Rule

from tests.conftest import MakeApp

KV = "model=llama-2-7b&tokens=4096"
COREFERENCE = "text=the cat sat, it is&pronoun=it&candidates=the cat&heads=L0H1"
EXAMPLES = {  # of each route, one that is answered 200
    "/": "/",
    "/embed/attention": "/embed/attention?text=the cat",
    "/openapi.json": "/openapi.json",
    "/openapi.yaml": "/openapi.yaml",
    "/problems/<slug>": "/problems/overloaded",
    "/static/<name>": "/static/common.js",
    "/v1/attention": "/v1/attention?text=the cat",
    "/v1/attention.<name>": "/v1/attention.csv?text=the cat",
    "/v1/coreference": f"/v1/coreference?{COREFERENCE}",
    "/v1/coreference.<name>": f"/v1/coreference.json?{COREFERENCE}",
    "/v1/heads": "/v1/heads?text=the cat",
    "/v1/heads.<name>": "/v1/heads.html?text=the cat",
    "/v1/kv-cache": f"/v1/kv-cache?{KV}",
    "/v1/kv-cache.<name>": f"/v1/kv-cache.svg?{KV}",
    "/v1/kv-cache/models": "/v1/kv-cache/models",
    "/v1/kv-cache/models/<path:id>": "/v1/kv-cache/models/llama-2-7b",
    "/v1/model": "/v1/model",
}
OF_THE_MOMENT = {"/health/live": "/health/live", "/health/ready": "/health/ready"}


def gets(client: FlaskClient) -> dict[str, Rule]:
    return {
        rule.rule: rule for rule in client.application.url_map.iter_rules() if "GET" in (rule.methods or ())
    }


def test_there_is_an_example_of_every_get_whose_answer_lasts(client: FlaskClient) -> None:
    views = client.application.view_functions
    lasting = {
        name
        for name, rule in gets(client).items()
        if views[rule.endpoint].contract.cacheable  # type: ignore[attr-defined]
    }
    assert lasting == EXAMPLES.keys()
    assert gets(client).keys() - lasting >= OF_THE_MOMENT.keys()


@pytest.mark.parametrize("encoding", ["identity", "gzip", "br", "zstd"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", EXAMPLES.values(), ids=EXAMPLES)
def test_what_the_client_has_is_answered_304(
    client: FlaskClient, path: str, method: str, encoding: str
) -> None:
    headers = {"Accept-Encoding": encoding}
    first = client.open(path, method=method, headers=headers)
    assert first.status_code == 200, first.text
    tag = first.headers["ETag"]
    for given in (tag, f'"other", {tag}'):
        again = client.open(path, method=method, headers={**headers, "If-None-Match": given})
        assert (again.status_code, again.data) == (304, b"")
        assert again.headers["ETag"].removeprefix("W/").partition(":")[0].strip('"') in tag
        assert "Accept-Encoding" in again.headers["Vary"]
    other = client.open(path, method=method, headers={**headers, "If-None-Match": '"other"'})
    assert (other.status_code, other.headers["ETag"]) == (200, tag)


@pytest.mark.parametrize("path", OF_THE_MOMENT.values())
def test_what_is_true_for_the_moment_is_not_to_be_stored(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert "ETag" not in answer.headers
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_changed_limit_changes_the_models_etag(make_app: MakeApp) -> None:
    tags = [make_app(max_texts=limit).test_client().get("/v1/model").headers["ETag"] for limit in (3, 5, 3)]
    assert tags[0] == tags[2] != tags[1]
