"""Shape arithmetic on symbolic dims: what exporters write must fold to exact sizes, facts and Guards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.harness import Lowered
from tsc.errors import ModelError, ShapeError, UnsupportedError
from tsc.ir import Node, TensorType
from tsc.ops.base import symbolic
from tsc.sym import ShapeEnv, SymExpr, dim, parse
from tsc.te.compute import Program
from tsc.te.evaluate import evaluate

B, L = dim("B"), dim("L")


class Chain:
    """Nodes added one by one over symbolic inputs."""

    def __init__(self, **inputs: tuple[Any, ...]) -> None:
        self.env = ShapeEnv()
        for name in ("B", "L"):
            self.env.declare(name)
        self.state = Lowered(self.env, 18)
        for name, shape in inputs.items():
            self.state.types[name] = TensorType("float32", tuple(SymExpr.of(d) for d in shape))

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> str:
        names = tuple(i if isinstance(i, str) else self.state.constant(np.asarray(i, np.int64)) for i in inputs)
        out = f"t{next(self.state.count)}"
        self.state.add(Node(op, names, (out,), attrs, "node"))
        return out

    def shape(self, name: str) -> list[str]:
        return [str(self.env.canon(d)) for d in self.state.types[name].shape]

    def contents(self, name: str) -> Any:
        found = self.state.contents.get(name)
        return None if found is None else found.tolist()

    def guards(self) -> list[str]:
        return [str(g) for g in self.env.guards]

    def value(self, name: str, **sizes: int) -> np.ndarray[Any, Any]:
        """What the te bodies compute for `name` where no input is read."""
        return evaluate(Program((), (), tuple(c for c in self.state.computes if c.name == name), ()), {}, sizes)[name]


def test_torch_reshape_of_heads() -> None:
    c = Chain(x=(B, L, 64))
    shape = c("Shape", "x")
    heads = c("Concat", c("Slice", shape, [0], [2]), [-1, 8], axis=0)
    split = c("Transpose", c("Reshape", "x", heads), perm=(0, 2, 1, 3))
    assert c.shape(split) == ["B", "8", "L", "8"]
    merged = c("Concat", c("Gather", shape, [0]), [-1, 64], axis=0)
    assert c.shape(c("Reshape", c("Transpose", split, perm=(0, 2, 1, 3)), merged)) == ["B", "L", "64"]
    assert c.shape(c("Reshape", "x", [-1, 64])) == ["B*L", "64"]
    assert not c.guards()


def test_expand_idiom_of_torch_folds() -> None:
    """Expand's shape is Where(Equal(sizes, -1), ones, sizes): a dim is never -1."""
    c = Chain(x=(B, 1), y=(B, L))
    sizes = c("Concat", c("Gather", c("Shape", "y"), [0]), c("Gather", c("Shape", "y"), [1]), axis=0)
    ones = c("ConstantOfShape", [2], value=np.array([1]))
    picked = c("Where", c("Equal", sizes, c("Mul", ones, -1)), ones, sizes)
    assert c.contents(picked) == [B, L]
    assert c.shape(c("Expand", "x", picked)) == ["B", "L"]
    assert c.shape(c("Expand", "y", [3, 1, 1])) == ["3", "B", "L"]


def test_positions_cut_from_a_table() -> None:
    """Slice clamps; that the table is long enough is what adding to the positions needs."""
    c = Chain(table=(1, 64), x=(B, L))
    length = c("Gather", c("Shape", "x"), [1])
    cut = c("Slice", "table", [0], length, [1])
    assert c.shape(cut) == ["1", "min(L, 64)"] and not c.guards()
    assert c.shape(c("Add", "x", cut)) == ["B", "L"]
    assert c.guards() == ["L <= 64"] and "(Add)" in c.env.guards[0].reason
    c("Add", "x", c("Slice", "table", [0], length, [1]))
    assert len(c.guards()) == 1


def test_a_mask_cut_at_two_clamped_bounds_is_what_is_added_to_it() -> None:
    c = Chain(mask=(1024, 1024), scores=(L, L + dim("P")))
    c.env.declare("P", 0)
    sizes = [c("Slice", c("Shape", "scores"), [k], [k + 1]) for k in (0, 1)]
    rows = c("Slice", "mask", c("Sub", sizes[1], sizes[0]), sizes[1], [0])
    total = c("Add", "scores", c("Slice", rows, [0], sizes[1], [1]))
    assert [str(c.env.canon(d)) for d in c.state.types[total].shape] == ["L", "L + P"]
    assert "L + P <= 1024" in c.guards()


def test_slice_from_the_end_and_with_steps() -> None:
    c = Chain(x=(B, L), y=(L + 7, B))
    assert c.shape(c("Slice", "x", [-1], [2**63 - 1], [1])) == ["B", "1"]
    assert c.shape(c("Slice", "y", [0], [-7], [0])) == ["L", "B"]
    assert c.shape(c("Slice", "y", [-1], [-(2**63)], [0], [-1])) == ["L + 7", "B"]
    extent = c.state.types[c("Slice", "y", [1], [2**31 - 1], [0], [2])].shape[0]
    assert [extent.evaluate({"L": n}) for n in (1, 2, 3)] == [4, 4, 5]
    assert not c.guards()


