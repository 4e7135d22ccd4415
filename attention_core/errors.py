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
