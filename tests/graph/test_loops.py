"""Graphs that the plan runs: If by data, Loop and Scan, against ONNX Runtime, one compile for all sizes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import tsc
from tsc.errors import ModelError, UnsupportedError
from tsc.explain import explain_node
from tsc.graph.onnx.importer import import_onnx
from tsc.kernels import workshop
from tsc.tuning import groups_of

Array = np.ndarray[Any, Any]


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> ' + text)


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def check(proto: onnx.ModelProto, *runs: Mapping[str, Any], dims: Any = None) -> tsc.Executable:
    """One compile gives what ONNX Runtime does; whole numbers, so to the bit."""
    executable = tsc.compile(proto, dims=dims)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for run in runs:
        feeds = {name: np.asarray(value) for name, value in run.items()}
        for got, want in zip(executable.run(None, feeds), session.run(None, feeds), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
    return executable


# -- If --------------------------------------------------------------------------------------------------------------------

def test_data_choose() -> None:
    """Values from outside, a nested choice, a branch that hands on what it reads, and one value twice."""
    proto = model("""g (float[n] x, bool c, bool d) => (float[n] y, float[n] z) {
        s = Add(x, x)
        y, z = If (c) <
            then_branch = a () => (float[n] p, float[n] p2) { p = Mul(s, x)  p2 = If (d) <
                then_branch = b () => (float[n] q) { q = Sub(p, x) }, else_branch = e () => (float[n] q) { q = Neg(s) }> },
            else_branch = f () => (float[n] r, float[n] r2) { r = Identity(x)  r2 = Identity(x) }> }""")
    check(proto, *({"x": floats(n), "c": c, "d": d} for n in (1, 17) for c in (True, False) for d in (True, False)))


def test_sizes_that_nobody_limits_choose_in_the_run() -> None:
    proto = model("""g (float[n] x) => (float[n] y) {
        four = Constant <value = int64[1] {4}> ()  sizes = Shape(x)  few = Less(sizes, four)
        y = If (few) <then_branch = a () => (float[n] p) { p = Neg(x) },
                      else_branch = b () => (float[n] q) { q = Abs(x) }> }""")
    check(proto, *({"x": floats(n)} for n in (1, 3, 4, 9)))


def test_fed_scales_within_a_graph() -> None:
    proto = model("""g (float[n, k] x, float[2] s, bool c) => (float[p, q] y) {
        y = If (c) <
            then_branch = a () => (float[p, q] u) { t = Resize <mode = "nearest"> (x, , s)  u = Neg(t) },
            else_branch = b () => (float[p, q] v) { v = Resize <mode = "nearest"> (x, , s) }> }""")
    check(proto, *({"x": floats(2, 3), "s": np.float32(s), "c": c} for s in ((1, 2), (2, 1)) for c in (True, False)))


def test_only_what_is_chosen_runs() -> None:
    """An index out of bounds in the other graph is no error."""
    proto = model("""g (float[n] x, int64[m] i, bool c) => (float[m] y) {
        y = If (c) <then_branch = a () => (float[m] p) { p = Gather(x, i) },
                    else_branch = b () => (float[m] q) { z = Cast <to = 1> (i)  q = Neg(z) }> }""")
    far = np.array([9])
    executable = check(proto, {"x": floats(5), "i": np.array([4, 0]), "c": True}, {"x": floats(5), "i": far, "c": False})
    with pytest.raises(tsc.TscError, match="out of bounds"):
        executable.run(None, {"x": floats(5), "i": far, "c": np.array(True)})


def test_sizes_are_held_only_where_it_runs() -> None:
    """One graph needs two inputs of one length, the other does not; behind, three are taken for one."""
    proto = model("""g (float[n] x, float[m] u, bool c) => (float[n] y) {
        y = If (c) <then_branch = a () => (float[n] p) { p = Add(x, u) },
                    else_branch = b () => (float[n] q) { q = Neg(x) }> }""")
    executable = check(proto, {"x": floats(3), "u": floats(3), "c": True}, {"x": floats(3), "u": floats(5), "c": False})
    with pytest.raises(tsc.ShapeError, match="n == m"):
        executable.run(None, {"x": floats(3), "u": floats(5), "c": np.array(True)})
    proto = model("""g (float[n] x, float[m] u, float[k] v, bool c) => (float[n] y) {
        t = If (c) <then_branch = a () => (float[n] p) { p = Add(x, u) },
                    else_branch = b () => (float[n] q) { q = Neg(x) }>
        s = Add(x, v)  y = Add(t, s) }""")
    runs = [{"x": floats(3), "u": floats(k), "v": floats(3), "c": c} for k, c in ((3, True), (5, False))]
    executable = check(proto, *runs)
    with pytest.raises(tsc.ShapeError):
        executable.run(None, {"x": floats(3), "u": floats(5), "v": floats(3), "c": np.array(True)})


def test_branches_of_other_shapes_are_refused() -> None:
    proto = model("""g (float[n] x, bool c) => (float[m] y) {
        y = If (c) <then_branch = a () => (float[m] p) { p = Concat <axis = 0> (x, x) },
                    else_branch = b () => (float[m] q) { q = Neg(x) }> }""")
    with pytest.raises(UnsupportedError, match=r"makes 'y' as float32\[2\*n\] or float32\[n\], as only the run decides"):
        tsc.compile(proto)


# -- Loop ------------------------------------------------------------------------------------------------------------------

def loop(body: str, inputs: str = "", states: str = "x", outputs: str = "y", made: str = "float[n] y", before: str = "",
         condition: str = "yes") -> onnx.ModelProto:
    return model(f"""g (float[n] x, int64 m{inputs}) => ({made}) {{
        yes = Constant <value = bool {{1}}> ()  {before}  {outputs} = Loop (m, {condition}, {states}) <body = {body}> }}""")


def runs(*trips: int, **more: Any) -> list[dict[str, Any]]:
    return [{"x": floats(n), "m": np.array(m), **more} for n in (1, 19) for m in trips]


def test_states_and_slices() -> None:
    check(loop("""b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] s) {
        d = Identity(c)  f = Cast <to = 1> (i)  w = Add(v, f)  s = Mul(w, x) }""", outputs="y, z",
        made="float[n] y, float[k, n] z"), *runs(1, 2, 7))


def test_states_change_places() -> None:
    check(loop("""b (int64 i, bool c, float[n] u, float[n] v) => (bool d, float[n] v2, float[n] u2) {
        d = Identity(c)  v2 = Identity(v)  u2 = Identity(u) }""", states="x, t", outputs="y, z", made="float[n] y, float[n] z",
        before="t = Neg(x)"), *runs(0, 1, 2, 5))


def test_a_state_is_another_ones_start() -> None:
    """One value begins two states, one output is two states and a slice, and a constant is one."""
    check(loop("""b (int64 i, bool c, float[n] u, float[n] v) => (bool d, float[n] w, float[n] w2, float[n] w3, float[1] o) {
        d = Constant <value = bool {1}> ()  w = Add(u, v)  w2 = Identity(w)  w3 = Identity(w)
        o = Constant <value = float[1] {5}> () }""", states="x, x", outputs="y, z, s, t",
        made="float[n] y, float[n] z, float[k, n] s, float[k, 1] t"), *runs(1, 4))


@pytest.mark.parametrize("start", ["x", "none"])
def test_a_state_grows(start: str) -> None:
    check(loop("""b (int64 i, bool c, float[p] v) => (bool d, float[q] w) {
        d = Identity(c)  t = ReduceSum <keepdims = 1> (v)  w = Concat <axis = 0> (v, x, t) }""", states=start,
        made="float[r] y", before="none = Constant <value = float[0] {}> ()"), *runs(0, 1, 3))


def test_nothing_is_handed_on() -> None:
    """Of states without elements all begin at one place."""
    proto = model("""g (float[0] x, float[0] u, int64 m) => (float[0] y, float[0] z, float[k, 0] s) {
        yes = Constant <value = bool {1}> ()
        y, z, s = Loop (m, yes, x, x) <body = b (int64 i, bool c, float[0] v, float[0] w)
                                              => (bool d, float[0] p, float[0] q, float[0] r) {
            d = Identity(c)  f = Cast <to = 1> (i)  a = Add(w, f)  t = Add(w, a)  q = Sign(t)  e = Add(u, a)
            r = Sub(e, v)  p = Identity(v) }> }""")
    executable = tsc.compile(proto)
    for m in (0, 1, 3):
        found = executable.run(None, {"x": floats(0), "u": floats(0), "m": np.array(m)})
        assert [y.shape for y in found] == [(0,), (0,), (m, 0)]


def test_two_axes_grow_apart() -> None:
    proto = model("""g (float[n, k] x, int64 m) => (float[p, k] y, float[n, q] z) {
        yes = Constant <value = bool {1}> ()
        y, z = Loop (m, yes, x, x) <body = b (int64 i, bool c, float[r, k] u, float[n, s] v)
                                           => (bool d, float[r2, k] u2, float[n, s2] v2) {
            d = Identity(c)  u2 = Concat <axis = 0> (u, x, x)  v2 = Concat <axis = 1> (x, v) }> }""")
    check(proto, *({"x": floats(2, 3), "m": m} for m in (0, 1, 4)))


@pytest.mark.parametrize("condition", ["yes", "", "no", "go"])
def test_it_ends_by_itself(condition: str) -> None:
    """Whether it is to begin is said by a constant, nobody or an input; a state grows, and slices are as many as there were
    trips."""
    body = """b (int64 i, bool c, float[n] v, float[p] g) => (bool d, float[n] w, float[q] h, float[n] s) {
        w = Add(v, v)  a = Abs(w)  u = ReduceMax <keepdims = 0> (a)  d = Less(u, most)  h = Concat <axis = 0> (g, w)
        s = Neg(w) }"""
    fed = ", float most" + (", bool go" if condition == "go" else "")
    proto = loop(body, fed, "x, x", "y, z, t", "float[n] y, float[q] z, float[k, n] t",
                 "no = Constant <value = bool {0}> ()", condition)
    for most in (np.float32(-1), np.float32(40), np.float32(1e6)):
        more: dict[str, Any] = {"most": most}
        cases = [{**more, "go": True}, {**more, "go": False}] if condition == "go" else [more]
        begins = [case for case in cases if condition != "no" and case.get("go", True)]
        check(proto, *(run for case in begins for run in runs(1, 12, **case)))
    executable = tsc.compile(proto)
    if condition in ("no", "go"):  # ONNX Runtime has 0 for sizes that it does not know
        x, more = floats(4), {"go": np.array(False)} if condition == "go" else {}
        y, z, s = executable.run(None, {"x": x, "m": np.array(3), "most": np.float32(9), **more})
        assert y.tobytes() == z.tobytes() == x.tobytes() and s.shape == (0, 4)


def test_only_its_condition_ends_it() -> None:
    proto = model("""g (float[n] x) => (float[n] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (, yes, x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w) {
            one = Constant <value = float {1}> ()  most = Constant <value = float {7}> ()
            w = Add(v, one)  t = ReduceMax <keepdims = 0> (w)  d = Less(t, most) }> }""")
    check(proto, *({"x": floats(n)} for n in (1, 8)))


def most_of_all(condition: str, before: str = "Less(zero, most)", step: int = 1) -> onnx.ModelProto:
    """What exporters make of `while i < most and max(v) < limit`, gathering rows: its most trips are the greatest number."""
    return model(f"""g (float[n] x, int64 most, float limit) => (float[r] y, int64 z) {{
        no = Constant <value = bool {{0}}> ()  zero = Constant <value = int64 {{0}}> ()
        ever = Constant <value = int64 {{9223372036854775807}}> ()  begins = {before}
        last, y, z = Loop (ever, begins, x, x, zero) <body = b (int64 t, bool c, float[n] v, float[p] g, int64 i)
                                                     => (bool d, float[n] w, float[q] h, int64 j) {{
            step = Constant <value = int64 {{{step}}}> ()
            w = Add(v, v)  h = Concat <axis = 0> (g, w)  j = Add(i, step)  {condition} }}> }}""")


SHORT_CIRCUIT = """a = Abs(w)  m = ReduceMax <keepdims = 0> (a)  few = Less(j, most)
    d = If (few) <then_branch = h1 () => (bool e) { e = Less(m, limit) },
                  else_branch = h2 () => (bool e2) { e2 = Identity(no) }>"""


@pytest.mark.parametrize("condition", [SHORT_CIRCUIT, "d = Less(j, most)", "d = Greater(most, j)", "d = LessOrEqual(j, most)",
                                       "f = GreaterOrEqual(most, j)  ok = Identity(f)  d = And(ok, c)"])
@pytest.mark.parametrize("step", [1, 3])
def test_numbers_that_count_limit_what_ends_by_itself(condition: str, step: int) -> None:
    feeds = [{"x": floats(n), "most": m, "limit": np.float32(limit)} for n in (1, 5) for m in (1, 2, 7) for limit in (9, 1e9)]
    check(most_of_all(condition, step=step), *feeds)


@pytest.mark.parametrize("condition", ["a = Abs(w)  m = ReduceMax <keepdims = 0> (a)  d = Less(m, limit)", "d = Less(most, j)",
                                       "f = Less(j, most)  d = Not(f)",
                                       "u = Shape(h)  k = ReduceMax <keepdims = 0> (u)  d = Less(j, k)"])
def test_what_nothing_limits_has_no_memory(condition: str) -> None:
    with pytest.raises(UnsupportedError, match="whose most is not seen"):
        tsc.compile(most_of_all(condition))


LISTS = """g (float[k, n] x, float[n] s) => (float[k, n] y, float[p] z, float[n] last) {
    yes = Constant <value = bool {1}> ()  zero = Constant <value = int64 {0}> ()
    sizes = Shape(x)  rows = Gather <axis = 0> (sizes, zero)
    a = SequenceEmpty()  b = SequenceEmpty <dtype = 1> ()
    last, l, m = Loop (rows, yes, s, a, b) <body = t (int64 i, bool c, float[n] v, seq(float[n]) u, seq(float[n]) q)
                                           => (bool d, float[n] w, seq(float[n]) u2, seq(float[n]) q2) {
        d = Identity(c)  e = Gather <axis = 0> (x, i)  w = Add(v, e)  o = Neg(w)
        u2 = SequenceInsert(u, w)  q2 = SequenceInsert(q, o) }>
    y = ConcatFromSequence <axis = 0, new_axis = 1> (l)  z = ConcatFromSequence <axis = 0> (m) }"""


def test_lists_that_a_loop_appends_to() -> None:
    runs = [{"x": floats(k, n), "s": floats(n)} for k in (1, 4) for n in (1, 6)]
    check(model(LISTS), *runs)
    check(model(LISTS.replace("axis = 0, new_axis = 1", "axis = -1, new_axis = 1")), *runs)


def test_other_lists_are_refused() -> None:
    for change in (("SequenceInsert(u, w)", "SequenceInsert(u, w, i)"),
                   ("}>\n    y = ", "}>\n    more = SequenceInsert(l, s)  y = "),
                   ("SequenceInsert(q, o)", "SequenceInsert(u, o)")):
        with pytest.raises(UnsupportedError, match=r"not supported: .*Sequence"):
            tsc.compile(model(LISTS.replace(*change)))


def test_a_loop_in_a_loop_in_a_choice() -> None:
    proto = model("""g (float[n] x, int64 m, bool c) => (float[n] y) {
        yes = Constant <value = bool {1}> ()
        y = If (c) <then_branch = a () => (float[n] p) {
            p = Loop (m, yes, x) <body = b (int64 i, bool c1, float[n] v) => (bool d1, float[n] w) {
                d1 = Identity(c1)  two = Constant <value = int64 {2}> ()
                t = Loop (two, yes, v) <body = e (int64 j, bool c2, float[n] q) => (bool d2, float[n] r) {
                    d2 = Identity(c2)  k = Add(i, j)  f = Cast <to = 1> (k)  s = Add(q, f)  r = Sub(s, x) }>
                w = Neg(t) }> },
            else_branch = h () => (float[n] o) { o = Abs(x) }> }""")
    check(proto, *(run for c in (True, False) for run in runs(0, 1, 3, c=c)))


def test_sizes_depend_on_the_trip() -> None:
    """Rows up to the trip's own, and the row of the trip."""
    proto = model("""g (float[l, n] x, int64 m, float[n] s) => (float[n] y, float[k, n] z) {
        yes = Constant <value = bool {1}> ()
        zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()
        y, z = Loop (m, yes, s) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] t) {
            d = Identity(c)  j = Reshape(i, one)  e = Add(j, one)  rows = Slice(x, zero, e, zero)
            u = ReduceSum <keepdims = 0> (rows, zero)  w = Add(v, u)  t = Gather <axis = 0> (x, i) }> }""")
    check(proto, *({"x": floats(9, n), "m": m, "s": floats(n)} for n in (1, 5) for m in (1, 4, 9)))


