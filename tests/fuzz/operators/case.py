"""A Case: an ONNX model whose operands are fed or constant and whose dims are symbols or numbers, and the sizes it runs at."""

from __future__ import annotations

import faulthandler
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper, numpy_helper

from tests.fuzz.operators.oracles import Reference
from tests.fuzz.operators.values import Array, Draw, Sizes, mood, plain, shape_at
from tsc.config import Precision
from tsc.ops.shapes import DTYPES

Dims = tuple[str | int, ...]
NEWEST = onnx.defs.onnx_opset_version()
_NUMBERS = {name: number for number, name in DTYPES.items()}
#: Of other domains.
_VERSIONS = {"com.microsoft": 1, "ai.onnx.ml": 3}


@dataclass(frozen=True)
class Scale:
    """How large Cases are: what symbolic sizes are drawn from, how often larger they may be than where a recipe bounds them,
    the most elements of an operand, how many runs there are, and what the sizes of one of them are no larger than."""

    edges: tuple[int, ...]
    times: int
    elements: int
    runs: int
    ceilings: tuple[int, ...]


#: Units, odd sizes, and the edges of vectors and register tiles.
SMALL = Scale((1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33, 63, 64, 65), 1, 12_000, 4, (70, 70, 70, 20, 4))
#: The edges of blocks and of what a cache holds; many blocks.
LARGE = Scale((1, 3, 16, 33, 64, 65, 127, 128, 129, 200, 255, 257, 384, 511, 513, 640, 1000, 1025, 2049), 6, 150_000, 3,
              (3000, 1100, 600, 300))


@dataclass(frozen=True)
class Operand:
    """A graph input, an initializer, or the output of a Constant node; `role` says which."""

    name: str
    dtype: str
    dims: Dims
    draw: Draw
    role: str  # "feed", "initializer" or "node"


@dataclass(frozen=True)
class Size:
    """A symbolic size: its values, whether all runs use one, what divides all of them; or it is a product of others."""

    name: str
    choices: tuple[int, ...]
    fixed: bool = False
    divisor: int = 1
    factors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A model and its runs. `naming`: "shared" (one dim name a size), "apart" (a name an occurrence), "none" (unnamed).

    `broken` says what was done to make the model or a run illegal; the model must then be refused or be right all the same.
    `target` is what it is compiled for: "cpu" is the machine that is there; `precision` that of the factors of products.
    """

    title: str
    opset: int
    nodes: tuple[NodeProto, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, Size]
    runs: tuple[Sizes, ...]
    naming: str
    declared: bool  # whether the outputs' sizes are declared, not only their ranks
    seed: int
    broken: str = ""
    target: str = "cpu"
    precision: Precision = "fp32"

    @property
    def dims(self) -> dict[str, Any]:
        """The `dims` argument: sizes that may be 0 in some run, in one of four cases the range of all sizes, and in one of
        eight the inputs' shapes by their names."""
        free = [name for name, size in self.sizes.items() if not size.fixed]
        zero = [name for name in free if any(run[name] == 0 for run in self.runs)]
        by_input = self.seed % 8 == 1
        ranged = free if self.seed % 4 == 0 and self.naming != "none" else zero
        found: dict[str, Any] = {}
        for operand in self.operands:
            if operand.role != "feed":
                continue
            if by_input:
                found[operand.name] = tuple(d if d in free or isinstance(d, int) else None for d in operand.dims)
            for k, d in enumerate(operand.dims):
                if d in ranged:
                    sizes, divisor = [run[str(d)] for run in self.runs], self.sizes[str(d)].divisor
                    known = (min(sizes), max(sizes)) if self.seed % 4 == 0 else (0, (None, 2**31 + 1, 2**63 - 1)[self.seed % 3])
                    name = str(d) if by_input else dim_name(self.naming, operand.name, k, str(d))
                    found[name] = (*known, divisor) if divisor > 1 else known
        return found


