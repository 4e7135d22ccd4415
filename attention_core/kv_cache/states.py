"""Reading a config's recurrent states: which fields give the sizes of which kind."""

from collections.abc import Callable, Mapping

from attention_core.kv_cache.fields import Fields
from attention_core.kv_cache.layers import State
from attention_core.kv_cache.patterns import DELTA_NET, KDA, LIGHTNING, MAMBA, MAMBA2, RG_LRU, SHORT_CONV

WIDTH = ("hidden_size", "n_embd", "d_model", "n_embed")


def _mamba(text: Fields) -> State:
    d_inner = text.count("intermediate_size") if text.name("state_size") else None
    if d_inner is None:
        d_inner = text.need("mamba_expand", "expand") * text.need(*WIDTH)
    return State.mamba(
        d_inner=d_inner,
        d_state=text.need("mamba_d_state", "state_size"),
        kernel=text.need("mamba_d_conv", "conv_kernel"),
    )


def _mamba2(text: Fields) -> State:
    head_dim = text.need("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    heads = text.count("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    if heads is None:  # Zamba2
        d_inner = text.need("mamba_expand", "expansion_factor") * text.need(*WIDTH)
        if d_inner % head_dim:
            name = text.name(*WIDTH) or WIDTH[0]
            raise text.fault(name, "not_divisible", f"{d_inner} channels are no multiple of {head_dim}")
        heads = d_inner // head_dim
    return State.mamba2(
        d_inner=text.count("mamba_d_ssm") or heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        d_state=text.need("mamba_d_state", "ssm_state_size", "state_size"),
        groups=text.need("mamba_n_groups", "mamba_ngroups", "n_groups"),
        kernel=text.need("mamba_d_conv", "conv_kernel", "conv_dimension"),
    )


def _gated_delta_net(text: Fields) -> State:
    return State.gated_delta_net(
        k_heads=text.need("linear_num_key_heads"),
        k_dim=text.need("linear_key_head_dim"),
        v_heads=text.need("linear_num_value_heads"),
        v_dim=text.need("linear_value_head_dim"),
        kernel=text.need("linear_conv_kernel_dim"),
    )


def _kimi_delta_attention(text: Fields) -> State:
    """Gated DeltaNet with as many heads, and as wide, for keys as for values."""
    inner = text.within("linear_attn_config") or text
    heads = inner.need("linear_num_heads", "num_heads")
    width = inner.need("linear_head_dim", "head_dim")
    kernel = inner.need("linear_conv_kernel_dim", "short_conv_kernel_size")
    return State.gated_delta_net(
        k_heads=heads, k_dim=width, v_heads=heads, v_dim=width, kernel=kernel, kind=KDA
    )


def _lightning(text: Fields) -> State:
    """MiniMax's linear attention: a head_dim × head_dim matrix for each head, no convolution."""
    heads = text.need("num_attention_heads")
    width = text.count("head_dim") or text.need(*WIDTH) // heads
    return State(LIGHTNING, 0, 1, heads * width * width, (heads,), as_activations=True)


def _rg_lru(text: Fields) -> State:
    """Griffin's recurrence, one element for each channel."""
    width = text.count("lru_width") or text.need(*WIDTH)
    kernel = text.need("conv1d_width")
    return State(RG_LRU, width, kernel, width, (text.need("num_attention_heads"),), hf_columns=kernel - 1)


def _short_conv(text: Fields) -> State:
    """LFM2's gated convolution: nothing but its columns."""
    width = text.need(*WIDTH)
    return State(SHORT_CONV, width, text.need("conv_L_cache"), 0, (width,))


STATES: Mapping[str, Callable[[Fields], State]] = {
    MAMBA: _mamba,
    MAMBA2: _mamba2,
    DELTA_NET: _gated_delta_net,
    KDA: _kimi_delta_attention,
    LIGHTNING: _lightning,
    RG_LRU: _rg_lru,
    SHORT_CONV: _short_conv,
}