def test_sizes_depend_on_the_trip_and_on_what_is_fed() -> None:
    proto = model("""g (float[l, n] x, int64 m, float[n] s, int64[1] o) => (float[n] y) {
        yes = Constant <value = bool {1}> ()
        zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()
        y = Loop (m, yes, s) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w) {
            d = Identity(c)  j = Reshape(i, one)  e = Add(j, o)  rows = Slice(x, j, e, zero)
            u = ReduceSum <keepdims = 0> (rows, zero)  w = Add(v, u) }> }""")
    check(proto, *({"x": floats(9, 3), "m": m, "s": floats(3), "o": np.array([o])} for o in (1, 2, 4) for m in (1, 4)))


def test_what_a_loop_counts_is_a_size_behind_it() -> None:
    body = """b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] s) {
        w = Add(v, v)  a = Abs(w)  t = ReduceMax <keepdims = 0> (a)  d = Less(t, most)  s = Identity(w) }"""
    proto = model(f"""g (float[n] x, int64 m, float most) => (float[k] y, float[p, n] z) {{
        yes = Constant <value = bool {{1}}> ()  one = Constant <value = int64[1] {{1}}> ()
        last, all = Loop (m, yes, x) <body = {body}>
        y = ReduceSum <keepdims = 0> (all, one)  z = Concat <axis = 0> (all, all) }}""")
    check(proto, *runs(1, 3, 9, most=np.float32(30)))


