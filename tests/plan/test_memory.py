"""The memory plan: two values that live at once never overlap, at any size, and memory is reused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsc.plan import memory
from tsc.plan.memory import Lifetime, MemoryPlan, plan_memory
from tsc.sym import Range, ShapeEnv, SymExpr, dim, sym_max

B, L, H = dim("b"), dim("l"), dim("h")
SIZES = [SymExpr.of(4), SymExpr.of(4096), 4 * B * L, 1536 * B * L, 4 * B * H * L * L, 2 * B, B * L, sym_max(B, L) * 3, L * L]


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    count = draw(st.integers(0, 14))
    result = []
    for i in range(count):
        first = draw(st.integers(0, 12))
        result.append(Lifetime(f"v{i}", draw(st.sampled_from(SIZES)), first, first + draw(st.integers(0, 6))))
    return result


def check(values: list[Lifetime], plan: MemoryPlan, env: dict[str, int]) -> int:
    """No overlap at `env`, all inside the arena, all aligned. Returns the arena's size."""
    arena = plan.arena_bytes.evaluate(env)
    spans = {}
    for v in values:
        begin = plan.offsets[v.name].evaluate(env)
        spans[v.name] = (begin, begin + v.size.evaluate(env))
        assert begin % 64 == 0 and begin >= 0 and spans[v.name][1] <= arena
    for i, a in enumerate(values):
        for b in values[:i]:
            if a.first <= b.last and b.first <= a.last:
                (x, y), (z, w) = spans[a.name], spans[b.name]
                assert y <= z or w <= x, f"{a} and {b} overlap at {env}"
    return arena


@given(lifetimes(), st.lists(st.tuples(*[st.integers(1, 300)] * 3), min_size=1, max_size=4))
def test_no_overlap_at_any_size(values: list[Lifetime], points: list[tuple[int, int, int]]) -> None:
    plan = plan_memory(values, ShapeEnv())
    for point in points:
        check(values, plan, dict(zip("blh", point)))


def test_the_check_can_fail() -> None:
    values = [Lifetime("v", 4 * B, 0, 2), Lifetime("w", 4 * B, 2, 3)]
    overlapping = MemoryPlan({"v": SymExpr.of(0), "w": SymExpr.of(0)}, 64 * B)
    with pytest.raises(AssertionError):
        check(values, overlapping, {"b": 3})


def transformer(layers: int, width: int = 384, heads: int = 12) -> list[Lifetime]:
    """The values of an encoder with fused kernels: q, k, v, scores, context, projected, hidden, out, a layer."""
    rows, square = 4 * width * B * L, 4 * heads * B * L * L
    values = [Lifetime("x0", rows, 0, 6)]
    for layer in range(layers):
        at = 8 * layer + 1
        for i, name in enumerate("qkv"):
            values.append(Lifetime(f"{name}{layer}", rows, at + i, at + (4 if name == "v" else 3)))
        values += [
            Lifetime(f"scores{layer}", square, at + 3, at + 4), Lifetime(f"context{layer}", rows, at + 4, at + 5),
            Lifetime(f"attended{layer}", rows, at + 5, at + 7), Lifetime(f"hidden{layer}", 4 * rows, at + 6, at + 7),
            Lifetime(f"x{layer + 1}", rows, at + 7, at + 13)]
    return values


@pytest.mark.parametrize("batch, length", [(1, 7), (1, 384), (8, 64), (16, 256)])
def test_reuse_on_a_transformer(batch: int, length: int) -> None:
    values, env = transformer(6), {"b": batch, "l": length}
    arena = check(values, plan_memory(values, ShapeEnv()), env)
    total = sum(v.size.evaluate(env) for v in values)
    steps = max(v.last for v in values) + 1
    needed = max(sum(v.size.evaluate(env) for v in values if v.first <= s <= v.last) for s in range(steps))
    assert arena <= 1.6 * needed + 64 * len(values) and arena * 4 < total


def test_arena_does_not_grow_with_depth() -> None:
    shallow, deep = plan_memory(transformer(2), ShapeEnv()), plan_memory(transformer(12), ShapeEnv())
    env = {"b": 3, "l": 77}
    assert deep.arena_bytes.evaluate(env) == shallow.arena_bytes.evaluate(env)


def test_provable_order_leaves_no_maximum() -> None:
    values = [Lifetime("small", 4 * B, 0, 0), Lifetime("large", 512 * B, 1, 1), Lifetime("middle", 64 * B, 2, 2)]
    plan = plan_memory(values, ShapeEnv())
    assert plan.arena_bytes == 512 * B


def test_declared_ranges_prove_more() -> None:
    env = ShapeEnv(ranges={"l": Range(1, 16), "b": Range()})
    values = [Lifetime("square", L * L * B, 0, 0), Lifetime("row", 1024 * B * L, 1, 1)]
    assert plan_memory(values, env).arena_bytes == 1024 * B * L


def test_many_values_are_planned_quickly() -> None:
    rng = np.random.default_rng(0)
    values = [Lifetime(f"v{i}", SIZES[int(rng.integers(len(SIZES)))], i, i + int(rng.integers(1, 30))) for i in range(600)]
    check(values[:200], plan_memory(values, ShapeEnv()), {"b": 2, "l": 33, "h": 5})


def test_maps_of_a_strided_net_leave_no_maximum() -> None:
    """Each slot is as large as its largest map, whatever the image: an arena of maxima takes long to plan and to evaluate."""
    env, values = ShapeEnv(), []
    h, w = env.declare("h", 75), env.declare("w", 75)
    for level, channels in enumerate((32, 64, 64, 128)):
        h, w = (h - 1) // 2, (w - 1) // 2
        for k in range(3):
            step = 3 * level + k
            values.append(Lifetime(f"v{step}", 4 * (channels - 16 * k) * B * h * w, step, step + 2))
    plan = plan_memory(values, env)
    assert "max" not in str(plan.arena_bytes)
    for height, width in ((75, 75), (76, 211), (1000, 77)):
        check(values, plan, {"b": 3, "h": height, "w": width})


def count_calls(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[tuple[object, ...]]:
    """The arguments of each call of a method from now on, but for `self`."""
    calls: list[tuple[object, ...]] = []
    method = getattr(kind, name)

    def counted(self: object, *arguments: object) -> object:
        calls.append(arguments)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, counted)
    return calls


@pytest.mark.defect(33)
def test_no_proof_is_tried_twice_or_against_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a strided net, each a quotient of the one before: proofs of such sizes are what planning takes its time for."""
    sizes, edge = [], H
    for channels in (32, 64, 48, 96, 128, 192):
        sizes += [4 * channels * B * edge * edge, 4 * (channels + 16) * B * edge * edge]
        edge = (edge - 1) // 2 + 1
    values = [Lifetime(f"v{i}", size, i, i + 2) for i, size in enumerate(sizes * 2)]
    env = ShapeEnv()
    proofs, asked = count_calls(monkeypatch, ShapeEnv, "prove_le"), count_calls(monkeypatch, memory.Comparison, "at_most")
    plan = plan_memory(values, env)
    assert asked and len(proofs) == len(set(proofs)) < 3 * len(set(sizes))
    points = memory.sample_sizes(frozenset({"b", "h"}), env.ranges)
    assert all(a.evaluate(p) <= b.evaluate(p) for a, b in asked for p in points)
    for point in ({"b": 1, "h": 224, "l": 1}, {"b": 3, "h": 7, "l": 1}, {"b": 1, "h": 1, "l": 1}):
        check(values, plan, point)
