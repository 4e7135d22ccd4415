"""`attention-service reproduce`: every figure of the article, derived again and printed beside the article's own.

Rows that do not depend on the weights must hold: the exit code is 1 where one does not. Rows that do are compared where
the article's model runs, Qwen/Qwen2.5-0.5B; another model's figure stands beside the article's as `other model`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    pair_count,
    scaling_experiment,
    self_attention,
)
from attention_core.capture import Rows
from attention_core.coreference import ask, score
from attention_core.kv_cache import find_preset, kv_cache
from attention_core.spans import resolve_span
from service.model import LoadedModel, load_model
from service.settings import Settings

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


def reproduce_command(settings: Settings, out: Path) -> int:
    """Run everything, print the table, write the JSON; 1 where something that must hold does not."""
    from service.weights import WeightsError

    try:
        model = load_model(settings)
    except WeightsError as error:
        print(f"attention-service: {error}", file=sys.stderr)
        return error.exit_code
    claims = [*mathematics(), *of_the_model(model), *memory()]
    _print(claims, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    report = {"model": model.provenance, "claims": [asdict(claim) for claim in claims]}
    out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nwritten to {out}")
    failed = [claim for claim in claims if claim.must_hold and claim.verdict == "differs"]
    for claim in failed:
        print(f"does not hold: {claim.section}: {claim.claim}", file=sys.stderr)
    return 1 if failed else 0


# --- what does not depend on the weights ---------------------------------------------------------------------


def mathematics() -> list[Claim]:
    """The toy example, parity with PyTorch, the √d experiment, the cost."""
    return [*_toy(), *_parity(), *_scaling(), *_cost()]


def _holds(section: str, claim: str, article: str, measured: float, shown: str, holds: bool) -> Claim:
    return Claim(section, claim, article, measured, shown, "agrees" if holds else "differs", must_hold=True)


def _toy() -> list[Claim]:
    product = float(dot_product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])))
    generator = torch.Generator().manual_seed(0)
    x, w_q, w_k, w_v = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 8), (8, 8), (8, 8), (8, 8))
    )
    attention = self_attention(x, w_q, w_k, w_v, causal=True)
    expected = functional.scaled_dot_product_attention(
        (x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None], is_causal=True
    )[0]
    row_sums = float((attention.weights.sum(-1) - 1).abs().max())
    first = float(attention.weights[0, 0])
    difference = float((attention.output - expected).abs().max())
    torch.manual_seed(0)
    additive = AdditiveAttention(5, 7, 11)
    with torch.inference_mode():
        weights = additive(torch.randn(1, 5), torch.randn(4, 7)).weights
    additive_sum = float((weights.sum(-1) - 1).abs().max())
    section = "four tokens"
    return [
        _holds(section, "[1,2]·[3,4]", "11", product, f"{product:g}", product == 11),
        _holds(section, "rows sum to 1, off by at most", "0", row_sums, f"{row_sums:.1e}", row_sums <= 1e-15),
        _holds(section, "causal: row 0 is a single 1.00", "1.00", first, f"{first:.2f}", first == 1),
        _holds(
            section,
            "self_attention against PyTorch, largest difference",
            "0",
            difference,
            f"{difference:.1e}",
            difference <= PARITY,
        ),
        _holds(
            section,
            "additive attention: weights sum to 1, off by at most",
            "0",
            additive_sum,
            f"{additive_sum:.1e}",
            additive_sum <= 1e-6,
        ),
    ]


def _parity() -> list[Claim]:
    fused, module = 0.0, 0.0
    for kv_heads in (8, 2):
        torch.manual_seed(0)
        ours = MultiHeadAttention(64, 8, kv_heads).double()
        x = torch.randn(3, 17, 64, dtype=torch.float64)
        with torch.inference_mode():
            output = ours(x, causal=True).output
            fused = max(fused, float((output - _fused(ours, x, kv_heads)).abs().max()))
            module = max(module, float((output - _module(ours, x, kv_heads)).abs().max()))
    section = "multi-head attention, float64"
    return [
        _holds(section, f"against {name}", "1.7e-16", value, f"{value:.1e}", value <= PARITY)
        for name, value in (
            ("F.scaled_dot_product_attention", fused),
            ("torch.nn.MultiheadAttention", module),
        )
    ]


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
    rows = scaling_experiment()
    section = "the √d experiment, 10,000 queries x 64 keys"
    claims = [
        _holds(
            section,
            f"spread of q·k at d = {row.d}",
            f"{row.d**0.5:g}",
            row.spread,
            f"{row.spread:.2f}",
            abs(row.spread / row.d**0.5 - 1) < 0.01,
        )
        for row in rows
    ]
    last = rows[-1]
    scaled = [row.top_weight_scaled for row in rows]
    jacobians = [row.jacobian_norm_unscaled for row in rows]
    claims += [
        _holds(
            section,
            "mean top weight unscaled, d = 1024",
            "about 0.95",
            last.top_weight_unscaled,
            f"{last.top_weight_unscaled:.3f}",
            abs(last.top_weight_unscaled - 0.95) < 0.01,
        ),
        _holds(
            section,
            "mean top weight scaled, largest distance from 0.107 over all d",
            "about 0",
            max(abs(one - 0.107) for one in scaled),
            f"{max(abs(one - 0.107) for one in scaled):.4f}",
            max(abs(one - 0.107) for one in scaled) < 0.003,
        ),
        _holds(
            section,
            "softmax's Jacobian unscaled, d = 1024 over d = 16",
            "falls",
            jacobians[-1] / jacobians[0],
            f"{jacobians[-1] / jacobians[0]:.2f}",
            all(later < earlier for earlier, later in itertools.pairwise(jacobians)),
        ),
        _holds(
            section,
            "softmax's Jacobian scaled, d = 1024 over d = 16",
            "does not fall",
            last.jacobian_norm_scaled / rows[0].jacobian_norm_scaled,
            f"{last.jacobian_norm_scaled / rows[0].jacobian_norm_scaled:.2f}",
            abs(last.jacobian_norm_scaled / rows[0].jacobian_norm_scaled - 1) < 0.02,
        ),
    ]
    return claims


def _cost() -> list[Claim]:
    section = "cost"
    pairs = {tokens: pair_count(tokens) for tokens in (4, 1000)}
    one_head, many_heads = (attention_multiply_adds(1000, 512, heads).total for heads in (1, 8))
    return [
        *(
            _holds(
                section,
                f"pairs of {tokens} tokens",
                f"{tokens**2:,}",
                count,
                f"{count:,}",
                count == tokens**2,
            )
            for tokens, count in pairs.items()
        ),
        _holds(
            section,
            "8 heads of d/8 over one head of d",
            "the same",
            many_heads / one_head,
            f"{many_heads / one_head:g}",
            many_heads == one_head,
        ),
    ]


def memory() -> list[Claim]:
    """The KV cache of Llama 2 7B."""
    report = kv_cache(find_preset("llama-2-7b").model(), tokens=4096, dtype="float16")
    rate, size = report.bytes_per_token, report.sizes[0].per_sequence_bytes
    section = "KV cache, Llama 2 7B, float16"
    return [
        _holds(section, "bytes a token", "524,288", rate, f"{rate:,}", rate == 524_288),
        _holds(section, "at 4,096 tokens", "2 GiB", size, report.sizes[0].human, size == 2 * 1024**3),
    ]


# --- what depends on the weights -----------------------------------------------------------------------------


def of_the_model(model: LoadedModel) -> list[Claim]:
    """Sinks, the previous-token head, the pronoun head, and the sentences, on the loaded model."""
    maps = _all_maps(model)
    base = model.provenance["id"] == ARTICLE_MODEL
    layers, heads = maps.shape[:2]
    row_sums = float((maps.sum(-1) - 1).abs().max())
    future = int(maps.triu(1).count_nonzero())
    section = f'{layers * heads} heads on "{SENTENCE}"'
    claims = [
        _holds(section, "rows sum to 1, off by at most", "0", row_sums, f"{row_sums:.1e}", row_sums <= 1e-6),
        _holds(section, "weights on future tokens that are not 0", "0", future, f"{future}", future == 0),
    ]

    def compare(claim: str, article: str, expected: float | None, measured: float, shown: str) -> Claim:
        verdict: Verdict = "other model"
        if expected is None:
            verdict = "not in the article"
        elif base:
            verdict = "agrees" if abs(measured - expected) <= 0.01 else "differs"
        return Claim(section, claim, article, measured, shown, verdict, must_hold=False)

    def share_of_sinks(rows: torch.Tensor) -> tuple[float, str]:
        sinks = int((rows.mean(-1) > SINK_THRESHOLD).sum())
        return sinks / (layers * heads), f"{sinks / (layers * heads):.1%} ({sinks} of {layers * heads})"

    claim = "heads with more than half on the first token, rows 1 and later"
    claims.append(compare(claim, "68%", 0.68, *share_of_sinks(maps[:, :, 1:, 0])))
    claims.append(compare("the same with row 0", "", None, *share_of_sinks(maps[:, :, :, 0])))

    if (layers, heads) == (24, 14):
        layer, head = PREVIOUS_TOKEN_HEAD
        previous = float(maps[layer, head].diagonal(-1).mean())
        claims.append(
            compare(
                f"L{layer}H{head}, mean weight on the previous token",
                "84%",
                0.84,
                previous,
                f"{previous:.1%}",
            )
        )
        layer, head = PRONOUN_HEAD
        words = [token.text for token in model.tokenize([SENTENCE])[0].tokens]
        weight = float(maps[layer, head, words.index("it"), words.index("cat")])
        claims.append(compare(f'L{layer}H{head}, "it" to "cat"', "83%", 0.83, weight, f"{weight:.1%}"))
        for name, file, article in (
            ("unseen sentences right", "easy.jsonl", "6 of 6"),
            ("sentences whose right noun is the second", "control.jsonl", ""),
        ):
            right, total = _sentences(model, file)
            expected = 1.0 if article else None
            claims.append(
                compare(f"L{layer}H{head}, {name}", article, expected, right / total, f"{right} of {total}")
            )
    return claims


def _all_maps(model: LoadedModel) -> torch.Tensor:
    """[layer, head, query, key] of the article's sentence."""
    reader = model.reader
    ids = model.tokenize([SENTENCE])[0].ids
    maps = torch.zeros(reader.layers, reader.heads, len(ids), len(ids))

    def keep(rows: Rows) -> None:
        maps[rows.layer, :, list(rows.queries), : rows.weights.shape[-1]] = rows.weights.float().cpu()

    reader.read([ids], {layer: range(reader.heads) for layer in range(reader.layers)}, keep)
    return maps


def _sentences(model: LoadedModel, file: str) -> tuple[int, int]:
    """How many sentences of a packaged file the pronoun head gets right, and of how many."""
    lines = resources.files("service").joinpath("data", file).read_text(encoding="utf-8").splitlines()
    items = [json.loads(line) for line in lines]
    texts = model.tokenize([item["text"] for item in items])
    questions = []
    for item, text in zip(items, texts, strict=True):
        pronoun, *candidates = (
            resolve_span(text.text, text.tokens, start=span["start"], end=span["end"])
            for span in (item["pronoun"], *item["candidates"])
        )
        questions.append(ask(text.text, len(text.ids), pronoun, candidates, gold=item["gold"]))
    layer, head = PRONOUN_HEAD
    correct: list[bool] = []

    def count(rows: Rows) -> None:
        (answer,) = score(questions[rows.text], rows.layer, rows.heads, rows.weights[:, 0])
        correct.append(bool(answer.correct))

    queries = [[question.query] for question in questions]
    model.reader.read([text.ids for text in texts], {layer: [head]}, count, queries=queries)
    return sum(correct), len(items)


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
