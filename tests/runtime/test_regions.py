"""Plans with branches, loops and sizes that are computed, against NumPy; what the verifier refuses of them; their JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.runtime.plans import with_calls
from tests.runtime.random_regions import random_plan
from tests.runtime.region_plans import (
    IDS,
    PLANS,
    K,
    Making,
    N,
    X,
    call,
    check,
    content_plan,
    guard_plan,
    loop_plan,
    request,
)
from tsc.errors import InputError, LaunchError, PackageError, ShapeError
from tsc.runtime import interpret
from tsc.runtime.executable import Executable
from tsc.runtime.plan import (
    HOST,
    Bind,
    Element,
    Eval,
    If,
    Storage,
)
from tsc.runtime.plan_json import plan_from_json, plan_to_json
from tsc.sym import Range, SymExpr, parse


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", PLANS)
def test_as_numpy_says(made: Callable[..., Executable], name: str, threads: int) -> None:
    plan = PLANS[name]()
    executable = made(plan, threads)
    for n in (0, 1, 4, 5, 7, 8, 9, 17, 33):
        for ids in ((0, 0), (1, 0), (1, 1)) if name == "copy" else ((0, 0), (1, 1), (2, 1), (3, 2), (7, 5), (12, 0)):
            check(executable, plan, request(n, ids, seed=n))


def test_each_branch_is_taken(made: Callable[..., Executable]) -> None:
    x = np.array([3, 3, 3, -5, 1], np.float32)
    run = lambda x: made(PLANS["if"]()).run(None, {"x": x, "ids": np.zeros(2, np.int64)})[0]  # noqa: E731
    np.testing.assert_array_equal(run(x), 2 * x + 1)
    np.testing.assert_array_equal(run(x + 1), x + 8)  # a sum of 10
    np.testing.assert_array_equal(run(x[:4]), 2 * x[:4] + 4)


def test_trips(made: Callable[..., Executable]) -> None:
    x = np.arange(5, dtype=np.float32)
    executable = made(loop_plan())
    state = x
    for trips in range(12):
        found = executable.run(None, {"x": x, "ids": np.array([trips, 0])})[0]
        np.testing.assert_array_equal(found, state + x)
        state = 2 * state + 1 if trips % 3 == 2 else state + trips


def test_a_loop_ends_by_its_condition_or_its_trips(made: Callable[..., Executable]) -> None:
    executable = made(PLANS["while"]())
    ids = np.zeros(2, np.int64)
    for x, trips, still in (([999.0], 1, False), ([1000.0], 0, False), ([0.0], 10, False), ([-1.0], 100, True)):
        y, flag = executable.run(None, {"x": np.array(x, np.float32), "ids": ids})
        state = np.float32(x[0])
        for _ in range(trips):
            state = 2 * state + 1
        assert (y[0], bool(flag[0])) == (state, still)
    with pytest.raises(InputError, match=r"not a number \(in the kernel of node 'the below'\)"):
        executable.run(None, {"x": np.array([np.nan], np.float32), "ids": ids})
    executable.run(None, {"x": np.array([1.0], np.float32), "ids": ids})  # still works


def test_loops_that_never_end(made: Callable[..., Executable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpret, "MAX_TRIPS", 50)
    with pytest.raises(InputError, match="more than 50 trips"):
        made(PLANS["while"]()).run(None, request(1) | {"x": np.array([-1], np.float32)})
    with pytest.raises(InputError, match="more than 50 trips"):  # all loops together
        made(PLANS["nested"]()).run(None, request(3, (9, 9)))


def launched(executable: Executable, feeds: dict[str, np.ndarray]) -> tuple[int, Exception | None]:
    """How many launches a request makes, and how it ends."""
    module = executable._engine.module
    real, count = module.call, 0

    def call(image: int, bases: bytes, table: int, pointers: int, begin: int, end: int, *rest: int) -> int:
        nonlocal count
        count += end - begin
        return int(real(image, bases, table, pointers, begin, end, *rest))

    module.call = call
    try:
        executable.run(None, feeds)
    except (ShapeError, PackageError) as error:
        return count, error
    finally:
        module.call = real
    return count, None


@pytest.mark.parametrize("positive", [0, 1, 3, 4])
def test_a_size_from_memory(made: Callable[..., Executable], positive: int) -> None:
    """None, at the bound, and above it: then nothing is launched that comes later."""
    x = np.array([1.0] * positive + [-1.0] * (7 - positive), np.float32)
    feeds = {"x": x, "ids": np.zeros(2, np.int64)}
    for plan, words in ((content_plan(SymExpr.of(3)), r"'m' is 4, above 3 = 3 \(the positive elements\)"),
                        (content_plan(N // 2), r"'m' is 4, above \(n // 2\) = 3 \(the positive elements\)"),
                        (content_plan(None, Range(0, 3)), r"'m' is 4, outside 0..3 \(the positive elements\)")):
        count, error = launched(made(plan), feeds)
        if positive <= 3:
            assert error is None and count == 4
            y, _ = made(plan).run(None, feeds)
            np.testing.assert_array_equal(y, np.ones(positive, np.float32))
        else:
            assert isinstance(error, ShapeError) and count == 1
            with pytest.raises(ShapeError, match=words):
                made(plan).run(None, feeds)


def test_a_guard_in_a_region(made: Callable[..., Executable]) -> None:
    executable = made(guard_plan())
    for ids in ((0, 9), (9, 9), (9, 0), (1, 1)):
        assert launched(executable, request(5, ids)) == (1, None)
    count, error = launched(executable, request(5, (4, 5)))
    assert count == 0 and isinstance(error, ShapeError)
    assert "the model needs l <= k (the slice of node 'cut'), but 5 <= 4 does not hold at k=4, l=5" in str(error)
    many = request(60)
    many["x"][:] = 1
    with pytest.raises(ShapeError, match="the slice of node 'cut'"):
        made(content_plan()).run(None, many)


@pytest.mark.parametrize("content", [-1, 101, -(1 << 63), (1 << 63) - 1])
def test_contents_out_of_range(made: Callable[..., Executable], content: int) -> None:
    with pytest.raises(ShapeError, match=r"'k' is -?\d+, outside 0..100 \(the trips\)"):
        made(loop_plan()).run(None, request(4, (content, 0)))


def test_an_element_that_is_not_there(made: Callable[..., Executable]) -> None:
    p = Making()
    y = p.output()
    plan = p.plan(Bind("k", Element(IDS, "int64", N)), If("k", (call("sum", X, X, y),), (call("twice", X, y),)))
    executable = made(plan)
    for n in (0, 1):
        check(executable, plan, request(n, (3, 0)))
    for n in (2, 3):
        with pytest.raises(PackageError, match=f"looks at element {n} of 16 bytes of int64"):
            executable.run(None, request(n))


@pytest.mark.parametrize("value, words", [
    ("n // (k - 1)", "divided by zero at k=1"), ("k*k*k*k*k*k*k*k*k*k*k*k", "beyond any")])
def test_values_that_are_none(made: Callable[..., Executable], value: str, words: str) -> None:
    p = Making()
    y = p.output()
    k = Bind("k", Element(IDS, "int64"))
    plan = p.plan(k, Eval("e", parse(value)), call("shift", X, y, sizes=[parse("max(e, 0)")]))
    check(made(plan), plan, request(4, (3, 0)))
    with pytest.raises(ShapeError, match=words):
        made(plan).run(None, request(4, (1 if "//" in value else 1 << 40, 0)))
    executable = made(p.plan(Eval("f", parse("10 // (n - 1)")), k, call("shift", X, y, sizes=[parse("f")])))
    executable.run(None, request(4))
    with pytest.raises(ShapeError, match="divided by zero at n=1"):
        executable.run(None, request(1))


@pytest.mark.parametrize("size", [N - 4, K - 4])
def test_shapes_that_are_none(made: Callable[..., Executable], size: SymExpr) -> None:
    """Two sizes below nothing would make a product that is a number of bytes; a reshape to them is an error of NumPy's."""
    p = Making()
    y = p.output(size, size)
    plan = p.plan(Bind("k", Element(IDS, "int64"), Range(0, 9)), call("twice", X, y, n=size * size))
    executable = made(plan)
    for n in (1, 3):
        with pytest.raises(ShapeError, match=r"output 'y0' would have the shape \[-"):
            executable.run(None, request(n, (n, 0)))


