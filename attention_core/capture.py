"""Reading attention out of a running Hugging Face model, layer by layer, holding only what was asked for.

The layer's own output comes from the fused kernel. Beside it, and only for the heads and query rows somebody
asked for, softmax(q kᵀ / √d) is computed and handed to a consumer, which reduces it and lets go. Layers above the
last one needed never run. What a call wants travels with the forward call as a keyword; the registration with
transformers at the end of this module is the only state of the process.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from attention_core.architectures import check_architecture
from attention_core.errors import OutOfRangeError, ShapeError, UnsupportedModelError

ATTENTION = "attention_core"  # the name under which transformers knows our attention function
MAX_PADDED_TOKENS = 4096  # of one batch: its number of texts x its longest text
Weighting = Literal["attention", "value_norm", "scores"]

# Weights computed at once: 16 MiB in float32, whatever the text's length. glibc keeps blocks of up to 32 MiB when they
# are freed; larger ones it gives back to the system, which hands out new pages, cleared, for each
BLOCK_WEIGHTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one layer's attention maps of one text, without padding.

        weights[h, q, k] = softmax over k of (query · key / √d), for k up to the row's own token

    where `weights` is [head, query, key] in the order of `heads` and `queries`, float32 (float64 for a float64
    model). The key axis ends at the last of `queries`; keys after a row's own token are exactly 0 (NaN where scores
    were asked for: there is none). Unit: probability. A view of a larger block: copy what is kept.
    """

    text: int  # index into the sequences that were read
    layer: int
    heads: tuple[int, ...]
    queries: Sequence[int]
    weights: Tensor


