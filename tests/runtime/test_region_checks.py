"""What the verifier refuses of Plans with regions, at load and at sizes, and that what these are made of is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.region_plans import (
    IDS,
    INTERFACES,
    K,
    M,
    Making,
    N,
    X,
    call,
    check,
    request,
)
from tsc.errors import PackageError
from tsc.runtime.check import check_plan
from tsc.runtime.executable import Executable
from tsc.runtime.interface import ModuleInterface
from tsc.runtime.plan import (
    HOST,
    MAX_NESTING,
    Axis,
    Bind,
    Carried,
    Copy,
    Element,
    Eval,
    If,
    Loop,
    Plan,
    Step,
    Storage,
)
from tsc.sym import ONE, ZERO, Guard, Range, SymExpr, dim


def refused(*body: Any, **changes: Any) -> Plan:
    """A Plan with an output y0 (storage 2) and three storages of the arena (3 to 5), two of them of x's size."""
    p = Making()
    p.output(), p.arena(), p.arena(), p.arena(8 * N)
    plan = p.plan(*body)
    return replace(plan, **changes) if changes else plan


Y, A, B, WIDE = 2, 3, 4, 5
DONE = call("sum", X, X, Y)
FIRST = Bind("k", Element(IDS, "int64"), Range(0, 9))
COPIES = call("twice", A, B)


def loop(*body: Step, trips: SymExpr = N, carried: tuple[Carried, ...] = (), ends: Element | None = None) -> Loop:
    return Loop("i", trips, body, carried, ends)


def nested(levels: int) -> Step:
    step: Step = Eval("deep", N)
    for _ in range(levels):
        step = If("n", (step,))
    return step


