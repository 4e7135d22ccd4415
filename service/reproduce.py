"""`attention-service reproduce`: every figure of the article, derived again and printed beside the article's own.

Rows that do not depend on the weights must hold: the exit code is 1 where one does not. Rows that do are compared where
the article's model runs, Qwen/Qwen2.5-0.5B; another model's figure stands beside the article's as `other model`.
The figures under `article` and the values compared with are the article's, written out: nothing here computes them.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal

import torch
from torch.nn import functional

from attention_core import (
    AdditiveAttention,
    MultiHeadAttention,
    attention_multiply_adds,
    dot_product,
    layer_costs,
    pair_count,
    scaling_experiment,
    self_attention,
)
from attention_core.capture import Rows
from attention_core.coreference import ask, score
from attention_core.heads import (
    PROBE_RULES,
    label,
    pool,
    repeat_probe,
    score_heads,
    strongest,
    summarise,
    text_facts,
    thresholds_of,
)
from attention_core.kv_cache import find_preset, kv_cache
from attention_core.spans import resolve_span
from service.model import LoadedModel, load_model
from service.settings import Settings
from service.weights import WeightsError

ARTICLE_MODEL = "Qwen/Qwen2.5-0.5B"
SENTENCE = "The cat sat on the mat because it was tired."
SINK_THRESHOLD = 0.5
PREVIOUS_TOKEN_HEAD = (8, 7)
PRONOUN_HEAD = (5, 5)
PARITY = 1e-15  # float64, absolute

Verdict = Literal["agrees", "differs", "other model", "not in the article"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table: what is claimed, the article's figure, ours, and whether they agree."""

    section: str
    claim: str
    article: str
    measured: float
    shown: str
    verdict: Verdict
    must_hold: bool


@dataclass(frozen=True, slots=True)
class Section:
    """Writes the rows of one section; all but `compare` write rows that must hold."""

    title: str

    def holds(self, claim: str, article: str, measured: float, shown: str, holds: bool) -> Claim:
        """A row whose verdict the caller knows."""
        return Claim(self.title, claim, article, measured, shown, "agrees" if holds else "differs", True)

    def equals(self, claim: str, article: int, measured: float) -> Claim:
        """A row whose figure is the article's exactly."""
        return self.holds(claim, f"{article:,}", measured, f"{measured:,.12g}", measured == article)

    def at_most(self, claim: str, bound: float, measured: float, article: str = "0") -> Claim:
        """A row whose figure is 0 but for rounding, which `bound` allows."""
        return self.holds(claim, article, measured, f"{measured:.1e}", measured <= bound)

    def compare(
        self,
        claim: str,
        article: str,
        expected: float | None,
        measured: float,
        shown: str,
        *,
        same_model: bool,
    ) -> Claim:
        """A row that depends on the weights: compared to within 0.01, on the article's model only."""
        verdict: Verdict = "other model"
        if expected is None:
            verdict = "not in the article"
        elif same_model:
            verdict = "agrees" if abs(measured - expected) <= 0.01 else "differs"
        return Claim(self.title, claim, article, measured, shown, verdict, must_hold=False)


def derive(model: LoadedModel) -> list[Claim]:
    """All rows, in the article's order."""
    return [*_four_tokens(), *_parity(), *_scaling(), *_cost(), *_of_the_model(model), *_memory()]


