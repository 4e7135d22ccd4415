"""The errors of the core: each states what was expected and what came."""


class ShapeError(ValueError):
    """A tensor, or a count, does not have the shape that the formula needs.

    The message names the argument, what was expected, and what came.
    """

    def __init__(self, what: str, *, expected: object, got: object) -> None:
        super().__init__(f"{what}: expected {expected}, got {got}")
        self.what, self.expected, self.got = what, expected, got


class UnsupportedModelError(ValueError):
    """The model is not one whose attention this package reads exactly; the message says which trait is in the way."""


class OutOfRangeError(ValueError):
    """An index (layer, head, query row, token id) lies outside what the model or the text has."""

    def __init__(self, what: str, *, index: int, size: int) -> None:
        super().__init__(f"{what}: {index} is not in 0..{size - 1}")
        self.what, self.index, self.size = what, index, size
