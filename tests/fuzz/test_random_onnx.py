"""A seeded sample of random ONNX operators; 20,000 by `python3 dev.py fuzz --onnx --count 20000`. And: the fuzzer itself can
fail, is right about what either oracle gives, and outlives what kills or delays its process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TypeProto, helper

import tsc
from tests.fuzz.operators import run
from tests.fuzz.operators.case import Case, Draft, _inferred
from tests.fuzz.operators.chains import RECIPES, large_case, random_case
from tests.fuzz.operators.check import Finding, Run, check, compiled
from tests.fuzz.operators.conventions import CONVENTIONS, convention_for
from tests.fuzz.operators.nets import random_net
from tests.fuzz.operators.oracles import Reference, Runtime
from tests.fuzz.operators.run import Tally, run_cases
from tests.fuzz.operators.values import Array, fixed, plain
from tsc.config import Precision
from tsc.ops import all_ops
from tsc.runtime.bind import Binder
from tsc.runtime.context import TableEngine
from tsc.runtime.drivers.cpu import read_cpu_flags


def _tally(*args: Any) -> Tally:
    *_, last = run_cases(*args)
    return last


def _more(value: object) -> object:
    """A parameter, or several, that take `-m slow`."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)


@pytest.mark.parametrize("numbers", [range(24), _more(range(24, 59))])
def test_a_sample(numbers: range) -> None:
    tally = _tally(7, numbers)
    assert not tally.failures, str(tally)
    assert tally.outcomes["right"] >= 0.8 * len(numbers), str(tally)
    assert not tally.outcomes["with slow kernels"], str(tally)


@pytest.mark.parametrize("numbers", [range(8), _more(range(8, 24))])
def test_a_sample_at_large_sizes(numbers: range) -> None:
    """Many blocks, and the edges of those: other cases have no size above 65."""
    tally = _tally(4, numbers, 1, compiled, large_case)
    assert not tally.failures and not tally.outcomes["with slow kernels"], str(tally)
    assert tally.outcomes["right"] >= 0.75 * len(numbers), str(tally)
    assert max(size for n in numbers for run in large_case(4, n).runs for size in run.values()) > 500


@pytest.mark.parametrize("numbers", [range(3, 4), _more(range(1, 3)), _more(range(4, 9))])
def test_a_sample_of_nets(numbers: range) -> None:
    """Of ten to a hundred nodes: what is fused, viewed and kept in memory is more than chains have."""
    tally = _tally(7, numbers, 1, compiled, random_net)
    assert not tally.failures and not tally.outcomes["with slow kernels"], str(tally)
    assert tally.outcomes["right"] == len(numbers), str(tally)
    assert max(len(random_net(7, n).nodes) for n in numbers) > 20


@pytest.mark.parametrize(("target", "precision", "numbers"), [
    ("emu:sm_80", "fp32", range(10)), _more(("emu:sm_80", "fp32", range(10, 60))),
    _more(("cpu", "bf16", range(60))), _more(("emu:sm_80", "fp16", range(60)))])
def test_a_sample_elsewhere(target: str, precision: Precision, numbers: range) -> None:
    """On the emulated GPU, and with factors that are rounded."""
    if precision == "bf16" and "avx512_bf16" not in read_cpu_flags():
        pytest.skip("this CPU has no products of bfloat16")
    tally = _tally(71, numbers, 1, compiled, partial(run.for_target, target, precision, random_case))
    assert not tally.failures and not tally.outcomes["with slow kernels"], str(tally)
    assert tally.outcomes["right"] >= 0.8 * len(numbers), str(tally)


def test_every_operator_is_drawn() -> None:
    standard = {op.name for op in all_ops() if not op.domain} - {"CastLike"}  # drawn with Cast
    assert standard <= set(RECIPES), standard - set(RECIPES)


def _cases(seed: int, count: int) -> Iterator[Case]:
    return (c for n in range(count) if not (c := random_case(seed, n)).broken)


def _drafted(op: str) -> Case:
    """x0["a"] op x1["b"] at a=3 and b=5, which is wrong, and at two equal sizes."""
    d = Draft(Random(0), 17)
    a, b = d.size(), d.size()
    d.node(op, [d.operand((a,), role="feed", draw=plain("float32")), d.operand((b,), role="feed", draw=plain("float32"))])
    sizes = {n: replace(s, fixed=False) for n, s in d.sizes.items()}
    return replace(d.finish(op, "two sizes"), runs=({a: 3, b: 5}, {a: 4, b: 4}), sizes=sizes, naming="shared")


# -- the judge -------------------------------------------------------------------------------------------------

def _oracle(kind: type[Runtime] | type[Reference]) -> Any:
    """An oracle in the place of the compiler."""
    def subject(case: Case, model: ModelProto, folder: Path | None) -> Run:
        oracle = kind(model)

        def outputs(feeds: Mapping[str, Array]) -> Sequence[Array]:
            answer = oracle.run(feeds)
            if answer.values is None:
                raise tsc.UnsupportedError(answer.refusal)
            return answer.values
        return outputs
    return subject


