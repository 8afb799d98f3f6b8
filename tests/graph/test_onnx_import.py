"""Import: what a file says becomes a Graph, and a wrong file becomes one typed error that names the culprit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.graph.models import model
from tsc.errors import InternalError, ModelError, ShapeError, TscError, UnsupportedError
from tsc.graph.onnx.importer import OLDEST_OPSET, import_onnx
from tsc.graph.onnx.input_dims import identifier
from tsc.graph.shapes import infer_shapes
from tsc.sym import Range

SIMPLE = "y = Add(x, w)"


def simple() -> onnx.ModelProto:
    return model(SIMPLE, "float[batch, 3] x, float[3] w", "float[o0, o1] y", "float[3] w = {1, 2, 3}")


def external(folder: Path, location: str, entries: dict[str, str] | None = None) -> Path:
    """A model in `folder` whose initializer `w` says that its three floats lie at `location`."""
    proto = simple()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **(entries or {})}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


# -- what is read ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("form", ["proto", "bytes", "path", "text"])
def test_every_form_of_source(form: str, tmp_path: Path) -> None:
    proto = simple()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    source = {"proto": proto, "bytes": proto.SerializeToString(), "path": path, "text": str(path)}[form]
    graph, env = import_onnx(source)
    assert graph.inputs == ("x",) and graph.outputs == ("y",) and graph.opset == 17  # w is an initializer listed as an input
    assert str(graph.types["x"]) == "float32[batch, 3]" and env.ranges == {"batch": Range()}
    np.testing.assert_array_equal(graph.constants["w"], np.float32([1, 2, 3]))
    assert [n.name for n in graph.nodes] == ["Add_0"]


def test_names_of_dims_stay_readable_and_apart() -> None:
    proto = model("y = Identity(a)\n z = Identity(b)", "float[batch size, past + 1, 2] a, float[?, unk__2, min] b".replace(
        "batch size", "N").replace("past + 1", "M").replace("?", "K").replace("min", "P"), "float[a, b, c] y, float[d, e, f] z")
    for value, names in zip(proto.graph.input, (["batch size", "past + 1"], [None, "batch_size", "min"])):
        for dim, name in zip(value.type.tensor_type.shape.dim, names):
            dim.Clear() if name is None else setattr(dim, "dim_param", name)
    graph, _ = import_onnx(proto)
    assert str(graph.types["a"]) == "float32[batch_size, past_plus_1, 2]"
    assert str(graph.types["b"]) == "float32[b_0, batch_size_2, d_min]"
    assert [identifier(n) for n in ("lambda", "9x", "é!", "")] == ["d_lambda", "d_9x", "d_", "d_"]


def test_constants_and_attributes_become_plain_values() -> None:
    proto = model("""
        c = Constant<value_ints = [2, 3]>()
        f = Constant<value_float = 0.5>()
        t = Constant<value = double[2] {1.5, 2.0}>()
        u = Transpose<perm = [1, 0]>(x)
        y = LeakyRelu<alpha = 0.25>(u)""", "float[a, b] x", "float[b, a] y")
    graph, _ = import_onnx(proto)
    assert {n: (c.dtype.name, c.tolist()) for n, c in graph.constants.items()} == {
        "c": ("int64", [2, 3]), "f": ("float32", 0.5), "t": ("float64", [1.5, 2.0])}
    assert [dict(n.attrs) for n in graph.nodes] == [{"perm": (1, 0)}, {"alpha": 0.25}]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64", "bool", "int8", "uint32", "int64"])
@pytest.mark.parametrize("raw", [True, False])
def test_every_element_type_is_read(kind: str, raw: bool) -> None:
    number = getattr(TensorProto, {"float64": "DOUBLE"}.get(kind, kind.upper()))
    array = np.array([0, 1, 1, 0, 1, 0]).astype(helper.tensor_dtype_to_np_dtype(number)).reshape(2, 3)
    proto = simple()
    tensor = helper.make_tensor("k", number, (2, 3), array.tobytes() if raw else array.ravel().tolist(), raw=raw)
    proto.graph.initializer.append(tensor)
    found = import_onnx(proto)[0].constants["k"]
    assert found.dtype.name == kind and not found.flags.writeable
    np.testing.assert_array_equal(found.astype(np.float64), array.astype(np.float64))


def test_model_local_functions_and_function_bodies_are_inlined() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "own" : 1]>
        main (float[N, 4] x) => (float[N, 4] y) { a = own.Twice<k = 2>(x)
          y = MeanVarianceNormalization<axes = [1]>(a) }
        <domain: "own", opset_import: ["" : 18]> Twice<k>(v) => (r) { c = Constant<value_int: int = @k>()
          f = CastLike(c, v)
          r = Mul(v, f) }""")
    graph, _ = import_onnx(proto)
    assert {"Mul", "CastLike"} <= {n.op for n in graph.nodes} and "MeanVarianceNormalization" not in {n.op for n in graph.nodes}