def dim_name(naming: str, operand: str, k: int, size: str) -> str:
    """What the model calls a dim."""
    return {"shared": size, "apart": f"{operand}_{size}_{k}", "none": ""}[naming]


def values_of(case: Case, number: int) -> dict[str, Array]:
    """The operands' values in run `number`; constants are the same in each."""
    found = {}
    for operand in case.operands:
        run = case.runs[number if operand.role == "feed" else 0]
        seed = [case.seed, zlib.crc32(operand.name.encode()), number if operand.role == "feed" else 0]
        with np.errstate(all="ignore"):
            found[operand.name] = np.ascontiguousarray(
                operand.draw(np.random.default_rng(seed), shape_at(operand.dims, run), run)).reshape(
                    shape_at(operand.dims, run))
        assert found[operand.name].dtype == operand.dtype, f"{operand.name} was drawn as {found[operand.name].dtype}"
    return found


def feeds_of(case: Case, values: Mapping[str, Array]) -> dict[str, Array]:
    """What is fed of `values`."""
    return {o.name: values[o.name] for o in case.operands if o.role == "feed"}


def laid_out(case: Case, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The same elements as users may hold them: transposed, reversed, every second one of a larger array, off by an element,
    read-only; mostly as they are."""
    rng, found = Random(case.seed), {}
    for name, x in feeds.items():
        match rng.randrange(12):
            case 0 if x.ndim:  # it makes vectors of scalars
                x = np.asfortranarray(x)
            case 1 if x.ndim:
                x = np.flip(np.ascontiguousarray(np.flip(x)))
            case 2 if x.ndim:
                x = np.repeat(x, 2, axis=-1)[..., ::2]
            case 3:
                wide = np.empty(x.size + 1, x.dtype)
                wide[1:] = x.ravel()
                x = wide[1:].reshape(x.shape)
            case 4:
                x = x.copy()
                x.flags.writeable = False
        found[name] = x
    return found


def model_of(case: Case, values: Mapping[str, Array], opset: int | None = None) -> ModelProto:
    """The ModelProto; constants are taken from `values`."""
    inputs, initializers, constants = [], [], []
    for o in case.operands:
        if o.role == "feed":
            inputs.append(helper.make_tensor_value_info(o.name, _NUMBERS[o.dtype], _declared(case, o)))
        elif o.role == "initializer":
            initializers.append(numpy_helper.from_array(values[o.name], o.name))
        else:
            value = numpy_helper.from_array(values[o.name], f"{o.name}_value")
            constants.append(helper.make_node("Constant", [], [o.name], f"constant_{o.name}", value=value))
    given = {value.name: value.type for value in inputs}  # an output without a type hides that of the input it is
    outputs = [helper.make_value_info(name, given.get(name, onnx.TypeProto())) for name in case.outputs]
    graph = helper.make_graph([*constants, *case.nodes], "case", inputs, outputs, initializers)
    others = sorted({node.domain for node in case.nodes} - {""})
    opsets = [("", opset or case.opset), *((domain, _VERSIONS[domain]) for domain in others)]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*version) for version in opsets], ir_version=10)
    return _typed(model, case, values)


def _declared(case: Case, o: Operand) -> list[str | int | None]:
    return [d if isinstance(d, int) else case.runs[0][d] if case.sizes[d].fixed
            else dim_name(case.naming, o.name, k, d) or None for k, d in enumerate(o.dims)]


def _inferred(model: ModelProto, broken: bool) -> dict[str, TypeProto]:
    """The types that onnx infers for the outputs; of a broken model in a child: onnx may read what is not there, and die."""
    if not broken:
        return {o.name: o.type for o in onnx.shape_inference.infer_shapes(model).graph.output}
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            with os.fdopen(write, "wb") as file:
                file.write(onnx.shape_inference.infer_shapes(model).SerializeToString())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return {o.name: o.type for o in onnx.load_from_string(answer).graph.output}


def _typed(model: ModelProto, case: Case, values: Mapping[str, Array]) -> ModelProto:
    """With the outputs' inferred types; where one is not inferred, that of what the reference evaluator gives, else float32."""
    inferred = _inferred(model, case.broken)
    unknown = any(not inferred[o.name].tensor_type.elem_type if o.name in inferred else True for o in model.graph.output)
    found = Reference(model).run(feeds_of(case, values)).values if unknown else None
    for k, value in enumerate(model.graph.output):
        if value.name in inferred and inferred[value.name].tensor_type.elem_type:
            value.type.CopyFrom(inferred[value.name])
        elif found is not None or all(not node.domain for node in case.nodes):  # else whoever knows the operator infers it
            value.type.tensor_type.elem_type = 1 if found is None else _NUMBERS.get(found[k].dtype.name, 1)
        if not case.declared:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    return model


# -- drafting --------------------------------------------------------------------------------------------------

@dataclass
class Draft:
    """A Case in the making. `dims` and `dtypes` are those of every value that a later node may read."""

    rng: Random
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    sizes: dict[str, Size] = field(default_factory=dict)
    dims: dict[str, Dims] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    constant_share: float = 0.25
    fed_share: float = 0.1  # of parameters
    scale: Scale = SMALL
    generation: int = 0  # of recipes: what a later one draws besides leaves the Cases of earlier ones as they were

    def chance(self, p: float) -> bool:
        """True with probability `p`."""
        return self.rng.random() < p

    def size(self, least: int = 1, most: int | None = None, step: int = 1) -> str:
        """A new symbolic size, a multiple of `step` in [least, most]; of large Cases `most` is more."""
        edges, most = self.scale.edges, self.scale.edges[-1] if most is None else most * self.scale.times
        name = "abcdefghijklmnopqrstuvwxyz"[len(self.sizes) % 26] + ("" if len(self.sizes) < 26 else "2")
        choices = sorted({max(-(-e // step), 1) * step for e in edges} | ({0} if least <= 0 and self.chance(0.3) else set()))
        self.sizes[name] = Size(name, tuple(c for c in choices if least <= c <= most) or (max(least, step),), False, step)
        return name

    def product(self, *factors: str) -> str:
        """A new symbolic size that is the product of others in every run, which the model does not say."""
        name = self.size()
        self.sizes[name] = Size(name, (1,), factors=factors)
        return name

    def extents(self, rank: int, least: int = 1) -> Dims:
        """A shape: mostly new sizes, sometimes 1 or another number."""
        found: list[str | int] = []
        for _ in range(rank):
            pick = self.rng.random()
            found.append(1 if pick < 0.12 else self.rng.choice((2, 3, 4, 6)) if pick < 0.2 else
                         self.size(0 if pick > 0.9 else least))
        return tuple(found)

    def dtype(self, op: str, letter: str = "T", among: Sequence[str] = ()) -> str:
        """A random element type that the schema allows for the type variable `letter`, float32 most of the time."""
        schema = onnx.defs.get_schema(op, self.opset, "")
        allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == letter), ["tensor(float)"])
        names = [_NAMES[t] for t in allowed if t in _NAMES and (not among or _NAMES[t] in among)]
        if "float32" in names and self.chance(0.6):
            return "float32"
        return self.rng.choice([n for n in names if n not in ("float16", "bfloat16")] or names)

    def operand(self, dims: Sequence[str | int], dtype: str = "float32", draw: Draw | None = None,
                role: str | None = None, of: Sequence[str | int] = ()) -> str:
        """A new operand; without `role`, fed or constant by chance. `of`: the dims that its values follow from."""
        name = f"x{len(self.operands)}"
        if role is None:
            role = self.rng.choice(("initializer", "node")) if self.chance(self.constant_share) else "feed"
        draw = plain(dtype, mood(self.rng)) if draw is None else draw
        if role == "node" and self.opset < 9 and dtype != "float32":  # Constant knew only floats
            role = "initializer"
        if role != "feed":
            for d in (*dims, *of):
                if isinstance(d, str) and d in self.sizes:
                    self.fix(d)
        self.operands.append(Operand(name, dtype, tuple(dims), draw, role))
        self.dims[name], self.dtypes[name] = tuple(dims), dtype
        return name

    def constant(self, draw: Draw, dims: Sequence[str | int], dtype: str = "int64") -> str:
        """A parameter such as a shape: mostly constant, else fed."""
        role = "feed" if self.chance(self.fed_share) else self.rng.choice(("initializer", "node"))
        return self.operand(dims, dtype, draw, role)

    def fix(self, size: str) -> None:
        """All runs use one value of `size`."""
        self.sizes[size] = replace(self.sizes[size], fixed=True)
        for factor in self.sizes[size].factors:
            self.fix(factor)

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node; attributes that are None are left out."""
        made = [f"y{len(self.nodes)}" + (f"_{k}" if k else "") for k in range(outputs)]
        made_node = helper.make_node(op, list(inputs), made, f"{op}_{len(self.nodes)}", domain=domain)
        given = {name: value for name, value in attributes.items() if value is not None}
        if domain:  # none of these has an empty list
            made_node.attribute.extend(helper.make_attribute(name, value) for name, value in given.items())
        else:
            known = onnx.defs.get_schema(op, self.opset, "").attributes
            made_node.attribute.extend(helper.make_attribute(name, value, attr_type=known[name].type.value)
                                       for name, value in given.items())
        self.nodes.append(made_node)
        self.outputs = made
        return made

    def maybe(self, p: float, value: Any) -> Any:
        """`value` with probability `p`, else None: an attribute at its default."""
        return value if self.chance(p) else None

    def finish(self, title: str, broken: str = "") -> Case:
        """The Case, with runs at random sizes."""
        all_fixed = self.chance(0.2)
        sizes = {n: replace(s, fixed=s.fixed or all_fixed or self.chance(0.15)) for n, s in self.sizes.items()}
        sizes |= {n: replace(s, fixed=all(sizes[f].fixed for f in s.factors)) for n, s in sizes.items() if s.factors}
        runs = [self._run(sizes, {})]
        while len(runs) < (self.scale.runs if any(not s.fixed for s in sizes.values()) else 2):
            runs.append(self._run(sizes, {n: runs[0][n] for n, s in sizes.items() if s.fixed}))
        naming = self.rng.choices(("shared", "apart", "none"), (86, 10, 4))[0]
        if any(0 in run.values() for run in runs) and naming == "none":
            naming = "shared"
        return Case(title, self.opset, tuple(self.nodes), tuple(self.operands), tuple(self.outputs), sizes, tuple(runs),
                    naming, self.chance(0.5), self.rng.randrange(2**32), broken)

    def _run(self, sizes: Mapping[str, Size], given: Mapping[str, int]) -> Sizes:
        """Sizes of a run that keep each operand small."""
        most = self.rng.choice(self.scale.ceilings)
        while True:
            found = {n: given.get(n, 0) if n in given else self.rng.choice(
                [c for c in s.choices if c <= most] or [min(s.choices)]) for n, s in sizes.items()}
            found |= {n: prod(found[f] for f in s.factors) for n, s in sizes.items() if s.factors}
            shapes = [shape_at(o.dims, found) for o in self.operands]
            if max((int(np.prod(s)) for s in shapes), default=0) <= self.scale.elements or most <= 1:
                return found
            most //= 2


#: Dtypes by the schema's way of writing them.
_NAMES = {f"tensor({onnx_name})": name for onnx_name, name in (
    ("float", "float32"), ("double", "float64"), ("float16", "float16"), ("bool", "bool"),
    *((f"{sign}int{bits}", f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)))}
