"""Whole numbers of few bits: products whose factors are seen to fit into 16 bits read them so, and add up in int32.

A factor that was widened is read as it was before; what is computed of bytes, as a number less its zero point, is stored in 16
bits; constants take as many as they need, but 16 where a sum runs along their rows: those of two steps are read together
(`loop_ir/cpu/dots.py`). Convolutions by constant kernels read words of neighbouring channels instead (`ops/words.py`). Floats
that were made of whole numbers, between a DequantizeLinear whose scale has gone behind the product (`commute.py`) and that
product, are such numbers, too, where their sums cannot leave int32. Where a device takes four steps of bytes at once, what else
they are made of is summed up apart (`apart.py`). All is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.graph.dataflow import element_of, item_of
from tsc.graph.rewriting.apart import Rows, converted, rows_of, sums_columns
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.contraction import has_one_channel, is_convolution, of_words, with_factors
from tsc.ops.elementwise import arithmetic_node, cast_node
from tsc.ops.shapes import broadcast
from tsc.ops.words import word_of, words_node, words_of, words_shape
from tsc.sym import ONE, ShapeEnv, SymExpr
from tsc.te.expr import loads, variables
from tsc.te.passes.narrow import INT16, Ends, ends_of, ends_of_dtype, within

SUMS, FLOATS = "int32", "float32"
#: How many nodes a factor is followed back through.
_DEPTH = 16
_NARROW = ("int8", "uint8", "int16")
#: How many steps are taken at once of 16 bits, and of bytes with and without a sign, and how far these are apart.
_PAIRS, _QUADS, _SIGN = 2, 4, 128


# -- before constants are folded ---------------------------------------------------------------------------------

def quantised_factors(graph: Graph, env: ShapeEnv) -> set[str]:
    """The floats that stand between whole numbers and a product of two such factors: folded, they would be whole no more."""
    producers, held, seen = graph.producers(), set[str](), dict[str, frozenset[str]]()
    for node in graph.nodes:
        if _is_worth(graph, node) and graph.types[node.outputs[0]].dtype == FLOATS:
            found = [_between(graph, env, producers, x, seen, _DEPTH) for x in node.inputs[:2]]
            if all(found):
                held.update(*found)
    return held


def _is_worth(graph: Graph, node: Node) -> bool:
    """Whether a node is a product that gains by narrow factors; a stencil reads what stands there."""
    return SUMS in definition(node).widens and not has_one_channel(node, graph.types[node.inputs[1]].shape)


def _between(graph: Graph, env: ShapeEnv, producers: dict[str, Node], value: str, seen: dict[str, frozenset[str]],
             depth: int) -> frozenset[str]:
    """What leads from whole numbers to a value, scaled and moved on the way; nothing where it is not made so. Each value is
    followed once: `seen` are those that were."""
    if value not in seen:
        seen[value] = frozenset()
        seen[value] = _led_to(graph, env, producers, value, seen, depth)
    return seen[value]


def _led_to(graph: Graph, env: ShapeEnv, producers: dict[str, Node], value: str, seen: dict[str, frozenset[str]],
            depth: int) -> frozenset[str]:
    node = producers.get(value)
    if node is None or not depth:
        return frozenset()
    if converted(graph, env, node, value) is not None:
        return frozenset((value,))
    if is_view(node) or (definition(node).te is not None and item_of(graph, env, node, node.outputs.index(value), 0).is_map):
        ways = node.inputs[:1]
    else:
        ways = tuple(node.inputs[k] for k in definition(node).linear)
    found = next(filter(None, (_between(graph, env, producers, x, seen, depth - 1) for x in ways)), frozenset[str]())
    return found | {value} if found else found


def is_whole(graph: Graph, env: ShapeEnv, producers: Mapping[str, Node], value: str) -> bool:
    """Whether floats are whole numbers of few bits, converted."""
    node = producers.get(value)
    return node is not None and converted(graph, env, node, value) is not None


# -- products ----------------------------------------------------------------------------------------------------

def narrow_integers(graph: Graph, env: ShapeEnv, dots: Collection[int] = (2,)) -> Graph:
    """A graph of primitives whose products of whole numbers have narrower factors, where both are seen to fit; `dots`: how many
    steps of them a device takes at once."""
    narrowing = _Narrowing(graph, env, _QUADS in dots)
    nodes = [made for node in graph.nodes for made in narrowing.rewritten(node)]
    return replace(graph, nodes=tuple(nodes), types=narrowing.types, constants=narrowing.constants)


class _Narrowing:
    """Narrower copies of a graph's values, each made once, and the nodes that make them."""

    def __init__(self, graph: Graph, env: ShapeEnv, quads: bool) -> None:
        self._quads = quads
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self._graph, self._env, self._producers, self._names = graph, env, graph.producers(), graph.names()
        self._made: dict[tuple[str, str], str] = {}
        self._known: dict[str, Ends | None] = {}
        self._nodes: list[Node] = []

    def rewritten(self, node: Node) -> Iterator[Node]:
        """A node, or what stands in its place where it is a product of whole numbers."""
        own = {self.types[x].dtype for x in node.inputs[:2]} if _is_worth(self._graph, node) else set[str]()
        whole = [None, None] if own not in ({SUMS}, {FLOATS}) else [self._whole(x, _DEPTH) for x in node.inputs[:2]]
        left, right = whole
        if left is None or right is None or (own == {FLOATS} and not self._stays_within(node, left, right)):
            yield from self._taken()  # another product may read what was made for this one
            yield node
            return
        total = node.outputs[0] if own == {SUMS} else self._copy(node.outputs[0], SUMS)
        made = (self._in_quads(node, left, right, total) or self._in_words(node, left, right, total)
                or [self._in_pairs(node, left, right, total)])
        yield from (*self._taken(), *made)
        if own == {FLOATS}:
            yield cast_node(total, node.outputs[0], FLOATS, f"{node.name}/{FLOATS}")

    def _in_pairs(self, node: Node, left: str, right: str, total: str) -> Node:
        """A product of narrow factors."""
        factors = (self._narrow(left, node, 0), self._narrow(right, node, 1))
        return replace(with_factors(node, factors, SUMS), outputs=(total,))

    def _in_quads(self, node: Node, left: str, right: str, total: str) -> list[Node] | None:
        """A product of bytes without a sign and constant ones with a sign, less what belongs to all of a row; None where its
        factors are not seen to be such, or steps are left over."""
        if not self._quads or not sums_columns(self._graph, self._env, node, 1):
            return None
        graph = replace(self._graph, types=self.types, constants=self.constants)
        held, rows = self._weights(graph, right), rows_of(graph, self._env, self._producers, left)
        if held is None or rows is None or self.constants[held].ndim != 2 or len(self.constants[held]) % _QUADS:
            return None
        rows = rows if self.types[rows.source].dtype == "uint8" else self._without_sign(rows)
        product = with_factors(node, (rows.source, held), SUMS)
        return self._apart(product, rows, held, self.constants[held].sum(0, np.int64), total)

    def _in_words(self, node: Node, left: str, right: str, total: str) -> list[Node] | None:
        """A convolution of words, which have channels side by side, by a constant kernel; None of anything else."""
        if not is_convolution(node):
            return None
        group = int(node.attrs.get("group", 1))
        if (made := self._in_bytes(node, left, right, total, group)) is not None:
            return made
        held = self._narrow(right, node, 1)
        if held not in self.constants:
            return None
        words = self._words(self._narrow(left, node, 0), _PAIRS, group), self._kernel_words(held, _PAIRS)
        return [replace(of_words(node, words, _PAIRS, 0), outputs=(total,))]

    def _in_bytes(self, node: Node, left: str, right: str, total: str, group: int) -> list[Node] | None:
        """A convolution of words of bytes, outside of which are those of the zero point, less what belongs to all of a kernel;
        None where its factors are not seen to be such."""
        graph = replace(self._graph, types=self.types, constants=self.constants)
        held, image = self._weights(graph, right), rows_of(graph, self._env, self._producers, left)
        if not self._quads or held is None or image is None or not self._is_for_all(image):
            return None
        image = image if self.types[image.source].dtype == "uint8" else self._without_sign(image)
        kernels = self.constants[held]
        words = self._words(image.source, _QUADS, group), self._kernel_words(held, _QUADS)
        sums = kernels.sum(tuple(range(1, kernels.ndim)), np.int64).reshape(-1, *(1,) * (kernels.ndim - 2))
        return self._apart(of_words(node, words, _QUADS, self._outside(image.less)), image, held, sums, total)

    def _is_for_all(self, image: Rows) -> bool:
        """Whether what an image is less is one byte like its own, which stands for 0 outside of it."""
        number = isinstance(image.less, int) or all(d == ONE for d in self.types[image.less].shape)
        ends = (image.less, image.less) if isinstance(image.less, int) else self._ends(image.less, _DEPTH)
        return number and within(ends, ends_of_dtype(self.types[image.source].dtype))

    def _outside(self, less: int | str) -> int | str:
        """The word of which each part is a byte, or the name of that word."""
        if isinstance(less, int):
            return word_of(less, _QUADS)
        if (less, "word") not in self._made:
            made = self._made[less, "word"] = self._value(f"{less}/word", self.types[less].shape)
            ones = self._constant("", "ones", np.array(word_of(1, _QUADS)))
            self._nodes.append(arithmetic_node("mul", less, ones, made, made))
        return self._made[less, "word"]

    def _words(self, image: str, parts: int, group: int) -> str:
        """The words of an image."""
        key = image, f"words of {parts} in {group}"
        if key not in self._made:
            made = self._made[key] = self._value(f"{image}/words", words_shape(self.types[image].shape, parts, group))
            self._nodes.append(words_node(image, made, parts, group, made))
        return self._made[key]

    def _kernel_words(self, value: str, parts: int) -> str:
        """Those of constant kernels, whose channels are last then."""
        return self._constant(value, f"words of {parts}", words_of(np.moveaxis(self.constants[value], 1, -1), parts))

    def _apart(self, product: Node, rows: Rows, held: str, sums: NDArray[np.int64], total: str) -> list[Node]:
        """A product of bytes, less what it is too much where they are less something: that, times `sums` of weights `held`."""
        if rows.less == 0:
            return [replace(product, outputs=(total,))]
        node, bytes_ = product, self._value(f"{total}/bytes", self.types[total].shape)
        if isinstance(rows.less, int):
            part = self._constant(held, f"less {rows.less}", sums * rows.less)
            return [replace(product, outputs=(bytes_,)), arithmetic_node("sub", bytes_, part, total, f"{node.name}/apart")]
        shape = broadcast(self._env, [self.types[rows.less].shape, tuple(map(SymExpr.of, sums.shape))], node.name)
        part = self._value(f"{total}/part", shape)
        return [replace(product, outputs=(bytes_,)),
                arithmetic_node("mul", rows.less, self._constant(held, "sums", sums), part, f"{node.name}/part"),
                arithmetic_node("sub", bytes_, part, total, f"{node.name}/apart")]

    def _weights(self, graph: Graph, value: str) -> str | None:
        """The name of constant weights as bytes with a sign; None where they are no such. Large ones are not folded where what
        is made of them is wider."""
        found = Rows(value, 0) if value in self.constants else rows_of(graph, self._env, self._producers, value)
        weights = None if found is None else self.constants.get(found.source)
        if found is None or weights is None or isinstance(found.less, str) or not weights.size:
            return None
        ends = int(weights.min()) - found.less, int(weights.max()) - found.less
        if not within(ends, ends_of_dtype("int8")):
            return None
        if not found.less:
            return self._narrow_constant(found.source, "int8")
        key = found.source, f"less {found.less}, int8"
        if key not in self._made:
            name = self._made[key] = self._value(f"{found.source}/int8", graph.types[found.source].shape, "int8")
            self.constants[name] = (weights.astype(SUMS) - found.less).astype("int8")
        return self._made[key]

    def _without_sign(self, rows: Rows) -> Rows:
        """The same rows, of bytes that have no sign."""
        if (rows.source, "uint8") not in self._made:
            shape = self.types[rows.source].shape
            wide, moved = (self._value(f"{rows.source}/{what}", shape) for what in ("wide", "moved"))
            self._nodes += [
                cast_node(rows.source, wide, SUMS, wide),
                arithmetic_node("add", wide, self._constant("", "sign", np.array(_SIGN)), moved, moved),
                cast_node(moved, self._copy(rows.source, "uint8"), "uint8", f"{rows.source}/uint8")]
        source = self._made[rows.source, "uint8"]
        if isinstance(rows.less, int):
            return Rows(source, rows.less + _SIGN)
        if (rows.less, "and sign") not in self._made:
            more = self._made[rows.less, "and sign"] = self._value(f"{rows.less}/and_sign", self.types[rows.less].shape)
            self._nodes.append(arithmetic_node("add", rows.less, self._constant("", "sign", np.array(_SIGN)), more, more))
        return Rows(source, self._made[rows.less, "and sign"])

    def _constant(self, value: str, what: str, array: NDArray[Any]) -> str:
        """The name of an array of int32, which tells `what` of a constant."""
        if (value, what) not in self._made:
            name = self._made[value, what] = self._value(f"{value}/{what}", tuple(map(SymExpr.of, array.shape)))
            self.constants[name] = array.astype(SUMS)
        return self._made[value, what]

    def _value(self, name: str, shape: tuple[SymExpr, ...], dtype: str = SUMS) -> str:
        """A name like this for a value."""
        found = unused_name(name, self._names)
        self.types[found] = TensorType(dtype, shape)
        return found

    def _taken(self) -> list[Node]:
        """The nodes made since it was last asked, in order."""
        made, self._nodes = self._nodes, []
        return made

    def _whole(self, value: str, depth: int) -> str | None:
        """The whole numbers that a factor is, which fit into 16 bits; None where that is not seen."""
        if self.types[value].dtype != FLOATS:
            return value if within(self._ends(value, depth), INT16) else None
        node = self._producers.get(value)
        if value in self.constants:
            array = self.constants[value]
            if not array.size or not np.isfinite(array).all() or np.abs(array).max() > INT16[1] or (array % 1).any():
                return None
            return self._narrow_constant(value, SUMS)
        if node is None or not depth:
            return None
        source = converted(self._graph, self._env, node, value)
        if source is not None:
            return source if within(self._ends(source, depth - 1), INT16) else None
        if len(node.outputs) > 1 or not (is_view(node) or (
                definition(node).te is not None and item_of(self._graph, self._env, node, 0, 0).is_map)):
            return None
        moved = self._whole(node.inputs[0], depth - 1)
        if moved is None:
            return None
        dtype = self.types[moved].dtype
        if (value, dtype) not in self._made:
            self._nodes.append(replace(node, inputs=(moved, *node.inputs[1:]), outputs=(self._copy(value, dtype),),
                                       name=f"{node.name}/{dtype}"))
        return self._made[value, dtype]

    def _stays_within(self, product: Node, left: str, right: str) -> bool:
        """Whether no sum leaves int32."""
        element = element_of(self._graph, self._env, product, 0)
        if element.reduction is None:
            return False
        most = [self._env.bounds(axis.extent)[1] for axis in element.reduction.axes]
        largest = [max(map(abs, self._ends(x, _DEPTH) or INT16)) for x in (left, right)]
        return None not in most and prod(n or 0 for n in most) * prod(largest) < 1 << 31

    def _ends(self, value: str, depth: int) -> Ends | None:
        """Between which numbers the elements of a value lie; each is asked about once."""
        if value not in self._known:
            self._known[value] = None
            self._known[value] = self._ends_of(value, depth)
        return self._known[value]

    def _ends_of(self, value: str, depth: int) -> Ends | None:
        own, node = self.types.get(value), self._producers.get(value)
        if value in self.constants:
            array = self.constants[value]
            return (int(array.min()), int(array.max())) if array.size and array.dtype.kind in "iu" else None
        if own is not None and (known := ends_of_dtype(own.dtype)) is not None:
            return known
        if node is None or not depth:
            return None
        if is_view(node):
            return self._ends(node.inputs[0], depth - 1)
        if definition(node).te is None:
            return None
        element = element_of(self._graph, self._env, node, node.outputs.index(value))
        return None if element.reduction else ends_of(element.body, lambda load: self._ends(load.buffer.name, depth - 1))

    def _narrow(self, value: str, product: Node, number: int) -> str:
        """The name of a value's copy, as a product reads it for its input of that number."""
        node = self._producers.get(value)
        if value in self.constants:
            fitting = next(d for d in _NARROW if within(self._ends(value, 0), ends_of_dtype(d)))
            return self._narrow_constant(value, "int16" if self._runs_along(product, number) else fitting)
        if self.types[value].dtype in _NARROW:
            return value
        source = None if node is None else converted(self._graph, self._env, node, value)
        if source is not None and self.types[source].dtype in _NARROW:
            return source
        if (value, "int16") not in self._made:
            name = value if node is None else node.name
            self._nodes.append(cast_node(value, self._copy(value, "int16"), "int16", f"{name}/int16"))
        return self._made[value, "int16"]

    def _narrow_constant(self, value: str, dtype: str) -> str:
        """The name of a constant's copy in a dtype that holds it."""
        if self.constants[value].dtype == dtype:
            return value
        if (value, dtype) not in self._made:
            self.constants[self._copy(value, dtype)] = self.constants[value].astype(dtype)
        return self._made[value, dtype]

    def _runs_along(self, product: Node, number: int) -> bool:
        """Whether what a product sums up lies next to each other in one of its inputs."""
        element = element_of(self._graph, self._env, product, 0)
        summed = {axis.name for axis in element.reduction.axes} if element.reduction is not None else set()
        own = [load for load in loads(element.body) if load.buffer.name == product.inputs[number]]
        return any(load.index and bool(summed & variables(load.index[-1])) for load in own)

    def _copy(self, value: str, dtype: str) -> str:
        """A name for a value's copy, which has that type from now on."""
        copy = self._made[value, dtype] = unused_name(f"{value}/{dtype}", self._names)
        self.types[copy] = TensorType(dtype, self.types[value].shape)
        return copy