def test_dims_by_name_by_input_and_fixed() -> None:
    proto = model("y = Add(x, z)", "float[batch, seq, 8] x, float[batch, seq, 8] z", "float[p, q, 8] y")
    graph, env = import_onnx(proto, {"batch": (1, 64), "seq": (8, 512, 8)})
    assert env.ranges == {"batch": Range(1, 64), "seq": Range(8, 512, 8)}
    graph, env = import_onnx(proto, {"batch": 2, "x": ("B", None, "W"), "W": (0, None)})
    assert str(graph.types["x"]) == "float32[B, seq, W]" and str(graph.types["z"]) == "float32[2, seq, 8]"
    assert env.ranges["W"] == Range(0) and {"B", "W"} <= env.asked


@pytest.mark.parametrize("only", [(8, 8), (5, 11, 4), (8, 8, 8)])
def test_a_range_of_one_size_is_that_size(only: tuple[int, ...]) -> None:
    """Found by random operators: its products with loop variables were opaque to proofs."""
    graph, _ = import_onnx(model("y = Relu(x)", "float[batch, 3] x", "float[batch, 3] y"), {"batch": only})
    assert str(graph.types["x"]) == "float32[8, 3]"


def test_a_static_export_becomes_symbolic_unless_a_size_is_baked_in() -> None:
    free = model("y = Relu(x)\n z = Flatten(y)", "float[1, 3, 8, 8] x", "float[1, 192] z")
    graph, env = import_onnx(free, {"x": ("N", 3, "H", "W")})
    assert str(infer_shapes(graph, env).types["z"]) == "float32[N, 3*H*W]"
    baked = model("a = Relu(x)\n y = Reshape(a, s)", "float[1, 3, 8, 8] x", "float[1, 192] y", "int64[2] s = {1, 192}")
    graph, env = import_onnx(baked, {"x": ("N", 3, 8, 8)})
    with pytest.raises(ShapeError, match=r"node 'Reshape_1'.*N fixed to 1"):
        infer_shapes(graph, env)
    graph, env = import_onnx(baked, {"x": (1, 3, "H", 8)})
    with pytest.raises(ShapeError, match=r"node 'Reshape_1'.*H fixed to 8"):
        infer_shapes(graph, env)
    graph, env = import_onnx(baked, {"x": (2, 3, 8, 8)})
    with pytest.raises(ShapeError, match=r"node 'Reshape_1'.*384 can never equal 192"):
        infer_shapes(graph, env)


@pytest.mark.parametrize("dims", [
    {"batches": (1, 4)}, {"batch": (4, 1)}, {"batch": (1, 2, 3, 4)}, {"batch": "N"}, {"batch": (1.0, 2)}, {"batch": (-1, 2)},
    {"x": ("N",)}, {"x": ("N", -3)}, {"x": ("no name", 3)}, {"x": "N"}, {"batch": (5, 6, 4)}])
def test_dims_that_cannot_be_are_refused(dims: dict[str, object]) -> None:
    with pytest.raises(ShapeError) as error:
        import_onnx(simple(), dims)
    assert next(iter(dims)) in str(error.value)


