"""Checks of arguments that several modules share. Each raises ShapeError: what was expected, what came."""

import torch
from torch import Tensor

from attention_core.errors import ShapeError


def positive_int(what: str, value: object, *, at_least: int = 1) -> int:
    """`value` itself, if it is a whole number of at least `at_least`; a bool is not a number here."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ShapeError(what, expected=f"an integer of at least {at_least}", got=repr(value))
    return value


def divides(what: str, divisor: int, of: str, number: int) -> None:
    """`divisor`, called `what`, goes into `number`, called `of`, without a remainder."""
    if number % divisor:
        raise ShapeError(what, expected=f"a divisor of {of} = {number}", got=divisor)


def floating(what: str, tensor: Tensor, *, axes: int = 1, like: Tensor | None = None) -> None:
    """A floating-point tensor of at least `axes` axes, the last ones not empty, with the dtype of `like`."""
    if not isinstance(tensor, Tensor):
        raise ShapeError(what, expected="a torch.Tensor", got=type(tensor).__name__)
    if not tensor.is_floating_point():
        raise ShapeError(f"dtype of {what}", expected="a floating-point dtype", got=tensor.dtype)
    if like is not None and tensor.dtype != like.dtype:
        raise ShapeError(f"dtype of {what}", expected=like.dtype, got=tensor.dtype)
    if tensor.dim() < axes or 0 in tensor.shape[tensor.dim() - axes :]:
        raise ShapeError(
            what, expected=f"at least {axes} axes, the last {axes} not empty", got=list(tensor.shape)
        )


def axis(what: str, tensor: Tensor, dim: int, expected: int) -> None:
    """Axis `dim` of the tensor has the expected size."""
    if tensor.shape[dim] != expected:
        raise ShapeError(f"axis {dim} of {what}", expected=expected, got=list(tensor.shape))


def broadcast(what: str, a: torch.Size, b: torch.Size) -> None:
    """`b`, called `what`, broadcasts with `a`."""
    try:
        torch.broadcast_shapes(a, b)
    except RuntimeError:
        raise ShapeError(what, expected=f"a shape that broadcasts with {list(a)}", got=list(b)) from None
