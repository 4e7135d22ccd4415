"""Reading the members of a config one by one: types, bounds, synonyms; each fault with its place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attention_core.kv_cache.errors import CacheInputError
from attention_core.kv_cache.layers import whole

Place = tuple[str | int, ...]


@dataclass
class Fields:
    """An object of a config: gives its members, null being absent, and remembers which were read."""

    values: Mapping[str, object]
    place: Place
    read: set[str] = field(default_factory=set)

    def get(self, *names: str) -> object:
        """The first of several synonyms that is there, else None."""
        return self.values[name] if (name := self.name(*names)) else None

    def name(self, *names: str) -> str | None:
        """Which of several synonyms is there."""
        self.read.update(names)
        return next((name for name in names if self.values.get(name) is not None), None)

    def count(self, *names: str, at_least: int = 1) -> int | None:
        """A whole number, None where absent."""
        name = self.name(*names)
        return None if name is None else whole(self.values[name], *self.place, name, at_least=at_least)

    def need(self, *names: str, at_least: int = 1) -> int:
        """A whole number that must be there."""
        found = self.count(*names, at_least=at_least)
        if found is None:
            raise self.missing(*names)
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(name, "wrong_type", f"{name} must be true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, None where absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.fault(name, "wrong_type", f"{name} must be a string")
        return value

    def items(self, name: str, length: int | None = None) -> Sequence[object] | None:
        """A list of `length` entries, or of one or more (or a string, letter by letter); None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple | str):
            raise self.fault(name, "wrong_type", f"{name} must be a list")
        if length is not None and len(value) != length:
            sentence = f"{name} has {len(value)} entries for {length} layers"
            raise self.fault(name, "pattern_length", sentence)
        if not value:
            raise self.fault(name, "pattern_length", f"{name} has no entries")
        return value

    def numbers(self, name: str, first: int, count: int) -> frozenset[int] | None:
        """Some of `count` layers by their numbers, which begin with `first`; None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.fault(name, "wrong_type", f"{name} must be a list")
        for index, entry in enumerate(value):
            place = (*self.place, name, index)
            if whole(entry, *place, at_least=first) >= first + count:
                raise CacheInputError(place, "out_of_range", f"There are {count} layers")
        return frozenset(value)

    def within(self, name: str) -> "Fields | None":
        """An object in this one, None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fault(name, "wrong_type", f"{name} must be an object")
        return Fields(value, (*self.place, name))

    def missing(self, *names: str) -> CacheInputError:
        """The fault of a field that is not there; `names` are its synonyms."""
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        return CacheInputError((*self.place, names[0]), "missing_field", f"{names[0]}{others} is required")

    def fault(self, name: str, code: str, sentence: str) -> CacheInputError:
        """A fault of a field that is there."""
        return CacheInputError((*self.place, name), code, sentence)

    def entry(self, name: str, index: int, length: int) -> "Fields | None":
        """An object in a list of `length` objects, None where the list is absent."""
        entries = self.items(name, length)
        if entries is None:
            return None
        entry = entries[index]
        if not isinstance(entry, Mapping):
            raise self.fault(name, "wrong_type", f"Entry {index} of {name} must be an object")
        return Fields(entry, (*self.place, name, index))