# -- wrong files -----------------------------------------------------------------------------------------------

def _twice() -> onnx.ModelProto:
    return model("y = Relu(x)\n y = Neg(x)", "float[n] x", "float[n] y")


def _circle() -> onnx.ModelProto:
    return model("y = Relu(h)\n h = Add(x, y)", "float[n] x", "float[n] y")


def _undefined() -> onnx.ModelProto:
    return model("y = Add(x, nowhere)", "float[n] x", "float[n] y")


def _no_output() -> onnx.ModelProto:
    return model("y = Relu(x)", "float[n] x", "float[n] z")


def _short_tensor() -> onnx.ModelProto:
    proto = simple()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    proto.graph.initializer[0].dims[0] = 1 << 40
    return proto


def _recursive() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "own" : 1]> main (float[N] x) => (float[N] y) { y = own.F(x) }
        <domain: "own", opset_import: ["" : 18, "own" : 1]> F(v) => (r) { r = own.F(v) }""")


@pytest.mark.parametrize(("make", "says"), [
    (_twice, r"'y' is defined twice, by node 'Relu_0'"), (_circle, "'h', which is made of what it makes"),
    (_undefined, "'nowhere'"),
    (_no_output, "output 'z'"), (_short_tensor, r"'w' has shape \[1099511627776\]"), (_recursive, "calls itself")])
def test_a_model_that_contradicts_itself(make: object, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        import_onnx(make())  # type: ignore[operator]


UNSORTED = {
    "a graph": ("float[n] x", "y = Neg(h) h = Neg(k) k = Exp(x)", lambda x, c: np.exp(x)),
    "branches": (
        "float[n] x, bool c",
        "z = Abs(y) y = If(c) <then_branch = g () => (float[n] t) { t = Relu(q) q = Neg(h) }, "
        "else_branch = g () => (float[n] e) { e = Exp(h) }> h = Sin(x)",
        lambda x, c: np.maximum(-np.sin(x), 0) if c else np.exp(np.sin(x))),
}


@pytest.mark.parametrize("name", UNSORTED)
def test_nodes_in_any_order(name: str) -> None:
    """As tools write them that append what they add; the model that is handed in stays as it is."""
    inputs, body, wanted = UNSORTED[name]
    proto = model(body, inputs, "float[n] y")
    before = proto.SerializeToString()
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    for flag in (True, False):
        feeds = {"x": x, "c": np.array(flag)} if "c" in inputs else {"x": x}
        np.testing.assert_allclose(tsc.compile(proto).run(None, feeds)[0], wanted(x, flag), rtol=1e-6, atol=1e-6)
    assert proto.SerializeToString() == before


def test_functions_with_nodes_in_any_order() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "own" : 1]> main (float[N] x) => (float[N] y) { y = own.F(h) h = own.F(x) }
        <domain: "own", opset_import: ["" : 18]> F(v) => (r) { r = Neg(s) s = Exp(v) }""")
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    np.testing.assert_allclose(tsc.compile(proto).run(None, {"x": x})[0], -np.exp(-np.exp(x)), rtol=1e-6)


def test_all_unsupported_operators_are_listed_at_once() -> None:
    proto = model('a = StringNormalizer(x)\n b = mine.Magic(a)\n c = Relu(b)\n y = mine.Magic(c)', "float[n] x", "float[n] y")
    proto.graph.node[1].name = "first"
    proto.opset_import.add(domain="mine", version=1)
    with pytest.raises(UnsupportedError) as error:
        import_onnx(proto)
    assert all(part in str(error.value) for part in ("StringNormalizer_0", "mine.Magic at 'first', 'Magic_3'"))
    assert "Relu" not in str(error.value)


