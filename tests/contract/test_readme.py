"""The tables of README and docs/ are what the code says, and where documents lead is there."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
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


# --- links ---

ROOT = README.parent
PROSE = [ROOT / f"{name}.md" for name in ("README", "SECURITY", "CONTRIBUTING")]
PROSE += sorted(ROOT.glob("docs/*.md"))
PROSE += [ROOT / folder / "README.md" for folder in ("examples", "deploy", "benchmarks")]


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Of a document's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.+)$", without_blocks(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found[re.sub(r"[^\w\- ]", "", words).replace(" ", "-")] += 1
    return {f"{name}-{i}" if i else name for name, count in found.items() for i in range(count)}


def links(text: str) -> list[str]:
    """Where the links and images of a document lead that name no host."""
    prose = re.sub(r"`[^`\n]*`", "code", without_blocks(text))
    found = re.findall(r"\]\(([^)\s]+)|^\[[^\]]+\]: *(\S+)|(?:src|href)=\"([^\"]+)\"", prose, re.MULTILINE)
    return [target for target in map("".join, found) if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_image_leads_to_a_file_or_a_heading(path: Path) -> None:
    lost = []
    for target in links(path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            lost.append(target)
    assert lost == []


def test_links_are_found_and_anchors_are_as_they_are_made_of_headings() -> None:
    text = "# One `two`: 3 × 4\n## [A](b) & `c`\n## Twice\n```\n# none\n[n](n)\n```\n## Twice\n"
    assert anchors(text) == {"one-two-3--4", "a--c", "twice", "twice-1"}
    text += '![c](d.png "e") [`f`](f#g) `[h](h)` [i](https://i.example)\n<img src="j">\n\n[k]: k.md\n'
    assert links(text) == ["b", "d.png", "f#g", "j", "k.md"]


def test_every_example_is_named_where_examples_are_listed() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()} - {"README.md"}
    assert {name for name in files if f"`{name}`" not in text} == set()