def test_a_constant_bound_on_an_unbounded_dim_is_clamped_not_assumed() -> None:
    c = Chain(x=(L,))
    head = c("Slice", "x", [0], [100], [0])
    assert c.env.canon(c.state.types[head].shape[0]) == parse("min(L, 100)")
    tail = c("Slice", "x", [-100], [2**63 - 1], [0])
    extent = c.state.types[tail].shape[0]
    assert [extent.evaluate({"L": n}) for n in (1, 99, 100, 101)] == [1, 99, 100, 100]
    assert not c.guards()


def test_rows_divided_by_the_length_of_another_input() -> None:
    """[-1, L, 8] of [R, 8] is R // L images of L rows, not a guess that R is L; in [L, -1] of [R, C] they are named apart."""
    c = Chain(x=(dim("R"), 8), y=(L, 8))
    length = c("Slice", c("Shape", "y"), [0], [1])
    assert c.shape(c("Reshape", "x", c("Concat", [-1], length, [8], axis=0))) == ["(R // L)", "L", "8"]
    assert c.guards() == ["R == L*(R // L)"] and c.env.canon(L) == L
    c = Chain(x=(dim("R"), dim("C")), y=(L, 8))
    c("Reshape", "x", c("Concat", c("Slice", c("Shape", "y"), [0], [1]), [-1], axis=0))
    assert c.env.canon(L) == c.env.canon(dim("R"))


def test_broadcast_makes_dims_equal_and_leaves_a_guard() -> None:
    c = Chain(x=(B, 5), y=(L, 1))
    assert len(set(c.shape(c("Add", "x", "y")))) == 2
    assert c.env.canon(B) == c.env.canon(L)
    assert len(c.guards()) == 1 and "node 'node' (Add)" in c.env.guards[0].reason


def test_dims_that_can_never_broadcast_are_refused() -> None:
    c = Chain(x=(B, 3), y=(B, 5))
    with pytest.raises(ShapeError, match="'node'"):
        c("Add", "x", "y")


def test_matmul_unifies_the_depth() -> None:
    c = Chain(x=(B, L), y=(dim("K"), 7))
    c.env.declare("K")
    assert c.shape(c("MatMul", "x", "y")) == [str(c.env.canon(B)), "7"]
    assert c.env.canon(dim("K")) == c.env.canon(L)


def test_two_batches_named_apart_become_one_in_a_view() -> None:
    c = Chain(mask=(B, L), x=(dim("b"), 1))
    c.env.declare("b")
    shape = c("Concat", c("Slice", c("Shape", "x"), [0], [1]), [-1], axis=0)
    assert len(set(c.shape(c("Reshape", "mask", shape)))) == 2
    assert c.env.canon(dim("b")) == c.env.canon(B)


def test_reshape_must_keep_the_number_of_elements() -> None:
    c = Chain(x=(4, 5))
    with pytest.raises(ShapeError, match="number of elements"):
        c("Reshape", "x", [3, 7])
    with pytest.raises(ModelError, match="at most one"):
        c("Reshape", "x", [-1, -1])


def test_a_shape_made_of_data_is_unsupported() -> None:
    c = Chain(x=(B,), s=(1,))
    with pytest.raises(UnsupportedError, match=r"'node' \(Reshape\) has a data-dependent shape.* 's'; store it .* constant"):
        c("Reshape", "x", "s")


@pytest.mark.parametrize(("op", "a", "b", "want"), [
    ("Add", L, 1, L + 1), ("Mul", L, B, B * L), ("Div", 4 * L, 2, 2 * L), ("Div", -7, 2, -3), ("Mod", 6 * L, 3, 0),
    ("Max", L, 1, L), ("Min", L, 0, 0), ("Pow", L, 2, L * L), ("Less", L, 1, 0), ("GreaterOrEqual", L, 1, 1),
    ("Equal", L, L + 1, 0), ("Equal", L, B, None),
])
def test_value_rules(op: str, a: Any, b: Any, want: Any) -> None:
    c = Chain()
    for name, value in (("a", a), ("b", b)):
        c.state.types[name] = TensorType("int64", ())
        contents = np.empty((), object)
        contents[()] = SymExpr.of(value)
        c.state.contents[name] = contents
    assert c.contents(c(op, "a", "b")) == (None if want is None else SymExpr.of(want))


def test_size_and_product_of_a_shape() -> None:
    c = Chain(x=(B, L, 3))
    assert c.contents(c("Size", "x")) == 3 * B * L
    assert c.contents(c("ReduceProd", c("Shape", "x"), keepdims=0)) == 3 * B * L


def test_range_over_a_dim() -> None:
    c = Chain(x=(B, L))
    r = c("Range", 0, c("Squeeze", c("Gather", c("Shape", "x"), [1])), 1)
    assert c.shape(r) == ["L"]
    np.testing.assert_array_equal(c.value(r, L=5), np.arange(5))


@pytest.mark.parametrize("values", [[L], [B, L, 7], [L, L + 2, L + 4], [[0, L], [1, L + 1]], [[1, 2], [B, 3]]])
def test_symbolic_constants_hold_their_values(values: Any) -> None:
    c = Chain()
    contents = symbolic(values)
    name = c("SymbolicConstant", value=contents, dtype="float32")
    want = np.vectorize(lambda e: e.evaluate({"B": 3, "L": 5}))(contents)
    np.testing.assert_array_equal(c.value(name, B=3, L=5), want.astype(np.float32))


def test_split_of_a_dim() -> None:
    c = Chain(x=(B, 3 * L))
    c.state.add(Node("Split", ("x",), ("p", "q", "r"), {"axis": 1, "num_outputs": 3}, "node"))
    assert [c.shape(n) for n in "pqr"] == [["B", "L"]] * 3
