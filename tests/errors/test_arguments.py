"""Wrong arguments of `tsc.compile`, and what stands in for a model without being one."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tsc
from tests.graph.models import model
from tsc import build_te, pipeline, te
from tsc.cli_tune import traffic_of
from tsc.explain import explain_node
from tsc.trace import Recorder

Refused = Callable[..., AbstractContextManager[None]]
ROOT = Path(__file__).resolve().parents[2]


class Module:
    """As if of another framework."""


@pytest.fixture
def proto() -> onnx.ModelProto:
    return model("y = Relu(x)", "float[n] x", "float[n] y")


@pytest.mark.defect(8)
@pytest.mark.parametrize(
    "source", [Module(), Module, io.BytesIO(b"x"), None, 3, ["model.onnx"], onnx.GraphProto(), onnx.TensorProto()],
    ids=lambda s: type(s).__name__)
def test_what_is_no_model(source: Any, refused: Refused) -> None:
    with refused(tsc.InputError, type(source).__qualname__, "onnx.ModelProto", "export"):
        tsc.compile(source)


@pytest.mark.defect(18)
@pytest.mark.parametrize(
    "path", ["", ".", "\0", "a" * 5000, "/dev/zero", "/dev/null", Path("no/such/file"), b"/dev/zero"], ids=range(8))
def test_paths_that_lead_to_no_model(path: Any, refused: Refused) -> None:
    with refused(tsc.ModelError):
        tsc.compile(path)


@pytest.mark.defect(18)
def test_files_that_have_no_end_or_too_much(tmp_path: Path, refused: Refused) -> None:
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    for name, says in (("fifo", "no regular file"), ("sparse", "1099511627776 bytes")):
        with refused(tsc.ModelError, name, says):
            tsc.compile(tmp_path / name)


@pytest.mark.parametrize("kind", ["fifo", "sparse", "endless"])
def test_texts_that_have_no_end_or_too_much(kind: str, tmp_path: Path, proto: onnx.ModelProto, refused: Refused) -> None:
    """Records, traffic, and a text that takes a stage's place."""
    path = tmp_path / "y.config"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "sparse":
            with open(path, "wb") as file:
                file.truncate(1 << 40)
        case _:
            path.symlink_to("/dev/zero")
    with refused(tsc.InputError, str(path)):
        tsc.compile(proto, options=tsc.Options(records=path))
    with refused(tsc.InputError, str(path)):
        traffic_of(path)
    if kind == "sparse":  # what is no regular file replaces nothing
        with refused(tsc.InputError, str(path)):
            Recorder(override_from=tmp_path).override("config", "y")


def test_bytes_are_a_model(proto: onnx.ModelProto) -> None:
    data = proto.SerializeToString()
    for source in (data, bytearray(data), memoryview(data)):
        np.testing.assert_array_equal(tsc.compile(source).run(None, {"x": np.float32([-1, 2])})[0], [0, 2])


@pytest.mark.defect(8)
@pytest.mark.parametrize(("arguments", "says"), [
    ({"dims": [("n", 1)]}, "dims is a list"), ({"dims": 5}, "dims"), ({"threads": "2"}, "threads is a str"),
    ({"threads": 1.5}, "threads"), ({"ops": [1]}, "ops has a int"), ({"ops": 3}, "ops"), ({"options": {}}, "tsc.Options")])
def test_arguments_of_another_kind(arguments: dict[str, Any], says: str, proto: onnx.ModelProto, refused: Refused) -> None:
    with refused(tsc.InputError, says, "expected"):
        tsc.compile(proto, **arguments)


def _entries(proto: onnx.ModelProto) -> dict[str, Callable[..., Any]]:
    """Whatever compiles, by name."""
    return {"compile": lambda **a: tsc.compile(proto, **a), "build": lambda **a: tsc.build(_doubled(), **a),
            "explain": lambda node="y", **a: explain_node(proto, node, **a)}


def _doubled() -> te.Tensor:
    x = te.placeholder((te.dim("n"),), "float32", "x")
    return te.compute((te.dim("n"),), lambda i: x[i] * 2.0, "y")


@pytest.mark.parametrize("entry", ["compile", "build", "load"])
@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, float("nan"), [1]], ids=str)
def test_threads_that_are_no_count(entry: str, threads: Any, proto: onnx.ModelProto, refused: Refused, tmp_path: Path) -> None:
    entries = _entries(proto)
    if entry == "load":
        tsc.build(_doubled()).save(tmp_path / "doubled.tscpack")
        entries["load"] = lambda **a: tsc.load(tmp_path / "doubled.tscpack", **a)
    with refused(tsc.InputError, "threads is", "expected", "None for all cores"):
        entries[entry](threads=threads)