@pytest.mark.parametrize("seed", [8, _more(2), _more(5)])  # of the others most goes to the DeformConv that they have
def test_the_reference_is_right(seed: int) -> None:
    """Float32 by other orders of summation than ours, judged by the same tolerances: a Finding here is a fault of the judge."""
    for case in _cases(seed, 70):
        check(case, _oracle(Reference))


def _spoiled(change: Any) -> Any:
    """The reference evaluator with a planted bug, cheaper than the compiler."""
    def subject(case: Case, model: ModelProto, folder: Path | None) -> Run:
        right = _oracle(Reference)(case, model, folder)
        return lambda feeds: change([np.array(y) for y in right(feeds)])
    return subject


def _nudge(amount: float, outputs: list[Array]) -> list[Array]:
    """The largest element of each float output moved by a part of its size, one of the others by one."""
    for y in outputs:
        if y.size and y.dtype.kind == "f" and np.isfinite(y).any():
            at = np.nanargmax(np.where(np.isfinite(y), np.abs(y), -1))
            y.flat[at] = y.flat[at] * y.dtype.type(1 - amount) if y.flat[at] else amount
        elif y.size and y.dtype.kind != "f":
            y.flat[-1] = ~y.flat[-1] if y.dtype == bool else y.flat[-1] + 1
    return outputs


def test_one_wrong_element_is_found() -> None:
    """In nearly every case: what remains has no elements, or rounding and the standard leave it open."""
    cases, found = list(_cases(8, 60)), 0
    for case in cases:
        try:
            check(case, _spoiled(lambda outputs: _nudge(1e-4, outputs)))
        except Finding:
            found += 1
    assert found >= 0.85 * len(cases), f"{found} of {len(cases)}"


def test_a_wrong_integer_among_halves_is_found() -> None:
    """Bytes interpolated to twice their number: a quarter are halves, which may go either way, and no further."""
    d = Draft(Random(0), 17)
    x = d.operand((1, 1, 12, 12), "uint8", plain("uint8"), role="feed")
    scales = d.constant(fixed([1.0, 1.0, 2.0, 2.0], "float32"), (4,), "float32")
    d.node("Resize", [x, "", scales], mode="linear", coordinate_transformation_mode="asymmetric")
    case = d.finish("Resize", "halves")
    check(case)

    def wrong(outputs: list[Array]) -> list[Array]:
        outputs[0].flat[7] += np.uint8(2)
        return outputs

    with pytest.raises(Finding, match="instead of"):
        check(case, _spoiled(wrong))


@pytest.mark.parametrize(("dtype", "large"), [("int32", 2**31 - 1), ("int64", 2**62 + 1), ("int64", 2**53 + 1)])
def test_a_wrong_einsum_of_large_integers_is_found(dtype: str, large: int) -> None:
    """ONNX Runtime sums what one operand alone has in doubles, and cuts it; the standard's sum is still one number."""
    d = Draft(Random(0), 17)
    x = d.operand((2, 3), dtype, fixed([[1, -2, 3], [4, 5, -6]], dtype), "feed")
    y = d.operand((3, 2), dtype, fixed([[large, large], [1, 2], [3, -4]], dtype), "feed")
    d.node("Einsum", [x, y], equation="di,ih->")
    case = d.finish("Einsum")
    verdict = check(case)
    assert verdict.right and set(verdict.conventions) == {"integers of one operand whose sum is large"}
    for wrong in (_oracle(Runtime), _spoiled(lambda outputs: _nudge(0, outputs))):
        with pytest.raises(Finding, match="instead of"):
            check(case, wrong)


@pytest.mark.parametrize(("equation", "fits"), [
    ("di,ih->", True), ("di,ih->d", True), ("id->i", True), ("ii", True), ("di,ih->dh", False), ("ih,hi", False), ("id", False),
    ("...i,...i->...", False)])
