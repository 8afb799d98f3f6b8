"""What a module says of its own kernels: the table that is compiled into it, and what it demands of a call.

A Package's plan is data that anybody may have written. The table stands in the binary, so that whoever trusts the code trusts
it too, and every launch of a plan is held against it. It is read as bytes, before anything of the binary is mapped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tsc.runtime import schema
from tsc.runtime.elf import read_exports
from tsc.runtime.plan import Variant
from tsc.runtime.plan_json import variants_from_json, variants_to_json
from tsc.sym import Dim, Guard, Range, SymExpr
from tsc.sym.expr import Apply

#: The symbol of the table: JSON text that ends with a zero byte.
TABLE = "tsc_interface"
#: The symbol that a cubin has whose kernels wait for the launch before them themselves (`begin_in_turn` in sync.cuh).
IN_TURN = "tsc_in_turn"
#: What the runtime in every module exports; no kernel has such a name.
RUNTIME = ("tsc_run", "tsc_stop", "tsc_bind", "tsc_call")
#: What it exports besides for programs in C (tsc.h); modules that were compiled before there was such a thing lack it.
C_INTERFACE = ("tsc_open", "tsc_close", "tsc_inputs", "tsc_outputs", "tsc_shapes", "tsc_infer")
#: A symbol within a module: how many functions its kernels have, then the address of each.
FUNCTIONS = "tsc_functions"
#: What a module of the emulator exports.
EMULATOR = "tsc_emu_launch"


@dataclass(frozen=True, slots=True)
class BufferUse:
    """One buffer of a kernel: its dtype, the bytes that it has at given sizes, and whether the kernel writes it."""

    dtype: str
    bytes: SymExpr
    written: bool


@dataclass(frozen=True, slots=True)
class KernelInterface:
    """How a kernel may be called: `buffers` in order, `sizes` (its integer parameters, in order) with the values that each may
    have, `facts` that relate them, and the `variants` that compute it. All expressions are over the sizes; a name in a fact
    that is none of them stands for some integer, the same one in all facts. `rows` is the size, if there is one, that counts
    rows which have nothing to do with each other (`te/rows.py`): buffers without it in their bytes are the same for all."""

    buffers: tuple[BufferUse, ...]
    sizes: tuple[tuple[str, Range], ...]
    facts: tuple[Guard, ...]
    variants: tuple[Variant, ...]
    rows: str | None = None

    @property
    def row_size(self) -> int | None:
        """Which of the sizes `rows` is, by its place."""
        return next((k for k, (name, _) in enumerate(self.sizes) if name == self.rows), None)


@dataclass(frozen=True, slots=True)
class ModuleInterface:
    """A module's target, the CPU flags it was compiled for, and its kernels; whether these wait for the launch before them
    themselves."""

    target: str
    cpu_flags: tuple[str, ...]
    kernels: Mapping[str, KernelInterface]
    in_turn: bool = False


# -- the table -------------------------------------------------------------------------------------------------------

def interface_to_json(interface: KernelInterface) -> list[object]:
    """A JSON-ready list that `interface_from_json` reads back."""
    return [
        [[b.dtype, str(b.bytes), b.written] for b in interface.buffers],
        [[name, known.lo, known.hi, known.divisor] for name, known in interface.sizes],
        [[fact.relation, str(fact.left), str(fact.right)] for fact in interface.facts],
        variants_to_json(tuple(map(_without_cost, interface.variants))), interface.rows]


def interface_from_json(value: object) -> KernelInterface:
    """What `interface_to_json` wrote. Raises ValueError on anything else."""
    buffers, sizes, facts, variants, rows = schema.items(value, "a kernel's interface", 5)
    found = KernelInterface(
        tuple(_buffer(b) for b in schema.items(buffers, "a kernel's buffers")),
        tuple(_size(s) for s in schema.items(sizes, "a kernel's sizes")),
        tuple(_fact(f) for f in schema.items(facts, "a kernel's facts")),
        variants_from_json(variants), None if rows is None else schema.text(rows, "a kernel's rows"))
    for variant in found.variants:
        known = len(found.buffers) + len(variant.temporaries)
        if any(number >= known for call in variant.calls for number in call.args):
            raise ValueError(f"a call of a kernel has more than its {known} buffers and temporaries")
    return found


def _without_cost(variant: Variant) -> Variant:
    """What a call takes is for whoever plans it to know."""
    return replace(variant, calls=tuple(replace(call, cost=None) for call in variant.calls))


def _buffer(value: object) -> BufferUse:
    dtype, size, written = schema.items(value, "a kernel's buffer", 3)
    return BufferUse(schema.dtype(dtype, "a buffer's dtype"), schema.size(size, "a buffer's bytes"), written is True)


def _size(value: object) -> tuple[str, Range]:
    name, *known = schema.items(value, "a kernel's size", 4)
    return schema.text(name, "a size's name"), schema.limits(known, "a size's range")


def _fact(value: object) -> Guard:
    relation, left, right = schema.items(value, "a kernel's fact", 3)
    return Guard(schema.text(relation, "a relation"), schema.size(left, "a fact"), schema.size(right, "a fact"), "")


def table_text(module: ModuleInterface) -> str:
    """The table as it stands in the binary, a line a kernel."""
    kernels = ",\n".join(f"{json.dumps(name)}: {json.dumps(interface_to_json(kernel))}"
                         for name, kernel in sorted(module.kernels.items()))
    flags = json.dumps(list(module.cpu_flags))
    return f'{{"target": {json.dumps(module.target)}, "cpu_flags": {flags}, "kernels": {{\n{kernels}}}}}'


def functions_of(module: ModuleInterface) -> tuple[str, ...]:
    """The functions of all kernels, each once, in the order of the table."""
    return tuple(dict.fromkeys(call.function for _, kernel in sorted(module.kernels.items()) for variant in kernel.variants
                               for call in variant.calls))


def read_interface(binary: bytes) -> ModuleInterface:
    """The table in a shared object or a cubin, which has the code of each kernel in it. Raises ValueError saying what is wrong.
    Modules of the emulator name their kernels when they are loaded: there a driver says which it lacks."""
    exports = read_exports(binary)
    raw = exports.data.get(TABLE)
    emulated = EMULATOR in exports.functions
    lacking = [name for name in RUNTIME if not (emulated or exports.is_cubin) and name not in exports.functions]
    if raw is None or lacking:
        raise ValueError(f"it lacks '{TABLE if raw is None else lacking[0]}'")
    table = schema.table(schema.from_json(raw.rstrip(b"\0"), "its table"), "its table", ("target", "cpu_flags", "kernels"))
    kernels = {name: interface_from_json(value) for name, value in schema.table(table["kernels"], "its kernels").items()}
    for name, kernel in kernels.items():
        for call in (call for variant in kernel.variants for call in variant.calls):
            if not emulated and (call.function not in exports.functions or call.function in (*RUNTIME, *C_INTERFACE)):
                raise ValueError(f"it has no code for its kernel '{name}'")
    return ModuleInterface(schema.text(table["target"], "its target"), schema.texts(table["cpu_flags"], "its flags"), kernels,
                           in_turn=IN_TURN in exports.data)


# -- a call ----------------------------------------------------------------------------------------------------------

def wrong_sizes(interface: KernelInterface, values: Sequence[int]) -> str | None:
    """Why a kernel must not be called with these sizes, None where it may."""
    sizes = {name: value for (name, _), value in zip(interface.sizes, values, strict=True)}
    for (name, known), value in zip(interface.sizes, values):
        if value < known.lo or (known.hi is not None and value > known.hi) or value % known.divisor:
            return f"its size {name} is {value}, outside {known}"
    for fact in interface.facts:
        if fact.left.dims() | fact.right.dims() <= sizes.keys() and not fact.holds(sizes):
            return f"its sizes break {fact} at {_listed(sizes)}"
    for name, limits in hidden_limits(interface).items():
        if max(low.evaluate(sizes) for low in limits.low) > min(high.evaluate(sizes) for high in limits.high):
            return f"its sizes are those of no {name} at {_listed(sizes)}"
    return None


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


@dataclass(slots=True)
class Limits:
    """What an integer is at least and at most, each of them."""

    low: list[SymExpr] = field(default_factory=list)
    high: list[SymExpr] = field(default_factory=list)


def hidden_limits(interface: KernelInterface) -> dict[str, Limits]:
    """What the facts of a kernel say of the names in them that are none of its sizes, over these sizes: from facts with one
    such name, where that is read off, and only of names with limits on both sides."""
    known = {name for name, _ in interface.sizes}
    found: dict[str, Limits] = {}
    for fact in interface.facts:
        hidden = (fact.left.dims() | fact.right.dims()) - known
        if len(hidden) == 1:
            name, = hidden
            _narrow(found.setdefault(name, Limits()), name, fact)
    return {name: limits for name, limits in found.items() if limits.low and limits.high}


def _narrow(limits: Limits, name: str, fact: Guard) -> None:
    """What a fact says of the one hidden name in it, where that is read off: `h`, or `h // d`, alone on one side."""
    for side, other, is_left in ((fact.left, fact.right, True), (fact.right, fact.left, False)):
        divisor = _divisor_of(side, name)
        if divisor is None or name in other.dims():
            continue
        if fact.relation == "==" or not is_left:  # value <= h // d
            limits.low.append(other * divisor)
        if fact.relation == "==" or is_left:
            limits.high.append(other * divisor + (divisor - 1))
        return


def _divisor_of(expr: SymExpr, name: str) -> int | None:
    """d where `expr` is `name // d` (1 where it is `name`), else None."""
    match expr.terms:
        case (((Dim(name=found),), 1),) if found == name:
            return 1
        case (((Apply(fn="//", args=(inner, by)),), 1),) if inner.as_dim() == Dim(name):
            return by.as_int()
    return None
