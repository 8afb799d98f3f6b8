"""Small real Packages to mutate, what they must compute, and binaries that tell when their code runs."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tsc
from tests.fuzz.operators.repeated import Loop
from tests.runtime import region_plans
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS, host_spec, machine_name
from tsc.config import Options
from tsc.kernels import workshop
from tsc.plan.place import order, place
from tsc.poly.schedule import prepared
from tsc.runtime.executable import Executable
from tsc.runtime.package import PAGE, PRELUDE, SCHEMA, Module, Package
from tsc.sym import Range, ShapeEnv
from tsc.tune.records import Record, append
from tsc.tune.search import RandomSearch
from tsc.tuning import groups_of

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Prey:
    """A Package's bytes, requests to it, and the results of each, which the reference evaluator confirmed."""

    data: bytes
    requests: tuple[Feeds, ...]
    expected: tuple[tuple[np.ndarray, ...], ...]


@dataclass(slots=True)
class Opened:
    """A Package taken apart: its header, and the bytes of its parts."""

    header: dict[str, Any]
    parts: dict[str, bytes]


def opened(data: bytes) -> Opened:
    """The parts of a valid Package."""
    length = PRELUDE.unpack(data[:PRELUDE.size])[3]
    header = json.loads(data[PRELUDE.size:PRELUDE.size + length])
    start = -(-(PRELUDE.size + length) // PAGE) * PAGE
    places = {name: start + part["offset"] for name, part in header["parts"].items()}
    return Opened(header, {name: data[at:at + header["parts"][name]["bytes"]] for name, at in places.items()})


def closed(package: Opened, magic: bytes = b"TSCPACK\0", schema: int = SCHEMA) -> bytes:
    """The file, with places and hashes that fit its parts, where its header has entries for them."""
    table, end, order = package.header.get("parts"), 0, []
    for name, content in package.parts.items():
        start = -(-end // (PAGE if name == "weights" else 64)) * (PAGE if name == "weights" else 64)
        if isinstance(table, dict) and isinstance(table.get(name), dict):
            table[name] = {**table[name], "offset": start, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        order.append(bytes(start - end) + content)
        end = start + len(content)
    return framed(json.dumps(package.header).encode(), b"".join(order), magic, schema)


def framed(header: bytes, rest: bytes, magic: bytes = b"TSCPACK\0", schema: int = SCHEMA) -> bytes:
    """A file with this header, whose hash is right, and these bytes as its parts."""
    prelude = PRELUDE.pack(magic, schema, 0, len(header), hashlib.sha256(header).digest())
    return prelude + header + bytes(-(PRELUDE.size + len(header)) % PAGE) + rest


# -- models ----------------------------------------------------------------------------------------------------------

def _dense(rng: np.random.Generator) -> tuple[Any, tuple[Feeds, ...]]:
    """Several kernels with an arena between them, and weights."""
    w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((12, 10), (10, 7)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"), helper.make_node("Softmax", ["a"], ["s"], "soft", axis=-1),
             helper.make_node("Transpose", ["s"], ["t"], "turn", perm=[1, 0]),
             helper.make_node("MatMul", ["t", "x"], ["m"], "mix"), helper.make_node("MatMul", ["s", "v"], ["y"], "second"),
             helper.make_node("Tanh", ["m"], ["z"], "squash")]
    graph = helper.make_graph(
        nodes, "dense", [_value("x", ["n", 12])], [_value("y", ["n", 7]), _value("z", [10, 12])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")])
    return graph, tuple({"x": rng.standard_normal((n, 12)).astype(np.float32)} for n in (1, 5, 33))


def _lookup(rng: np.random.Generator) -> tuple[Any, tuple[Feeds, ...]]:
    """Indices from outside, two dims, and an output that is an input."""
    table = rng.standard_normal((19, 8)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"], "look"),
             helper.make_node("Add", ["rows", "bias"], ["y"], "shift"), helper.make_node("Identity", ["bias"], ["b"], "same")]
    graph = helper.make_graph(
        nodes, "lookup", [_value("ids", ["batch", "seq"], TensorProto.INT64), _value("bias", ["seq", 8])],
        [_value("y", ["batch", "seq", 8]), _value("b", ["seq", 8])], [numpy_helper.from_array(table, "table")])
    return graph, tuple({"ids": rng.integers(0, 19, (b, s)), "bias": rng.standard_normal((s, 8)).astype(np.float32)}
                        for b, s in ((1, 1), (3, 4), (2, 17)))


def _image(rng: np.random.Generator) -> tuple[Any, tuple[Feeds, ...]]:
    """A window that moves, sizes that are quotients, and scratch memory."""
    w = rng.standard_normal((6, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c"], ["r"], "relu"),
             helper.make_node("MaxPool", ["r"], ["y"], "pool", kernel_shape=[2, 2])]
    graph = helper.make_graph(nodes, "image", [_value("x", ["b", 3, "h", "w_"])], [_value("y", None)],
                              [numpy_helper.from_array(w, "w")])
    return graph, tuple({"x": rng.standard_normal((b, 3, h, w)).astype(np.float32)} for b, h, w in ((1, 8, 8), (2, 13, 9)))


def _told(rng: np.random.Generator) -> tuple[Any, tuple[Feeds, ...]]:
    """Sizes and an axis that inputs hold, and sizes that are computed from them."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"], "view"),
             helper.make_node("ReduceSum", ["r", "axis"], ["s"], "sum"), helper.make_node("Tanh", ["s"], ["y"], "squash")]
    inputs = [_value("x", ["a", "b"]), _value("shape", [3], TensorProto.INT64), _value("axis", [1], TensorProto.INT64)]
    graph = helper.make_graph(nodes, "told", inputs, [_value("y", None)], [])
    return graph, tuple({"x": rng.standard_normal(size).astype(np.float32), "shape": np.array(shape), "axis": np.array([axis])}
                        for size, shape, axis in (((4, 6), (2, -1, 3), 1), ((4, 6), (0, 3, 2), -1), ((1, 35), (7, 1, 5), 0)))


def _repeated(rng: np.random.Generator) -> tuple[Any, tuple[Feeds, ...]]:
    """A loop with slices, a state that grows and an end of its own, and once more in one of two graphs that a bool chooses."""
    body = onnx.parser.parse_graph("""b (int64 i, bool c, float[n] v, float[p] g)
                                      => (bool d, float[n] w, float[q] h, float[n] o) {
        w = Add(v, x)  t = ReduceMax <keepdims = 0> (w)  d = Less(t, most)  h = Concat <axis = 0> (g, w)  o = Neg(w) }""")
    held = [numpy_helper.from_array(np.array(v, t), n) for n, v, t in (("m", 4, np.int64), ("most", 3, np.float32))]
    loop = helper.make_node("Loop", ["m", "", "x", "x"], ["u", "z", "s"], "loop", body=body)
    then = helper.make_graph([helper.make_node("Loop", ["m", "", "x", "x"], ["a", "e", "f"], "inner", body=body)], "then", [],
                             [_value("a", None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "else", [], [_value("a", None)])
    nodes = [helper.make_node("If", ["go"], ["y"], "choice", then_branch=then, else_branch=other), loop]
    graph = helper.make_graph(nodes, "repeated", [_value("x", ["n"]), _value("go", [], TensorProto.BOOL)],
                              [_value(name, None) for name in "yzs"], held)
    return graph, tuple({"x": np.full(n, x, np.float32), "go": np.array(go)} for n, x, go in (
        (1, 0.25, True), (7, 1.0, False), (33, 2.0, True)))


PREY: dict[str, Callable[[np.random.Generator], tuple[Any, tuple[Feeds, ...]]]] = {
    "dense": _dense, "lookup": _lookup, "image": _image, "told": _told, "repeated": _repeated}
#: Written by hand, with branches, loops and sizes from memory, for a second target, too.
REGIONS = "regions"
#: The first, with several Variants a kernel, of which another is the cheapest at each size.
TUNED = "tuned"
PREY_NAMES = (*PREY, REGIONS, TUNED)


def _value(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


@cache
def compiled(name: str) -> Prey:
    """The Package of one model. Raises AssertionError where it does not compute what the reference evaluator does, or NumPy."""
    if name == REGIONS:
        return _regions()
    graph, requests = PREY["dense" if name == TUNED else name](np.random.default_rng(0))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable, reference = tuned(model) if name == TUNED else tsc.compile(model), ReferenceEvaluator(model, new_ops=[Loop])
    expected = tuple(tuple(executable.run(None, feeds)) for feeds in requests)
    for feeds, got in zip(requests, expected):
        for one, other in zip(got, reference.run(None, feeds)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return Prey(_bytes_of(executable), requests, expected)


def tuned(model: Any) -> Executable:
    """A model of one dim "n", compiled with records that nobody measured: three configs a kernel, each best at some size."""
    shop = workshop("cpu", Options())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        for group in groups_of(model, None, shop, [{"n": n} for n in (1, 5, 33)])[0]:
            order = group.order
            analysed = prepared(order.program, shop.device.spec, order.constants, None, order.wanted)
            assert analysed is not None
            configs = RandomSearch(analysed.found.space(shop.device.spec), 0).ask(3)
            records = []
            for k, config in enumerate(configs):
                for n, sizes in zip((1, 5, 33), group.sizes, strict=True):
                    work = {w.kind: w.count.evaluate(sizes) for w in analysed.found.work(config, analysed.scop)}
                    records.append(Record(group.order.group, shop.device.spec.name, machine_name(), config, sizes, 1, 1, work,
                                          6000 * 4**k + 2000 * n // 4**k))
            append(path, records)
        made = tsc.compile(model, options=Options(records=path))
    assert any(launch.selects for launch in made._plan.launches)
    return made


def _regions() -> Prey:
    plan = region_plans.everything_plan()
    storages, arenas = place(plan.storages, plan.body, ShapeEnv({"n": Range(0, 64)}))
    ordered = order(plan.body, storages, region_plans.writes)
    plan = replace(plan, storages=storages, arenas=arenas, body=ordered)
    binary = build_module({"kernels": region_plans.KERNELS}, CPU_SPECS["cpu-generic"], Options(), region_plans.INTERFACES)
    modules = {"cpu-generic": Module(binary), "cpu-other": Module(b"for another machine", ("no such flag",))}
    executable = Executable(Package(dict.fromkeys(modules, plan), {}, modules))
    requests = tuple(region_plans.request(n, ids, n) for n, ids in ((1, (4, 2)), (8, (20, 3)), (33, (5, 5))))
    expected = tuple(tuple(executable.run(None, feeds)) for feeds in requests)
    for feeds, got in zip(requests, expected):
        for one, other in zip(got, region_plans.Evaluation(plan, feeds).results):
            np.testing.assert_array_equal(one, other)
    return Prey(_bytes_of(executable), requests, expected)


def _bytes_of(executable: Executable) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        executable.save(Path(folder) / "p")
        return (Path(folder) / "p").read_bytes()


# -- binaries --------------------------------------------------------------------------------------------------------

_CANARY = r"""
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void tell(void) {
    const char *path = getenv("TSC_CANARY");
    if (path) open(path, O_CREAT | O_WRONLY, 0600);
}
"""


@cache
def canaries() -> tuple[bytes, ...]:
    """Shared objects for this machine that make the file that TSC_CANARY names when they are loaded: one without the runtime's
    table of kernels, and one with an empty table."""
    whole = build_module({"canary": _CANARY}, host_spec(), Options())
    return whole.replace(b"tsc_interface", b"tsc_inferface"), whole
