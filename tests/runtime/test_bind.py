"""Which input tells which Dim, also where no axis is a plain Dim, and what a wrong axis says."""

from __future__ import annotations

import pytest

from tests.runtime.plans import straight
from tsc.errors import ShapeError
from tsc.runtime.bind import Binder
from tsc.runtime.plan import TensorSpec
from tsc.sym import Range, SymExpr, dim, product

P, S, N = dim("p"), dim("s"), dim("n")


def binder(*shapes: tuple[SymExpr, ...], **ranges: Range) -> Binder:
    names = sorted({name for shape in shapes for size in shape for name in size.dims()})
    inputs = tuple(TensorSpec(f"x{i}", "float32", shape) for i, shape in enumerate(shapes))
    known = {name: ranges.get(name, Range()) for name in names}
    return Binder(straight(inputs, ranges=known))


def test_sums_and_multiples_are_solved() -> None:
    one = binder((P + S, 2 * N), (P,))
    assert one.dims == ("n", "p", "s") and one.sizes(((7, 10), (3,))) == [5, 3, 4]
    with pytest.raises(ShapeError, match=r"input 'x0' has size 9 at axis 1, expected 2\*n for some n"):
        one.sizes(((7, 9), (3,)))
    with pytest.raises(ShapeError, match=r"input 'x0' has size 2 at axis 0, expected p \+ s"):
        one.sizes(((2, 10), (3,)))


def test_later_axes_must_agree() -> None:
    one = binder((P, S), (S, P), (product((P, S)), SymExpr.of(4)))
    assert one.sizes(((2, 3), (3, 2), (6, 4))) == [2, 3]
    with pytest.raises(ShapeError, match=r"input 'x1' has size 9 at axis 0, expected s = 3, because input 'x0' has size 3"):
        one.sizes(((2, 3), (9, 2), (6, 4)))
    with pytest.raises(ShapeError, match=r"'x2' has size 7 at axis 0, expected p\*s = 6, because input 'x0' has size 2"):
        one.sizes(((2, 3), (3, 2), (7, 4)))
    with pytest.raises(ShapeError, match=r"input 'x2' has size 5 at axis 1, expected 4$"):
        one.sizes(((2, 3), (3, 2), (6, 5)))


@pytest.mark.parametrize("size, fits", [(3, False), (4, True), (6, False), (8, True), (12, True), (16, False)])
def test_ranges_and_divisors(size: int, fits: bool) -> None:
    one = binder((P,), p=Range(4, 12, 4))
    if fits:
        assert one.sizes(((size,),)) == [size] == one.given({"p": size})
    else:
        with pytest.raises(ShapeError, match=f"has size {size} at axis 0, outside 4..12 by 4, the range of dim 'p'"):
            one.sizes(((size,),))


def test_a_dim_that_no_axis_tells() -> None:
    with pytest.raises(ShapeError, match="p, s"):
        binder((product((P, S)),))
