"""The error of this package: what in a description of a model, or in a question about it, cannot be used."""

import difflib
from collections.abc import Iterable


class CacheInputError(ValueError):
    """A field cannot be used: `place` says which (its keys and indices, from outside in), `code` why, in a word.

    A place is relative to what was read: a config, `Dims`, or else the arguments of `kv_cache`.
    """

    def __init__(self, place: tuple[str | int, ...], code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.place, self.code = place, code

    def under(self, *place: str | int) -> "CacheInputError":
        """The same fault of a field that lies within another."""
        return CacheInputError((*place, *self.place), self.code, str(self))


class UnknownNameError(ValueError):
    """A name that is not in the list; `close` holds the names that resemble it."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        by_lower = {candidate.lower(): candidate for candidate in known}
        self.what, self.name = what, name
        self.close = tuple(
            by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=5)
        )
        hint = f"; close names: {', '.join(self.close)}" if self.close else ""
        super().__init__(f"{what}: unknown name {name!r}{hint}")
