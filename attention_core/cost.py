"""What attention costs, and what the alternatives cost.

Source: Vaswani et al. 2017, section 4 and Table 1 (arXiv:1706.03762).
"""

from dataclasses import dataclass

from attention_core import _checks as check
from attention_core.errors import ShapeError


@dataclass(frozen=True)
class LayerCost:
    """One row of Table 1 for given sizes: the term inside each O(), with the constant 1.

    work             multiply-adds of one layer
    sequential_steps operations that must wait for each other
    path_length      layers (or steps) a signal needs at most between two positions
    """

    layer: str
    work: int
    sequential_steps: int
    path_length: int


@dataclass(frozen=True)
class AttentionWork:
    """Exact multiply-adds of one attention layer over a whole sequence, without a causal mask's savings.

    projections  making Q, K, V, and the output projection
    scores       Q Kᵀ, all heads
    mixing       weights times V, all heads
    """

    projections: int
    scores: int
    mixing: int

    @property
    def total(self) -> int:
        """All multiply-adds."""
        return self.projections + self.scores + self.mixing


def pair_count(n: int) -> int:
    """Pairs of a query and a key among n tokens: n². 4 tokens make 16, 1,000 make 1,000,000.

    Raises ShapeError for n below 1.
    """
    return check.positive_int("n", n) ** 2


def attention_multiply_adds(
    n: int, d_model: int, n_heads: int = 1, n_kv_heads: int | None = None
) -> AttentionWork:
    """Multiply-adds of multi-head attention, counted exactly.

        projections = n d² + 2 n d (n_kv_heads d_head) + n d²
        scores      = n_heads n² d_head = n² d
        mixing      = n_heads n² d_head = n² d

    where d = d_model and d_head = d / n_heads. With n_kv_heads = n_heads the total does not depend on the
    number of heads: h heads of width d/h cost what one head of width d costs.

    Raises ShapeError for counts below 1, or heads that do not divide.
    Source: Vaswani et al. 2017, section 3.2.2: "the total computational cost is similar to that of
    single-head attention with full dimensionality". For this count it is the same.
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    for name, count in (("n", n), ("d_model", d_model), ("n_heads", n_heads), ("n_kv_heads", n_kv_heads)):
        check.positive_int(name, count)
    check.divides("n_heads", n_heads, "d_model", d_model)
    check.divides("n_kv_heads", n_kv_heads, "n_heads", n_heads)
    d_head = d_model // n_heads
    pairs = n_heads * pair_count(n) * d_head
    projections = 2 * n * d_model**2 + 2 * n * d_model * n_kv_heads * d_head
    return AttentionWork(projections=projections, scores=pairs, mixing=pairs)


def self_attention_cost(n: int, d: int) -> LayerCost:
    """Self-attention over n positions of width d: work n²·d, 1 step, path 1.

    Raises ShapeError for sizes below 1. Source: Vaswani et al. 2017, Table 1.
    """
    return LayerCost("self-attention", pair_count(n) * check.positive_int("d", d), 1, 1)


def recurrent_cost(n: int, d: int) -> LayerCost:
    """A recurrent layer: work n·d², n steps, path n.

    Raises ShapeError for sizes below 1. Source: Vaswani et al. 2017, Table 1.
    """
    check.positive_int("n", n)
    return LayerCost("recurrent", n * check.positive_int("d", d) ** 2, n, n)


def convolutional_cost(n: int, d: int, kernel: int = 3) -> LayerCost:
    """A convolution of width k = kernel: work k·n·d², 1 step, path ⌈log_k n⌉.

    The path is that of a stack of dilated convolutions, whose reach grows k-fold from layer to layer; it is
    at least 1. Raises ShapeError for sizes below 1, or a kernel below 2, which never connects two positions.
    Source: Vaswani et al. 2017, Table 1.
    """
    check.positive_int("n", n)
    check.positive_int("d", d)
    check.positive_int("kernel", kernel, at_least=2)
    layers = 1
    while kernel**layers < n:  # integers: math.log(243, 3) is 4.999…
        layers += 1
    return LayerCost("convolutional", kernel * n * d**2, 1, layers)


def restricted_cost(n: int, d: int, window: int) -> LayerCost:
    """Self-attention restricted to r = window neighbours: work r·n·d, 1 step, path ⌈n/r⌉.

    Raises ShapeError for sizes below 1, or a window wider than the sequence.
    Source: Vaswani et al. 2017, Table 1.
    """
    check.positive_int("n", n)
    check.positive_int("d", d)
    if check.positive_int("window", window) > n:
        raise ShapeError("window", expected=f"at most n = {n}", got=window)
    return LayerCost("restricted self-attention", window * n * d, 1, -(-n // window))


def layer_costs(n: int, d: int, *, kernel: int = 3, window: int) -> tuple[LayerCost, ...]:
    """All four rows of Table 1, in its order, for n positions of width d.

    Raises ShapeError as the four functions do. Source: Vaswani et al. 2017, Table 1.
    """
    return (
        self_attention_cost(n, d),
        recurrent_cost(n, d),
        convolutional_cost(n, d, kernel),
        restricted_cost(n, d, window),
    )