def reproduce_command(
    settings: Settings,
    out: Path,
    *,
    load: Callable[[Settings], LoadedModel] = load_model,
    derive: Callable[[LoadedModel], list[Claim]] = derive,
) -> int:
    """Run everything, print the table, write the JSON; 1 where something that must hold does not."""
    try:
        model = load(settings)
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a"):  # before the work, not after it
            pass
    except Exception as error:  # of the libraries that read a model any may come: the user wants one line
        known = isinstance(error, WeightsError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        print(f"attention-service: {' '.join(reason.split())}", file=sys.stderr)
        return error.exit_code if isinstance(error, WeightsError) else 1
    claims = derive(model)
    _print(claims, model)
    rows = [
        asdict(claim) | {"measured": claim.measured if math.isfinite(claim.measured) else None}
        for claim in claims
    ]
    report = json.dumps({"model": model.provenance, "claims": rows}, indent=2, ensure_ascii=False)
    out.write_text(report + "\n", encoding="utf-8")
    print(f"\nwritten to {out}")
    failed = [claim for claim in claims if claim.must_hold and claim.verdict == "differs"]
    for claim in failed:
        print(f"does not hold: {claim.section}: {claim.claim}", file=sys.stderr)
    return 1 if failed else 0


# --- what does not depend on the weights ---------------------------------------------------------------------


def _four_tokens() -> list[Claim]:
    section = Section("four tokens")
    generator = torch.Generator().manual_seed(0)
    x, w_q, w_k, w_v = (
        torch.randn(size, 8, generator=generator, dtype=torch.float64) for size in (4, 8, 8, 8)
    )
    attention = self_attention(x, w_q, w_k, w_v, causal=True)
    theirs = functional.scaled_dot_product_attention(
        (x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None], is_causal=True
    )[0]
    first = attention.weights[0, 0].item()
    torch.manual_seed(0)
    additive = AdditiveAttention(5, 7, 11)
    with torch.inference_mode():
        aligned = additive(torch.randn(1, 5), torch.randn(4, 7)).weights
    return [
        section.equals(
            "[1,2]·[3,4]", 11, dot_product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])).item()
        ),
        section.at_most("rows sum to 1, off by at most", PARITY, _off_one(attention.weights)),
        section.holds("causal: row 0 is a single 1.00", "1.00", first, f"{first:.2f}", first == 1),
        section.at_most(
            "self_attention against PyTorch, largest difference", PARITY, _distance(attention.output, theirs)
        ),
        section.at_most("additive attention: weights sum to 1, off by at most", 1e-6, _off_one(aligned)),
    ]


def _off_one(weights: torch.Tensor) -> float:
    return (weights.sum(-1) - 1).abs().max().item()


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours - theirs).abs().max().item()


def _parity() -> list[Claim]:
    section = Section("multi-head attention, float64, 8 heads")
    claims = []
    for kind, kv_heads in (("", 8), (", 2 KV heads", 2)):
        torch.manual_seed(0)
        ours = MultiHeadAttention(64, 8, kv_heads).double()
        x = torch.randn(3, 17, 64, dtype=torch.float64)
        with torch.inference_mode():
            output = ours(x, causal=True).output
            for name, theirs in (
                ("F.scaled_dot_product_attention", _fused(ours, x, kv_heads)),
                ("torch.nn.MultiheadAttention", _module(ours, x, kv_heads)),
            ):
                claims.append(
                    section.at_most(f"against {name}{kind}", PARITY, _distance(output, theirs), "1.7e-16")
                )
    return claims


