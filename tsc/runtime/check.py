"""Whether a plan may run: its structure, once, before any code is mapped (its numbers at each new shape: `bounds.py`).

What holds here and there keeps every access of a kernel inside memory that is its own, as far as the kernels are those that the
module's own table describes: a plan from a stranger can then compute something else, but touch nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tsc.errors import PackageError
from tsc.runtime.interface import ModuleInterface
from tsc.runtime.memory import Array
from tsc.runtime.plan import (
    CPU,
    HOST,
    MAX_NAMES,
    MAX_NESTING,
    MAX_STEPS,
    Axis,
    Bind,
    Copy,
    Element,
    Eval,
    If,
    Launch,
    Loop,
    Plan,
    Region,
    Step,
    Variant,
    expressions_of,
    is_barrier,
    static_names,
    storages_of,
)
from tsc.runtime.waits import Waits
from tsc.sym import ZERO, SymExpr, product
from tsc.sym.affine import is_linear_in

#: The devices that there are, each with the memory that its kernels use.
DEVICES: Mapping[str, str] = {CPU: HOST}


def check_plan(plan: Plan, constants: Mapping[str, Array], module: ModuleInterface, where: str,
               devices: Mapping[str, str] = DEVICES) -> None:
    """Raise PackageError, naming `where`, for a plan that refers to what is not there, uses a name before it is bound, writes
    what it must not, reads what nobody wrote, does not wait for what it needs, or calls a kernel otherwise than the module's
    table says."""
    for problem in _Checker(plan, constants, module, devices).problems():
        raise PackageError(f"{where} {problem}; compile it again")


@dataclass(slots=True)
class _Scope:
    """What holds at one place: the names that are bound, the storages that are written, the levels of regions around it."""

    names: set[str]
    written: set[int]
    level: int = 0

    def inner(self, name: str | None = None) -> _Scope:
        """The same for a region inside, with one name more."""
        return _Scope(self.names | ({name} if name is not None else set()), set(self.written), self.level + 1)


def _form(variant: Variant) -> tuple[object, ...]:
    """All of a Variant that has no size in it."""
    return tuple((call.function, call.args, call.threads, call.shared) for call in variant.calls), len(variant.temporaries)


class _Checker:
    """The problems of one plan, in an order in which the first says what is wrong: who finds one looks for no more."""

    def __init__(self, plan: Plan, constants: Mapping[str, Array], module: ModuleInterface, devices: Mapping[str, str]) -> None:
        self.plan, self.constants, self.module, self.devices = plan, constants, module, devices
        self.spaces = {HOST, *devices.values()}
        self.static = static_names(plan).keys()
        self.bound: set[str] = set()  # every name, wherever it is bound
        self.steps = self.regions = 0

    def problems(self) -> Iterator[str]:
        plan = self.plan
        yield from (f"lacks constant '{name}'" for name in plan.constants if name not in self.constants)
        if len({spec.name for spec in plan.inputs}) < len(plan.inputs):
            yield "has two inputs of one name"
        limits = {"input": len(plan.inputs), "output": len(plan.outputs), "constant": len(plan.constants), "arena": 1}
        for storage in plan.storages:
            if not 0 <= storage.index < limits.get(storage.kind, 0):
                yield f"has a storage {storage.kind} {storage.index} that does not exist"
            if storage.kind != "arena" and storage.offset != ZERO:
                yield f"begins {storage.kind} {storage.index} somewhere inside"
            if storage.space not in self.spaces or (storage.kind != "arena" and storage.space != HOST):
                yield f"has a storage {storage.kind} {storage.index} in memory '{storage.space}', which is not there"
            yield from self._loose((storage.offset, storage.bytes), self.static, "a place")
            if storage.kind == "arena" and storage.space not in plan.arenas:
                yield f"has a storage in an arena of '{storage.space}', which it does not have"
        for space, size in plan.arenas.items():
            if space not in self.spaces:
                yield f"has an arena in memory '{space}', which is not there"
            yield from self._loose((size,), self.static, "an arena")
        scope = _Scope(set(), {i for i, storage in enumerate(plan.storages) if storage.kind in ("input", "constant")})
        yield from self._region(plan.body, scope)
        for spec in plan.inputs:
            yield from self._loose((*spec.shape, *spec.contents), self.static, "an input")
            if spec.contents and (product(spec.shape).as_int() != len(spec.contents) or spec.numpy.kind not in "iuf"):
                yield f"takes {len(spec.contents)} elements of input '{spec.name}' for sizes, which has no or not as many"
        given = {plan.storages[i].index for i in scope.written if plan.storages[i].kind == "output"}
        for index, spec in enumerate(plan.outputs):
            if spec.contents:
                yield f"takes {len(spec.contents)} elements of output '{spec.name}' for sizes, which no run knows"
            yield from self._loose(spec.shape, scope.names, "an output")
            if index not in given:
                yield f"never writes output '{spec.name}'"

    @staticmethod
    def _loose(exprs: Iterable[SymExpr], names: Collection[str], what: str) -> Iterator[str]:
        for expr in exprs:
            loose = [name for name in expr.dims() if name not in names]
            if loose:
                yield f"has a size '{min(loose)}' that is no dim of it, or is bound later than the size of {what} needs"

    # -- regions -----------------------------------------------------------------------------------------------------

    def _region(self, region: Region, scope: _Scope) -> Iterator[str]:
        """The problems of a region; `scope` is then what holds at its end."""
        if scope.level >= MAX_NESTING:
            yield f"has regions nested deeper than {MAX_NESTING}"
            return
        self.regions += 1
        if self.regions > MAX_NAMES:
            yield f"has more than {MAX_NAMES} regions"
        waits = Waits()
        for position, step in enumerate(region):
            self.steps += 1
            if self.steps > MAX_STEPS:
                yield f"has more than {MAX_STEPS} steps"
            if any(not 0 <= index < len(self.plan.storages) for index in storages_of(step)):
                yield "has a launch or copy of a storage that does not exist"
            yield from self._loose(expressions_of(step), scope.names, "a step")
            yield from self._outputs(step, scope)
            yield from self._step(step, scope)
            if is_barrier(step):
                waits = Waits()
            elif isinstance(step, Launch | Copy):
                yield from self._order(step, position, waits)

    def _outputs(self, step: Step, scope: _Scope) -> Iterator[str]:
        for storage in (self.plan.storages[i] for i in storages_of(step)):
            if storage.kind == "output":
                yield from self._loose(self.plan.outputs[storage.index].shape, scope.names, "an output")

    def _order(self, step: Launch | Copy, position: int, waits: Waits) -> Iterator[str]:
        if isinstance(step, Copy):
            needed = waits.note(position, (step.source,), (step.target,))
        else:
            uses = list(zip(step.args, self.module.kernels[step.kernel].buffers))
            written = (*(s for s, use in uses if use.written), *step.temporaries)
            needed = waits.note(position, (s for s, use in uses if not use.written), written)
        if step.after is not None:
            if any(not 0 <= earlier < position for earlier in step.after):
                yield f"lets step {position} of a region wait for one that is not before it"
            lacking = needed - set(step.after)
            if lacking:
                yield f"lets step {position} of a region not wait for step {min(lacking)}, whose storages it uses"

    def _step(self, step: Step, scope: _Scope) -> Iterator[str]:
        match step:
            case Bind(name=name, source=source):
                if step.range.lo < 0 and not self._is_element(source):
                    yield f"lets dim '{name}' be negative"
                yield from self._axis(step, source, scope) if isinstance(source, Axis) else self._element(source, scope)
                yield from self._name(name, scope)
            case Eval(name=name):
                yield from self._name(name, scope)
            case Launch():
                yield from self._launch(step, scope)
            case Copy(source=source_index, target=target, at=place):
                if place != ZERO and not scope.level:
                    yield "has a copy to a place within a storage outside of any loop"
                if source_index not in scope.written or self.plan.storages[target].kind not in ("arena", "output"):
                    yield "has a copy of what nobody has written, or to what is neither output nor arena"
                scope.written.add(target)
            case If(condition=condition, then=then, otherwise=otherwise):
                if isinstance(condition, Element):
                    yield from self._element(condition, scope)
                elif condition not in scope.names:
                    yield f"decides by '{condition}', which is no dim of it, or is bound later"
                branches = scope.inner(), scope.inner()
                yield from self._region(then, branches[0])
                yield from self._region(otherwise, branches[1])
                scope.written = branches[0].written & branches[1].written
            case Loop():
                yield from self._loop(step, scope)

    def _name(self, name: str, scope: _Scope) -> Iterator[str]:
        if name in self.bound:
            yield f"binds '{name}' twice"
        self.bound.add(name)
        scope.names.add(name)

    def _is_element(self, source: Axis | Element) -> bool:
        """Whether a Dim is told by what an input holds."""
        return isinstance(source, Axis) and 0 <= source.input < len(self.plan.inputs) and (
            source.axis >= len(self.plan.inputs[source.input].shape))

    def _axis(self, step: Bind, place: Axis, scope: _Scope) -> Iterator[str]:
        if scope.level:
            yield f"binds dim '{step.name}' to an input's shape within an If or a Loop"
        if step.bound is not None:
            yield f"has a bound for dim '{step.name}', which an input's shape tells"
        spec = self.plan.inputs[place.input] if 0 <= place.input < len(self.plan.inputs) else None
        sizes = () if spec is None else (*spec.shape, *spec.contents)
        if not 0 <= place.axis < len(sizes):
            yield f"binds dim '{step.name}' to an axis that does not exist"
        size = sizes[place.axis]
        if not (size.dims() - {step.name} <= scope.names and is_linear_in(size, step.name)):
            yield f"cannot be run (the shape of no input tells the size of {step.name})"

    def _element(self, element: Element, scope: _Scope) -> Iterator[str]:
        storage = self.plan.storages[element.storage]
        if element.storage not in scope.written:
            yield f"looks at storage {element.storage}, which nobody has written"
        if np.dtype(element.dtype).kind not in "biu" or self._dtype(element.storage) not in (None, element.dtype):
            yield f"takes {storage.kind} {storage.index} for {element.dtype}, which holds no such whole numbers or bools"
        if storage.space != HOST:
            yield f"looks at storage {element.storage} in memory '{storage.space}'; copy it to '{HOST}' first"

    def _loop(self, step: Loop, scope: _Scope) -> Iterator[str]:
        places = [place for c in step.carried for place in (c.current, c.next)]
        if len(set(places)) < len(places):
            yield "has a loop that carries two values in one storage"
        for c in step.carried:
            if c.start != c.current and c.start in places:
                yield f"has a loop that begins with storage {c.start}, which it carries"
            halves = [self.plan.storages[i] for i in (c.current, c.next)]
            if any(half.kind != "arena" for half in halves) or halves[0].space != halves[1].space:
                yield f"has a loop that carries storages {c.current} and {c.next}, which are not both of one arena"
            sizes = [self._bytes(i) for i in (c.start, c.current, c.next)]
            if len(set(sizes)) > 1:
                yield f"has a loop that carries storages of {', '.join(map(str, sizes))} bytes as one"
            if c.start not in scope.written:
                yield f"has a loop that begins with storage {c.start}, which nobody has written"
        scope.written |= {c.current for c in step.carried}
        scope.written -= {c.next for c in step.carried}
        if step.condition is not None:
            yield from self._element(step.condition, scope)
        if step.index in self.bound:
            yield f"binds '{step.index}' twice"
        self.bound.add(step.index)
        inside = scope.inner(step.index)
        yield from self._region(step.body, inside)
        for c in step.carried:
            if c.next not in inside.written:
                yield f"has a loop that does not write storage {c.next}, which it carries"
        if any(self.plan.storages[s].kind != "arena" for s in step.filled) or not inside.written >= {*step.filled}:
            yield "has a loop that does not write what it fills, or fills what is in no arena"
        scope.written |= {*step.filled}
        if not scope.written <= inside.written:
            yield f"has a loop whose trips leave storage {min(scope.written - inside.written)} unwritten"

    # -- launches ----------------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch, scope: _Scope) -> Iterator[str]:
        """What a launch gives its kernel that the kernel does not take."""
        interface = self.module.kernels.get(launch.kernel)
        if interface is None:
            yield f"calls '{launch.kernel}', which is no kernel of its module"
            return
        if launch.device not in self.devices:
            yield f"launches '{launch.kernel}' on device '{launch.device}', which is not there"
        if len(launch.args) != len(interface.buffers) or len(launch.sizes) != len(interface.sizes):
            yield (f"calls '{launch.kernel}' with {len(launch.args)} buffers and {len(launch.sizes)} sizes, not "
                   f"{len(interface.buffers)} and {len(interface.sizes)}")
            return
        own = {_form(variant) for variant in interface.variants}
        for variant in launch.variants:
            if _form(variant) not in own:
                yield f"runs '{launch.kernel}' by '{variant.calls[0].function}', which is none of its variants"
        yield from self._temporaries(launch)
        for index, use in zip(launch.args, interface.buffers):
            storage = self.plan.storages[index]
            if use.written and storage.kind not in ("arena", "output"):
                yield f"lets '{launch.kernel}' write into {storage.kind} {storage.index}"
            if self._dtype(index) not in (None, use.dtype):
                yield f"gives '{launch.kernel}' {storage.kind} {storage.index} of {self._dtype(index)} for {use.dtype}"
            if storage.space != self.devices[launch.device]:
                yield f"gives '{launch.kernel}' on '{launch.device}' a storage in memory '{storage.space}'"
        if any(index not in scope.written for index, use in zip(launch.args, interface.buffers) if not use.written):
            yield f"lets '{launch.kernel}' read what nobody has written"
        scope.written |= {index for index, use in zip(launch.args, interface.buffers) if use.written}
        scope.written -= set(launch.temporaries)

    def _temporaries(self, launch: Launch) -> Iterator[str]:
        own = launch.temporaries
        if len(own) != max(len(variant.temporaries) for variant in launch.variants):
            yield f"gives '{launch.kernel}' {len(own)} temporaries, which are not as many as a variant of it has"
        if len({*own, *launch.args}) < len(own) + len(set(launch.args)):
            yield f"gives '{launch.kernel}' a temporary that it uses otherwise, too"
        for storage in (self.plan.storages[index] for index in own):
            if storage.kind != "arena" or storage.space != self.devices[launch.device]:
                yield f"gives '{launch.kernel}' on '{launch.device}' {storage.kind} {storage.index} for a temporary"

    def _dtype(self, index: int) -> str | None:
        """What a storage holds, None where that is not said."""
        storage = self.plan.storages[index]
        match storage.kind:
            case "input":
                return self.plan.inputs[storage.index].stored
            case "output":
                return self.plan.outputs[storage.index].stored
            case "constant":
                return str(self.constants[self.plan.constants[storage.index]].dtype.name)
        return None

    def _bytes(self, index: int) -> SymExpr:
        """The bytes of a storage, at all sizes."""
        storage = self.plan.storages[index]
        match storage.kind:
            case "input" | "output":
                spec = (self.plan.inputs if storage.kind == "input" else self.plan.outputs)[storage.index]
                return product(spec.shape) * spec.numpy.itemsize
            case "constant":
                return SymExpr.of(self.constants[self.plan.constants[storage.index]].nbytes)
        return storage.bytes
