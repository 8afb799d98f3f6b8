"""A plan that anybody may have written: what it may not say, and that nothing of it runs before that is known."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz.package_files import Opened, closed, framed, opened
from tests.runtime.conftest import INTERFACES
from tests.runtime.plans import changed, one_call, plan_of, straight, with_calls, with_plan
from tsc.errors import PackageError
from tsc.runtime.bounds import Bounds
from tsc.runtime.elf import read_exports
from tsc.runtime.executable import Executable
from tsc.runtime.interface import KernelInterface, interface_from_json, interface_to_json, read_interface, wrong_sizes
from tsc.runtime.load import load
from tsc.runtime.package import PAGE, Module, Package
from tsc.runtime.plan import Axis, Bind, Copy, Launch, Plan, Storage, TensorSpec
from tsc.sym import ONE, ZERO, Guard, Range, SymExpr, dim, parse

pytestmark = pytest.mark.defect(16)
N, C = dim("n"), dim("c")
TWO = SymExpr.of(2)


def launch(plan: Plan, number: int, **changes: Any) -> Plan:
    launches = [replace(x, **changes) if k == number else x for k, x in enumerate(plan.launches)]
    return changed(plan, launches=tuple(launches))


def variant(plan: Plan, **changes: Any) -> Plan:
    return launch(plan, 0, variants=with_calls(plan.launches[0], **changes).variants)


def storage(plan: Plan, number: int, **changes: Any) -> Plan:
    return replace(plan, storages=tuple(replace(s, **changes) if k == number else s for k, s in enumerate(plan.storages)))


STRUCTURE: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a function of the C library": (lambda p: launch(p, 0, kernel="abort"), "no kernel of its module"),
    "the runtime's own function": (lambda p: launch(p, 0, kernel="tsc_run"), "no kernel of its module"),
    "a function of another kernel": (lambda p: variant(p, function="mirror"), "none of its variants"),
    "a function of the C library as a variant": (lambda p: variant(p, function="abort"), "none of its variants"),
    "other threads than the module says": (lambda p: variant(p, threads=32), "none of its variants"),
    "other shared memory": (lambda p: variant(p, shared=128), "none of its variants"),
    "too few buffers": (lambda p: launch(p, 0, args=(0, 1)), "with 2 buffers"),
    "too many sizes": (lambda p: launch(p, 0, sizes=(N, C, C)), "and 3 sizes"),
    "a negative argument": (lambda p: launch(p, 0, args=(0, 1, -1)), "storage that does not exist"),
    "an input that is written": (lambda p: launch(p, 0, args=(0, 1, 0)), "write into input 0"),
    "another dtype": (lambda p: replace(p, inputs=(replace(p.inputs[0], dtype="int32"), p.inputs[1])), "of int32 for float32"),
    "a storage of no kind": (lambda p: storage(p, 0, kind="attic"), "storage attic 0"),
    "an output that does not begin where it does": (lambda p: storage(p, 3, offset=SymExpr.of(64)), "begins output 0"),
    "a second arena": (lambda p: storage(p, 2, index=1), "storage arena 1"),
    "an unknown dim": (lambda p: variant(p, blocks=dim("q")), "'q' that is no dim"),
    "a dim that no input has": (lambda p: replace(p, body=(*p.body, Bind("q", Axis(0, 0)))), "no input tells the size of q"),
    "a dim that cannot be solved for": (
        lambda p: replace(p, inputs=tuple(replace(x, shape=(N * C,) * len(x.shape)) for x in p.inputs)), "tells"),
    "a negative dim": (lambda p: changed(p, ranges={"n": Range(-5)}), "'n' be negative"),
    "a value read before it is written": (lambda p: changed(p, launches=p.launches[1:]), "what nobody has written"),
    "an output that nobody writes": (lambda p: changed(p, copies=()), "never writes output 'z'"),
    "a copy into an input": (lambda p: changed(p, copies=(Copy(0, 1, 4 * N * C),)), "to what is neither output nor arena"),
    "an input of floats that is taken for one size": (
        lambda p: replace(p, inputs=(p.inputs[0], replace(p.inputs[1], contents=(ONE,)))), "takes 1 elements of input 'w'"),
    "contents with an unknown dim": (
        lambda p: replace(p, inputs=(p.inputs[0], replace(p.inputs[1], contents=(dim("q"),)))), "'q' that is no dim"),
    "an output whose contents are told": (
        lambda p: replace(p, outputs=(replace(p.outputs[0], contents=(ONE,)), p.outputs[1])), "takes 1 elements of output"),
    "a size that an element tells and that is not there": (
        lambda p: replace(p, body=(Bind("q", Axis(0, 2)), *p.body)), "an axis that does not exist"),
    "one name for two inputs": (lambda p: replace(p, inputs=(p.inputs[0], replace(p.inputs[1], name="x"))), "one name"),
}

NUMBERS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "an offset far out": (lambda p: storage(p, 2, offset=SymExpr.of(1 << 40)), "outside the arena"),
    "an offset beyond all memory": (lambda p: storage(p, 2, offset=SymExpr.of(1 << 70)), "no memory has"),
    "a negative offset": (lambda p: storage(p, 2, offset=SymExpr.of(-64)), "no memory has"),
    "an odd offset": (lambda p: storage(p, 2, offset=SymExpr.of(4)), "outside the arena"),
    "an arena too small": (lambda p: changed(p, arena_bytes=SymExpr.of(64)), "outside the arena"),
    "a value too small": (lambda p: storage(p, 2, bytes=SymExpr.of(4)), "storage 2 4"),
    "too many rows": (lambda p: variant(launch(p, 0, sizes=(2 * N, C)), blocks=2 * N), "its buffer has"),
    "a size that the kernel does not take": (lambda p: variant(launch(p, 0, sizes=(-N, -C)), blocks=-N), "size"),
    "too many blocks": (lambda p: variant(p, blocks=N + 1), "blocks"),
    "too few blocks": (lambda p: variant(p, blocks=N - 1), "blocks"),
    "too little scratch": (lambda p: variant(p, scratch=ZERO), "of scratch"),
    "an output too large": (lambda p: replace(p, outputs=(replace(p.outputs[0], shape=(N, C + 1)), p.outputs[1])), "storage 3"),
    "a copy too long": (lambda p: changed(p, copies=(Copy(0, 4, 8 * N * C),)), "copies"),
    "a copy too short": (lambda p: changed(p, copies=(Copy(0, 4, ONE),)), "copies"),
}


def request() -> dict[str, np.ndarray]:
    return {"x": np.ones((2, 4), np.float32), "w": np.ones(4, np.float32)}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure_is_checked_before_code_is_mapped(chain: Package, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words = STRUCTURE[name]
    monkeypatch.setattr("tsc.runtime.executable.CpuModule", lambda *a: pytest.fail("the binary was loaded"))
    with pytest.raises(PackageError, match=words):
        Executable(with_plan(chain, change(plan_of(chain))))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked_before_anything_runs(chain: Package, name: str) -> None:
    change, words = NUMBERS[name]
    executable = Executable(with_plan(chain, change(plan_of(chain))), 2)
    with pytest.raises(PackageError, match=words) as caught:
        executable.run(None, request())
    assert "\n" not in str(caught.value) and "n=2, c=4" in str(caught.value)
    with pytest.raises(PackageError, match=words):
        executable.prepare(n=2, c=4)


def two_values() -> Plan:
    """b = x + w, c = b + w, y = b + c: both b and c live at the end."""
    sizes = {"sizes": (N, ONE), "variants": (one_call("add_row", N, 3, SymExpr.of(4)),), "kernel": "add_row", "node": ""}
    return straight(
        inputs=(TensorSpec("x", "float32", (N, ONE)), TensorSpec("w", "float32", (ONE,))),
        outputs=(TensorSpec("y", "float32", (N, ONE)),), ranges={"n": Range()}, guards=(),
        storages=(Storage("input", 0), Storage("input", 1), Storage("output", 0), Storage("arena", 0, ZERO, 4 * N),
                  Storage("arena", 0, 64 * N, 4 * N)),
        constants=(), copies=(), arena_bytes=128 * N,
        launches=(Launch(args=(0, 1, 3), **sizes), Launch(args=(3, 1, 4), **sizes), Launch(args=(3, 1, 2), **sizes)))


def test_two_values_in_one_place(binary: bytes) -> None:
    plan = two_values()
    Executable(Package({"cpu-generic": plan}, {}, {"cpu-generic": Module(binary)})).prepare(n=7)
    close = storage(plan, 4, offset=64 * (N // 16))  # apart only where 16 divides n
    executable = Executable(Package({"cpu-generic": close}, {}, {"cpu-generic": Module(binary)}))
    executable.prepare(n=16 * 32)
    with pytest.raises(PackageError, match="in the same place at once at n=20"):
        executable.prepare(n=20)
    later = changed(plan, launches=(*plan.launches[:2], replace(plan.launches[2], args=(4, 1, 2))))
    later = storage(later, 4, offset=ZERO)  # the second is written while the first is read
    with pytest.raises(PackageError, match="in the same place"):
        Executable(Package({"cpu-generic": later}, {}, {"cpu-generic": Module(binary)})).prepare(n=7)


def test_bounds_of_empty_plans() -> None:
    Bounds(straight(), (), {}, "it")


# -- the table of kernels --------------------------------------------------------------------------------------------

def test_the_table_is_read_from_the_bytes(binary: bytes) -> None:
    found = read_interface(binary)
    assert found.kernels == INTERFACES and (found.target, found.cpu_flags) == ("cpu-generic", ())
    functions = read_exports(binary).functions
    assert {"add_row", "mirror", "gather", "bump", "tsc_run", "tsc_stop"} <= functions and "abort" not in functions


def test_other_flags_than_the_code_was_compiled_for(chain: Package) -> None:
    with pytest.raises(PackageError, match="other CPU flags"):
        Executable(replace(chain, modules={"cpu-generic": Module(chain.modules["cpu-generic"].binary, ("fpu",))}))


def test_damaged_tables(binary: bytes) -> None:
    for old, new in ((b"tsc_interface", b"tsc_interfaze"), (b'"kernels"', b'"cernels"'), (b'"add_row"', b'"abort__"'),
                     (b"*r", b"**"), (b"tsc_stop\0", b"tsc_stob\0")):
        assert old in binary
        with pytest.raises(ValueError):
            read_interface(binary.replace(old, new))
    for end in (0, 3, 16, 63, 64, 200, len(binary) // 2, len(binary) - 64):
        with pytest.raises(ValueError):
            read_interface(binary[:end])
    for place in range(0x10, 0x40, 2):  # the ELF header, two bytes at a time
        damaged = binary[:place] + struct.pack("<H", 0xFFFF) + binary[place + 2:]
        with suppress(ValueError):
            read_interface(damaged)


def kernel(facts: tuple[Guard, ...], *sizes: str) -> KernelInterface:
    return KernelInterface((), tuple((name, Range(0)) for name in sizes), facts, (one_call("f", ONE, 0),))


def fact(text: str) -> Guard:
    relation = "<=" if "<=" in text else "=="
    left, right = text.split(relation)
    return Guard(relation, parse(left.strip()), parse(right.strip()), "")


@pytest.mark.parametrize("facts, good, bad", [
    (("a == b + 1",), [(3, 2), (1, 0)], [(2, 2), (0, 1)]),
    (("a <= b",), [(2, 2), (0, 5)], [(3, 2)]),
    (("a == h // 16", "b == h // 8"), [(0, 0), (0, 1), (3, 6), (3, 7)], [(3, 8), (3, 5), (1, 1)]),
    (("a == h // 4", "b <= h"), [(2, 11), (2, 0)], [(2, 12)]),
    (("32 <= h", "a == h // 16", "b == b"), [(2, 0), (9, 0)], [(1, 0), (0, 0)]),
    (("a == g + h", "b == g * h"), [(1, 1), (5, 0)], []),  # not decided: two unknowns
])
def test_facts_about_sizes(facts: tuple[str, ...], good: list[tuple[int, int]], bad: list[tuple[int, int]]) -> None:
    """Against the definition: some integer for each hidden name, the same in all facts."""
    interface = kernel(tuple(map(fact, facts)), "a", "b")
    assert interface_from_json(json.loads(json.dumps(interface_to_json(interface)))) == interface
    for sizes in good:
        assert wrong_sizes(interface, sizes) is None
    for sizes in bad:
        assert wrong_sizes(interface, sizes)
        named = dict(zip("ab", sizes))
        assert not any(all(f.holds({**named, "h": h}) for f in interface.facts) for h in range(-10, 300))


# -- the file --------------------------------------------------------------------------------------------------------

@pytest.fixture
def data(lookup: Callable[[np.ndarray], Package], tmp_path: Path) -> bytes:
    lookup(np.arange(20, dtype=np.float32)).write(tmp_path / "whole")
    return (tmp_path / "whole").read_bytes()


def header_with(path: tuple[Any, ...], value: Any) -> Callable[[Opened], None]:
    def change(package: Opened) -> None:
        place: Any = package.header
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return change


HEADERS: dict[str, Callable[[Opened], None]] = {
    "a dtype that is none": header_with(("constants", "table", "dtype"), 3),
    "a dtype of objects": header_with(("constants", "table", "dtype"), "object"),
    "a shape that is none": header_with(("constants", "table", "shape"), 20),
    "a size beyond the weights": header_with(("constants", "table", "shape"), [1 << 40]),
    "sizes whose product overflows": header_with(("constants", "table", "shape"), [1 << 33, 1 << 33]),
    "a negative size": header_with(("constants", "table", "shape"), [-20]),
    "a rank that no array has": header_with(("constants", "table", "shape"), [1] * 99 + [20]),
    "an offset that is none": header_with(("constants", "table", "offset"), 0.0),
    "an unknown constant": header_with(("constants", "other"), {"dtype": "float32", "shape": [0], "offset": 0}),
    "flags that are none": header_with(("targets", "cpu-generic", "cpu_flags"), {"avx": 1}),
    "flags of numbers": header_with(("targets", "cpu-generic", "cpu_flags"), [1]),
    "a target without kernels": header_with(("targets", "cpu-generic"), {"cpu_flags": []}),
    "a target without parts": header_with(("targets", "cpu-none"), {"cpu_flags": [], "kernels": []}),
    "no targets": header_with(("targets",), None),
    "stats that are none": header_with(("stats",), ["a"]),
    "a version that is none": header_with(("tsc",), 1),
    "other kernels": header_with(("targets", "cpu-generic", "kernels"), ["abort"]),
    "an unknown entry": header_with(("later",), 1),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_with_right_hashes(data: bytes, tmp_path: Path, name: str) -> None:
    package = opened(data)
    HEADERS[name](package)
    (tmp_path / "p").write_bytes(closed(package))
    with pytest.raises(PackageError) as caught:
        load(tmp_path / "p")
    assert str(tmp_path / "p") in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("header", [
    b"[" * 300_000, b'{"a":' * 300_000, b"", b"{}", b"[]", b"\xff\xfe", b"nul", b'{"tsc": 1e999}',
    b'{"parts":' + b"9" * 10_000 + b"}"], ids=lambda raw: repr(raw[:12]))
def test_headers_that_are_bombs_or_no_json(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "p").write_bytes(framed(header, b""))
    with pytest.raises(PackageError, match="malformed"):
        load(tmp_path / "p")


@pytest.mark.parametrize("where", ["header", "gap", "module", "weights"])
def test_sparse_files_of_a_terabyte(data: bytes, tmp_path: Path, where: str) -> None:
    """Sizes that the file does have, and that nobody has memory for."""
    path, huge = tmp_path / "p", 1 << 40
    package = opened(data)
    parts = package.header["parts"]
    match where:
        case "header":
            path.write_bytes(data[:16] + struct.pack("<Q", huge) + data[24:])
        case "gap":
            parts["weights"]["offset"] += huge
        case _:
            name = "weights" if where == "weights" else "module/cpu-generic"
            parts[name]["bytes"] += huge
            for later in list(parts)[list(parts).index(name) + 1:]:
                parts[later]["offset"] += huge
            if where == "weights":  # with a table that says the same
                package.header["constants"]["table"]["shape"] = [(parts[name]["bytes"]) // 4]
    if where != "header":
        path.write_bytes(framed(json.dumps(package.header).encode(), data[PAGE:]))
    os.truncate(path, path.stat().st_size + huge)
    with pytest.raises(PackageError):
        load(path)


@pytest.mark.parametrize("text", [
    "(" * 3000 + "n" + ")" * 3000, "-" * 50_000 + "n", "*".join(f"(a{k} + b{k})" for k in range(24)), "n**n", "max()", "n % 0",
    "f(n)", "n < 1", "9" * 9999, "n" * 100_000, "lambda: n", "n.real", "'n'"], ids=lambda text: text[:8])
def test_expressions_that_are_none_or_bombs(data: bytes, tmp_path: Path, text: str) -> None:
    package = opened(data)
    plan = json.loads(package.parts["plan/cpu-generic"])
    next(step for step in plan["body"] if step["step"] == "launch")["variants"][0][0][0][1] = text
    package.parts["plan/cpu-generic"] = json.dumps(plan).encode()
    (tmp_path / "p").write_bytes(closed(package))
    with pytest.raises(PackageError, match="malformed"):
        load(tmp_path / "p")


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null"), tmp_path):
        with pytest.raises(PackageError, match=r"not a regular file|directory"):
            load(path)
    for odd in (3, None, "a\0b", b"\xff\0", ["a"], "x" * 5000):
        with pytest.raises(PackageError):
            load(odd)  # type: ignore[arg-type]
    with pytest.raises(PackageError, match="'private', 'shared'"):
        load(tmp_path, weights="mapped")  # type: ignore[arg-type]
