"""What makes a drafted model illegal: attributes out of range or unknown, operands missing, of another rank, size or type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from tests.fuzz.operators.case import Draft, Operand
from tests.fuzz.operators.values import FAR, Array, Sizes, mood, places, plain

#: Changes a Draft and says how, or "" where it finds nothing to change.
Break = Callable[[Draft], str]


def _attribute(d: Draft) -> str:
    """An attribute with another value of its own type."""
    found = [(n, a) for n in d.nodes for a in n.attribute if a.name not in ("value", "to")]
    if not found:
        return ""
    node, a = d.rng.choice(found)
    value = helper.get_attribute_value(a)
    match a.type:
        case AttributeProto.INT:
            other: object = d.rng.choice((-1, 0, 2, 9, -9, 2**40, *FAR))
        case AttributeProto.INTS:
            k, far = d.rng.randrange(len(value)) if value else 0, d.rng.choice(FAR)
            other = d.rng.choice(([], [*value, 1], value[:-1], [0] * len(value), [-1] * len(value), [9] * len(value),
                                  [value[0]] * len(value) if value else [1], [*value[:k], far, *value[k + 1:]]))
        case AttributeProto.STRING:
            other = d.rng.choice(("", "none", "SAME", "reflect"))
        case AttributeProto.FLOAT:
            other = d.rng.choice((float("nan"), float("inf"), -1e38, 0.0))
        case _:
            return ""
    node.attribute.remove(a)
    node.attribute.append(helper.make_attribute(a.name, other, attr_type=a.type))
    return f"{a.name} made {other}"


def _unknown_attribute(d: Draft) -> str:
    node = d.rng.choice(d.nodes)
    node.attribute.append(helper.make_attribute("colour", 1))
    return "an unknown attribute"


def _no_attribute(d: Draft) -> str:
    found = [(n, a) for n in d.nodes for a in n.attribute]
    if not found:
        return ""
    node, a = d.rng.choice(found)
    node.attribute.remove(a)
    return f"without {a.name}"


def _input(d: Draft, change: Callable[[NodeProto, int], None]) -> bool:
    found = [(n, k) for n in d.nodes for k in range(len(n.input))]
    if found:
        change(*d.rng.choice(found))
    return bool(found)


def _without_input(d: Draft) -> str:
    def change(node: NodeProto, k: int) -> None:
        if d.chance(0.5):
            node.input[k] = ""
        else:
            del node.input[k:]

    return "an input less" if _input(d, change) else ""


def _one_input_more(d: Draft) -> str:
    node = d.rng.choice(d.nodes)
    node.input.append(d.operand((2,)))
    return "an input more"


def _operand(d: Draft, change: Callable[[Operand], Operand | None]) -> bool:
    numbers = [k for k in range(len(d.operands))]
    d.rng.shuffle(numbers)
    for k in numbers:
        changed = change(d.operands[k])
        if changed is not None:
            d.operands[k] = changed
            return True
    return False


def _rank(d: Draft) -> str:
    def change(o: Operand) -> Operand | None:
        dims = o.dims[1:] if o.dims and d.chance(0.5) else (*o.dims, d.rng.choice((1, 2)))
        return replace(o, dims=dims, draw=plain(o.dtype))

    return "an operand of another rank" if _operand(d, change) else ""


def _extent(d: Draft) -> str:
    def change(o: Operand) -> Operand | None:
        if not o.dims:
            return None
        k = d.rng.randrange(len(o.dims))
        return replace(o, dims=(*o.dims[:k], d.rng.choice((0, 1, 3, 18)), *o.dims[k + 1:]), draw=plain(o.dtype))

    return "an operand of another size" if _operand(d, change) else ""


def _own_size(d: Draft) -> str:
    """A fed operand's dim that has a name of its own, so that runs may contradict the others."""
    def change(o: Operand) -> Operand | None:
        if o.role != "feed" or not o.dims:
            return None
        k = d.rng.randrange(len(o.dims))
        return replace(o, dims=(*o.dims[:k], d.size(), *o.dims[k + 1:]), draw=plain(o.dtype))

    return "an operand with a size of its own" if _operand(d, change) else ""


def _dtype(d: Draft) -> str:
    def change(o: Operand) -> Operand | None:
        dtype = d.rng.choice([t for t in ("float32", "float64", "int32", "int64", "uint8", "bool") if t != o.dtype])
        return replace(o, dtype=dtype, draw=plain(dtype, mood(d.rng)))

    return "an operand of another type" if _operand(d, change) else ""


def _values(d: Draft) -> str:
    """A parameter with other values, or an index outside."""
    def change(o: Operand) -> Operand | None:
        if o.dtype not in ("int64", "int32"):
            return None
        if o.role == "feed":
            return replace(o, draw=places(o.dtype, d.rng.choice((200, 2**31 - 1))))
        far = [f for f in FAR if np.iinfo(o.dtype).min <= f <= np.iinfo(o.dtype).max]
        wrong, whole, k = d.rng.choice((-9, -2, -1, 0, 7, *far)), d.chance(0.5), d.rng.randrange(1000)

        def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
            made = np.full(shape, wrong, o.dtype)
            if not whole and made.size:  # one element alone
                made = np.array(o.draw(gen, shape, sizes))
                made.flat[k % made.size] = wrong
            return made

        return replace(o, draw=drawn)

    return "a parameter of other values" if _operand(d, change) else ""


BREAKS: tuple[Break, ...] = (_attribute, _attribute, _attribute, _unknown_attribute, _no_attribute, _without_input,
                             _one_input_more, _rank, _extent, _extent, _own_size, _own_size, _dtype, _values, _values)


def break_draft(d: Draft) -> str:
    """Make a Draft illegal, probably; what was done."""
    for _ in range(9):
        done = d.rng.choice(BREAKS)(d)
        if done:
            return done
    return ""