class AttentionReader:
    """Reads attention rows out of a Qwen2-shaped model: one of `architectures.READABLE`.

    Switches the model's attention function to this package's, which calls PyTorch's fused kernel as transformers'
    own `sdpa` does; the model stays usable for everything else. All sizes come from the model's config.

    Raises UnsupportedModelError, before anything runs, for a model that would be read wrongly: see
    `architectures.check_architecture` for what is refused, sliding windows of any length among it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.backbone: Any = model.base_model  # without the language-model head: nothing here needs logits
        check_architecture(model)
        config = self.backbone.config
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.vocabulary: int = config.vocab_size
        model.set_attn_implementation(ATTENTION)

    def kv_head(self, head: int) -> int:
        """The key/value head that query head `head` reads: head // (heads / kv_heads)."""
        return head // (self.heads // self.kv_heads)

    def read(
        self,
        sequences: Sequence[Sequence[int]],
        heads: Mapping[int, Sequence[int]],
        consume: Callable[[Rows], None],
        *,
        queries: Sequence[Sequence[int]] | None = None,
        attention_mask: Sequence[Sequence[int]] | None = None,
        weighting: Weighting = "attention",
        before_layer: Callable[[int], None] | None = None,
        max_padded_tokens: int = MAX_PADDED_TOKENS,
        block_weights: int = BLOCK_WEIGHTS,
    ) -> None:
        """Run the model over token ids and hand the attention rows asked for to `consume`.

            scores       S = q kᵀ / √d
            attention    A = softmax(S + causal mask)
            value_norm   N[i,j] = A[i,j] ‖W_O,h (W_V x_j + b_V)‖, divided by its row's sum

        where h is the query head, W_O,h its slice of the output projection, and x_j the layer's normalised input.
        Texts run sorted by length, in right-padded batches of at most `max_padded_tokens` (a longer text runs
        alone): with a causal mask, padding on the right cannot reach a real row. For one text and layer the rows
        arrive in ascending blocks of at most `block_weights` weights a batch; layers arrive in ascending order.

        sequences       token ids per text, none empty
        heads           {layer: heads of it}; layers above the last named one do not run
        queries         row indices per text, ascending; None reads every row. The text is run up to the last of them
        attention_mask  as a tokenizer gives it beside padded ids: 1 for a token, 0 for padding, which is cut off
                        at the right. None: no id is padding
        weighting       what the rows hold: one of the three above
        before_layer    called with the layer's index before its attention is computed; may raise to stop the run

        Raises UnsupportedModelError in training mode and for padding that is not on the right (it would move the
        positions), ShapeError for a mask of another shape, and as `check` does. Source: Vaswani et al. 2017, eq. 1;
        value_norm: Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3. Differs from
        `output_attentions=True` in holding one block at a time and in leaving the fused kernel in charge of the
        layer's own output.
        """
        if self.backbone.training:
            raise UnsupportedModelError("the model is in training mode; call model.eval() first")
        if attention_mask is not None:
            sequences = _without_padding(sequences, attention_mask)
        self.check(sequences, heads, queries)
        wanted = {layer: tuple(heads[layer]) for layer in sorted(heads) if len(heads[layer])}
        rows = [range(len(ids)) for ids in sequences] if queries is None else queries
        if not wanted:
            return
        # What stands after the last row asked for cannot change it: the model is causal
        sequences = [ids[: max(of_text, default=0) + 1] for ids, of_text in zip(sequences, rows, strict=True)]
        device = self.backbone.device
        for texts in batches([len(ids) for ids in sequences], max_padded_tokens):
            longest = max(len(sequences[text]) for text in texts)
            # [text, token]; any id will do as padding
            ids = torch.zeros(len(texts), longest, dtype=torch.long)
            for place, text in enumerate(texts):
                ids[place, : len(sequences[text])] = torch.as_tensor(sequences[text])
            of_batch = [rows[text] for text in texts]
            capture = _Capture(texts, of_batch, wanted, weighting, consume, before_layer, block_weights)
            with torch.inference_mode(), contextlib.suppress(_LastLayerRead):
                self.backbone(input_ids=ids.to(device), use_cache=False, capture=capture)
            if capture.layers_read != list(wanted):
                raise UnsupportedModelError(
                    f"attention arrived from layers {capture.layers_read}, not {list(wanted)}"
                )

    def check(
        self,
        sequences: Sequence[Sequence[int]],
        heads: Mapping[int, Sequence[int]],
        queries: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Raise what `read` would raise for these arguments, without running the model.

        ShapeError for an empty text, a `queries` of another length or not ascending, OutOfRangeError for an index
        outside the model or text.
        """
        if queries is not None and len(queries) != len(sequences):
            raise ShapeError("queries", expected=f"one list per text ({len(sequences)})", got=len(queries))
        for layer, of_layer in heads.items():
            if len(of_layer):
                check_indices("layer", [layer], self.layers)
                check_indices("head", of_layer, self.heads)
        for text, ids in enumerate(sequences):
            if not len(ids):
                raise ShapeError(f"sequences[{text}]", expected="at least one token", got="none")
            check_indices(f"sequences[{text}], token id", ids, self.vocabulary)
            if queries is not None:
                check_indices(f"queries[{text}]", queries[text], len(ids))
                if any(a >= b for a, b in itertools.pairwise(queries[text])):
                    raise ShapeError(
                        f"queries[{text}]", expected="ascending row indices", got=list(queries[text])
                    )


def check_indices(what: str, indices: Sequence[int], size: int) -> None:
    """Raise OutOfRangeError, naming `what`, unless every index is in 0..size-1."""
    for index in (min(indices, default=0), max(indices, default=0)):
        if not 0 <= index < size:
            raise OutOfRangeError(what, index=index, size=size)


def _without_padding(
    sequences: Sequence[Sequence[int]], attention_mask: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """The ids of each text without the padding at its right."""
    lengths = [len(mask) for mask in attention_mask]
    if lengths != [len(ids) for ids in sequences]:
        expected = f"as many as token ids, {[len(ids) for ids in sequences]}"
        raise ShapeError("attention_mask", expected=expected, got=lengths)
    cut = []
    for text, (ids, mask) in enumerate(zip(sequences, attention_mask, strict=True)):
        if any(one not in (0, 1) for one in mask):
            raise ValueError(f"attention_mask[{text}]: 1 is a token, 0 padding; it holds something else")
        real = [bool(one) for one in mask]
        tokens = sum(real)
        if not all(real[:tokens]):
            raise UnsupportedModelError(
                f"attention_mask[{text}]: padding at the left or in the middle is not read; "
                'pad on the right (padding_side="right"), or give the ids without padding'
            )
        cut.append(ids[:tokens])
    return cut


def batches(lengths: Sequence[int], max_padded_tokens: int) -> Iterator[list[int]]:
    """Text indices, longest first, cut so that texts x longest stays within `max_padded_tokens`."""
    batch: list[int] = []
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_padded_tokens:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


class _LastLayerRead(Exception):  # noqa: N818 - not an error: it ends the forward pass early
    """Nothing above this layer was asked for."""


class Read(Protocol):
    """`AttentionReader.read`, or what stands for it: rows of texts, handed to a consumer."""

    def __call__(
        self,
        sequences: Sequence[Sequence[int]],
        heads: Mapping[int, Sequence[int]],
        consume: Callable[[Rows], None],
        *,
        queries: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """As `AttentionReader.read`."""


class Observer(Protocol):
    """What travels with a forward call as the keyword `capture`."""

    def observe(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        output_projection: Callable[[], Tensor],
    ) -> None:
        """Called in each layer before its attention is computed; may raise to stop the run.

        query is [text, head, token, d], key and value are [text, kv head, token, d], output_projection gives W_O,
        [hidden, head x d].
        """


def refuse_mask(layer: int, attention_mask: Tensor | None) -> None:
    """Raise UnsupportedModelError for a mask other than the causal one, which has no tensor.

    An `Observer` knows no other.
    """
    if attention_mask is not None:
        raise UnsupportedModelError(
            f"layer {layer} has a mask that is not the causal one: padding, or a window"
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """Some of the rows asked for of each text, what they select of the queries, and the keys in their future.

    Texts with fewer rows than others have any others in the places left over.
    """

    rows: Sequence[Sequence[int]]
    chosen: slice | Tensor  # the same run of rows of every text, or indices [text, row]
    first: int  # no key up to here is in any row's future
    keys: int  # none after these is in any row's past
    future: Tensor  # [text or 1, 1, row, key from `first` on]


def _block(queries: Sequence[Sequence[int]], start: int, end: int, device: torch.device) -> _Block:
    """The rows in places start..end of each text's queries."""
    rows = [of_text[start:end] for of_text in queries]
    keys = max(of_text[-1] for of_text in rows if len(of_text)) + 1
    longest = max(rows, key=len)
    width, first = len(longest), longest[0]
    chosen: slice | Tensor = slice(first, first + width)
    index = torch.arange(first, first + width)[None]
    if any(
        len(of_text) and (of_text[0], of_text[-1]) != (first, first + len(of_text) - 1) for of_text in rows
    ):
        index = torch.zeros(len(rows), width, dtype=torch.long)
        for place, of_text in enumerate(rows):
            index[place, : len(of_text)] = torch.as_tensor(of_text)
        chosen, first = index.to(device), int(index.min())
    future = torch.arange(first, keys) > index[:, None, :, None]
    return _Block(rows, chosen, first, keys, future.to(device))


@dataclass(slots=True)
class _Capture:
    """What one forward call wants."""

    texts: Sequence[int]
    queries: Sequence[Sequence[int]]  # per text of the batch
    heads: Mapping[int, tuple[int, ...]]
    weighting: Weighting
    consume: Callable[[Rows], None]
    before_layer: Callable[[int], None] | None
    block_weights: int
    # By first place and step: the same in every layer
    blocks: dict[tuple[int, int], _Block] = field(default_factory=dict)
    layers_read: list[int] = field(default_factory=list)

    def observe(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        output_projection: Callable[[], Tensor],
    ) -> None:
        """Compute this layer's wanted rows and hand them out."""
        if self.before_layer is not None:
            self.before_layer(layer)
        heads = self.heads.get(layer)
        if heads is None:
            return
        # At least float32 whatever the model's dtype, as the softmax of transformers' eager attention
        dtype = torch.promote_types(query.dtype, torch.float32)
        group = query.shape[1] // key.shape[1]
        kv_heads = [head // group for head in heads]
        norms = None
        if self.weighting == "value_norm":
            # [text, wanted head, token]
            norms = _value_norms(value[:, kv_heads].to(dtype), output_projection().to(dtype), heads)
        # Each head gets a copy of its key, as in transformers' eager attention: one product for all that share a key
        # would be faster, but round differently
        every = tuple(range(query.shape[1]))
        if heads == every:
            key = key.repeat_interleave(group, dim=1)  # cheaper than an index
        else:
            query, key = query[:, list(heads)], key[:, kv_heads]
        query = query.to(dtype) * scaling  # [text, wanted head, token, d]
        key = key.to(dtype)  # [text, wanted head, token, d]
        longest = max(map(len, self.queries))
        step = max(1, self.block_weights // (len(self.texts) * len(heads) * key.shape[2]))
        for start in range(0, longest, step):
            if (start, step) not in self.blocks:
                self.blocks[start, step] = _block(self.queries, start, start + step, query.device)
            block = self.blocks[start, step]
            weights = _weights(query, key, block, self.weighting, norms)
            for place, rows in enumerate(block.rows):
                if len(rows):
                    part = weights[place, :, : len(rows), : rows[-1] + 1]
                    self.consume(Rows(self.texts[place], layer, heads, rows, part))
        self.layers_read.append(layer)
        if layer == max(self.heads):
            raise _LastLayerRead


def _weights(query: Tensor, key: Tensor, block: _Block, weighting: Weighting, norms: Tensor | None) -> Tensor:
    """Weights [text, head, row, key] of the block's rows, from scaled queries; later keys are left out."""
    if isinstance(block.chosen, slice):
        query = query[:, :, block.chosen]
    else:
        index = block.chosen[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
        query = query.gather(2, index)
    scores = query @ key[:, :, : block.keys].transpose(2, 3)  # [text, head, row, key]
    nothing = float("nan" if weighting == "scores" else "-inf")
    scores[..., block.first :].masked_fill_(block.future, nothing)
    if weighting == "scores":
        return scores
    weights = scores.softmax(-1)
    if norms is not None:
        weights *= norms[:, :, None, : block.keys]
        weights /= weights.sum(-1, keepdim=True)
    return weights


def _value_norms(value: Tensor, output_projection: Tensor, heads: Sequence[int]) -> Tensor:
    """‖W_O,h v‖ [text, head, token]: how long each token's value is once its head has written it to the output.

    value is [text, head, token, d] of the `heads`, output_projection [hidden, all heads x d]. One head at a time: all
    at once would hold hidden / d times the values.
    """
    d = value.shape[-1]
    slices = [output_projection[:, head * d : (head + 1) * d] for head in heads]  # each [hidden, d]
    norms = [(value[:, place] @ one.T).norm(dim=-1) for place, one in enumerate(slices)]  # each [text, token]
    return torch.stack(norms, dim=1)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    capture: Observer | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The fused kernel's output, with the wanted rows handed out on the way."""
    if capture is not None:
        refuse_mask(module.layer_idx, attention_mask)
        capture.observe(module.layer_idx, query, key, value, scaling, lambda: module.o_proj.weight)
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **options
    )
    return output


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