def test_many_threads(made: Callable[..., Executable]) -> None:
    """Each run has its own names, places and memory."""
    plans = {name: PLANS[name]() for name in ("loop", "content", "nested")}
    executables = {name: made(plan, 2) for name, plan in plans.items()}
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            name = str(rng.choice(list(plans)))
            feeds = request(int(rng.integers(0, 40)), rng.integers(0, 6, 2).tolist(), seed)
            try:
                check(executables[name], plans[name], feeds)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_scratch_of_a_computed_size(made: Callable[..., Executable]) -> None:
    """It is taken when it is known, and has no upper end before."""
    p = Making()
    y, found = p.output(), p.arena(SymExpr.of(8))
    counted = with_calls(call("count", X, found), scratch=K * 8 + 8)
    plan = p.plan(Bind("k", Element(IDS, "int64")), counted, call("twice", X, y))
    executable = made(plan)
    for k in (0, 100_000, 3, 1_000_000):
        check(executable, plan, request(5, (k, 0)))
    with pytest.raises(LaunchError, match="not enough memory"):
        executable.run(None, request(5, (1 << 42, 0)))
    check(executable, plan, request(5, (100, 0)))
    assert "k" in str(executable.peak_bytes())
    with pytest.raises(ShapeError, match="no upper end is declared for k"):
        executable.peak_bytes(n=5)