REFUSED: dict[str, tuple[Plan, str]] = {
    "a name that nothing binds": (refused(DONE, call("shift", X, A, sizes=[K])), "'k' that is no dim"),
    "a name before it is bound": (
        refused(call("shift", X, Y, sizes=[K]), FIRST),
        "'k' that is no dim of it, or is bound later"),
    "a name of a branch after it": (refused(If("n", (FIRST,)), call("shift", X, Y, sizes=[K])), "'k' that is no dim"),
    "a name of the other branch": (refused(If("n", (FIRST,), (Eval("l", K),)), DONE), "'k' that is no dim"),
    "a trip's number after the loop": (refused(loop(), call("shift", X, Y, sizes=[dim("i")])), "'i' that is no dim"),
    "a trip's number as how many": (refused(loop(trips=dim("i")), DONE), "'i' that is no dim"),
    "a name that is bound twice": (refused(FIRST, FIRST, DONE), "binds 'k' twice"),
    "a name that a loop binds again": (refused(Eval("i", N), loop(), DONE), "binds 'i' twice"),
    "a name that both branches bind": (refused(If("n", (Eval("e", N),), (Eval("e", N),)), DONE), "binds 'e' twice"),
    "a decision by no name": (refused(If("q", ()), DONE), "decides by 'q'"),
    "a guard of an unknown name": (refused(Guard("<=", K, N, ""), DONE), "'k' that is no dim"),
    "a bound of an unknown name": (refused(replace(FIRST, bound=M), DONE), "'m' that is no dim"),
    "an element's number of an unknown name": (refused(Bind("k", Element(IDS, "int64", M)), DONE), "'m' that is no dim"),
    "a shape in a region": (refused(If("n", (Bind("m", Axis(0, 0)),)), DONE), "within an If or a Loop"),
    "a shape of an axis that is not there": (refused(Bind("m", Axis(0, 1)), DONE), "an axis that does not exist"),
    "a size below nothing": (refused(replace(FIRST, range=Range(-1)), DONE), "'k' be negative"),
    "a place that is computed": (
        refused(FIRST, DONE, storages=(*refused().storages[:3], Storage("arena", 0, 64 * K, 4 * N), *refused().storages[4:])),
        "'k' that is no dim of it, or is bound later than the size of a place"),
    "an arena that is computed": (refused(FIRST, DONE, arenas={HOST: K}), "the size of an arena"),
    "an output's shape of a branch": (
        replace(refused(If("n", (FIRST,)), DONE), outputs=(replace(refused().outputs[0], shape=(K,)),)), "'k' that is no dim"),
    "a value that nobody wrote": (refused(call("twice", A, Y)), "read what nobody has written"),
    "a value of one branch": (refused(If("n", (call("twice", X, A),)), call("twice", A, Y)), "read what nobody has written"),
    "a value of the other branch": (
        refused(If("n", (call("twice", X, A),), (call("twice", A, B),)), DONE), "read what nobody has written"),
    "a value of a trip after it": (refused(loop(call("twice", X, A)), call("twice", A, Y)), "read what nobody has written"),
    "a value of the trip before": (refused(loop(COPIES, call("twice", X, A)), DONE), "read what nobody has written"),
    "a copy of what nobody wrote": (refused(Copy(A, Y, 4 * N)), "copy of what nobody has written"),
    "a decision by what nobody wrote": (refused(If(Element(A, "bool"), ()), DONE), "looks at storage 3, which nobody"),
    "a size that nobody wrote": (refused(Bind("k", Element(A, "int64")), DONE), "looks at storage 3, which nobody"),
    "a condition that nobody wrote": (refused(loop(ends=Element(A, "bool")), DONE), "looks at storage 3, which nobody"),
    "a size that is no whole number": (refused(Bind("k", Element(X, "float32")), DONE), "no such whole numbers"),
    "a size of another type": (refused(Bind("k", Element(IDS, "int32")), DONE), "takes input 1 for int32"),
    "an output of one branch": (refused(If("n", (DONE,))), "never writes output 'y0'"),
    "an output of a loop": (refused(loop(DONE)), "never writes output 'y0'"),
    "carried storages of two sizes": (
        refused(loop(call("twice", A, WIDE), carried=(Carried(X, A, WIDE),)), DONE),
        r"carries storages of 4\*n, 4\*n, 8\*n bytes"),
    "a carried storage that begins with less": (
        refused(loop(call("twice", A, B), carried=(Carried(IDS, A, B),)), DONE), r"carries storages of 16, 4\*n, 4\*n bytes"),
    "a carried output": (refused(loop(call("twice", Y, A), carried=(Carried(X, Y, A),))), "not both of one arena"),
    "a carried value that begins as nothing": (
        refused(loop(COPIES, carried=(Carried(A, A, B),)), DONE),
        "begins with storage 3"),
    "one storage for both halves": (refused(loop(call("twice", A, A), carried=(Carried(X, A, A),)), DONE), "two values in one"),
    "a start that is carried": (

               refused(loop(carried=(Carried(X, A, B), Carried(B, WIDE, Y))), DONE), "begins with storage 4, which it carries"),
    "a trip that writes nothing for the next": (refused(loop(carried=(Carried(X, A, B),)), DONE), "does not write storage 4"),
    "what the next trip has, read": (
        refused(loop(call("twice", B, B), carried=(Carried(X, A, B),)), DONE), "read what nobody has written"),
    "half of what was carried, after the loop": (
        refused(loop(COPIES, carried=(Carried(X, A, B),)), call("twice", B, Y)), "read what nobody has written"),
    "a device that is not there": (refused(replace(DONE, device="cuda:1")), "on device 'cuda:1', which is not there"),
    "a device in a region that is not there": (
        refused(If("n", (replace(DONE, device="gpu"),), (DONE,))), "on device 'gpu', which is not there"),
    "a memory that is not there": (
        refused(DONE, storages=(*refused().storages, Storage("arena", 0, ZERO, ONE, "gpu"))), "in memory 'gpu', which is not"),
    "an arena of a memory that is not there": (refused(DONE, arenas={HOST: N, "gpu": N}), "an arena in memory 'gpu'"),
    "no arena": (refused(DONE, arenas={}), "an arena of 'host', which it does not have"),
    "a step that waits for a later one": (
        refused(replace(DONE, after=(2,)), call("twice", X, A)), "wait for one that is not before it"),
    "a step that waits for itself": (refused(replace(DONE, after=(1,))), "wait for one that is not before it"),
    "a step that does not wait for a value": (
        refused(call("twice", X, A), replace(call("twice", A, Y), after=(0,))), "not wait for step 1, whose storages"),
    "a write that does not wait for a reader": (
        refused(call("twice", X, A), call("twice", A, Y), replace(call("twice", X, A), after=(1,))), "not wait for step 2"),
    "a copy that does not wait": (refused(call("twice", X, A), Copy(A, Y, 4 * N, after=())), "not wait for step 1"),
    "regions too deep": (refused(nested(MAX_NESTING), DONE), "nested deeper than 8"),
    "an argument in a region that is not there": (
        refused(If("n", (call("twice", X, 99),)), DONE),
        "storage that does not exist"),
    "a carried storage that is not there": (refused(loop(carried=(Carried(99, A, B),)), DONE), "storage that does not exist"),
    "a kernel in a region that is not there": (
        refused(loop(replace(COPIES, kernel="abort")), DONE), "'abort', which is no kernel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_structure_is_checked(made: Callable[..., Executable], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, words = REFUSED[name]
    monkeypatch.setattr("tsc.runtime.executable.CpuModule", lambda *a: pytest.fail("the binary was loaded"))
    with pytest.raises(PackageError, match=words) as caught:
        made(plan)
    assert "\n" not in str(caught.value)


def test_devices_and_memories_that_are_there() -> None:
    """A plan for two devices, with an arena for each and copies between: nothing runs it yet, but it can be said."""
    p = Making()
    y, t, u = p.output(), p.arena(), p.arena()
    storages = [replace(s, space="gpu", offset=ZERO) if i == t else s for i, s in enumerate(p.storages)]

    def plan(*body: Step) -> Plan:
        return replace(p.plan(*body), storages=tuple(storages), arenas={HOST: p.end, "gpu": 4 * N})

    there, twice, back = Copy(X, t, 4 * N), call("twice", t, t, device="gpu"), Copy(t, y, 4 * N)
    module = ModuleInterface("cpu-generic", (), INTERFACES)
    devices = {"cpu": HOST, "gpu": "gpu"}
    check_plan(plan(there, twice, back), {}, module, "it", devices)
    with pytest.raises(PackageError, match="in memory 'gpu', which is not there"):
        check_plan(plan(there, twice, back), {}, module, "it")
    wrong: list[tuple[tuple[Step, ...], str]] = [
        ((there, call("twice", t, u), back), "on 'cpu' a storage in memory 'gpu'"),
        ((there, call("twice", X, t, device="gpu"), back), "on 'gpu' a storage in memory 'host'"),
        ((there, twice, back, If(Element(t, "bool"), ())), "in memory 'gpu'; copy it to 'host' first"),
        ((there, back, loop(COPIES, carried=(Carried(X, t, u),))), "not both of one arena")]
    for body, words in wrong:
        with pytest.raises(PackageError, match=words):
            check_plan(plan(*body), {}, module, "it", devices)


def test_too_many_regions() -> None:
    many = refused(DONE, *(If("n", ()) for _ in range(2100)))
    with pytest.raises(PackageError, match="more than 4096 regions"):
        check_plan(many, {}, ModuleInterface("cpu-generic", (), INTERFACES), "it")


def test_a_plan_that_is_not_refused(made: Callable[..., Executable]) -> None:
    """What the refused ones are made of is right by itself; dependences may be named."""
    step = call("twice", X, A)
    for body in ((DONE,), (FIRST, DONE), (nested(MAX_NESTING - 1), DONE),
                 (step, replace(call("twice", A, Y), after=(1,))),
                 (step, call("twice", A, Y), replace(call("twice", X, A), after=(1, 2))),
                 (step, FIRST, replace(call("twice", A, Y), after=())),
                 (loop(COPIES, carried=(Carried(X, A, B),)), call("twice", A, Y)),
                 (step, loop(COPIES, carried=(Carried(A, A, B),)), call("twice", A, Y))):
        plan = refused(*body)
        for n in (0, 1, 2, 5):
            check(made(plan), plan, request(n))


NUMBERS: dict[str, tuple[Plan, str]] = {
    "too many elements in a branch": (refused(If("n", (call("twice", X, A, n=N + 1),)), DONE), "its buffer has"),
    "too many elements in some trip": (
        refused(Bind("k", Element(IDS, "int64")), loop(call("twice", X, A, n=dim("i") * K), trips=SymExpr.of(9)), DONE),
        "its buffer"),
    "a computed size that is too large": (refused(FIRST, call("twice", X, A, n=N + K - 2), DONE), "its buffer has"),
    "a copy of too much": (refused(FIRST, If("n", (Copy(X, A, 4 * N + K),)), DONE), "copies 23 bytes from 20 to 20"),
    "a storage in a region out of the arena": (
        refused(If("n", (call("twice", X, A),)), DONE, arenas={HOST: SymExpr.of(64)}), "outside the arena"),
    "what is carried beside what a trip makes": (
        refused(loop(call("twice", A, WIDE), call("twice", WIDE, B), carried=(Carried(X, A, B),)), DONE,
                storages=(*refused().storages[:5], Storage("arena", 0, ZERO, 8 * N))), "two values in the same place"),
    "what a loop reads beside what a trip makes after that": (
        refused(call("twice", X, A), loop(call("twice", A, Y), call("twice", X, B)), DONE,
                storages=(*refused().storages[:4], Storage("arena", 0, ZERO, 4 * N), refused().storages[5])),
        "two values in the same"),
}

@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked(made: Callable[..., Executable], name: str) -> None:
    plan, words = NUMBERS[name]
    executable = made(plan)
    with pytest.raises(PackageError, match=words) as caught:
        executable.run(None, request(5, (3, 0)))
    assert "n=5" in str(caught.value)


def test_branches_may_share_memory(made: Callable[..., Executable]) -> None:
    """What one branch has may lie where the other has its own, and where what is no longer used did."""
    plan = refused(
        call("twice", X, WIDE), call("sum", X, WIDE, Y),
        If("n", (call("twice", X, A), call("twice", A, Y)), (call("twice", X, B), call("twice", B, Y))))
    same = [replace(s, offset=ZERO) if s.kind == "arena" else s for s in plan.storages]
    plan = replace(plan, storages=tuple(same))
    for n in (0, 1, 9):
        check(made(plan), plan, request(n))
