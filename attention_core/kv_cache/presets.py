"""Published models whose cache can be asked for by name, from the packaged `presets.json`."""

import functools
import json
from dataclasses import dataclass, replace
from importlib import resources

from attention_core.kv_cache.layers import CacheModel, Dims, UnknownNameError


@dataclass(frozen=True)
class Preset:
    """One published model: its id, short names, sizes, longest context in tokens, dtype of the weights.

    `source` says where the facts stand, `released` in which month (YYYY-MM) the model came out.
    """

    id: str
    aliases: tuple[str, ...]
    dims: Dims
    max_tokens: int
    dtype: str
    source: str
    released: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that finds this preset: the id, the id without its owner, the aliases."""
        return (self.id, self.id.rpartition("/")[2], *self.aliases)

    def model(self) -> CacheModel:
        """The description from which the cache's size follows."""
        plain = CacheModel.from_dims(self.dims)
        return replace(plain, name=self.id, dtype=self.dtype, max_tokens=self.max_tokens)


@functools.cache
def presets() -> tuple[Preset, ...]:
    """All presets, in the order of the packaged file."""
    text = resources.files(__package__).joinpath("presets.json").read_text(encoding="utf-8")
    return tuple(_preset(**entry) for entry in json.loads(text))


def find_preset(name: str) -> Preset:
    """The preset of that id or alias; upper and lower case do not matter.

    Raises UnknownNameError, with the names that resemble it in `close`.
    """
    by_name = {known.lower(): preset for preset in presets() for known in preset.names}
    if name.lower() not in by_name:
        raise UnknownNameError("model", name, [known for preset in presets() for known in preset.names])
    return by_name[name.lower()]


def _preset(
    *,
    id: str,
    aliases: list[str],
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    max_tokens: int,
    dtype: str,
    source: str,
    released: str,
) -> Preset:
    dims = Dims(layers, heads, kv_heads, head_dim, v_head_dim=head_dim)
    return Preset(id, tuple(aliases), dims, max_tokens, dtype, source, released)
