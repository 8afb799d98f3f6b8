"""Host programs: the numbers of the Binder at every shape, or none (`tests/hosts.py` compares them, here and everywhere)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import hosts
from tests.runtime import test_tape, test_variants
from tests.runtime.conftest import expected_chain
from tests.runtime.plans import changed, plan_of, straight, with_plan
from tests.runtime.test_select import costing
from tsc.errors import TscError
from tsc.runtime.bind import Binder
from tsc.runtime.bounds import Bounds
from tsc.runtime.context import TableEngine
from tsc.runtime.cost import Cost, Rates, Work
from tsc.runtime.drivers.cpu import CpuModule
from tsc.runtime.executable import Executable
from tsc.runtime.host_program import HostProgram
from tsc.runtime.interface import read_interface
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import Plan, TensorSpec, Variant
from tsc.sym import Guard, Range, SymExpr, ceildiv, dim, sym_max

N = dim("n")
module = test_variants.module  # the fixture


Code = Callable[[Plan], TableEngine]


def program(engine: TableEngine) -> HostProgram:
    assert engine._host is not None
    return engine._host


@pytest.fixture(scope="session")
def code(binary: bytes) -> Code:
    """The engine of a Plan, which nobody checks."""
    loaded, interface = CpuModule(binary, "cpu-generic"), read_interface(binary)

    def engine(plan: Plan) -> TableEngine:
        bounds = Bounds(plan, (), interface.kernels, "the plan")
        return TableEngine(Binder(plan, bounds), bounds, loaded, (), 1)

    return engine


def over(size: tuple[SymExpr, ...], outputs: list[SymExpr], *guards: Guard) -> Plan:
    """An input of this shape, and outputs of these sizes, which nothing writes."""
    names = sorted(frozenset().union(*(s.dims() for s in size)))
    return straight((TensorSpec("x", "float32", size),),
                    tuple(TensorSpec(f"y{k}", "float32", (s,)) for k, s in enumerate(outputs)),
                    dict.fromkeys(names, Range(0)), guards)


THREE = tuple(map(dim, test_tape.NAMES))
SIZES = st.one_of(st.integers(0, 99), st.sampled_from((1 << 20, (1 << 31) + 1, 1 << 40, (1 << 47) - 1)))


@given(st.lists(test_tape.EXPRS, max_size=4), st.lists(test_tape.EXPRS, min_size=2, max_size=2), st.sampled_from(("==", "<=")),
       st.tuples(SIZES, SIZES, SIZES))
def test_any_expressions(code: Code, sizes: list[SymExpr], sides: list[SymExpr], relation: str,
                         shape: tuple[int, int, int]) -> None:
    """Numbers, negative extents, divisions by zero, Guards, sizes of which products do not fit 64 bits."""
    engine = code(over(THREE, sizes, Guard(relation, *sides, "node")))
    for each in (shape, (1, 2, 3), (0, 0, 0)):
        engine.bind((each,))


def test_what_is_beyond_64_bits_is_left_to_the_binder(code: Code) -> None:
    a, b, c = THREE
    large = 1 << 40
    plan = over(THREE, [sym_max(a, a * b * c * b * c) // (b * b * c * c)])
    assert code(plan).bind(((3, large, large),)) is None
    assert Binder(plan).bind([3, large, large]).outputs == ((3,),)
    plan = over(THREE, [sym_max(a, b * (1 << 70)) // (1 << 70)])  # with a constant that is none
    assert code(plan)._host is None and code(plan).bind(((3, 4, 5),)) is None
    assert Binder(plan).bind([3, 4, 5]).outputs == ((4,),)


@pytest.mark.parametrize(("size", "extents", "dims"), [
    (N * 2 + 1, (7, 1, 0, 8), (3, 0, None, None)), (N * 3 - 2, (1, 7, 0), (1, 3, None)), (N, (0, 5), (0, 5))])
def test_dims_that_are_solved_for(code: Code, size: SymExpr, extents: tuple[int, ...], dims: tuple[int | None, ...]) -> None:
    engine = code(over((size,), [N]))
    for extent, n in zip(extents, dims):
        found = engine.bind(((extent,),))
        assert (None if found is None else found.outputs) == (None if n is None else ((n,),))


RATE = st.one_of(st.integers(0, 999), st.integers(0, (1 << 62) - 1))
BY_KIND = st.dictionaries(st.sampled_from(("blocks", "rows", "none")), RATE, max_size=3).map(lambda d: tuple(d.items()))
SEEN = st.dictionaries(st.tuples(st.integers(1, 5), st.integers(0, 1 << 62)), st.integers(0, 3000), max_size=6).map(
    lambda d: tuple((*place, ratio) for place, ratio in sorted(d.items())))
RATES = st.builds(Rates, RATE, BY_KIND, BY_KIND, BY_KIND, st.integers(1, 4), SEEN)


@given(st.lists(RATES, min_size=2, max_size=2), st.integers(0, 1 << 20), st.integers(1, 5))
@settings(max_examples=50)
def test_what_runs_is_what_costs_least(module: Module, rates: list[Rates], size: int, threads: int) -> None:
    """To the last bit: costs that nearly agree are decided alike."""
    def variant(function: str, blocks: SymExpr, scratch: int, own: Rates) -> Variant:
        made = costing(function, blocks, 0, 0, scratch)
        return replace(made, calls=tuple(replace(c, cost=Cost(own, (Work("rows", N),))) for c in made.calls))

    variants = (variant("one_by_one", N, 0, rates[0]), variant("by_eights", ceildiv(N, 8), 8, rates[1]))
    package = Package({"cpu-generic": test_variants.plan(*variants)}, {}, {"cpu-generic": module})
    engine = Executable(package, threads)._engine
    for n in (size, 1, 0, 8, 9):
        assert engine.bind(((n,),)) is not None


def requests(seed: int) -> tuple[tuple[int, ...], ...]:
    rng = random.Random(seed)
    n, c = rng.randint(1, 40), rng.randint(1, 64)
    return (n + (n + c) % 2, c), (c,)


def altered(table: np.ndarray, rng: random.Random) -> np.ndarray:
    """The table with one number replaced by one that comes after it."""
    made = table.copy()
    flat = made.view(np.int32).reshape(-1)
    place = rng.randrange(len(flat))
    flat[place] = flat[(place + rng.randint(1, 3)) % len(flat)]
    return made


@pytest.mark.parametrize(("name", "least"), [
    ("operation", 0.6), ("check", 0.2), ("extent", 0.6), ("size", 0.6), ("argument", 0.6)])
def test_a_wrong_program_is_told_from_the_binder(chain: Package, name: str, least: float) -> None:
    """What compares the two everywhere notices numbers in the wrong place; conditions are often implied by others."""
    made = Executable(chain, 1)
    own = program(made._engine)
    right, tried, noticed = own._tables[name], 0, 0
    shapes = [*map(requests, range(20)), ((3, 4), (4,)), ((65, 65), (65,)), ((0, 2), (2,)), ((2, 2), (4,))]
    for seed in range(60):
        table = altered(right, random.Random(seed))
        if np.array_equal(table, right):
            continue
        own._tables[name] = table
        setattr(own._program, name, table.ctypes.data)
        tried += 1
        noticed += any(_differs(made._engine, shape) for shape in shapes)
    assert noticed >= least * tried > 0


def _differs(engine: TableEngine, shapes: tuple[tuple[int, ...], ...]) -> bool:
    try:
        engine.bind(shapes)
    except hosts.DisagreementError:
        return True
    return False


def test_plans_that_leave_what_is_theirs_are_refused(chain: Package) -> None:
    """What the Binder's Bounds refuse, host programs do at the same shapes; at others both run."""
    plan = plan_of(chain)
    first, second = plan.launches
    call, = first.calls
    n, c = dim("n"), dim("c")

    def launches(**changes: SymExpr) -> Plan:
        return changed(plan, launches=(replace(first, variants=(Variant((replace(call, **changes),)),)), second))

    spare, late = plan.storages[2], n // 5
    for broken in (
            launches(blocks=n + late), launches(scratch=4 * c - 4 * late),
            changed(plan, launches=(replace(first, sizes=(n, c + late)), second)),
            changed(plan, arena_bytes=4 * n * c + 64 - 4 * late),
            changed(plan, copies=(replace(plan.copies[0], bytes=4 * n * c - 4 * late),)),
            changed(plan, storages=(*plan.storages[:2], replace(spare, offset=64 + late), *plan.storages[3:]))):
        made = Executable(with_plan(chain, broken), 1)
        assert made._engine.bind(((3, 5), (5,))) is not None and made._engine.bind(((7, 5), (5,))) is None
        with pytest.raises(TscError):
            made._binding(((7, 5), (5,)))


def test_a_call_is_what_launches_make(chain: Package) -> None:
    made = Executable(chain, 2)
    for seed in range(5):
        shape, row = requests(seed)
        x, w = np.random.default_rng(seed).random(shape, np.float32), np.ones(row, np.float32)
        y, z = made.run(None, {"x": x, "w": w})
        np.testing.assert_array_equal(y, expected_chain(x, w))
        np.testing.assert_array_equal(z, x)
    assert made.stats["shapes"] == 5
