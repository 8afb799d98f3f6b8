"""`Executable.run_many`: several requests as one run give what each gives alone, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import tsc
from tests.fuzz.package_files import tuned
from tests.graph.models import attention, gelu, model
from tsc.runtime.image import ROW, ROWS
from tsc.runtime.memory import allocate_at

Feeds = dict[str, np.ndarray[Any, Any]]
RNG = np.random.default_rng(0)
#: Tokens of a table through a norm, attention by a mask, a product and a pool: rows of tokens, rows of sentences, and neither.
_TOKENS = """
    e = Gather(table, ids)
    scaled = Mul(e, places)
    n = LayerNormalization<axis = -1>(scaled, gain)
    t = Transpose<perm = [0, 2, 1]>(n)
    s = MatMul(n, t)
    m = Unsqueeze(mask, one)
    b = Add(s, m)
    p = Softmax<axis = -1>(b)
    c = MatMul(p, n)
    h = MatMul(c, w)
    y = Relu(h)
    pooled = ReduceMax<axes = [1], keepdims = 0>(y)
    same = Identity(mask)"""


def tokens() -> onnx.ModelProto:
    found = model(_TOKENS, "int64[batch, seq] ids, float[batch, seq] mask",
                  "float[batch, seq, 5] y, float[batch, 5] pooled, float[batch, seq] same", "int64[1] one = {1}")
    for name, shape in (("table", (11, 6)), ("gain", (6,)), ("w", (6, 5)), ("places", (6,))):
        found.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal(shape, np.float32), name))
    return found


def request(batch: int, seq: int, seed: int = 0) -> Feeds:
    rng = np.random.default_rng((batch, seq, seed))
    return {"ids": rng.integers(0, 11, (batch, seq)), "mask": rng.standard_normal((batch, seq)).astype(np.float32)}


def check(executable: tsc.Executable, requests: Sequence[Mapping[str, Any]]) -> None:
    """Each request gets what it gets alone."""
    found = executable.run_many(None, requests)
    assert len(found) == len(requests)
    for feeds, results in zip(requests, found):
        for got, want in zip(results, executable.run(None, feeds), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            assert got.tobytes() == want.tobytes()


@pytest.fixture(scope="module", params=[1, 3])
def executable(request: pytest.FixtureRequest) -> tsc.Executable:
    return tsc.compile(tokens(), dims={"batch": (0, 40), "seq": (0, 64)}, threads=request.param)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), min_size=0, max_size=9))
def test_any_sizes(executable: tsc.Executable, sizes: list[tuple[int, int]]) -> None:
    check(executable, [request(batch, seq, k) for k, (batch, seq) in enumerate(sizes)])


def test_rows_run_once(executable: tsc.Executable) -> None:
    """Tokens are rows of all requests, attention is of those of one length: three lengths are three launches of it."""
    joiner = executable._joiner
    assert joiner is not None
    parts = [joiner.part(sizes) for sizes in ((1, 3), (2, 3), (1, 7), (1, 9))]
    made = joiner.run(parts)
    assert made is not None
    launches = made[0].whole.launches  # type: ignore[union-attr]
    counts = [launches.count(k) for k in range(len(executable.launches))]
    assert set(counts) == {1, 3} and counts.count(1) >= 1, counts
    assert made[1] == [[15, 30, 35, 45], [5, 10, 5, 5], [3, 6, 7, 9]]


def test_outputs_that_are_asked_for(executable: tsc.Executable) -> None:
    requests = [request(2, 5), request(1, 9), request(2, 5, 1)]
    for feeds, (pooled, y) in zip(requests, executable.run_many(["pooled", "y"], requests)):
        for got, want in zip((pooled, y), executable.run(["pooled", "y"], feeds)):
            assert got.tobytes() == want.tobytes()
    assert executable.run_many(["y"], []) == []
    with pytest.raises(tsc.InputError, match="no output 'z'"):
        executable.run_many(["z"], requests)


def test_arrays_of_any_layout(executable: tsc.Executable) -> None:
    plain = [request(3, 8), request(1, 4)]
    strided = [{name: np.asfortranarray(a) for name, a in plain[0].items()},
               {name: np.repeat(a, 2, axis=1)[:, ::2] for name, a in plain[1].items()}]
    assert not strided[1]["ids"].flags.c_contiguous
    for one, other in zip(executable.run_many(None, plain), executable.run_many(None, strided)):
        assert [a.tobytes() for a in one] == [a.tobytes() for a in other]


def test_who_is_wrong_is_named(executable: tsc.Executable) -> None:
    right, wide = request(1, 4), request(1, 65)
    with pytest.raises(tsc.ShapeError, match=r"^request 2: .*65"):
        executable.run_many(None, [right, right, wide])
    with pytest.raises(tsc.InputError, match=r"^request 1: input 'mask' is missing"):
        executable.run_many(None, [right, {"ids": right["ids"]}])
    outside = right | {"ids": np.full((1, 4), 99)}
    with pytest.raises(tsc.InputError, match=r"^request 1: .*index"):
        executable.run_many(None, [right, outside, right])
    check(executable, [right, request(2, 3)])  # and nothing of that is left
    found = executable.run_many(["y"], [right, outside, wide, right], return_exceptions=True)
    wanted, = executable.run(["y"], right)
    assert [own[0].tobytes() for own in (found[0], found[3])] == [wanted.tobytes()] * 2
    assert type(found[1]) is tsc.InputError and type(found[2]) is tsc.ShapeError and "request" not in str(found[2])
    assert isinstance(executable.run_many(None, [wide], return_exceptions=True)[0], tsc.ShapeError)


def test_memory_that_is_short_for_all_together(executable: tsc.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, most = [request(2, 5), request(3, 9)], 3 * 9 * 5 * 4

    def scarce(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> tuple[Any, int]:
        if np.prod(shape) * dtype.itemsize > most:
            raise tsc.LaunchError(f"no memory for {what}")
        return allocate_at(shape, dtype, what)

    monkeypatch.setattr("tsc.runtime.executable.allocate_at", scarce)
    check(executable, requests)  # one after the other
    with pytest.raises(tsc.LaunchError, match=r"^request 1: not enough memory.*batch=4"):
        executable.run_many(None, [requests[0], request(4, 9)])


def test_a_type_that_numpy_has_not() -> None:
    executable = tsc.compile(model("y = Add(x, x)", "bfloat16[n, 3] x", "bfloat16[n, 3] y"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    check(executable, [{"x": x}, {"x": x[1:]}])


@pytest.mark.parametrize("asked", [
    {"target": "cpu-avx2"}, {"target": "cpu-generic"}, {"dims": {"batch": 1, "seq": (1, 16)}},
    {"options": tsc.Options(reduction_chunk=4, split_reductions=True)}, {"options": tsc.Options(share_kernels=False)}],
    ids=["avx2", "generic", "one row and an end", "temporaries", "kernels of their own"])
def test_however_it_is_compiled(asked: dict[str, Any]) -> None:
    """With an end of what counts rows that all requests together are beyond, and numbers that are none."""
    executable = tsc.compile(tokens(), threads=2, **asked)
    assert executable._joiner is not None
    plain = [request(1, seq, k) for k, seq in enumerate((3, 16, 9, 1, 16, 7))]
    check(executable, plain)
    check(executable, [own if k % 2 else own | {"mask": np.full_like(own["mask"], np.nan)} for k, own in enumerate(plain)])


def test_what_is_no_list_of_requests(executable: tsc.Executable) -> None:
    for wrong in (request(1, 3), None, iter([]), "ids", 3):
        with pytest.raises(tsc.InputError, match="requests are a list of dicts"):
            executable.run_many(None, wrong)  # type: ignore[arg-type]


def test_trimming_forgets_requests(executable: tsc.Executable) -> None:
    check(executable, [request(2, 3), request(1, 4)])
    assert executable._joiner is not None and executable._joiner.part.cache_info().currsize > 0
    executable.trim()
    assert executable._joiner.part.cache_info().currsize == 0
    check(executable, [request(2, 3), request(1, 4)])


@pytest.mark.parametrize("made, shapes", [
    (gelu(), [{"x": (b, n, 6), "r": (b, n, 10)} for b, n in ((1, 3), (2, 8), (1, 1), (4, 3))]),
    (attention(), [{"x": (b, n, 6), "mask": (b, 1, 1, n)} for b, n in ((1, 3), (2, 8), (1, 1), (4, 3))])])
def test_weights_that_are_fed(made: onnx.ModelProto, shapes: Sequence[Mapping[str, tuple[int, ...]]]) -> None:
    """Each request has weights of its own: what reads them is not the same for all rows."""
    executable = tsc.compile(made)
    fixed = {spec.name: tuple(size.as_int() for size in spec.shape) for spec in executable.inputs}
    check(executable, [{name: RNG.standard_normal(shape.get(name, fixed[name])).astype(np.float32) for name in fixed}
                       for shape in shapes])


def test_loops_run_one_after_the_other() -> None:
    looped = model("""
        y = Loop(trips, go, x) <body = each (int64 i, bool before, float[n] held) => (bool on, float[n] more) {
            on = Identity(before)
            more = Add(held, held)
        }>""", "int64 trips, bool go, float[n] x", "float[n] y")
    executable = tsc.compile(looped)
    assert executable._joiner is None
    check(executable, [{"trips": np.array(k), "go": np.array(True), "x": np.ones(k + 1, np.float32)} for k in range(4)])


def test_variants_are_those_for_all_rows_together() -> None:
    """Of three Variants, each the best at some number of rows, the one runs that a single request of as many rows has."""
    product = model("h = MatMul(x, w)\n y = Relu(h)", "float[n, 32] x", "float[n, 48] y")
    product.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((32, 48), np.float32), "w"))
    executable = tuned(product)
    joiner, seen = executable._joiner, set()
    assert joiner is not None
    for sizes in ((1, 1), (1, 2, 2), (30, 3), (1,) * 33, (100, 200)):
        made = joiner.run([joiner.part((n,)) for n in sizes])
        assert made is not None
        alone = executable._binding(((sum(sizes), 32),)).whole
        functions = [whole.words[whole.words[ROWS]:][:ROW * whole.rows:ROW].tolist()  # type: ignore[union-attr]
                     for whole in (made[0].whole, alone)]
        assert functions[0] == functions[1]
        seen |= set(functions[0])
        check(executable, [{"x": RNG.standard_normal((n, 32)).astype(np.float32)} for n in sizes])
    assert len(seen) > 1
