"""The same layers in fewer, faster steps on the CPU, for a model that is only read.

Each weight matrix is laid out once in the order in which oneDNN's matrix product reads it; PyTorch's own linear layer
does that again in every call, which at a dozen tokens takes longer than the product itself. Query, key and value
come from one product; activation, gate and residual are applied to a product while it is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import PreTrainedModel

from attention_core.capture import Observer, refuse_mask
from attention_core.errors import UnsupportedModelError

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}  # of the largest number that a layer adds
# Looked at together: enough for full speed, few enough that what lies between stays in the caches
MLP_TOKENS = 512


def pack(model: PreTrainedModel) -> bool:
    """Replace a Qwen2 model's layers by `PackedLayer`s, in place; says whether its layers are packed.

    It is left as it is, which is no error, where the packed product cannot be had or the first layer, tried on a few
    tokens, does not give what it gave before: on another device than the CPU, in float64, in bfloat16 on a processor
    without it, in a build of PyTorch without oneDNN, for another activation than SiLU, for another architecture, or
    where a layer has an adapter, a quantised matrix or a hook.

    Afterwards the model is for reading: its last hidden states and attention by `AttentionReader`. It gives no hidden
    states of other layers and no `output_attentions`, takes no cache, and cannot be trained, copied, cast or saved.
    The original matrices are let go, layer by layer.

    Products are summed in another order, so results differ from the model's own by rounding: attention weights of
    Qwen2.5-0.5B in float32 by up to 5e-5, no farther from the same model in float64 than eager attention is.
    """
    backbone: Any = model.base_model
    if backbone.config.model_type != "qwen2":
        return False
    layers = backbone.layers
    if all(isinstance(layer, PackedLayer) for layer in layers):
        return True
    if not all(_is_plain(layer, layers[0]) for layer in layers) or not _gives_the_same(backbone):
        return False
    backbone.requires_grad_(False)
    for place in range(len(layers)):
        layers[place] = PackedLayer(layers[place])
    return True


class PackedLinear:
    """y = x Wᵀ + b of a linear layer, or of several with the same input side by side; W packed.

    x is [..., in], y is [..., out]. Differs from `torch.nn.Linear` in the order of its sums.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        weights = [one.weight.detach() for one in linears]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(
            torch.cat(weights) if len(weights) > 1 else weights[0]
        )
        biases = [
            weight.new_zeros(len(weight)) if one.bias is None else one.bias.detach()
            for one, weight in zip(linears, weights, strict=True)
        ]
        self._bias = None if all(one.bias is None for one in linears) else torch.cat(biases)

    def __call__(self, x: Tensor) -> Tensor:
        """The product y."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result

    def silu(self, x: Tensor) -> Tensor:
        """SiLU(y) = y σ(y)."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "swish", [], "")
        return result

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """y ∘ other, element by element; other is [..., out]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, other, self._packed, self._bias, "mul")
        return result

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """y + other; other is [..., out]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, other, self._packed, self._bias, "add")
        return result

    @property
    def weight(self) -> Tensor:
        """W [out, in], laid out as before: a copy, made anew each time."""
        result: Tensor = self._packed.to_dense()
        return result