@pytest.mark.parametrize(("field", "value"), [
    ("cache_dir", 3), ("jobs", "2"), ("use_cache", None), ("progress", "yes"), ("limits", 5), ("share_kernels", "no")])
def test_options_of_another_kind(field: str, value: Any, refused: Refused) -> None:
    with refused(tsc.InputError, f"Options: {field} is a {type(value).__name__}"):
        tsc.Options(**{field: value})


def test_a_cache_folder_may_be_a_text(tmp_path: Path, refused: Refused) -> None:
    assert tsc.Options(cache_dir=str(tmp_path)) == tsc.Options(cache_dir=tmp_path)  # type: ignore[arg-type]
    with refused(tsc.InputError, "cache_dir is empty"):  # it was the current folder
        tsc.Options(cache_dir="")  # type: ignore[arg-type]


def test_more_threads_than_ever_run_are_as_many_as_can(proto: onnx.ModelProto) -> None:
    for threads in (np.int64(2), 257, 10**30):
        assert tsc.compile(proto, threads=threads).stats["threads"] == min(threads, 257)


@pytest.mark.parametrize(("entry", "arguments", "says"), [
    *((entry, {"target": target}, "target is a") for entry in ("compile", "build", "explain") for target in ([], None, 3)),
    ("build", {"inputs": 3}, "placeholders"), ("build", {"inputs": np.ones(3)}, "placeholders"), ("build", {"name": 3}, "name"),
    ("build", {"options": {}}, "tsc.Options"), ("explain", {"dims": 3}, "dims is a int"), ("explain", {"ops": 3}, "ops"),
    ("explain", {"node": 3}, "node is a int"), ("explain", {"node": ["y"]}, "node is a list"),
    ("explain", {"sizes": 3}, "sizes is a int"), ("explain", {"sizes": {"n": "7"}}, "'n' is '7'"),
    ("explain", {"sizes": {"n": 1.5}}, "'n' is 1.5"), ("explain", {"sizes": {"n": -1}}, "'n' is -1")])
def test_other_arguments_of_another_kind(entry: str, arguments: dict[str, Any], says: str, proto: onnx.ModelProto,
                                         refused: Refused) -> None:
    with refused(tsc.InputError, says):
        _entries(proto)[entry](**arguments)


def test_a_size_of_no_dim(proto: onnx.ModelProto, refused: Refused) -> None:
    with refused(tsc.ShapeError, "no dim 'm'", "dims are n"):
        explain_node(proto, "y", sizes={"m": 3})


@pytest.mark.parametrize("entry", ["compile", "build", "explain"])
@pytest.mark.parametrize(("raised", "kind", "says"), [
    (RecursionError(), tsc.UnsupportedError, "too deep"), (MemoryError(), tsc.LaunchError, "not enough memory"),
    (KeyError("x"), tsc.InternalError, "KeyError: 'x'")])
def test_nothing_untyped_leaves(entry: str, raised: Exception, kind: Any, says: str, proto: onnx.ModelProto, refused: Refused,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise raised

    monkeypatch.setattr(build_te, "assemble", fails)
    monkeypatch.setattr(pipeline, "fuse", fails)
    with refused(kind, says):
        _entries(proto)[entry]()


# -- the public names ------------------------------------------------------------------------------------------

@pytest.mark.defect(8)
def test_a_public_name_exists_exactly_if_a_checker_sees_it() -> None:
    tree = ast.parse((ROOT / "tsc" / "__init__.py").read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for block in blocks if isinstance(block.test, ast.Name) for item in block.body
            if isinstance(item, ast.ImportFrom) for alias in item.names}
    assert seen | {"__version__"} == set(tsc.__all__)
    assert all(getattr(tsc, name) is not None for name in tsc.__all__)
    assert isinstance(tsc.compile(model("y = Relu(x)", "float[n] x", "float[n] y")), tsc.Executable)
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


@pytest.mark.defect(8)
@pytest.mark.parametrize("name", ["onnx", "islpy", "google"])
def test_a_package_that_is_not_installed(name: str) -> None:
    code = BLOCKED.format(name=name) + "import tsc\ntry:\n    tsc.compile\nexcept tsc.LaunchError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"'{name}'" in done.stdout and "pip install" in done.stdout, done.stdout + done.stderr


@pytest.mark.defect(8)
@pytest.mark.parametrize("name", ["onnx", "click", "rich"])
def test_the_shell_without_a_package(name: str) -> None:
    code = BLOCKED.format(name=name) + "import runpy\nrunpy.run_module('tsc', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and done.stderr.startswith("LaunchError: ") and f"'{name}'" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
