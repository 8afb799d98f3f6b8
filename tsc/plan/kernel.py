"""Kernel: a FusionGroup as the plan sees it, with the code of its Variants, in a JSON form that the build cache keeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tsc.loop_ir.gpu.threads import block_threads, shared_places
from tsc.loop_ir.nodes import Func
from tsc.poly import PatternMismatch
from tsc.poly.tile import TileConfig, config_from_json, config_to_json
from tsc.runtime.cost import FREE, Cost, Rates, Work
from tsc.runtime.interface import BufferUse, KernelInterface, interface_from_json, interface_to_json
from tsc.runtime.plan import Call, Variant
from tsc.sym import Guard, SymExpr, parse, product
from tsc.te import layout
from tsc.te.compute import Fact, ranges_of
from tsc.te.expr import Buffer


@dataclass(frozen=True, slots=True)
class Code:
    """What a Call is made of: `config`, source, final schedule tree, and what was decided; `complaint` is why a check refused
    its loops in vectors and tiles, so that it computes element by element ("": none did); `work` is what it does at any
    sizes."""

    config: TileConfig
    source: str
    schedule: str
    log: tuple[str, ...]
    complaint: str = ""
    work: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """What calling a kernel takes, and the `codes` of all Calls of the Variants that its interface names.

    `buffers` are its arguments in order, in the layout in which it reads them, `sizes` names those after them; `outputs` names
    those it writes; `interface` is what every call of it is held against; `messages[i]` is the data error of status code i+1,
    whichever Variant finds it. `configs` are those of the Variants.
    """

    symbol: str
    buffers: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    interface: KernelInterface
    messages: tuple[str, ...]
    codes: tuple[Code, ...]
    configs: tuple[TileConfig, ...]

    def costing(self, rates: Mapping[TileConfig, Rates]) -> Kernel:
        """The same, with what Variants are expected to take, where their configs have rates: all of it is its first Call's."""
        variants: list[Variant] = []
        for config, variant, work in self.made():
            known = rates.get(config)
            costs = [None if known is None else FREE] * len(variant.calls)
            if known is not None:
                costs[0] = Cost(known, work)
            variants.append(replace(variant, calls=tuple(
                replace(call, cost=cost) for call, cost in zip(variant.calls, costs, strict=True))))
        return replace(self, interface=replace(self.interface, variants=tuple(variants)))

    def made(self) -> Iterator[tuple[TileConfig, Variant, tuple[Work, ...]]]:
        """Of each Variant its config, what it is, and the work of its first Call, by which its time is told."""
        codes = iter(self.codes)
        for config, variant in zip(self.configs, self.interface.variants, strict=True):
            own = [next(codes) for _ in variant.calls]
            yield config, variant, own[0].work

    @property
    def sources(self) -> dict[str, str]:
        """The source of each function."""
        calls = (call for variant in self.interface.variants for call in variant.calls)
        return {call.function: code.source for call, code in zip(calls, self.codes, strict=True)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no kernel for a Program: no schedule pattern fits it."""

    reason: str


def buffers_of(funcs: Sequence[Func], outputs: Collection[str]) -> tuple[Buffer, ...]:
    """The buffers of a kernel with a Variant that is `funcs`, lowered, one after the other: what they read of what none of them
    writes, then the kernel's own `outputs`. Raises PatternMismatch where two read a buffer in different layouts."""
    written = {name for func in funcs for name in func.outputs}
    found: dict[str, Buffer] = {}
    for buffer in (b for func in funcs for b in func.buffers if b.name not in written):
        if found.setdefault(buffer.name, buffer) != buffer:
            raise PatternMismatch(f"{buffer.name} would be read in two layouts")
    return (*found.values(), *(b for func in funcs for b in func.buffers if b.name in func.outputs and b.name in outputs))


def interface_of(variants: Sequence[Sequence[Func]], buffers: Sequence[Buffer], outputs: Collection[str],
                 facts: Iterable[Fact], rows: str | None = None) -> KernelInterface:
    """What a call of a kernel with these `buffers` must be like, whose Variants are lowered functions, one after the other;
    `facts` are those of their Programs. What they write that is none of the `outputs` are temporaries. `rows`: the size that
    counts rows which have nothing to do with each other."""
    return KernelInterface(
        tuple(BufferUse(b.dtype, _bytes(b), b.name in outputs) for b in buffers),
        tuple(ranges_of(variants[0][0].sizes).items()),
        tuple(Guard(fact.relation, fact.left, fact.right, "") for fact in dict.fromkeys(facts)),
        tuple(_variant(funcs, buffers, outputs) for funcs in variants), rows)


def _variant(funcs: Sequence[Func], buffers: Sequence[Buffer], outputs: Collection[str]) -> Variant:
    temporaries = [b for func in funcs for b in func.buffers if b.name in func.outputs and b.name not in outputs]
    numbers = {name: k for k, name in enumerate((*(b.name for b in buffers), *(b.name for b in temporaries)))}
    calls = (Call(f.name, f.blocks, tuple(numbers[b.name] for b in f.buffers), f.scratch, threads=block_threads(f),
                  shared=shared_places(f)[1]) for f in funcs)
    return Variant(tuple(calls), tuple(map(_bytes, temporaries)))


def _bytes(buffer: Buffer) -> SymExpr:
    return product(buffer.stored) * np.dtype(buffer.dtype).itemsize


def kernel_to_bytes(kernel: Kernel | Refusal) -> bytes:
    """Deterministic JSON."""
    if isinstance(kernel, Refusal):
        return json.dumps({"refused": kernel.reason}).encode()
    plain = {f.name: getattr(kernel, f.name) for f in fields(kernel)}
    buffers = [[b.name, b.dtype, [str(extent) for extent in b.shape], layout.to_json(b.layout)] for b in kernel.buffers]
    codes = [[config_to_json(c.config), c.source, c.schedule, c.log, c.complaint, [[w.kind, str(w.count)] for w in c.work]]
             for c in kernel.codes]
    own = {"buffers": buffers, "interface": interface_to_json(kernel.interface), "codes": codes,
           "configs": [config_to_json(config) for config in kernel.configs]}
    return json.dumps(plain | own, sort_keys=True).encode()


def kernel_from_bytes(data: bytes) -> Kernel | Refusal:
    """What `kernel_to_bytes` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    x = json.loads(data)
    if "refused" in x:
        return Refusal(str(x["refused"]))
    buffers = tuple(Buffer(name, dtype, tuple(map(parse, shape)), layout.from_json(steps))
                    for name, dtype, shape, steps in x.pop("buffers"))
    interface = interface_from_json(x.pop("interface"))
    codes = tuple(Code(config_from_json(config), source, schedule, tuple(log), complaint,
                       tuple(Work(kind, parse(count)) for kind, count in work))
                  for config, source, schedule, log, complaint, work in x.pop("codes"))
    configs = tuple(map(config_from_json, x.pop("configs")))
    symbol: str = x.pop("symbol")
    lists: dict[str, Any] = {name: tuple(values) for name, values in x.items()}
    return Kernel(symbol, buffers=buffers, interface=interface, codes=codes, configs=configs, **lists)
