"""The tables of README and docs/ are what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from attention_core.heads import SCORES
from service.cli import main
from service.metrics import Metrics
from service.problems import PROBLEMS
from service.readme import DOCUMENTS, generated
from service.settings import Settings, variable

README = Path(__file__).parents[2] / "README.md"


def test_its_tables_are_those_that_the_code_generates(tmp_path: Path) -> None:
    assert main(["readme", "--check", "--root", str(README.parent)]) == 0
    for stale, was, other in (
        ("docs/heads.md", "| > 0.6 |", "| > 0.7 |"),
        ("README.md", "| 429 |", "| 430 |"),
    ):
        for name in DOCUMENTS:
            text = (README.parent / name).read_text(encoding="utf-8")
            assert text == generated(name, text)
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text.replace(was, other), encoding="utf-8")
        assert main(["readme", "--check", "--root", str(tmp_path)]) == 1
        assert main(["readme", "--root", str(tmp_path)]) == 0
        assert (tmp_path / stale).read_text(encoding="utf-8") == (README.parent / stale).read_text(
            encoding="utf-8"
        )


def test_every_score_setting_error_and_metric_has_its_line() -> None:
    texts = [(README.parent / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    lines = "\n".join(texts).splitlines()
    wanted = [
        *(f"| `{name}` | {rule.formula[:20]}" for name, rule in SCORES.items()),
        *(f"| `{variable(name)}` | " for name in Settings.model_fields),
        *(f"| {row.status} | `{row.type}` | " for row in PROBLEMS),
        *(f"| `{name}` | {kind} | " for name, kind in exposed()),
    ]
    assert [start for start in wanted if sum(line.startswith(start) for line in lines) != 1] == []


def exposed() -> list[tuple[str, str]]:
    """Name and type of each metric of ours, as /metrics tells them."""
    text = Metrics().exposition("text/plain")[0].decode()
    return re.findall(r"^# TYPE (attention_\w+) (\w+)$", text, re.MULTILINE)


def test_the_table_of_metrics_names_the_labels() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    requests = next(line for line in lines if line.startswith("| `attention_http_requests_total` |"))
    assert requests.split(" | ")[2] == "`route`, `method`, `status`"
    assert len(exposed()) >= 17


def test_what_stands_outside_of_the_tables_is_kept_and_a_missing_place_is_refused() -> None:
    text = README.read_text(encoding="utf-8")
    assert generated("README.md", f"before\n{text}after") == f"before\n{text}after"
    with pytest.raises(ValueError, match=r"README\.md has no place for the table errors"):
        generated("README.md", text.replace("<!-- errors -->", ""))


def test_the_citation_names_this_version_and_licence_and_every_paper_a_score_comes_from() -> None:
    citation = yaml.safe_load((README.parent / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {name: citation[name] for name in ("title", "version", "license")} == {
        "title": project["name"],
        "version": project["version"],
        "license": project["license"],
    }
    papers = {(paper["authors"][0]["family-names"], str(paper["year"])) for paper in citation["references"]}
    named = {
        found
        for rule in SCORES.values()
        for found in re.findall(r"(\w+) (?:et al\.|and \w+) (\d{4})", rule.source)
    }
    assert len(named) >= 6
    assert named <= papers
