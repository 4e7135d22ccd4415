"""A model's heads, without the service: where one looks, what kinds there are, which noun a pronoun attends to.

    python examples/heads.py Qwen/Qwen2.5-0.5B
    python examples/heads.py FOLDER "Anna called Tom because she was late." --pronoun she --candidates Anna Tom

FOLDER holds config.json, *.safetensors and tokenizer.json; `attention-service fetch-weights` names one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
import transformers

import attention_core as core
from attention_core.capture import AttentionReader, Rows
from attention_core.coreference import HeadAnswer, Question
from attention_core.spans import Token

SENTENCE = "The cat sat on the mat because it was tired."
SHOWN = 3  # keys of a row, heads of a kind
REFUSALS = (
    core.CoreferenceError,
    core.OutOfRangeError,
    core.ShapeError,
    core.SpanError,
    core.UnsupportedModelError,
)


def main() -> None:
    """Read the command line, and print all that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a folder with a model and its tokenizer, or a hub id")
    parser.add_argument("sentence", nargs="?", default=SENTENCE, help=f'default: "{SENTENCE}"')
    parser.add_argument("--layer", type=int, default=5, help="counted from 0; default: 5")
    parser.add_argument("--head", type=int, default=5, help="counted from 0; default: 5")
    parser.add_argument("--pronoun", default="it", help="default: it")
    parser.add_argument("--candidates", nargs="+", metavar="NOUN", help="what the pronoun may mean")
    options = parser.parse_args()
    if options.sentence == SENTENCE and options.candidates is None:
        options.candidates = ["cat", "mat"]
    try:
        reader, tokenizer = load(options.model)
        coded = tokenizer(options.sentence, return_offsets_mapping=True)
        pieces = tokenizer.convert_ids_to_tokens(coded.input_ids)
        tokens = core.align(options.sentence, coded.input_ids, coded.offset_mapping, pieces).tokens
        reader.check([coded.input_ids], {options.layer: [options.head]})
        question = find(options, tokens) if options.candidates else None
    except REFUSALS as error:
        sys.exit(f"heads.py: {error}")
    show_rows(reader, tokens, options.layer, options.head)
    show_kinds(reader, tokens)
    if question is not None:
        show_choice(reader, tokens, question, options.layer, options.head)


def load(model: str) -> tuple[AttentionReader, Any]:
    """The model, ready to be read, and its tokenizer."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        backbone = transformers.AutoModel.from_pretrained(model, dtype=torch.float32)
    except (OSError, ValueError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        sys.exit(
            f"heads.py: no model in {model}: expected a folder with config.json, *.safetensors and tokenizer.json, "
            f"or a hub id\n({why})"
        )
    return AttentionReader(backbone), tokenizer


def find(options: argparse.Namespace, tokens: Sequence[Token]) -> Question:
    """Where the pronoun and the candidates stand."""
    spans = []
    for word in (options.pronoun, *options.candidates):
        try:
            spans.append(core.resolve_span(options.sentence, tokens, span_text=word))
        except core.SpanError as error:
            sys.exit(f'heads.py: "{word}": {error}')
    return core.ask(options.sentence, tokens, spans[0], spans[1:])


def show_rows(reader: AttentionReader, tokens: Sequence[Token], layer: int, head: int) -> None:
    """What each token attends to most. Layers above do not run."""
    print(f"Where layer {layer} head {head} looks from each token:")

    def show(rows: Rows) -> None:
        for query, weights in zip(rows.queries, rows.weights[0], strict=True):  # weights [key]
            best = weights.topk(min(SHOWN, query + 1))
            keys = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            shown = ", ".join(f"{tokens[key].text} {weight:.3f}" for weight, key in keys)
            print(f"{query:4} {tokens[query].text:12} {shown}")

    reader.read([[one.id for one in tokens]], {layer: [head]}, show)


def show_kinds(reader: AttentionReader, tokens: Sequence[Token]) -> None:
    """How many heads carry each label, and which have the highest scores."""
    facts = core.text_facts([one.id for one in tokens], [one.text for one in tokens])
    (results,) = core.score_heads(reader.read, [facts], every_head(reader))
    print("\nKinds of head:")
    for name, found in core.summarise(core.label(results), core.thresholds_of()).items():
        if found.count:
            best = core.strongest(results, name, count=min(SHOWN, found.count))
            print(f"{found.count:4} {name:15} {' '.join(f'L{one.layer}H{one.head}' for one in best)}")


def show_choice(
    reader: AttentionReader, tokens: Sequence[Token], question: Question, layer: int, head: int
) -> None:
    """Which candidate the pronoun attends to: this head's weights, and every head's choice."""
    answers: list[HeadAnswer] = []
    ids = [one.id for one in tokens]
    core.attend(
        reader.read, [(ids, [question])], every_head(reader), lambda _, __, found: answers.extend(found)
    )
    (own,) = (one for one in answers if (one.layer, one.head) == (layer, head))
    print(f'\nWhere "{question.pronoun.text}" looks:')
    for noun, score in zip(question.candidates, own.scores, strict=True):
        seen = "comes later" if score is None else f"{score:.3f}"
        chosen = sum(one.predicted == noun.index for one in answers)
        print(f"     {noun.text:12} {seen}, chosen by {chosen} of {len(answers)} heads")


def every_head(reader: AttentionReader) -> dict[int, range]:
    """All heads of all layers."""
    return {layer: range(reader.heads) for layer in range(reader.layers)}


if __name__ == "__main__":
    main()