def _fused(ours: MultiHeadAttention, x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    batch, tokens, width = x.shape

    def split(y: torch.Tensor, heads: int) -> torch.Tensor:
        return y.view(batch, tokens, heads, width // 8).transpose(1, 2)  # [text, head, token, d]

    mixed = functional.scaled_dot_product_attention(
        split(ours.q_proj(x), 8),
        split(ours.k_proj(x), kv_heads),
        split(ours.v_proj(x), kv_heads),
        is_causal=True,
        enable_gqa=True,
    )
    output: torch.Tensor = ours.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
    return output


def _module(ours: MultiHeadAttention, x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """PyTorch's module, which knows no grouped queries: there K and V are repeated."""
    tokens, width, group = x.shape[1], x.shape[2], 8 // kv_heads

    def repeated(parameter: torch.Tensor) -> torch.Tensor:
        heads = parameter.unflatten(0, (kv_heads, width // 8))  # [kv head, d, ...]
        every: torch.Tensor = heads.repeat_interleave(group, 0).flatten(0, 1)
        return every

    q, k, v, o = ours.q_proj, ours.k_proj, ours.v_proj, ours.o_proj
    theirs = torch.nn.MultiheadAttention(width, 8, batch_first=True).double()
    theirs.in_proj_weight.copy_(torch.cat([q.weight, repeated(k.weight), repeated(v.weight)]))
    theirs.in_proj_bias.copy_(torch.cat([q.bias, repeated(k.bias), repeated(v.bias)]))
    theirs.out_proj.weight.copy_(o.weight)
    theirs.out_proj.bias.copy_(o.bias)
    mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    output: torch.Tensor = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
    return output


def _scaling() -> list[Claim]:
    section = Section("the √d experiment, 10,000 queries x 64 keys")
    rows = scaling_experiment()
    first, last = rows[0], rows[-1]
    top = last.top_weight_unscaled
    off = max(abs(row.top_weight_scaled - 0.107) for row in rows)
    falls = all(
        after.jacobian_norm_unscaled < before.jacobian_norm_unscaled
        for before, after in itertools.pairwise(rows)
    )
    unscaled = last.jacobian_norm_unscaled / first.jacobian_norm_unscaled
    scaled = last.jacobian_norm_scaled / first.jacobian_norm_scaled
    return [
        *(
            section.holds(
                f"spread of q·k at d = {row.d}",
                f"{spread}",
                row.spread,
                f"{row.spread:.2f}",
                abs(row.spread / spread - 1) < 0.01,
            )
            for row, spread in zip(rows, (4, 8, 16, 32), strict=True)
        ),
        section.holds(
            "mean top weight unscaled, d = 1024", "about 0.95", top, f"{top:.3f}", abs(top - 0.95) < 0.01
        ),
        section.holds(
            "mean top weight scaled, largest distance from 0.107", "about 0", off, f"{off:.4f}", off < 0.003
        ),
        section.holds(
            "softmax's Jacobian unscaled, d = 1024 over d = 16", "falls", unscaled, f"{unscaled:.2f}", falls
        ),
        section.holds(
            "softmax's Jacobian scaled, d = 1024 over d = 16",
            "does not fall",
            scaled,
            f"{scaled:.2f}",
            abs(scaled - 1) < 0.02,
        ),
    ]


# Table 1 of Vaswani et al. 2017, worked by hand for n = 1,000, d = 512, k = 3, r = 100: (work, steps, path)
TABLE_1 = {
    "self-attention": (512_000_000, 1, 1),  # n² d
    "recurrent": (262_144_000, 1_000, 1_000),  # n d²
    "convolutional": (786_432_000, 1, 7),  # k n d²; 3⁶ = 729 < 1,000 ≤ 3⁷
    "restricted self-attention": (51_200_000, 1, 10),  # r n d; n / r
}


def _cost() -> list[Claim]:
    section = Section("cost")
    ours = {
        row.layer: (row.work, row.sequential_steps, row.path_length)
        for row in layer_costs(1000, 512, kernel=3, window=100)
    }
    one, eight = (attention_multiply_adds(1000, 512, heads).total for heads in (1, 8))
    return [
        section.equals("pairs of 4 tokens", 16, pair_count(4)),
        section.equals("pairs of 1,000 tokens", 1_000_000, pair_count(1000)),
        *(
            section.holds(
                f"{layer}, n = 1,000, d = 512: work, steps, path",
                _figures(figures),
                ours[layer][0],
                _figures(ours[layer]),
                ours[layer] == figures,
            )
            for layer, figures in TABLE_1.items()
        ),
        section.holds(
            "8 heads of d/8 over one head of d", "the same", eight / one, f"{eight / one:g}", eight == one
        ),
    ]


def _figures(figures: tuple[int, ...]) -> str:
    return "; ".join(f"{figure:,}" for figure in figures)


def _memory() -> list[Claim]:
    section = Section("KV cache, Llama 2 7B, float16")
    report = kv_cache(find_preset("llama-2-7b").model(), tokens=4096, dtype="float16")
    size = report.sizes[0]
    return [
        section.equals("bytes a token", 524_288, report.bytes_per_token),
        section.holds(
            "at 4,096 tokens",
            "2 GiB",
            size.per_sequence_bytes,
            size.human,
            size.per_sequence_bytes == 2_147_483_648,
        ),
    ]


# --- what depends on the weights -----------------------------------------------------------------------------


def _of_the_model(model: LoadedModel) -> list[Claim]:
    """Sinks, and where the model has as many heads as the article's: previous-token head, pronoun head, sentences."""
    maps = _all_maps(model)
    layers, heads = maps.shape[:2]
    section = Section(f'{layers * heads} heads on "{SENTENCE}"')
    compare = partial(section.compare, same_model=model.provenance["id"] == ARTICLE_MODEL)

    def sinks(rows: torch.Tensor) -> tuple[float, str]:
        count = int((rows.mean(-1) > SINK_THRESHOLD).sum())
        share = count / (layers * heads)
        return share, f"{share:.1%} ({count} of {layers * heads})"

    labels = _labels(model)
    claims = [
        section.at_most("rows sum to 1, off by at most", 1e-6, _off_one(maps)),
        section.equals("weights on future tokens that are not 0", 0, int(maps.triu(1).count_nonzero())),
        compare(
            "heads with more than half on the first token, rows 1 and later",
            "68%",
            0.68,
            *sinks(maps[:, :, 1:, 0]),
        ),
        compare("the same with row 0", "", None, *sinks(maps[:, :, :, 0])),
    ]
    if (layers, heads) != (24, 14):
        return [*claims, *labels]
    words = [token.text for token in model.tokenizer.tokenize(SENTENCE).tokens]
    previous = maps[PREVIOUS_TOKEN_HEAD].diagonal(-1).mean().item()
    pronoun = maps[PRONOUN_HEAD][words.index("it"), words.index("cat")].item()
    easy, control = _sentences(model, "easy.jsonl"), _sentences(model, "control.jsonl")
    return [
        *claims,
        compare("L8H7, mean weight on the previous token", "84%", 0.84, previous, f"{previous:.1%}"),
        compare('L5H5, "it" to "cat"', "83%", 0.83, pronoun, f"{pronoun:.1%}"),
        compare("L5H5, unseen sentences right", "6 of 6", 1.0, *easy),
        compare("L5H5, sentences whose right noun is the second", "", None, *control),
        *labels,
    ]


def _labels(model: LoadedModel) -> list[Claim]:
    """How many heads carry each label, on the article's sentence and, where only repeats show them, on the probe."""
    reader, text = model.reader, model.tokenizer.tokenize(SENTENCE)
    heads = {layer: range(reader.heads) for layer in range(reader.layers)}
    facts = text_facts(text.ids, [token.text for token in text.tokens])
    (on_sentence,) = score_heads(reader.read, [facts], heads)
    probe = repeat_probe(reader.vocabulary, excluded=model.tokenizer.special_ids)
    sequences = [text_facts(sequence) for sequence in probe.sequences]
    on_probe = pool(score_heads(reader.read, sequences, heads, rules=PROBE_RULES))
    claims = []
    for title, results in (("the sentence", on_sentence), ("the repeat probe, seed 0", on_probe)):
        section = Section(f"labels of the {len(results)} heads on {title}")
        for name, label_count in summarise(label(results), thresholds_of()).items():
            best = strongest(results, name, count=1) if name in results[0].scores else ()
            if not best:  # not applicable to this text, or not asked of the probe
                continue
            shown = f"{label_count.count} ({label_count.fraction:.1%})"
            shown += f", most: L{best[0].layer}H{best[0].head} {best[0].scores[name].score:.3f}"
            claims.append(section.compare(name, "", None, label_count.fraction, shown, same_model=False))
    return claims


def _all_maps(model: LoadedModel) -> torch.Tensor:
    """[layer, head, query, key] of the article's sentence."""
    reader = model.reader
    ids = model.tokenizer.tokenize(SENTENCE).ids
    maps = torch.zeros(reader.layers, reader.heads, len(ids), len(ids))

    def keep(rows: Rows) -> None:
        maps[rows.layer, :, list(rows.queries), : rows.weights.shape[-1]] = rows.weights.float().cpu()

    reader.read([ids], {layer: range(reader.heads) for layer in range(reader.layers)}, keep)
    return maps


def _sentences(model: LoadedModel, file: str) -> tuple[float, str]:
    """The share of a packaged file's sentences that the pronoun head gets right, and in words."""
    lines = resources.files("service").joinpath("data", file).read_text(encoding="utf-8").splitlines()
    items = [json.loads(line) for line in lines]
    texts = [model.tokenizer.tokenize(item["text"]) for item in items]
    questions = []
    for item, text in zip(items, texts, strict=True):
        pronoun, *candidates = (
            resolve_span(text.text, text.tokens, start=span["start"], end=span["end"])
            for span in (item["pronoun"], *item["candidates"])
        )
        questions.append(ask(text.text, text.tokens, pronoun, candidates, gold=item["gold"]))
    layer, head = PRONOUN_HEAD
    correct: list[bool] = []

    def count(rows: Rows) -> None:
        (answer,) = score(questions[rows.text], rows.layer, rows.heads, rows.weights)
        correct.append(bool(answer.correct))

    queries = [question.queries for question in questions]
    model.reader.read([text.ids for text in texts], {layer: [head]}, count, queries=queries)
    return sum(correct) / len(items), f"{sum(correct)} of {len(items)}"


# --- the table -----------------------------------------------------------------------------------------------


def _print(claims: Sequence[Claim], model: LoadedModel) -> None:
    columns: tuple[tuple[str, Callable[[Claim], str]], ...] = (
        ("claim", lambda claim: claim.claim),
        ("article", lambda claim: claim.article),
        ("measured", lambda claim: claim.shown),
        ("", lambda claim: claim.verdict),
    )
    widths = [max(len(name), *(len(cell(claim)) for claim in claims)) for name, cell in columns]
    print(f"model: {model.provenance['id']} ({model.provenance['dtype']} on {model.provenance['device']})")
    section = ""
    for claim in claims:
        if claim.section != section:
            section = claim.section
            print(f"\n{section}")
        line = "  ".join(cell(claim).ljust(width) for (_, cell), width in zip(columns, widths, strict=True))
        print(f"  {line.rstrip()}")
