"""What real engines reserve, beside the ideal: rows of a layer, and the shape of a recurrent state.

    engine       full layers                 windowed layers                                   convolution
    ideal        T                           min(T, W)                                         kernel - 1 columns
    no-swa       T                           T                                                 kernel - 1
    vllm         T up to whole pages         min(W - 1 + batched, T) up to whole pages + 1     kernel - 1
    llama.cpp    T up to a multiple of 256   min(T, W * slots + ubatch), likewise              kernel - 1, in float32
    hf           T                           min(T, W - 1)                                     kernel

for T tokens and a window of W; a chunk counts as a window, but vLLM reserves min(C + batched, T) for a chunk of C. T is
the engine's maximum length. Sources: vLLM's v1 cache specs, llama.cpp's unified cache, transformers 5.24 as measured.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from attention_core.kv_cache.layers import CHUNKED, CROSS, Layer, State, whole

EngineName = Literal["ideal", "vllm", "llama.cpp", "hf", "no-swa"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

VLLM_PAGE = 16
LLAMA_CELLS = 256  # llama.cpp's caches are multiples of so many rows


@dataclass(frozen=True)
class EngineOptions:
    """Settings of an engine that decide what it reserves.

    max_num_batched_tokens  vLLM's, in one step: a window keeps so many rows more, 8,192 where not given
    ubatch                  llama.cpp's physical batch, likewise, 512
    parallel_slots          llama.cpp's sequences over one cache: a window's rows for each, 1
    prefix_caching          vLLM's, on unless it is said to be off: a request has two of its recurrent states
    """

    max_num_batched_tokens: int | None = None
    ubatch: int | None = None
    parallel_slots: int | None = None
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "ubatch", "parallel_slots"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), "engine_options", name)


DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True)
class Engine:
    """How one engine lays out a cache whose pages hold `page` rows."""

    name: EngineName
    page: int
    batched: int
    ubatch: int
    slots: int
    state_blocks: int

    @classmethod
    def of(cls, name: EngineName, page: int | None, options: EngineOptions) -> "Engine":
        """The engine of that name; what is not given is its default."""
        return cls(
            name,
            page or (VLLM_PAGE if name == "vllm" else 1),
            options.max_num_batched_tokens or 8192,
            options.ubatch or 512,
            options.parallel_slots or 1,
            2 if options.prefix_caching else 1,
        )

    def window(self, layer: Layer) -> int | None:
        """Tokens that the layer looks back over in this engine, None for all."""
        return None if self.name == "no-swa" else layer.window

    def rows(self, layer: Layer, tokens: int, encoder_tokens: int) -> int:
        """Rows reserved for a sequence of `tokens` tokens, in whole pages."""
        if layer.kind == CROSS:
            return self._pages(encoder_tokens)
        window = self.window(layer)
        if self.name == "llama.cpp":
            held = tokens if window is None else min(tokens, window * self.slots + self.ubatch)
            return self._pages(_up(held, LLAMA_CELLS))
        if window is None:
            return self._pages(tokens)
        if self.name == "vllm":
            if layer.kind == CHUNKED:
                return self._pages(min(window + self.batched, tokens))
            return self._pages(min(window - 1 + self.batched, tokens)) + self.page
        return self._pages(min(tokens, self.live(layer, tokens)))

    def live(self, layer: Layer, tokens: int) -> int:
        """Tokens of a sequence that the layer can still look at."""
        window = self.window(layer)
        if window is None:
            return tokens
        if self.name == "hf":
            window = (layer.hf_window or tokens) if layer.hf_window is not None else window - 1
        return min(tokens, window)

    def heads(self, layer: Layer) -> int:
        """Heads of K and V as stored."""
        return layer.hf_heads if self.name == "hf" and layer.hf_heads is not None else layer.kv_heads

    def columns(self, state: State) -> int:
        """Columns that the convolution keeps of each channel."""
        if self.name != "hf":
            return state.kernel - 1
        return state.kernel if state.hf_columns is None else state.hf_columns

    def _pages(self, rows: int) -> int:
        return _up(rows, self.page)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