@pytest.mark.parametrize("made, says", [
    ("w = Concat <axis = 0> (v, v)", "whose axis 0 becomes"), ("w = Cast <to = 7> (v)", "expected float32"),
    ("w = ReduceSum <keepdims = 0> (v)", "expected float32 of rank 1")])
def test_states_that_become_something_else(made: str, says: str) -> None:
    proto = loop(f"b (int64 i, bool c, float[p] v) => (bool d, float[q] w) {{ d = Identity(c)  {made} }}", made="float[r] y")
    with pytest.raises(ModelError, match=f"'Loop_.*{says}"):
        tsc.compile(proto)


def test_trips_that_nobody_tells_before() -> None:
    proto = loop("b (int64 i, bool c, float[n] v) => (bool d, float[n] w) { d = Identity(c)  w = Neg(v) }", states="x",
                 before="f = ReduceMax <keepdims = 0> (x)").graph
    proto.node.insert(2, onnx.helper.make_node("Cast", ["f"], ["told"], to=onnx.TensorProto.INT64))
    proto.node[3].input[0] = "told"
    with pytest.raises(UnsupportedError, match="data-dependent number of trips"):
        tsc.compile(onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8))


def test_graphs_that_do_not_fit() -> None:
    for body in ("b (int64 i, bool c) => (bool d, float[n] w) { d = Identity(c)  w = Neg(x) }",
                 "b (int64 i, bool c, float[n] v) => (bool d) { d = Identity(c) }"):
        with pytest.raises(ModelError, match=r"has a graph of . inputs and . outputs, expected 3 and 2"):
            tsc.compile(loop(body))