class PackedLayer(nn.Module):
    """A decoder layer: what it reads and gives is what transformers' `Qwen2DecoderLayer` does, without a cache.

        x  = RMSNorm(h)
        h' = h + W_O · attention(RoPE(W_Q x + b_Q), RoPE(W_K x + b_K), W_V x + b_V)
        h" = h' + W_down · (SiLU(W_gate x') ∘ W_up x'),    x' = RMSNorm(h')

    h is [text, token, hidden]. Source: Qwen2 technical report 2024, section 2.2; the forms in which its parts are
    computed are transformers' own.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._layer: int = attention.layer_idx
        self._head_size: int = attention.head_dim
        self._scaling: float = attention.scaling
        self._query_key_value = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self._heads, self._kv_heads = (
            one.out_features // self._head_size for one in (attention.q_proj, attention.k_proj)
        )
        self._output = PackedLinear(attention.o_proj)
        self._gate, self._up, self._down = map(PackedLinear, (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self.input_layernorm = layer.input_layernorm  # by the names under which their weights are stored
        self.post_attention_layernorm = layer.post_attention_layernorm

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        cache: object = None,
        capture: Observer | None = None,
        **_: object,
    ) -> Tensor:
        """The layer's output, [text, token, hidden]; `capture` is shown query, key and value on the way.

        attention_mask        added to the scores (or True where one counts), [text, 1, query, key]; None: causal
        position_embeddings   cosines and sines of the tokens' angles, each [1 or text, token, d]

        Raises UnsupportedModelError for a cache, and for a mask where there is a `capture`.
        """
        if cache is not None:
            raise UnsupportedModelError("packed layers keep no cache; call with use_cache=False")
        query, key, value = self._read(_normalised(hidden_states, self.input_layernorm), position_embeddings)
        if capture is not None:
            refuse_mask(self._layer, attention_mask)
            capture.observe(self._layer, query, key, value, self._scaling, lambda: self._output.weight)
        # [text, head, token, d]
        attended = scaled_dot_product_attention(
            query,
            key,
            value,
            attention_mask,
            is_causal=attention_mask is None,
            scale=self._scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        hidden = self._output.plus(attended.transpose(1, 2).flatten(2), hidden_states)
        flat = hidden.flatten(0, 1)  # [text x token, hidden]
        if len(flat) <= MLP_TOKENS:
            return self._with_mlp(flat).view_as(hidden)
        return torch.cat([self._with_mlp(part) for part in flat.split(MLP_TOKENS)]).view_as(hidden)

    def _read(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [text, head or kv head, token, d], the first two rotated."""
        joined = self._query_key_value(x).unflatten(-1, (-1, self._head_size))  # [text, token, any head, d]
        turning = self._heads + self._kv_heads
        rotated = _rotated(joined[:, :, :turning], *position_embeddings).transpose(1, 2)
        return rotated[:, : self._heads], rotated[:, self._heads :], joined[:, :, turning:].transpose(1, 2)

    def _with_mlp(self, hidden: Tensor) -> Tensor:
        x = _normalised(hidden, self.post_attention_layernorm)
        return self._down.plus(self._up.times(x, self._gate.silu(x)), hidden)


def _normalised(hidden: Tensor, norm: Any) -> Tensor:
    """x / √(mean x² + ε) ∘ w."""
    return rms_norm(hidden, (hidden.shape[-1],), norm.weight, norm.variance_epsilon)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: each pair (x_i, x_i+d/2) turned by its token's angle. x is [text, token, head, d]."""
    half = x.shape[-1] // 2
    # [1 or text, token, 1, d/2]; both halves are alike
    cos, sin = (
        cos[:, :, None, :half],
        sin[:, :, None, :half],
    )
    first, second = x[..., :half], x[..., half:]
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.mul(first, cos, out=result[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=result[..., half:]).addcmul_(first, sin)
    return result


def _is_plain(layer: Any, first: Any) -> bool:
    """Whether a layer is what transformers made it, of the first one's kind: no adapter, no quantisation, no hook."""
    attention, mlp = layer.self_attn, layer.mlp
    linears = (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )
    like = first.self_attn.q_proj
    return (
        all(type(one) is nn.Linear for one in (*linears, like))
        and all(
            (one.weight.dtype, one.weight.device) == (like.weight.dtype, like.weight.device)
            for one in linears
        )
        and type(mlp.act_fn) is type(first.mlp.act_fn)
        and not any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules())
    )


def _gives_the_same(backbone: Any) -> bool:
    """Whether packed products can be had here, and give what the first layer itself gives."""
    if not all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")):
        return False
    layer = backbone.layers[0]
    weight = layer.mlp.gate_proj.weight
    if weight.device.type != "cpu" or weight.dtype not in TOLERANCES:
        return False
    try:
        if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        with torch.inference_mode():
            tokens, hidden = 5, weight.shape[1]
            x = torch.linspace(-1, 1, tokens * hidden).to(weight.dtype).view(1, tokens, hidden).sin()
            positions = backbone.rotary_emb(x, torch.arange(3, 3 + tokens)[None])
            # An explicit mask means the same to every attention function
            mask = torch.full((1, 1, tokens, tokens), float("-inf"), dtype=weight.dtype).triu(1)
            expected = layer(x, attention_mask=mask, position_embeddings=positions)
            apart = (PackedLayer(layer)(x, mask, position_embeddings=positions) - expected).abs().max()
            return bool(apart <= TOLERANCES[weight.dtype] * (expected - x).abs().max())
    except (NotImplementedError, RuntimeError):  # this build or processor has no such kernel
        return False
