"""Models exported for programs in C: what they compute, at any shape, is what Python gives; what they cannot is said."""

from __future__ import annotations

import ctypes
import json
import subprocess
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc.cli import cli
from tsc.codegen_c.build import find_compiler
from tsc.errors import InputError, PackageError
from tsc.runtime.executable import Executable
from tsc.runtime.export import HEADER_FILE, Exported, export
from tsc.runtime.package import Module, Package

ROOT = Path(__file__).resolve().parent.parent
OK, SHAPE, DATA, MEMORY, BUSY, FILE = range(6)
SHARED = 1


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("shape", ctypes.c_char_p), ("rank", ctypes.c_int64),
                ("item_bytes", ctypes.c_int64)]


class Model:
    """An export, as a program in C has it."""

    def __init__(self, library: Path, data: Path, threads: int = 1, flags: int = 0) -> None:
        self._c = ctypes.CDLL(str(library))
        self._c.tsc_open.restype, self._c.tsc_inputs.restype = ctypes.c_void_p, ctypes.c_int64
        self._c.tsc_outputs.restype = ctypes.c_int64
        self._said = ctypes.create_string_buffer(200)
        self._room = self._said, ctypes.c_size_t(200)
        self._model = ctypes.c_void_p(self._c.tsc_open(str(data).encode(), threads, flags, *self._room))
        self.problem = self._said.value.decode()

    def tensors(self, which: str) -> list[tuple[str, str, str, int]]:
        found = ctypes.POINTER(Tensor)()
        count = getattr(self._c, f"tsc_{which}")(self._model, ctypes.byref(found))
        return [(t.name.decode(), t.dtype.decode(), t.shape.decode(), t.rank) for t in found[:count]]

    def run(self, feeds: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray] | str]:
        extents = [size for feed in feeds for size in feed.shape]
        inputs, given = pointers(feeds), (ctypes.c_int64 * len(extents))(*extents)
        outputs = self.tensors("outputs")
        shapes = (ctypes.c_int64 * (1 + sum(rank for *_, rank in outputs)))()
        status = self._c.tsc_shapes(self._model, inputs, given, shapes, *self._room)
        if status:
            return status, self._said.value.decode()
        made, place = [], 0
        for _, dtype, _, rank in outputs:
            made.append(np.empty(shapes[place:place + rank], dtype))
            place += rank
        status = self._c.tsc_infer(self._model, inputs, given, pointers(made), *self._room)
        return (status, self._said.value.decode()) if status else (OK, made)

    def close(self) -> None:
        self._c.tsc_close(self._model)


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def pointers(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * (1 + len(arrays)))(*(a.ctypes.data for a in arrays))


@dataclass(frozen=True)
class Made:
    """A model in Python, its Package, and what was exported of it."""

    python: Executable
    package: Package
    files: Exported


def made(model: onnx.ModelProto, folder: Path, name: str = "m", dims: Mapping[str, Any] | None = None,
         options: tsc.Options | None = None) -> Made:
    python = tsc.compile(model, dims=dims, threads=1, options=options)
    python.save(folder / f"{name}.tscpack")
    package = Package.read(folder / f"{name}.tscpack")
    return Made(python, package, export(package, folder / name, name))


