"""What the dashboard and the alerts ask of Prometheus is what /metrics tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from service.problems import REASONS

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads(
    (DEPLOY / "grafana" / "attention-service.json").read_text(encoding="utf-8")
)
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = ALERTS["groups"][0]["rules"]

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
KEYWORDS = {"by", "on", "or", "and", "unless", "without", "ignoring", "group_left", "group_right", "bool"}
OF_PROMETHEUS = {"job", "instance", "le"}  # labels that the service does not set itself


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return [*targets, *variables, *(rule["expr"] for rule in RULES)]


def names(expression: str) -> set[str]:
    """The metrics of a PromQL expression, or of Grafana's label_values(metric, label)."""
    bare = re.sub(r",\s*\w+\)$", ")", expression) if expression.startswith("label_values") else expression
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"\b[a-z_:][a-zA-Z0-9_:]*\b(?!\s*\()", bare)) - KEYWORDS


def labels(expression: str) -> Iterator[str]:
    for matchers in re.findall(r"\{([^}]*)\}", expression):
        yield from re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        yield from re.findall(r"\w+", grouped)


@pytest.fixture
def exposed(client: FlaskClient) -> dict[str, set[str]]:
    """The labels of every series that /metrics tells once a request was made."""
    client.post("/v1/attention", json={"text": "the cat"})
    found: dict[str, set[str]] = {"up": set()}  # Prometheus' own
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for suffix in SUFFIXES.get(family.type, ("",)):
            found[family.name + suffix] = {name for sample in family.samples for name in sample.labels}
    return found


def test_the_names_in_an_expression_are_found() -> None:
    expression = 'histogram_quantile(0.95, sum by (le) (rate(a_bucket{b="c"}[5m]))) / on (x) d > 1 or up == 0'
    assert names(expression) == {"a_bucket", "d", "up"}
    assert set(labels(expression)) == {"le", "b", "x"}
    assert names("label_values(a_total, job)") == {"a_total"}


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_that_is_asked_for_exists(
    exposed: dict[str, set[str]], expression: str
) -> None:
    asked = names(expression)
    assert asked
    assert asked <= set(exposed)
    known = OF_PROMETHEUS.union(*(exposed[name] for name in asked))
    assert set(labels(expression)) <= known
    assert expression.count("(") == expression.count(")")


def test_every_metric_of_ours_is_on_the_dashboard(exposed: dict[str, set[str]]) -> None:
    shown = set().union(*map(names, expressions()))
    families = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed if name.startswith("attention_")
    }
    assert families == {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in shown if name.startswith("attention_")
    }


def test_the_dashboard_can_be_imported_anywhere() -> None:
    variables = {one["name"]: one["type"] for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= set(variables)


def test_panels_lie_beside_each_other_and_none_over_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alerts_are_for_what_calls_for_somebody() -> None:
    assert {rule["alert"] for rule in RULES} == {
        "AttentionDown",
        "AttentionNotReady",
        "AttentionErrors",
        "AttentionQueueFull",
        "AttentionSlow",
    }
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+m", rule["for"])
    for reason in re.findall(r'reason="(\w+)"', "".join(expressions())):
        assert reason in REASONS


def test_prometheus_asks_the_service_of_the_compose_file_every_five_seconds() -> None:
    conf = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="utf-8"))
    assert conf["global"]["scrape_interval"] == "5s"
    (job,) = conf["scrape_configs"]
    ((target,),) = (one["targets"] for one in job["static_configs"])
    name, port = target.split(":")
    assert compose["services"][name]["ports"][0].endswith(f":{port}")
    assert job["metrics_path"] == "/metrics"
    assert {f'job="{job["job_name"]}"'} == set(
        re.findall(r'job="\w+"', "".join(rule["expr"] for rule in RULES))
    )
    for file in conf["rule_files"]:
        assert (PROMETHEUS.parent / file).exists()


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool, which comes with Prometheus, is not installed"
)
def test_prometheus_itself_finds_nothing_wrong() -> None:
    for command in (
        ["check", "config", str(PROMETHEUS)],
        ["check", "rules", str(PROMETHEUS.parent / "alerts.yml")],
    ):
        told = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert told.returncode == 0, told.stdout + told.stderr