def test_a_state_without_a_beginning() -> None:
    proto = loop("b (int64 i, bool c, float[n] v) => (bool d, float[n] w) { d = Identity(c)  w = Neg(v) }")
    proto.graph.node[1].input[2] = ""
    with pytest.raises(ModelError, match="lacks its required input 2"):
        tsc.compile(proto)


def test_a_package_with_regions(tmp_path: Path) -> None:
    """Saved and loaded, by many threads at once, each at sizes of its own."""
    executable = check(loop("""b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] s) {
        d = Identity(c)  f = Cast <to = 1> (i)  w = Add(v, f)  s = Mul(w, x) }""", outputs="y, z",
        made="float[n] y, float[k, n] z"))
    executable.save(tmp_path / "loop.tscpack")
    loaded = tsc.load(tmp_path / "loop.tscpack")
    assert "loop " in loaded.explain() and "from byte" in loaded.explain()
    wrong: list[int] = []

    def work(seed: int) -> None:
        for k in range(20):
            n, m = 1 + (seed * 7 + k) % 23, k % 5
            x = floats(n)
            y, z = loaded.run(None, {"x": x, "m": np.array(m)})
            want = np.stack([x + sum(range(i + 1)) for i in range(m)]) * x if m else np.zeros((0, n), np.float32)
            if not (np.array_equal(y, x + sum(range(m))) and np.array_equal(z, want)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nodes_in_graphs_are_explained() -> None:
    proto = loop("b (int64 i, bool c, float[n] v) => (bool d, float[n] w) { d = Identity(c)  w = Neg(v) }")
    *_, name = (node.name for node in import_onnx(proto)[0].nodes)
    assert "regions of the plan" in explain_node(proto, name)
    assert "--- statements" in explain_node(proto, f"{name}/Neg_1")


def test_kernels_in_graphs_are_tuned_where_their_sizes_are_known() -> None:
    """Not the sum of rows, of which there are as many as the trip says."""
    proto = model("""g (float[l, n] x, int64 m, float[n] s) => (float[n] y) {
        yes = Constant <value = bool {1}> ()  zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        y = Loop (m, yes, s) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w) {
            d = Identity(c)  j = Reshape(i, one)  e = Add(j, one)  rows = Slice(x, zero, e, zero)
            u = ReduceSum <keepdims = 0> (rows, zero)  k = Add(v, u)  w = Relu(k) }> }""")
    shop = workshop("cpu", tsc.Options())
    groups, _ = groups_of(proto, {"n": (1, 8), "l": (1, 8)}, shop)
    assert len(groups) < len({order.group for order, _ in shop.orders})


def test_graphs_on_a_gpu() -> None:
    """A loop that carries a value, hands out one a trip, and ends by what a branch in it says."""
    proto = model("""g (float[n] x, int64 m, float limit) => (float[n] y, float[t, n] all) {
        yes = Constant <value = bool {1}> ()
        y, all = Loop (m, yes, x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] o) {
            most = ReduceMax <keepdims = 0> (v)  d = Less(most, limit)
            w = If (d) <then_branch = p () => (float[n] q) { q = Add(v, x) },
                        else_branch = r () => (float[n] s) { s = Neg(v) }>
            o = Abs(w) }> }""")
    executable = tsc.compile(proto, target="emu:sm_80")
    for n, most, limit in ((1, 0, 1.0), (1, 4, 3.0), (7, 5, 1e9), (40, 9, 5.0)):
        x, trips = np.abs(floats(n)) + np.float32(0.5), []
        value, goes_on = x, True
        while goes_on and len(trips) < most:
            goes_on = bool(value.max() < limit)
            value = value + x if goes_on else -value
            trips.append(np.abs(value))
        y, every = executable.run(None, {"x": x, "m": np.int64(most), "limit": np.float32(limit)})
        np.testing.assert_allclose(y, value, rtol=1e-6)
        np.testing.assert_allclose(every, np.reshape(trips, (-1, n)), rtol=1e-6)


def test_halves_within_graphs() -> None:
    proto = model("""g (float16[n] x, int64 m) => (float16[n] y) {
        yes = Constant <value = bool {1}> ()  t = Add(x, x)
        y = Loop (m, yes, t) <body = b (int64 i, bool c, float16[n] v) => (bool d, float16[n] w) {
            d = Identity(c)  w = Add(v, x) }> }""")
    check(proto, *({"x": floats(n).astype(np.float16), "m": m} for n in (1, 7) for m in (0, 1, 3)))


# -- Scan ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ways", ["", "scan_input_axes = [1]", "scan_input_directions = [1]", "scan_output_axes = [1]",
                                  "scan_output_directions = [1]",
                                  "scan_input_axes = [-1], scan_input_directions = [1], scan_output_axes = [-1], "
                                  "scan_output_directions = [1]"])
def test_scans(ways: str) -> None:
    turned = "scan_input_axes" in ways
    proto = model(f"""g (float[{'n, k' if turned else 'k, n'}] x, float[n] s) => (float[n] y, float[p, q] z) {{
        y, z = Scan <num_scan_inputs = 1{', ' + ways if ways else ''},
                     body = b (float[n] v, float[n] e) => (float[n] w, float[n] o) {{
            w = Add(v, e)  t = Mul(w, e)  o = Sub(t, s) }}> (s, x) }}""")
    check(proto, *({"x": floats(*((n, k) if turned else (k, n))), "s": floats(n)} for n in (1, 5) for k in (1, 4)))


def test_two_are_scanned_without_a_state() -> None:
    proto = model("""g (float[k, n] x, float[k] u) => (float[k, n] y) {
        y = Scan <num_scan_inputs = 2, body = b (float[n] e, float f) => (float[n] o) { o = Mul(e, f) }> (x, u) }""")
    executable = check(proto, {"x": floats(4, 3), "u": floats(4)}, {"x": floats(1, 7), "u": floats(1)})
    with pytest.raises(tsc.ShapeError):
        executable.run(None, {"x": floats(4, 3), "u": floats(5)})