EXPLAINED = """\
  bind k in 0..100: int64 0 of input 'ids' (the trips)
  loop i < k
    carry arena+0 from input 'x', next in arena+64
    let third = ((i + 1) % 3)
    if third
        0 shift (node 'the shift'): blocks 2, sizes 9, i, scratch 0
          arena+0, arena+64
    else
        1 twice (node 'the twice'): blocks 2, sizes 9, scratch 0
          then blocks 9, sizes 9, scratch 4
            by way of 36 bytes at arena+128
          arena+0, arena+64
    2 sum (node 'the sum'): blocks 2, sizes 9, scratch 0
      arena+0, input 'x', output 'y0'"""


def test_what_is_explained(made: Callable[..., Executable]) -> None:
    assert EXPLAINED in made(loop_plan()).explain(n=9)


def test_what_an_executable_says_of_regions(made: Callable[..., Executable]) -> None:
    for name in PLANS:
        executable = made(PLANS[name](), 2)
        high = executable.peak_bytes()
        assert isinstance(high, int) and high >= int(executable.peak_bytes(n=9)) > 0
        executable.prepare()
        executable.prepare(2, n=33)
        assert executable.explain() and executable.explain(n=9) and executable._repr_html_() and repr(executable)
        times = executable.profile(request(9, (1, 1)), 2)
        assert {row.kernel for row in times.kernels} == {launch.kernel for launch in executable._plan.launches}


# -- JSON ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", PLANS)
def test_json_round_trip(name: str) -> None:
    plan = PLANS[name]()
    plan = replace(plan, body=(*plan.body, replace(plan.launches[0], after=(1, 0), nodes=("a", "b"))))
    plan = replace(plan, arenas={HOST: N, "gpu": K})
    plan = replace(plan, storages=(*plan.storages, Storage("arena", 0, N, K, "gpu")))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_json_round_trip_of_random_plans() -> None:
    for seed in range(60):
        plan = random_plan(seed)
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_json_that_is_no_plan() -> None:
    good = plan_to_json(loop_plan())
    loop = next(step for step in good["body"] if step["step"] == "loop")
    changes: list[tuple[dict[str, Any], str, Any, str]] = [
        (good, "version", 3, "plan version 3, expected 12"), (good, "body", None, "body"),
        (loop, "step", "while", "a step is 'while', expected one of bind, eval"), (loop, "trips", "n*", "trips"),
        (loop, "condition", [1, "int64"], "an element"), (loop, "carried", [[1, 2]], "carries"), (loop, "extra", 1, "extra"),
        (loop, "body", [loop], "nested deeper"), (good, "arenas", {"host": -1.5}, "arena"), (loop, "index", 3, "index")]
    for holder, key, value, words in changes:
        old = holder.get(key)
        holder[key] = value
        with pytest.raises(ValueError, match=words):
            plan_from_json(good)
        holder[key] = old
        if old is None:
            del holder[key]
            if key == "condition":
                holder[key] = None
    assert plan_from_json(good) == loop_plan()
