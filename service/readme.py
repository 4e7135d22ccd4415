"""The tables of documents that say what code says too: written between `<!-- name -->` and `<!-- end of name -->`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from attention_core.heads import SCORES, ScoreRule
from service.metrics import Metrics
from service.problems import PROBLEMS
from service.settings import Limits, Settings, variable


def generated(document: str, text: str) -> str:
    """The document's text with every table as the code has it. Raises ValueError where a table's place is missing."""
    for name, table in DOCUMENTS[document].items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found_start, rest = text.partition(start)
        _, found_end, after = rest.partition(end)
        if not (found_start and found_end):
            raise ValueError(f"{document} has no place for the table {name}: {start} … {end}")
        text = "\n".join([before + start, *table(), end + after])
    return text


def _scores() -> list[str]:
    def label(rule: ScoreRule) -> str:
        return "-" if rule.threshold is None else f"{rule.sign} {rule.threshold:g}"

    rows = [
        (f"`{name}`", rule.formula, rule.baseline, label(rule), rule.source) for name, rule in SCORES.items()
    ]
    return _table(("score", "formula", "baseline", "label", "source"), rows)


def _settings() -> list[str]:
    rows = []
    # A model's fields begin with those it inherits; the limits are what a reader looks for last
    fields = {name: Settings.model_fields[name] for name in [*Settings.__annotations__, *Limits.model_fields]}
    for name, field in fields.items():
        default = "~/.cache/attention-service" if name == "cache" else field.default
        default = "" if default is None else ",".join(default) if isinstance(default, tuple) else default
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        rows.append((f"`{variable(name)}`", f"`{shown}`" if shown else "", field.description or ""))
    return _table(("variable", "default", "what"), rows)


def _errors() -> list[str]:
    return _table(
        ("status", "`type`", "when", "what to do"),
        [(str(row.status), f"`{row.type}`", row.cause, row.remedy) for row in PROBLEMS],
    )


def _metrics() -> list[str]:
    metrics, rows = Metrics(), []
    for family in metrics.registry.collect():
        # Which a family's name goes without
        name = family.name + ("_total" if family.type == "counter" else "")
        if name in metrics.labels:  # and not of the process
            labels = ", ".join(f"`{label}`" for label in metrics.labels[name])
            rows.append((f"`{name}`", family.type, labels, family.documentation))
    return _table(("metric", "type", "labels", "what"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]


DOCUMENTS: Mapping[str, Mapping[str, Callable[[], list[str]]]] = MappingProxyType(
    {
        "README.md": {"settings": _settings, "errors": _errors, "metrics": _metrics},
        "docs/heads.md": {"scores": _scores},
    }
)
