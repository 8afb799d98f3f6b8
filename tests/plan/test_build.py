"""Plans: which memory each value has, in all the ways a graph can name one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tsc.errors import InternalError, ShapeError
from tsc.ir import Graph, TensorType
from tsc.plan.build import KernelCall, Part, build_plan, packed_constants
from tsc.plan.pack import packed
from tsc.runtime.plan import Call, Plan, Storage, Variant
from tsc.sym import ZERO, ShapeEnv, SymExpr, dim
from tsc.te.expr import Buffer
from tsc.te.layout import panels

B = dim("B")


def graph(inputs: str, outputs: str, values: str, constants: dict[str, np.ndarray] | None = None) -> Graph:
    """All values float32[B, 4]."""
    types = {name: TensorType("float32", (B, SymExpr.of(4))) for name in (inputs + " " + values).split()}
    for name, array in (constants or {}).items():
        types[name] = TensorType(array.dtype.name, tuple(map(SymExpr.of, array.shape)))
    return Graph("g", tuple(inputs.split()), tuple(outputs.split()), (), types, constants or {})


def call(values: str, outputs: str, **more: object) -> KernelCall:
    """Every value is seen as float32[B, 4], but for what `more` says."""
    buffers = more.pop("buffers", None) or tuple(Buffer(v, "float32", (B, SymExpr.of(4))) for v in values.split())
    variant = Variant((Call("k", B, tuple(range(len(values.split())))),))
    return KernelCall("k", tuple(values.split()), tuple(outputs.split()), buffers, (B,), (variant,), "node", **more)  # type: ignore[arg-type]


def kinds(plan: Plan) -> list[list[str]]:
    """Where each launch's arguments live."""
    return [[f"{s.kind}{'' if s.kind == 'arena' else s.index}" for s in (plan.storages[a] for a in launch.args)]
            for launch in plan.launches]


def test_chain() -> None:
    plan = build_plan(Part(graph("x", "y", "t u y"), ShapeEnv(), [call("x t", "t"), call("t u", "u"), call("u t y", "y")]))
    assert kinds(plan) == [["input0", "arena"], ["arena", "arena"], ["arena", "arena", "output0"]]
    assert plan.copies == () and plan.arena_bytes.evaluate({"B": 4}) == 128
    assert plan.inputs[0].shape == (B, SymExpr.of(4)) and list(plan.ranges) == ["B"]
    assert [s.bytes for s in plan.storages] == [ZERO, 16 * B, 16 * B, ZERO]  # x, t, u, y


def test_an_output_that_is_read_again_stays_an_output() -> None:
    plan = build_plan(Part(graph("x", "t y", "t y"), ShapeEnv(), [call("x t", "t"), call("t y", "y")]))
    assert kinds(plan) == [["input0", "output0"], ["output0", "output1"]] and plan.arena_bytes == ZERO


def test_outputs_without_a_kernel_are_copied() -> None:
    constants = {"w": np.ones((1, 4), np.float32)}
    roots = {"xv": "x", "tv": "t"}
    plan = build_plan(Part(graph("x", "x xv w t tv", "xv t tv", constants), ShapeEnv(), [call("x t", "t")],
                           lambda v: roots.get(v, v)))
    assert kinds(plan) == [["input0", "output3"]]
    found = {plan.storages[c.target].index: (plan.storages[c.source], c.bytes) for c in plan.copies}
    assert found == {0: (Storage("input"), 16 * B), 1: (Storage("input"), 16 * B), 2: (Storage("constant"), SymExpr.of(16)),
                     4: (Storage("output", 3), 16 * B)}
    assert plan.constants == ("w",)


def test_an_output_that_is_a_view_is_written_through_its_root() -> None:
    roots = {"tv": "t", "t": "t", "x": "x"}
    plan = build_plan(Part(graph("x", "tv", "t tv"), ShapeEnv(), [call("x t", "t")], roots.__getitem__))
    assert kinds(plan) == [["input0", "output0"]] and not plan.copies


