"""Published models whose cache can be asked for by name, from the packaged `presets.json`."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from attention_core.kv_cache.config import read_config
from attention_core.kv_cache.errors import UnknownNameError
from attention_core.kv_cache.layers import CacheModel


@dataclass(frozen=True, eq=False)
class Preset:
    """One published model: its id, short names, and what of its config.json matters to the cache.

    `status` is "verified" where the facts are read from a complete published config, "secondhand" where from another
    place; `source` says which, `checked` on which day. `released` is the month (YYYY-MM) in which the model came out.
    """

    id: str
    aliases: tuple[str, ...]
    config: Mapping[str, object]
    status: Literal["verified", "secondhand"]
    source: str
    checked: str
    released: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that finds this preset: the id, the id without its owner, the aliases."""
        return (self.id, self.id.rpartition("/")[2], *self.aliases)

    def model(self) -> CacheModel:
        """The layers from which the cache's size follows."""
        return self._model

    @functools.cached_property
    def _model(self) -> CacheModel:
        return replace(read_config(self.config), name=self.id)


@functools.cache
def presets() -> tuple[Preset, ...]:
    """All presets, in the order of the packaged file."""
    text = resources.files(__package__).joinpath("presets.json").read_text(encoding="utf-8")
    return tuple(Preset(**entry | {"aliases": tuple(entry["aliases"])}) for entry in json.loads(text))


@functools.cache
def _by_name() -> Mapping[str, Preset]:
    return {name.lower(): preset for preset in presets() for name in preset.names}


def find_preset(name: str) -> Preset:
    """The preset of that id or alias; upper and lower case do not matter.

    Raises UnknownNameError, with the names that resemble it in `close`.
    """
    found = _by_name().get(name.lower())
    if found is None:
        raise UnknownNameError("model", name, [known for preset in presets() for known in preset.names])
    return found