def test_opsets_before_the_oldest() -> None:
    """Operators that have not changed since are read as the oldest's; Add has, by its broadcasts."""
    proto = model("y = Not(x)", "bool[n] x", "bool[n] y")
    proto.opset_import[0].version = 1
    assert import_onnx(proto)[0].opset == OLDEST_OPSET
    proto = model("y = Add(x, x)", "float[n] x", "float[n] y")
    proto.opset_import[0].version = 6
    with pytest.raises(UnsupportedError, match=r"opset 6, whose Add .*version_converter"):
        import_onnx(proto)


def test_opsets_and_input_kinds_out_of_reach() -> None:
    for version in (6, onnx.defs.onnx_opset_version() + 1):
        proto = simple()
        proto.opset_import[0].version = version
        with pytest.raises(UnsupportedError, match=f"opset {version}"):
            import_onnx(proto)
    proto.opset_import[0].version = 0
    with pytest.raises(ModelError, match="opset 0"):
        import_onnx(proto)
    proto = model("y = Identity(x)", "string[n] x", "string[n] y")
    with pytest.raises(UnsupportedError, match=r"input 'x'.*STRING"):
        import_onnx(proto)
    proto = simple()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="rank"):
        import_onnx(proto)
    assert str(import_onnx(proto, {"x": ("N", 3)})[0].types["x"]) == "float32[N, 3]"


def test_no_file_and_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("not a model at all")
    for name in ("missing.onnx", "empty.onnx", "text.onnx", "."):
        with pytest.raises(ModelError):
            import_onnx(tmp_path / name)


def test_truncated_and_altered_files_give_typed_errors() -> None:
    proto = model("h = MatMul(x, w)\n s = Softmax(h)\n y = Reshape(s, t)", "float[batch, seq, 4] x", "float[a, b] y",
                  "float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}, int64[2] t = {0, -1}")
    data = proto.SerializeToString()
    for end in range(0, len(data), 7):
        with pytest.raises(ModelError):
            infer_shapes(*import_onnx(data[:end]))
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        altered = bytearray(data)
        altered[rng.integers(len(data))] = rng.integers(256)
        try:
            infer_shapes(*import_onnx(bytes(altered)))
        except InternalError:
            raise
        except TscError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


# -- external data ---------------------------------------------------------------------------------------------

def test_external_data_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"\0" * 8 + np.float32([4, 5, 6]).tobytes() + b"\1")
    path = external(tmp_path, "data/w.bin", {"offset": "8", "length": "12"})
    np.testing.assert_array_equal(import_onnx(path)[0].constants["w"], np.float32([4, 5, 6]))
    with pytest.raises(ModelError, match="by its path"):
        import_onnx(path.read_bytes())


@pytest.mark.parametrize("location", [
    "/etc/passwd", "../w.bin", "a/../../w.bin", "C:\\w.bin", "..\\w.bin", "", "absent.bin", "."])
def test_external_data_elsewhere_is_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.float32([4, 5, 6]).tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelError, match="initializer 'w'"):
        import_onnx(external(folder, location))


@pytest.mark.parametrize("kind", ["symlink", "folder symlink", "hard link", "fifo"])
def test_links_out_of_the_folder_are_refused(kind: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "w.bin").write_bytes(np.float32([4, 5, 6]).tobytes())
    location = "w.bin"
    match kind:
        case "symlink":
            (folder / "w.bin").symlink_to(outside / "w.bin")
        case "folder symlink":
            (folder / "sub").symlink_to(outside)
            location = "sub/w.bin"
        case "hard link":
            os.link(outside / "w.bin", folder / "w.bin")
        case "fifo":
            os.mkfifo(folder / "w.bin")
    with pytest.raises(ModelError, match="initializer 'w'"):
        import_onnx(external(folder, location))


@pytest.mark.parametrize("entries", [
    {"offset": "4"}, {"offset": "-4"}, {"length": "8"}, {"length": "x"}, {"offset": "9" * 30}, {"offset": "1099511627776"}])
def test_external_data_out_of_bounds_is_refused(entries: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.float32([4, 5, 6]).tobytes())
    with pytest.raises(ModelError, match="initializer 'w'"):
        import_onnx(external(tmp_path, "w.bin", entries))