def test_the_convention_of_einsum_is_of_sums_of_one_operand(equation: str, fits: bool) -> None:
    """Products and their sums wrap around in both oracles."""
    large = np.full((2, 2), 2**31 - 1, np.int32)
    inputs = [large] * (1 + equation.count(","))
    node = helper.make_node("Einsum", ["x", "y"][:len(inputs)], ["z"], equation=equation)
    assert (convention_for([(node, inputs)], 17) is not None) == fits
    assert convention_for([(node, [x // 2**24 for x in inputs])], 17) is None


@pytest.mark.parametrize("op", ["Sqrt", "Floor"])
def test_what_is_nothing_but_rounding_may_jump(op: str) -> None:
    """The root of what two computations of one value differ by is a number or none, by chance, at each of thousands of
    elements; that of what differs by more is a number."""
    d = Draft(Random(0), 17)
    x = d.operand((100, 63), role="feed", draw=plain("float32"))
    first, = d.node("Sigmoid", [x])
    passed, = d.node("Identity", [first])
    left, = d.node("Sub", [passed, first])
    shift = d.operand((100, 1), "float32", fixed(np.arange(100) % 2, "float32"), "initializer")
    d.node(op, [d.node("Add", [left, shift])[0]])
    case = d.finish(op, "nothing but rounding")

    def by_chance(every: int) -> Any:
        def change(outputs: list[Array]) -> list[Array]:
            outputs[0][::every][np.random.default_rng(5).random((100 // every, 63)) < 0.5] = np.nan if op == "Sqrt" else -1
            return outputs
        return change

    check(case, _spoiled(by_chance(2)))  # rows whose shift is 0
    with pytest.raises(Finding, match="instead of"):
        check(case, _spoiled(by_chance(1)))


def test_operands_swapped_are_found() -> None:
    def swapped(case: Case, model: ModelProto, folder: Path | None) -> Run:
        other = ModelProto()
        other.CopyFrom(model)
        other.graph.node[-1].input.reverse()
        return compiled(case, other, folder)

    case = replace(_drafted("Sub"), broken="")
    check(case)
    with pytest.raises(Finding, match="instead of"):
        check(case, swapped)


def test_another_shape_or_type_is_found() -> None:
    case = _drafted("Add")
    for change in (lambda ys: [y[None] for y in ys], lambda ys: [y.astype("complex64") for y in ys]):
        with pytest.raises(Finding, match="instead of"):
            check(case, _spoiled(change))


def test_a_guard_less_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Reshape into two rows of what has an odd number of elements: both oracles refuse, so must we."""
    d = Draft(Random(0), 17)
    a, b = d.size(), d.size()
    d.node("Reshape", [d.operand((a, b), role="feed"), d.operand((2,), "int64", fixed([2, -1]), "initializer")])
    sizes = {n: replace(s, fixed=False) for n, s in d.sizes.items()}
    case = replace(d.finish("Reshape", "an odd number"), runs=({a: 3, b: 5}, {a: 3, b: 4}), sizes=sizes, naming="shared")
    verdict = check(case)
    assert verdict.rightly_refused and verdict.right == 1
    monkeypatch.setattr(TableEngine, "bind", lambda *_: None)
    monkeypatch.setattr(Binder, "_check_guards", lambda self, values: None)
    with pytest.raises(Finding, match="what both oracles refuse"):
        check(case)


def test_an_error_without_a_type_is_found() -> None:
    case = _drafted("Add")
    for error in (ValueError("no"), tsc.InternalError("ours")):
        def failing(*args: Any, error: Exception = error) -> Run:
            raise error

        with pytest.raises(Finding, match=type(error).__name__):
            check(case, failing)


def test_conventions_have_their_reasons() -> None:
    for entry in CONVENTIONS:
        assert entry.side in ("runtime", "reference", "open") and len(entry.why) > 30 and entry.situation


# -- the process -----------------------------------------------------------------------------------------------

def test_what_dies_or_hangs_is_counted_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 1.5)
    titles = {random_case(4, n).title for n in range(3)}
    assert len(titles) == 3
    first, second = random_case(4, 0), random_case(4, 1)

    def deadly(case: Case, model: ModelProto, folder: Path | None) -> Run:
        op = model.graph.node[-1].name
        if op == first.nodes[-1].name:
            os.abort()
        if op == second.nodes[-1].name:
            time.sleep(60)
        return _oracle(Reference)(case, model, folder)

    tally = _tally(4, range(3), 1, deadly)
    assert any("SIGABRT" in why for why in tally.failures) and any("no end" in why for why in tally.failures), str(tally)
    assert tally.outcomes["FOUND"] == 2 and sum(tally.outcomes[k] for k in ("right", "rightly refused", "refused")) == 1


def test_a_broken_model_may_kill_the_inference_of_types_and_not_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-9)  # onnx 1.22 reads what is not there
    feeds = [helper.make_tensor_value_info(name, kind, [3, 2]) for name, kind in (("x", 1), ("i", 7))]
    model = helper.make_model(helper.make_graph([node], "g", feeds, [helper.make_value_info("y", TypeProto())]))
    assert {t.tensor_type.elem_type for t in _inferred(model, broken=True).values()} <= {0, 1}
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda _: os.kill(os.getpid(), signal.SIGSEGV))
    assert _inferred(model, broken=True) == {}


def test_the_command_shows_one_case(capsys: pytest.CaptureFixture[str]) -> None:
    number = next(n for n in range(100) if random_case(4, n).title == "Relu" or not random_case(4, n).broken)
    assert run.main(["--seed", "4", "--only", str(number)]) in (0, 1)
    shown = capsys.readouterr().out
    assert "ir_version" in shown and "run 0" in shown

