"""The house rules that a parser can hold: import floors, one reader of the environment, file sizes, no operators downstairs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import onnx.defs
import pytest

from tsc.ops import all_ops

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tsc"
FLOORS = (
    "errors", "config", "progress", "frames", "threads", "draw", "sym", "target", "runtime", "trace", "te", "loop_ir", "ir",
    "ops", "graph", "poly", "codegen_c", "codegen_cuda", "plan", "tune", "validate", "targets", "kernels", "workers",
    "attempts", "provenance", "from_torch", "pipeline", "torch_backend", "onnx_backend", "session", "serve", "tuning_group",
    "tuning_crew", "tuning", "build_te", "explain", "sol", "diagnosis", "roofline", "bench_child", "bench", "cli_output",
    "cli_pack", "cli_tune", "cli", "__main__")
RANK = {name: rank for rank, name in enumerate(FLOORS)}
#: What `runtime` may import besides NumPy, where it is installed: the driver's binding, in the modules that are imported when a
#: GPU is asked for, and a type that NumPy lacks.
OPTIONAL = {"cuda": ("runtime/drivers/cuda.py", "runtime/drivers/cuda_api.py"), "ml_dtypes": ("runtime/plan.py",),
            "cryptography": ("runtime/signing.py",)}
#: Where third-party modules other than NumPy may be imported, if they are confined at all.
WALLS = {"islpy": ("poly/isl.py",),
         "onnx": ("graph/", "ops/", "pipeline.py", "provenance.py", "from_torch.py", "explain.py", "sol/explain.py",
                  "onnx_backend.py"),
         "click": ("cli.py", "cli_tune.py", "cli_pack.py", "cli_output.py", "serve/command.py", "serve/__main__.py"),
         "rich": ("cli.py",),
         **dict.fromkeys(("botorch", "gpytorch"), ("tune/gaussian.py",)), "torch": ("tune/gaussian.py", "from_torch.py"),
         "ray": ("tuning_crew.py",),
         **dict.fromkeys(("fastapi", "starlette"), ("serve/rest.py",)), "uvicorn": ("serve/server.py",),
         "grpc": ("serve/rpc.py",), "prometheus_client": ("serve/metrics.py",),
         "cuda": (*OPTIONAL["cuda"], "codegen_cuda/nvrtc_worker.py")}
MAX_LINES = 500
MAX_VARIABLES = 6

Check = Callable[[Path], list[str]]


@cache
def parsed(path: Path, changed: int) -> ast.Module:
    """The tree of a file as it was when it was `changed`."""
    return ast.parse(path.read_text(encoding="utf-8"))


def sources(root: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """Each Python file below `root`: path, the floor it stands on, tree."""
    for path in sorted(root.rglob("*.py")):
        yield path, path.relative_to(root).parts[0].removesuffix(".py"), parsed(path, path.stat().st_mtime_ns)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import anywhere in `tree`, lazy ones included: line, dotted name ("." first when relative)."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=0) if module == "tsc":
                yield from ((node.lineno, f"tsc.{alias.name}") for alias in names)
            case ast.ImportFrom(module=module, level=level):
                yield node.lineno, "." * level + (module or "")
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="__import__" | "import_module")):
                first = node.args[0] if node.args else None
                yield node.lineno, first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else "?"


def check_floors(root: Path) -> list[str]:
    """A module imports `tsc` modules from floors below its own (or its own) only, by absolute names."""
    bad = []
    for path, own, tree in sources(root):
        if own == "__init__":  # the lazy public names
            continue
        if own not in RANK:
            bad.append(f"{path}: '{own}' is on no floor")
            continue
        for line, name in imports(tree):
            if name.startswith((".", "?")):
                bad.append(f"{path}:{line}: import '{name}' is not absolute and literal")
            elif (name == "tsc" or name.startswith("tsc.")) and name != "tsc.__version__":
                floor = name.partition(".")[2].partition(".")[0]
                allowed = floor in RANK and RANK[floor] <= RANK[own] if floor else own == "cli"  # the public names
                if not allowed:
                    bad.append(f"{path}:{line}: '{own}' may not import '{name}'")
    return bad


def check_lazy_imports(root: Path) -> list[str]:
    """No import inside a function or under a condition other than TYPE_CHECKING."""
    bad = []
    for path, own, tree in sources(root):
        if own == "__init__":
            continue
        top = {id(node) for node in tree.body}
        bad += [f"{path}:{node.lineno}: import below module level" for node in ast.walk(tree)
                if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in top]
    return bad


def check_third_parties(root: Path) -> list[str]:
    """`runtime` and what is below it import the standard library and NumPy only; walls keep the others in their rooms."""
    bad = []
    for path, own, tree in sources(root):
        inside = path.relative_to(root).as_posix()
        for line, name in imports(tree):
            head = name.partition(".")[0]
            if head in sys.stdlib_module_names or head in ("tsc", "numpy", "", "?"):
                continue
            if own in RANK and RANK[own] <= RANK["runtime"] and inside not in OPTIONAL.get(head, ()):
                bad.append(f"{path}:{line}: '{own}' may import no third party but NumPy, not '{head}'")
            if head in WALLS and not inside.startswith(WALLS[head]):
                bad.append(f"{path}:{line}: '{head}' may be imported in {', '.join(WALLS[head])} only")
    return bad


def check_environment(root: Path) -> list[str]:
    """Only config.py reads the environment."""
    bad = []
    for path, own, tree in sources(root):
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv" | "getenvb" as what):
                    pass
                case ast.ImportFrom(module="os", names=names) if {"environ", "getenv"} & {alias.name for alias in names}:
                    what = "environ"
                case _:
                    continue
            if own != "config":
                bad.append(f"{path}:{node.lineno}: os.{what} outside config.py")
    return bad


def check_prints(root: Path) -> list[str]:
    """A library does not print."""
    return [f"{path}:{node.lineno}: print" for path, _, tree in sources(root) for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"]


def check_operator_names(root: Path) -> list[str]:
    """ops/ alone names operators, ONNX's and the compiler's own; to sym/ a Range is an interval."""
    operators = {schema.name for schema in onnx.defs.get_all_schemas()} | {op.name for op in all_ops()}
    return [f"{path}:{node.lineno}: operator name '{node.value}'" for path, own, tree in sources(root)
            for node in (() if own in ("ops", "sym") else ast.walk(tree))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in operators]


def check_operator_questions(root: Path) -> list[str]:
    """Outside ops/ a node's OpDef is asked: its `op` is compared with nothing, nor looked up. (sym/ reads Python's trees.)"""
    bad = []
    for path, own, tree in sources(root):
        for node in (() if own in ("ops", "sym") else ast.walk(tree)):
            match node:
                case ast.Compare(left=left, comparators=others):
                    asked = [left, *others]
                case ast.Subscript(slice=key):
                    asked = [key]
                case ast.Call(func=ast.Attribute(attr="get" | "startswith"), args=args):
                    asked = [*args, node.func.value] if isinstance(node.func, ast.Attribute) else []
                case ast.MatchClass(kwd_attrs=names, kwd_patterns=patterns):
                    asked = [ast.Attribute(ast.Name("_"), n) for n, p in zip(names, patterns) if not isinstance(p, ast.MatchAs)]
                case _:
                    continue
            if any(isinstance(x, ast.Attribute) and x.attr == "op" for x in asked):
                bad.append(f"{path}: a question about 'op': {ast.unparse(node)[:60]}")
    return bad


def check_lengths(root: Path) -> list[str]:
    """No file above 500 lines."""
    lengths = ((path, len(path.read_text(encoding="utf-8").splitlines())) for pattern in ("*.py", "*.c", "*.h")
               for path in sorted(root.rglob(pattern)))
    return [f"{path}: {length} lines" for path, length in lengths if length > MAX_LINES]


CHECKS: tuple[Check, ...] = (
    check_floors, check_lazy_imports, check_third_parties, check_environment, check_prints, check_operator_names,
    check_operator_questions, check_lengths)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_house(check: Check) -> None:
    assert check(PACKAGE) == []


@pytest.mark.parametrize("folder", ["tests", "examples", "benchmarks"])
def test_lengths_outside_the_package(folder: str) -> None:
    assert check_lengths(ROOT / folder) == []


def test_at_most_six_variables() -> None:
    tree = ast.parse((PACKAGE / "config.py").read_text(encoding="utf-8"))
    words = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    assert 0 < len({word for word in words if word.isupper() and word.startswith("TSC_")}) <= MAX_VARIABLES


BREACHES = [
    (check_floors, "sym/a.py", "def f():\n    from tsc.graph import shapes\n"),
    (check_floors, "sym/a.py", "import importlib\nm = importlib.import_module('tsc.poly.deps')\n"),
    (check_floors, "graph/a.py", "from ..poly import deps\n"),
    (check_floors, "graph/a.py", "from tsc import poly\n"),
    (check_floors, "graph/a.py", "import tsc\n"),
    (check_floors, "attic/a.py", "x = 1\n"),
    (check_lazy_imports, "te/a.py", "def f():\n    import math\n"),
    (check_third_parties, "runtime/a.py", "import filelock\n"),
    (check_third_parties, "runtime/drivers/emu.py", "from cuda.bindings import driver\n"),
    (check_third_parties, "codegen_cuda/build.py", "from cuda.bindings import nvrtc\n"),
    (check_third_parties, "poly/deps.py", "import islpy\n"),
    (check_third_parties, "runtime/a.py", "def f():\n    import onnx\n"),
    (check_environment, "codegen_c/a.py", "import os\nx = os.environ['CC']\n"),
    (check_environment, "codegen_c/a.py", "from os import getenv\n"),
    (check_prints, "te/a.py", "print(1)\n"),
    (check_operator_names, "poly/a.py", "def f(n):\n    return n == 'MatMul'\n"),
    (check_operator_names, "graph/a.py", "RULES = {'Mul': 1}\n"),
    (check_operator_names, "graph/a.py", "def f(n):\n    match n:\n        case Node(op='Add' | 'Sub'):\n            pass\n"),
    (check_operator_questions, "graph/a.py", "def f(n):\n    return n.op == VIEW\n"),
    (check_operator_questions, "graph/a.py", "def f(n):\n    return n.op in VIEWS\n"),
    (check_operator_questions, "graph/a.py", "def f(n):\n    return RULES[n.op]\n"),
    (check_operator_questions, "graph/a.py", "def f(n):\n    return RULES.get(n.op)\n"),
    (check_operator_questions, "graph/a.py", "def f(n):\n    return n.op.startswith(PREFIX)\n"),
    (check_operator_questions, "graph/a.py", "def f(n):\n    match n:\n        case Node(op=ops.VIEW):\n            pass\n"),
    (check_lengths, "te/a.py", "x = 1\n" * 501),
]


@pytest.mark.parametrize("check, file, text", BREACHES, ids=lambda value: getattr(value, "__name__", None))
def test_every_check_can_fail(tmp_path: Path, check: Check, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert check(tmp_path)


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "a.py").write_text("import numpy as np\nfrom tsc.sym import dim\nfrom tsc.graph import group\n")
    assert [check(tmp_path) for check in CHECKS] == [[]] * len(CHECKS)
