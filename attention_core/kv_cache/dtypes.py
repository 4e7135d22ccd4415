"""What an element of the cache takes: plain, scaled by block, and scaled by token and head.

Sizes are rationals, never floats: `bits / 8 + scale bytes / block`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from attention_core.kv_cache.errors import CacheInputError


@dataclass(frozen=True)
class Dtype:
    """How a row of `width` elements is stored.

        bytes = width * bytes_per_element + row_scale_bytes

    `bytes_per_element` holds the share of a block's scale, so `width` must be a multiple of `block`.
    """

    name: str
    bytes_per_element: Fraction
    block: int = 1
    row_scale_bytes: int = 0

    def row_bytes(self, width: int) -> int:
        """Bytes of one head's key (or value) for one token. Raises CacheInputError, code `unsuitable_width`."""
        if width % self.block:
            sentence = f"{self.name} is stored in blocks of {self.block} elements, and {width} is no multiple of that"
            raise CacheInputError((), "unsuitable_width", sentence)
        return int(width * self.bytes_per_element) + self.row_scale_bytes


LATENT_ONLY = "fp8_ds_mla"  # a layout of MLA's row, of nothing else
_LATENT_GROUP = 128  # elements under one float32 scale in that row, and in an fp8 indexer's key
_SCALE_BYTES = 4


def _block(scale_bytes: int, bits: int, block: int = 32) -> Fraction:
    return Fraction(bits, 8) + Fraction(scale_bytes, block)


DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            Dtype("float32", Fraction(4)),
            Dtype("float16", Fraction(2)),
            Dtype("bfloat16", Fraction(2)),
            Dtype("fp8_e4m3", Fraction(1)),
            Dtype("fp8_e5m2", Fraction(1)),
            Dtype("int8", Fraction(1)),
            # ggml's blocks of 32: a float16 scale, in the _1 types a float16 minimum too
            Dtype("q8_0", _block(2, 8), 32),
            Dtype("q5_1", _block(4, 5), 32),
            Dtype("q5_0", _block(2, 5), 32),
            Dtype("q4_1", _block(4, 4), 32),
            Dtype("q4_0", _block(2, 4), 32),
            Dtype("iq4_nl", _block(2, 4), 32),
            Dtype("mxfp4", _block(1, 4), 32),
            Dtype("nvfp4", _block(1, 4, 16), 16),
            # one float32 scale for each token and head
            Dtype("int8_per_token_head", Fraction(1), row_scale_bytes=_SCALE_BYTES),
            Dtype("fp8_per_token_head", Fraction(1), row_scale_bytes=_SCALE_BYTES),
            Dtype(LATENT_ONLY, Fraction(1)),
        )
    }
)

PLAIN_DTYPES = ("float32", "float16", "bfloat16")  # what activations and recurrent states come in


def latent_bytes(rank: int, rope_dim: int, dtype: Dtype) -> int:
    """Bytes of MLA's row for one token: one tensor of `rank + rope_dim` elements.

    In fp8_ds_mla the latent part is fp8 with a float32 scale for every 128 elements, and the rotary part stays
    bfloat16: 512 + 4 * 4 + 64 * 2 = 656 for a rank of 512.
    """
    if dtype.name != LATENT_ONLY:
        return dtype.row_bytes(rank + rope_dim)
    if rank % _LATENT_GROUP:
        sentence = f"{LATENT_ONLY} scales groups of {_LATENT_GROUP}, and the latent rank is {rank}"
        raise CacheInputError((), "unsuitable_width", sentence)
    return rank + _SCALE_BYTES * (rank // _LATENT_GROUP) + 2 * rope_dim


def index_bytes(width: int, dtype: Dtype) -> int:
    """Bytes of a sparse-attention indexer's key for one token; in fp8 with a float32 scale for every 128 elements."""
    if dtype.name.startswith("fp8"):
        return width + _SCALE_BYTES * -(-width // _LATENT_GROUP)
    return dtype.row_bytes(width)
