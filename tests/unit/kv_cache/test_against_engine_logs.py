"""What vLLM and llama.cpp printed at their start, in public logs, beside what is calculated for the same settings.

Each row says where its log stands. A memory is printed to two decimals of a GiB, so some budget of that printing has
to give the printed numbers; what llama.cpp prints in MiB has to be equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from attention_core.kv_cache import (
    CacheModel,
    Dims,
    EngineOptions,
    Layer,
    VllmCapacity,
    find_preset,
    kv_cache,
)

MIB, GIB = 2**20, 2**30
ROUNDING = 0.005  # of a number with two decimals
STEPS = 100  # budgets tried within it: finer than a block of any of these models


# --- vLLM: "Available KV cache memory", "GPU KV cache size" and "Maximum concurrency" ---


@dataclass(frozen=True)
class Log:
    """One start of vLLM: what was asked for and what it printed.

    `memory` is in GiB, or in bytes where the log has them. `groups` are the groups of layers, known by hand, by which
    releases before 0.20.1 divide; None for a later release.
    """

    source: str
    model: str
    memory: float | int
    max_model_len: int
    tokens: int
    concurrency: str | None
    groups: int | None = None
    dtype: str = "auto"
    state_dtype: str | None = None
    tensor_parallel: int = 1
    block_size: int | None = None
    batched: int | None = None
    prefix_caching: bool = False
    logged_block_size: int | None = None

    def capacity(self, budget: int) -> VllmCapacity:
        report = kv_cache(
            find_preset(self.model).model(),
            tokens=self.max_model_len,
            dtype=self.dtype,
            state_dtype=self.state_dtype,
            tensor_parallel=self.tensor_parallel,
            page_size=self.block_size,
            engine="vllm",
            engine_options=EngineOptions(
                max_num_batched_tokens=self.batched, prefix_caching=self.prefix_caching
            ),
            memory_budget_bytes=budget,
        )
        assert report.capacity is not None
        assert report.capacity.vllm is not None
        return report.capacity.vllm

    def budgets(self) -> list[int]:
        if isinstance(self.memory, int):
            return [self.memory]
        low, high = (int((self.memory + error) * GIB) for error in (-ROUNDING, ROUNDING))
        return [low + (high - low) * step // STEPS for step in range(STEPS + 1)]

    def printed(self, capacity: VllmCapacity) -> tuple[int, str | None]:
        """Cache size and concurrency, as this release prints them."""
        (tokens,), (concurrency,) = capacity.kv_cache_tokens, capacity.max_concurrency
        if self.groups is not None:
            tokens = capacity.num_gpu_blocks // self.groups * capacity.block_size
        return tokens, None if self.concurrency is None else f"{concurrency:.2f}x"


LOGS = [
    Log("ilseokoh/vllm-gce README.md, 0.15.1", "Llama-3.1-8B", 19.28, 131_072, 157_936, "1.20x", groups=1),
    Log("vllm-project/vllm#33263", "Qwen3-1.7B", 18.78, 1024, 175_856, None, groups=1),
    # an older release prints the number of blocks too: 1,952 and 1,478
    Log("vllm-project/vllm#10517", "Llama-3.1-8B", 3.81, 20_000, 1952 * 16, "1.56x", groups=1),
    Log("vllm-project/vllm#10517", "Llama-3.1-8B", 2.89, 29_000, 1478 * 16, "0.82x", groups=1),
    # these two print the memory in bytes, and their device has blocks of 128
    Log(
        "vllm-project/vllm-ascend#3479, 0.11.0rc0",
        "Qwen3-4B",
        26_954_181_529,
        4096,
        182_784,
        "44.62x",
        groups=1,
        block_size=128,
    ),
    Log(
        "vllm-project/vllm-ascend#3090, 0.10.2: MiniCPM-V 4.5, on Qwen3-8B",
        "Qwen3-8B",
        39_442_891_776,
        4096,
        267_392,
        "65.28x",
        groups=1,
        block_size=128,
    ),
    # windows: 10 full and 52 sliding layers; 5 and 25, with half as wide rows where all is kept
    Log(
        "a log of 2025-09-25, 0.11.0rc2.dev98+g393de22d2 on ROCm",
        "gemma-3-27b-it",
        109.86,
        4096,
        205_696,
        "50.05x",
        groups=1 + 6,
        batched=8192,
    ),
    Log(
        "a log of 2026-04-19, 0.19.2rc1.dev8+g4b7f5ea1a: RedHatAI/gemma-4-26B-A4B-it-NVFP4",
        "gemma-4-26B-A4B",
        9.08,
        98_304,
        79_344,
        "5.00x",
        groups=1 + 5,
        dtype="fp8_e4m3",
        batched=8192,
    ),
    # recurrent states, of which vLLM keeps those of Granite and Qwen3-Next in bfloat16
    Log(
        "a log of 2026-04-06, 0.19.0: granite-4.0-h-1b, whose cache is laid out as h-tiny's",
        "granite-4.0-h-tiny",
        4.09,
        4096,
        53_200,
        "66.95x",
        groups=1 + 9,
        state_dtype="bfloat16",
        logged_block_size=400,
    ),
    Log(
        "a log of 2026-02-12, 0.13.0 on two ranks: Qwen3-Next-80B-A3B-Instruct",
        "Qwen3-Next-80B-A3B-Instruct",
        17.58,
        32_768,
        767_552,
        "84.29x",
        groups=1 + 3,
        dtype="fp8_e4m3",
        state_dtype="bfloat16",
        tensor_parallel=2,
        logged_block_size=1072,
    ),
    # latent rows beside states; the cache size is a multiple of 960 tokens, so its blocks grew by 32 or 64
    Log(
        "vllm-project/vllm#28228, 0.11.1, on two ranks",
        "Kimi-Linear-48B-A3B-Instruct",
        2.30,
        120_000,
        75_840,
        "2.48x",
        groups=1 + 3,
        tensor_parallel=2,
        block_size=64,
    ),
    Log(
        "a log of 2026-05-01, 0.20.1rc1.dev91+ga749a33d8: Nemotron-Cascade-2-30B-A3B, as Nemotron 3 Nano",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        3.72,
        256_000,
        1_206_303,
        "4.71x",
        dtype="fp8_e4m3",
        state_dtype="float32",
        logged_block_size=4176,
    ),
    # with prefix caching: two states a request
    Log(
        "noonghunna/club-3090#612, 0.24.0: Qwen3.6-35B-A3B, as Qwen3.5",
        "Qwen3.5-35B-A3B",
        5.98,
        131_072,
        567_978,
        "4.33x",
        dtype="fp8_e4m3",
        prefix_caching=True,
    ),
    Log(
        "noonghunna/club-3090#652, 0.24.0: Qwen3.6-35B-A3B, as Qwen3.5",
        "Qwen3.5-35B-A3B",
        6.01,
        131_072,
        569_878,
        "4.35x",
        dtype="fp8_e4m3",
        prefix_caching=True,
    ),
    Log(
        "mitchross/talos-argocd-proxmox#1995, on two ranks: Qwen3.8-27B, as Qwen3.5",
        "Qwen3.5-27B",
        4.99,
        131_072,
        302_921,
        "2.31x",
        dtype="fp8_e4m3",
        tensor_parallel=2,
        prefix_caching=True,
        logged_block_size=1568,
    ),
]


@pytest.mark.parametrize("log", LOGS, ids=[log.source for log in LOGS])
def test_vllm_printed_what_is_calculated_for_the_memory_it_had(log: Log) -> None:
    possible = {log.printed(log.capacity(budget)) for budget in log.budgets()}
    assert (log.tokens, log.concurrency) in possible


@pytest.mark.parametrize(
    "log",
    [log for log in LOGS if log.logged_block_size],
    ids=[log.source for log in LOGS if log.logged_block_size],
)
def test_vllm_set_the_block_that_is_calculated_to_hold_a_state(log: Log) -> None:
    assert log.capacity(log.budgets()[0]).block_size == log.logged_block_size


def test_vllm_counted_the_blocks_that_are_calculated() -> None:
    # the log of gemma-3-27b-it also has the number of blocks; so many are 205,696 tokens and 50.05 requests
    log = next(log for log in LOGS if log.model == "gemma-3-27b-it")
    low, *_, high = (log.capacity(budget).num_gpu_blocks for budget in log.budgets())
    assert low <= 89_994 <= high


@pytest.mark.parametrize(
    ("model", "tokens", "batched", "gib"),
    [
        # eugr/spark-vllm-docker#396, on two ranks: MiniMax-M2.7, as M2.5
        ("MiniMax-M2.5", 196_608, 8192, 23.25),
        # vllm-project/vllm#34076: Qwen3-Coder-30B-A3B, as Qwen3-30B-A3B
        ("Qwen3-30B-A3B", 262_144, 8192, 24.0),
        # vllm-project/vllm#49878: 32,768 batched tokens, before 0.26 and since, when two batches are in flight
        ("gemma-4-31B-it", 262_144, 32_768, 45.79),
        ("gemma-4-31B-it", 262_144, 65_536, 70.79),
        # vllm-project/vllm#15871: latent rows
        ("DeepSeek-V2-Lite", 32_768, 8192, 0.95),
    ],
)
def test_vllm_needed_what_is_calculated_for_one_request(
    model: str, tokens: int, batched: int, gib: float
) -> None:
    ranks = 2 if model == "MiniMax-M2.5" else 1
    log = Log("", model, gib, tokens, 0, None, dtype="bfloat16", tensor_parallel=ranks, batched=batched)
    too_little, *_, enough = (log.capacity(budget).max_concurrency[0] for budget in log.budgets())
    assert too_little < 1 <= enough


def test_vllm_printed_what_is_calculated_for_latent_rows_that_each_rank_keeps_whole() -> None:
    # vllm-project/vllm#20665: DeepSeek-V2-Lite on two ranks in each of two stages, of 14 and 13 of its 27 layers; the
    # first has 12.13 GiB, which are the fewer tokens, and the second 11.33
    layers = find_preset("DeepSeek-V2-Lite").model().layers
    found = []
    for stage, gib in ((layers[:14], 12.13), (layers[14:], 11.33)):
        tokens = set()
        for budget in Log("", "", gib, 1024, 0, None).budgets():
            report = kv_cache(
                CacheModel(stage), tokens=1024, tensor_parallel=2, engine="vllm", memory_budget_bytes=budget
            )
            assert report.capacity is not None
            assert report.capacity.vllm is not None
            tokens.add(
                (report.capacity.vllm.kv_cache_tokens[0], f"{report.capacity.vllm.max_concurrency[0]:.2f}x")
            )
        found.append(tokens)
    first, second = found
    assert (807_792, "788.86x") in first
    assert min(second) > max(first)


# --- llama.cpp: "size = … MiB" of layers that keep all, of those that slide, and of recurrent states ---

# Laguna: 12 and 36 layers of 8 heads of 128, a window of 512
LAGUNA = CacheModel.from_dims(
    Dims(48, 8, 8, 128, window=512, layer_types=("full_attention",) * 12 + ("sliding_attention",) * 36)
)
# Gemma 4 12B: 8 layers with one head of 512, 40 with 8 heads of 256 and a window of 1,024
GEMMA_4_12B = CacheModel(
    (Layer(heads=16, kv_heads=1, k_dim=512, v_dim=512),) * 8
    + (Layer("sliding_attention", heads=16, kv_heads=8, k_dim=256, v_dim=256, window=1024),) * 40
)


@dataclass(frozen=True)
class LlamaLog:
    """One start of llama.cpp: MiB of the whole cache, `state` that of all `slots`; None where the log does not say.

    The types are those of K and V.
    """

    source: str
    model: str | CacheModel
    context: int
    full: float | None
    sliding: float | None = None
    state: float | None = None
    types: tuple[str, str] = ("float16", "float16")
    ubatch: int = 512
    slots: int = 1
    engine: str = "llama.cpp"


Q8, Q4 = "q8_0", "q4_0"
DOCS = "ggml-org/llama.cpp docs/backend"

LLAMA_LOGS = [
    LlamaLog("ollama/ollama#17037", "gemma-3-4b-it", 131_072, 2560.00, 174.00),
    LlamaLog("gpt-oss-20b on an Atlas 800I A2, 2025-08-08", "gpt-oss-20b", 131_072, 3072.00, 18.00),
    LlamaLog(
        "gpt-oss-20b on an M5, -ub 2048, build 7217", "gpt-oss-20b", 131_072, 3072.00, 54.00, ubatch=2048
    ),
    LlamaLog(
        f"{DOCS}/snapdragon/developer.md", "gpt-oss-20b", 8192, 102.00, 3.19, types=(Q8, Q8), ubatch=128
    ),
    LlamaLog("gpt-oss-120b, -c 65535 -ub 512, four slots", "gpt-oss-120b", 65_535, 2304.00, 36.00, slots=4),
    LlamaLog(f"{DOCS}/hexagon/README.md", "OLMoE-1B-7B-0924", 8192, 544.00, types=(Q8, Q8)),
    LlamaLog("gemma-2-2b-it, build 7445, four slots", "gemma-2-2b", 8192, 416.00, 416.00, slots=4),
    LlamaLog("raketenkater/ggrun pkg/placement", LAGUNA, 1_048_576, 13824.00, 40.50, types=(Q4, Q4)),
    LlamaLog("Gemma 4 12B, four slots", GEMMA_4_12B, 8192, 68.00, 765.00, types=(Q8, Q8), slots=4),
    # windows keep every token too, and 18 layers reuse the K and V of others
    LlamaLog("Gemma 4 E4B, --swa-full", "gemma-4-E4B-it", 32_768, 512.00, 1280.00, engine="no-swa"),
    # recurrent states; Qwen3.5, 3.6 and 3.8 of one size are laid out alike
    LlamaLog("JamePeng/llama-cpp-python#78: Qwen3.5", "Qwen3.5-9B", 1, None, state=50.25),
    LlamaLog("Qwen3.5-9B, build b9459, four slots", "Qwen3.5-9B", 135_168, 4224.00, state=201.00, slots=4),
    LlamaLog("Qwen3.8-27B, --parallel 1", "Qwen3.5-27B", 16_384, 1024.00, state=149.62),
    LlamaLog("Qwen3.5-35B-A3B, four slots", "Qwen3.5-35B-A3B", 1, None, state=251.25, slots=4),
    LlamaLog("Qwen3.6-27B on an R9700", "Qwen3.5-27B", 172_032, 5712.00, types=(Q8, Q8)),
    LlamaLog("Qwen3.6-27B on an R9700, unlike K and V", "Qwen3.5-27B", 262_144, 6656.00, types=(Q8, Q4)),
]


@pytest.mark.parametrize("log", LLAMA_LOGS, ids=[log.source for log in LLAMA_LOGS])
def test_llama_cpp_printed_the_mebibytes_that_are_calculated(log: LlamaLog) -> None:
    model = log.model if isinstance(log.model, CacheModel) else find_preset(log.model).model()
    report = kv_cache(
        model,
        tokens=log.context,
        dtype="float16",
        k_dtype=log.types[0],
        v_dtype=log.types[1],
        engine=log.engine,
        engine_options=EngineOptions(ubatch=log.ubatch, parallel_slots=log.slots),
        layers=True,
    )
    assert report.layers is not None
    sizes = {"full_attention": 0, "sliding_attention": 0, "state": 0}
    for layer in report.layers:
        recurrent = layer.kind not in sizes
        sizes["state" if recurrent else layer.kind] += layer.sizes_bytes[0] * (log.slots if recurrent else 1)
    for size, printed in zip(sizes.values(), (log.full, log.sliding, log.state), strict=True):
        assert printed is None or round(size / MIB, 2) == printed