def graph(nodes: list[onnx.NodeProto], inputs: Mapping[str, tuple[int, Sequence[int | str]]], outputs: Sequence[str],
          held: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    result = [helper.make_empty_tensor_value_info(name) for name in outputs]
    constants = [numpy_helper.from_array(array, name) for name, array in (held or {}).items()]
    return helper.make_model(helper.make_graph(nodes, "m", given, result, constants), ir_version=8,
                             opset_imports=[helper.make_opsetid("", 17)])


def mlp() -> onnx.ModelProto:
    """Two products with constants of equal bytes, a softmax, a copy of an input, a table that is looked up; two outputs."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((24, 24), np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["a"]),
             helper.make_node("Relu", ["a"], ["b"]), helper.make_node("MatMul", ["b", "v"], ["c"]),
             helper.make_node("Add", ["c", "y"], ["d"]), helper.make_node("Softmax", ["d"], ["p"]),
             helper.make_node("Transpose", ["y"], ["t"], perm=[1, 0])]
    held = {"w": w, "v": w.copy(), "table": rng.standard_normal((50, 24), np.float32)}
    return graph(nodes, {"ids": (TensorProto.INT64, ["n"]), "y": (TensorProto.FLOAT, ["n", 24])}, ["p", "t"], held)


def told() -> onnx.ModelProto:
    """A reshape to sizes that are fed."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("ReduceSum", ["r", "one"], ["y"])]
    return graph(nodes, {"x": (TensorProto.FLOAT, ["n"]), "shape": (TensorProto.INT64, [2])}, ["y"], {"one": np.array([1])})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(mlp(), tmp_path_factory.mktemp("export"), dims={"n": (0, 600)})


@pytest.fixture
def model(exported: Made) -> Iterator[Model]:
    found = Model(exported.files.library, exported.files.data)
    assert not found.problem
    yield found
    found.close()


def feeds(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng((seed, n))
    return [rng.integers(-50, 50, n), rng.standard_normal((n, 24), np.float32)]


def same(found: tuple[int, list[np.ndarray] | str], python: Executable, given: Sequence[np.ndarray]) -> None:
    status, values = found
    assert status == OK and isinstance(values, list), values
    expected = python.run(None, {spec.name: array for spec, array in zip(python.inputs, given)})
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize(("threads", "flags"), [(1, 0), (3, SHARED), (0, 0)])
def test_values_are_those_of_python(exported: Made, threads: int, flags: int) -> None:
    found = Model(exported.files.library, exported.files.data, threads, flags)
    assert not found.problem
    assert found.tensors("inputs") == [("ids", "int64", "[n]", 1), ("y", "float32", "[n, 24]", 2)]
    assert [t[1:] for t in found.tensors("outputs")] == [("float32", "[n, 24]", 2), ("float32", "[24, n]", 2)]
    for n in (1, 5, 5, 0, 600, 1, 127, 128, 3):
        for seed in (0, 1):
            same(found.run(feeds(n, seed)), exported.python, feeds(n, seed))
    found.close()


def test_equal_weights_are_there_once(exported: Made) -> None:
    constants = exported.package.plans[exported.files.target].constants
    each = sum(exported.package.constants[name].nbytes for name in constants)
    assert exported.files.data.stat().st_size < each + 16384


def test_sizes_that_inputs_hold(tmp_path: Path) -> None:
    one = made(told(), tmp_path)
    found = Model(one.files.library, one.files.data)
    for n, shape in ((12, (3, 4)), (12, (12, 1)), (6, (2, 3)), (1, (1, 1))):
        given = [np.arange(n, dtype=np.float32), np.array(shape)]
        same(found.run(given), one.python, given)
    status, said = found.run([np.zeros(12, np.float32), np.array([5, 2])])
    assert status == SHAPE and "12" in said
    status, said = found.run([np.zeros(12, np.float32), np.array([3, 4, 1])])
    assert status == SHAPE and "'shape' has 3 elements, expected 2" in said
    found.close()


def test_what_is_wrong_is_said(model: Model, exported: Made) -> None:
    for n in (601, 1 << 40):
        y = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (n, 24), (0, 0))
        ids = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (n,), (0,))
        assert model.run([ids, y]) == (SHAPE, f"the size of input 'ids' at axis 0 is {n}, expected 0 to 600")
    assert model.run([feeds(5)[0], feeds(6)[1]]) == (SHAPE, "the size of input 'y' at axis 0 is 6, expected 5")
    assert model.run([feeds(5)[0], feeds(5)[1][:, :23]]) == (SHAPE, "the size of input 'y' at axis 1 is 23, expected 24")
    status, said = model.run([np.full(5, 50), feeds(5)[1]])
    assert status == DATA and "'ids' holds an index that is out of bounds" in said and "kernel of node" in said
    with pytest.raises(InputError, match="holds an index that is out of bounds"):
        exported.python.run(None, {"ids": np.full(5, 50), "y": feeds(5)[1]})
    same(model.run(feeds(7)), exported.python, feeds(7))  # and all is well again