def test_views_share_memory_and_lifetime() -> None:
    roots = {"tv": "t"}
    plan = build_plan(Part(graph("x", "y", "t tv u y"), ShapeEnv(), [call("x t", "t"), call("x u", "u"), call("tv u y", "y")],
                           lambda v: roots.get(v, v)))
    assert plan.launches[0].args[1] == plan.launches[2].args[0]
    assert len({plan.storages[plan.launches[i].args[1]].offset for i in (0, 1)}) == 2


def test_packed_constants() -> None:
    w = np.arange(40, dtype=np.float32).reshape(10, 1, 4)
    model = graph("x", "y", "t u y", {"w": w})
    shapes = [(10, 4), (2, 5, 4), (40,)]  # as three kernels see it: the first two in panels along an axis 1
    calls = [call("x w t", "t", buffers=seen("x", "w", (10, 4), (1, 16), "t")),
             call("t w u", "u", buffers=seen("t", "w", (2, 5, 4), (1, 16), "u")),
             call("u w y", "y", buffers=seen("u", "w", (40,), None, "y"))]
    plan = build_plan(Part(model, ShapeEnv(), calls))
    assert kinds(plan) == [["input0", "constant0", "arena"], ["arena", "constant1", "arena"], ["arena", "constant2", "output0"]]
    first, second, plain = packed_constants(Part(model, ShapeEnv(), calls), plan).values()
    np.testing.assert_array_equal(first, packed(w.reshape(shapes[0]), panels(len(shapes[0]), 1, 16)))
    np.testing.assert_array_equal(second, packed(w.reshape(shapes[1]), panels(len(shapes[1]), 1, 16)))
    assert plain is w


def seen(before: str, name: str, shape: tuple[int, ...], panel: tuple[int, int] | None, after: str) -> tuple[Buffer, ...]:
    plain = (B, SymExpr.of(4))
    layout = () if panel is None else panels(len(shape), *panel)
    constant = Buffer(name, "float32", tuple(map(SymExpr.of, shape)), layout)
    return Buffer(before, "float32", plain), constant, Buffer(after, "float32", plain)


@pytest.mark.defect(9)
@pytest.mark.parametrize(("shape", "dtype"), [((1, 40), "float64"), ((10,), "float32"), ((10, 8), "float32")])
def test_a_constant_that_is_not_what_its_kernel_reads(shape: tuple[int, ...], dtype: str) -> None:
    model = graph("x", "y", "y", {"w": np.zeros((10, 4), np.dtype(dtype))})
    calls = [call("x w y", "y", buffers=seen("x", "w", shape, (0, 16), "y"))]
    plan = build_plan(Part(model, ShapeEnv(), calls))
    with pytest.raises(InternalError, match="constant 'w'"):
        packed_constants(Part(model, ShapeEnv(), calls), plan)


def test_only_constants_are_packed() -> None:
    with pytest.raises(InternalError, match="no constant"):
        build_plan(Part(graph("x", "y", "y"), ShapeEnv(), [call("x y", "y", buffers=seen("x", "y", (4, 4), (0, 16), "y")[1:])]))


def test_guards_over_representatives() -> None:
    env = ShapeEnv()
    b, c = env.declare("B"), env.declare("C")
    env.assume_eq(c, b, "Add needs equal sizes")
    env.assume_le(b, 512, "Slice")
    model = graph("x", "y", "y")
    model = Graph("g", ("x", "z"), ("y",), (), {**model.types, "z": TensorType("float32", (c,))})
    plan = build_plan(Part(model, env, [call("x z y", "y")]))
    assert list(plan.ranges) == ["B"] and [str(g) for g in plan.guards] == ["B <= 512"] and plan.inputs[1].shape == (b,)


def test_broken_contracts() -> None:
    with pytest.raises(InternalError):
        build_plan(Part(graph("x", "y", "t y"), ShapeEnv(), [call("t y", "y")]))


def test_a_size_that_no_input_tells() -> None:
    with pytest.raises(ShapeError, match="'node' has sizes that no input's shape tells: Q"):
        build_plan(Part(graph("x", "y", "y"), ShapeEnv(), [replace(call("x y", "y"), sizes=(dim("Q"),))]))