def test_guards_and_divisors_are_said(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    one = made(graph(nodes, {"x": (TensorProto.FLOAT, ["n"])}, ["y"], {"shape": np.array([-1, 4])}), tmp_path, "g")
    found = Model(one.files.library, one.files.data)
    same(found.run([np.zeros(8, np.float32)]), one.python, [np.zeros(8, np.float32)])
    status, said = found.run([np.zeros(7, np.float32)])
    assert status == SHAPE and isinstance(said, str)
    assert said.startswith("the model needs n == 4*(n // 4) (") and said.endswith("but n is 7, expected 4")
    found.close()


def test_one_call_at_a_time_and_many_models(exported: Made) -> None:
    """Two threads with a model each are right; with one model they are right or told so."""
    models = [Model(exported.files.library, exported.files.data, 2, SHARED) for _ in range(3)]
    expected = {n: exported.python.run(None, dict(zip(("ids", "y"), feeds(n)))) for n in (3, 200, 600)}

    def calls(own: Model) -> int:
        told = 0
        for turn in range(60):
            n = (3, 200, 600)[turn % 3]
            status, values = own.run(feeds(n))
            assert status in (OK, BUSY), values
            told += status == BUSY
            if status == OK:
                for value, other in zip(values, expected[n], strict=True):
                    np.testing.assert_array_equal(value, other)
        return told

    with ThreadPoolExecutor(4) as pool:
        apart = [pool.submit(calls, own) for own in models[:2]]
        assert not any(task.result() for task in apart)
        shared = [pool.submit(calls, models[2]) for _ in range(2)]
        assert sum(task.result() for task in shared) < 120  # one of them may find it busy each time, not both
    same(models[2].run(feeds(3)), exported.python, feeds(3))  # and it is given back
    for own in models:
        own.close()


def test_many_shapes_grow_nothing(model: Model) -> None:
    ids, y = feeds(600)
    for n in range(0, 601, 50):
        model.run([ids[:n], y[:n]])
    before = resident_pages()
    for turn in range(3000):
        n = turn * 7 % 601
        assert model.run([ids[:n], y[:n]])[0] == OK
    assert resident_pages() - before < 1024


def test_a_file_that_is_none(exported: Made, tmp_path: Path) -> None:
    whole = exported.files.data.read_bytes()
    begin = int.from_bytes(whole[48:56], "little")
    path = tmp_path / "bad.tscdata"

    def said(content: bytes) -> str:
        path.write_bytes(content)
        return Model(exported.files.library, path).problem

    assert "is no model's file" in said(b"") and "is no model's file" in said(bytes(4096))
    assert "of another version" in said(whole[:7] + b"\2" + whole[8:])
    for cut in (400, begin - 1, begin, len(whole) - 1):
        assert "is damaged" in said(whole[:cut]), cut
    for place in (9, 20, 40, 56, 100, 330, begin - 100):
        assert "is damaged" in said(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1:]), place
    assert "cannot be read" in Model(exported.files.library, tmp_path / "none").problem
    assert "cannot be read" in Model(exported.files.library, tmp_path).problem
    flags = b" ".join(flag.encode() for flag in sorted(exported.package.modules[exported.files.target].cpu_flags))
    if flags:
        other = bytearray(whole[:begin].replace(b"\0" + flags + b"\0", b"\0" + flags[:-1] + b"?\0"))
        other[16:24] = zlib.crc32(other[24:]).to_bytes(8, "little")
        assert f"this machine lacks {flags.decode().split()[-1][:-1]}?" in said(bytes(other) + whole[begin:])


def test_a_file_of_another_library(exported: Made, tmp_path: Path) -> None:
    other = made(told(), tmp_path)
    found = Model(exported.files.library, other.files.data)
    assert "belongs to another library" in found.problem


def test_what_cannot_be_exported(exported: Made, tmp_path: Path) -> None:
    package, target = exported.package, exported.files.target
    for name in ("", "a/b", "..\0"):
        with pytest.raises(InputError, match="is no name"):
            export(package, tmp_path, name)
    with pytest.raises(InputError, match="cannot be exported for 'sm_80'"):
        export(package, tmp_path, "m", "sm_80")
    with pytest.raises(PackageError, match="cannot be used"):
        export(replace(package, modules={target: Module(b"no binary")}), tmp_path, "m")
    (tmp_path / "file").write_text("")
    with pytest.raises(tsc.TscError, match="cannot make the folder"):
        export(package, tmp_path / "file" / "x", "m")
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n"])],
        [helper.make_empty_tensor_value_info("d"), helper.make_tensor_value_info("t", TensorProto.FLOAT, ["n"])])
    loop = graph([helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)],
                 {"trips": (TensorProto.INT64, []), "x": (TensorProto.FLOAT, ["n"])}, ["y"])
    with pytest.raises(InputError, match="for which Python is needed"):
        made(loop, tmp_path, "loop")
    assert not (tmp_path / "loop").exists()


def test_the_command_and_a_program_in_c(exported: Made, tmp_path: Path) -> None:
    """The example, compiled as its text says, with all warnings; and the header in C++."""
    package = tmp_path / "model.tscpack"
    exported.package.write(package)
    result = CliRunner().invoke(cli, ["export", str(package), "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert [Path(file).name for file in told["files"]] == ["libmodel.so", "model.tscdata", HEADER_FILE.name]
    compiler, out = find_compiler(None), tmp_path / "out"
    strict = [*compiler.command, "-Wall", "-Wextra", "-Werror", f"-I{out}"]
    program = tmp_path / "embedded"
    subprocess.run([*strict, "-std=c11", "-pedantic", str(ROOT / "examples" / "09_embedded.c"), str(out / "libmodel.so"),
                    f"-Wl,-rpath,{out}", "-o", str(program)], check=True)
    command = [str(program), str(out / "model.tscdata")]
    done = subprocess.run([*command, "9", "9", "24"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    p, t = exported.python.run(None, {"ids": np.ones(9, np.int64), "y": np.ones((9, 24), np.float32)})
    assert f"216 elements, the first is {p[0, 0]:.6g}" in done.stdout and f"the first is {t[0, 0]:.6g}" in done.stdout
    done = subprocess.run([*command, "9", "8", "24"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "the size of input 'y' at axis 0 is 8, expected 9\n"
    (tmp_path / "a.cpp").write_text('#include "tsc.h"\ntsc_model *open() { return tsc_open("", 0, TSC_SHARED, nullptr, 0); }\n')
    subprocess.run([*strict, "-pedantic", "-c", str(tmp_path / "a.cpp"), "-o", str(tmp_path / "a.o")], check=True)
