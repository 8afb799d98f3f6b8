"""Running: right at many shapes, from many threads, after a fork; every wrong request named; nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.plans import changed, plan_of, with_plan
from tsc.errors import InputError, LaunchError, PackageError, ShapeError
from tsc.runtime import context, memory
from tsc.runtime.executable import MEMO, Executable
from tsc.runtime.load import load
from tsc.runtime.memory import PAGE
from tsc.runtime.package import Module, Package
from tsc.sym import Range

Oracle = Callable[[np.ndarray, np.ndarray], np.ndarray]
SHAPES = [(1, 1), (2, 2), (1, 63), (3, 5), (7, 13), (17, 1), (64, 64), (129, 31), (2, 64), (1001, 3)]


def request(n: int, c: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, c)).astype(np.float32), "w": rng.standard_normal(c).astype(np.float32)}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_right_at_many_shapes(chain: Package, expected: Oracle, threads: int) -> None:
    executable = Executable(chain, threads)
    for n, c in SHAPES * 2:
        feeds = request(n, c)
        y, z = executable.run(None, feeds)
        np.testing.assert_array_equal(y, expected(feeds["x"], feeds["w"]))
        np.testing.assert_array_equal(z, feeds["x"])
    stats = executable.stats
    assert stats["shapes"] == len(SHAPES) and stats["memo_hits"] == len(SHAPES) and stats["compiles"] == 1


def test_named_outputs_as_in_onnxruntime(chain: Package) -> None:
    executable, feeds = Executable(chain, 1), request(3, 5)
    z, y = executable.run(["z", "y"], feeds)
    both = executable.run(None, feeds)
    np.testing.assert_array_equal(y, both[0])
    np.testing.assert_array_equal(z, both[1])
    assert len(executable.run(["z"], feeds)) == 1


def test_strided_and_foreign_layouts_are_copied(chain: Package, expected: Oracle) -> None:
    executable = Executable(chain, 2)
    base = np.random.default_rng(0).standard_normal((10, 12)).astype(np.float32)
    for x in (base[::2, 1::2][:, :5], np.asfortranarray(base[:4, :4]), base[:6, :4].T, base[::-1]):
        w = np.ones(x.shape[1] * 2, np.float32)[::2]
        np.testing.assert_array_equal(executable.run(["y"], {"x": x, "w": w})[0], expected(x, w))


def test_single_block_launches_run_once_and_in_order(bumps: Package) -> None:
    executable = Executable(bumps, 3)
    for n in (1, 2, 50):
        w = np.full(1, 3, np.float32)
        y, count = executable.run(None, {"x": np.zeros((n, 1), np.float32), "w": w})
        assert count[0] == 6 + 40 and (y == 3).all()


@pytest.mark.parametrize("change, error, words", [
    ({"x": None}, InputError, "input 'x' is missing; "),
    ({"x": None, "z": np.zeros(1)}, InputError, "input 'x' is missing and there is no input 'z'; "),
    ({"v": np.zeros(1)}, InputError, "no input 'v'"),
    ({"x": np.zeros((2, 4))}, InputError, "input 'x' has dtype float64, expected float32"),
    ({"x": np.zeros((2, 4), ">f4")}, InputError, "input 'x' has dtype >f4"),
    ({"x": np.zeros(4, np.float32)}, ShapeError, "input 'x' has rank 1"),
    ({"w": np.zeros(3, np.float32)}, ShapeError, "input 'w' has size 3 at axis 0, expected c = 4, because input 'x' has"),
    ({"x": np.zeros((2, 65), np.float32)}, ShapeError, "input 'x' has size 65 at axis 1, outside 1..64"),
    ({"x": np.zeros((0, 4), np.float32)}, ShapeError, "input 'x' has size 0 at axis 0"),
    ({"x": np.zeros((3, 4), np.float32)}, ShapeError, "the parity node"),
])
def test_wrong_requests(chain: Package, change: dict[str, np.ndarray | None], error: type[Exception], words: str) -> None:
    executable = Executable(chain, 1)
    feeds = {name: value for name, value in {**request(2, 4), **change}.items() if value is not None}
    with pytest.raises(error) as caught:
        executable.run(None, feeds)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    executable.run(None, request(2, 4))  # still works


def test_unknown_outputs(chain: Package) -> None:
    with pytest.raises(InputError, match="no output 'q'"):
        Executable(chain, 1).run(["y", "q"], request(2, 2))
    with pytest.raises(InputError, match="a list"):
        Executable(chain, 1).run("y", request(2, 2))  # type: ignore[arg-type]


def test_index_out_of_bounds_is_an_input_error(lookup: Callable[[np.ndarray], Package]) -> None:
    table = np.arange(100, dtype=np.float32)
    executable = Executable(lookup(table), 2)
    ids = np.random.default_rng(0).integers(0, 100, 1000)
    np.testing.assert_array_equal(executable.run(None, {"ids": ids})[0], table[ids])
    for place in (0, 499, 999):
        bad = ids.copy()
        bad[place] = 100
        with pytest.raises(InputError, match=r"index out of bounds of 'table' \(in the kernel of node 'lookup'\)"):
            executable.run(None, {"ids": bad})
    np.testing.assert_array_equal(executable.run(None, {"ids": ids})[0], table[ids])
    assert executable.run(None, {"ids": ids[:0]})[0].shape == (0,)


def test_eight_threads_many_shapes(chain: Package, expected: Oracle) -> None:
    executable = Executable(chain, 2)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            n = int(rng.integers(1, 90))
            feeds = request(n, int(rng.integers(1, 32)) * 2 - n % 2, seed)
            y, z = executable.run(None, feeds)
            if not (np.array_equal(y, expected(feeds["x"], feeds["w"])) and np.array_equal(z, feeds["x"])):
                wrong.append(feeds["x"].shape)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and executable.stats["runs"] == 480


def test_memo_is_bounded(chain: Package) -> None:
    executable = Executable(chain, 1)
    for n in range(1, 3 * MEMO):
        executable.run(None, request(n, 2 - n % 2))
    assert len(executable._memo) == MEMO


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_after_use(chain: Package, expected: Oracle) -> None:
    executable, feeds = Executable(chain, 3), request(65, 33)
    executable.run(None, feeds)
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(executable.run(None, feeds)[0], expected(feeds["x"], feeds["w"])) for _ in range(20))
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(executable.run(None, feeds)[0], expected(feeds["x"], feeds["w"]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_while_other_threads_run(chain: Package, expected: Oracle) -> None:
    executable, feeds, done = Executable(chain, 2), request(65, 33), threading.Event()

    def work() -> None:
        while not done.is_set():
            executable.run(None, request(9, 9))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                ok = np.array_equal(executable.run(None, feeds)[0], expected(feeds["x"], feeds["w"]))
                os._exit(0 if ok else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_many_modules_come_and_go(chain: Package, expected: Oracle) -> None:
    feeds = request(9, 9)
    for _ in range(30):  # each on its own workers, each unloaded
        np.testing.assert_array_equal(Executable(chain, 2).run(None, feeds)[0], expected(feeds["x"], feeds["w"]))
    assert len(os.listdir("/proc/self/task")) < 25


def test_peak_bytes_and_explain(chain: Package) -> None:
    executable = Executable(chain, 2)
    tables = 8 * 5 + 32 * 2 + 8 * (2 + 2 + 2) + 8 * 2  # arguments, launches, bases, and scratch of each thread
    assert executable.peak_bytes(n=3, c=5) == PAGE + PAGE + tables  # 4*15+64 bytes of arena, 64 of scratch for each thread
    assert executable.peak_bytes(n=1001, c=63) == -(-(4 * 1001 * 63 + 64) // PAGE) * PAGE + PAGE + tables
    assert "n" in str(executable.peak_bytes())
    ranged = Executable(with_plan(chain, changed(plan_of(chain), ranges={"n": Range(1, 8), "c": Range(1, 64)})), 2)
    bound = ranged.peak_bytes()
    assert isinstance(bound, int) and bound >= ranged.peak_bytes(n=8, c=64)
    ranged.prepare(2)
    for wrong in ({"n": 1}, {"n": 1, "c": 1, "q": 1}, {"n": 1, "c": 65}):
        with pytest.raises(ShapeError):
            executable.peak_bytes(**wrong)
    with pytest.raises(ShapeError, match="for n"):
        executable.prepare()
    text = executable.explain(n=3, c=5)
    assert "first" in text and "blocks 3, sizes 3, 5" in text and "fuse: first: alone" in text
    assert "4*n*c" in executable.explain() or "4*c*n" in executable.explain()


def test_too_large_is_a_launch_error(chain: Package) -> None:
    huge = with_plan(chain, changed(plan_of(chain), arena_bytes=plan_of(chain).arena_bytes * 2**50))
    with pytest.raises(LaunchError, match=r"not enough memory: .* at n=1, c=1 .*node 'first' makes most, 4 bytes"):
        Executable(huge, 1).run(None, request(1, 1))
    with pytest.raises(LaunchError, match=r"not enough memory: .* at n=1, c=1 .*node 'first' makes most, 4 bytes"):
        Executable(huge, 1).profile(request(1, 1))


@pytest.mark.parametrize("n", [3000, 8000])
def test_a_shape_that_ran_before_memory_was_short_runs_again(chain: Package, expected: Oracle, n: int,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena is given back before a larger one is taken: where that fails there is none."""
    executable = Executable(chain, 1)
    executable.run(None, request(3000, 64))
    monkeypatch.setattr(memory, "_mapped", lambda *_: None)
    with pytest.raises(LaunchError, match="not enough memory"):
        executable.run(None, request(8000, 64))
    monkeypatch.undo()
    feeds = request(n, 64)
    np.testing.assert_array_equal(executable.run(None, feeds)[0], expected(feeds["x"], feeds["w"]))


@pytest.mark.parametrize("when", [(memory.Block, "grow"), (memory, "_mapped"), (memory, "_advise"), (context, "address")])
def test_an_interrupt_while_a_shape_is_bound(chain: Package, expected: Oracle, when: tuple[object, str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran last is then not what the Context has memory for."""
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    executable, feeds = Executable(chain, 1), request(3, 5)
    executable.run(None, feeds)
    monkeypatch.setattr(*when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        executable.run(None, request(20_000, 64))
    monkeypatch.undo()
    for again in (request(20_000, 64), feeds):
        np.testing.assert_array_equal(executable.run(None, again)[0], expected(again["x"], again["w"]))


def test_binary_for_another_machine(chain: Package) -> None:
    binary = chain.modules["cpu-generic"].binary
    future = {"cpu-future": Module(b"", ("avx1024",))}
    plans = dict.fromkeys(("cpu-future", "cpu-generic"), plan_of(chain))
    with pytest.raises(PackageError, match="avx1024"):
        Executable(replace(chain, modules=future, plans=plans))
    Executable(replace(chain, modules=future | chain.modules, plans=plans), 1).run(None, request(2, 2))
    with pytest.raises(PackageError, match="no binary for this machine"):  # nor a plan for what there is a binary for
        Executable(replace(chain, plans={"cpu-future": plan_of(chain)}))
    for other in (b"", b"\x7fELF not", binary[:1000], binary[:18] + b"\x28\0" + binary[20:]):  # 40 is a 32-bit ARM
        with pytest.raises(PackageError, match="'cpu-generic' that cannot be used"):
            Executable(replace(chain, modules={"cpu-generic": Module(other)}))


def test_malformed_plans_do_not_crash(chain: Package) -> None:
    plan = plan_of(chain)
    for launch in (replace(plan.launches[0], kernel="absent"), replace(plan.launches[0], args=(0, 1, 99))):
        with pytest.raises(PackageError):
            Executable(with_plan(chain, changed(plan, launches=(launch,))))
    with pytest.raises(PackageError):
        Executable(with_plan(chain, replace(plan, constants=("absent",))))


DEPLOYED = """
import sys
for name in ("islpy", "onnx", "torch", "onnxruntime", "click", "rich"):
    sys.modules[name] = None
import numpy as np
import tsc
executable = tsc.load(sys.argv[1], threads=2)
rng = np.random.default_rng(0)
events = []
watched = {"open", "subprocess", "os", "ctypes", "mmap", "import", "socket", "shutil", "tempfile", "exec", "compile"}
def hook(event, args):
    if event.split(".")[0] in watched and event != "ctypes.cdata":  # that is a look at an array's own header
        events.append((event, args))
sys.addaudithook(hook)
for i in range(200):
    n, c = i + 1, 2 * int(rng.integers(1, 30)) + (i + 1) % 2
    x, w = rng.standard_normal((n, c)).astype(np.float32), rng.standard_normal(c).astype(np.float32)
    y, z = executable.run(None, {"x": x, "w": w})
    t = x + w
    assert np.array_equal(y, 2 * t + t[::-1])
found = sorted({event for event, _ in events})
assert not found, (found, events[:3])
assert executable.stats["compiles"] == 0 and executable.stats["shapes"] == 200
compiler = [m for m in sys.modules if m.startswith("tsc.") and m.split(".")[1] not in
            ("errors", "config", "draw", "sym", "target", "runtime")]
assert not compiler, compiler
"""


def test_deployment_runs_200_new_shapes_touching_nothing(chain: Package, tmp_path: Path) -> None:
    path = tmp_path / "chain.tscpack"
    Executable(chain).save(path)
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", DEPLOYED, str(path)], check=True, env=environment)


def test_loaded_equals_compiled(lookup: Callable[[np.ndarray], Package], tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    executable, path = Executable(lookup(table), 2), tmp_path / "lookup.tscpack"
    executable.save(path)
    ids = np.arange(999, -1, -1)
    for weights in ("private", "shared"):
        loaded = load(path, 2, weights)  # type: ignore[arg-type]
        np.testing.assert_array_equal(loaded.run(None, {"ids": ids})[0], table[ids])
        again = tmp_path / f"again-{weights}.tscpack"
        loaded.save(again)
        assert again.read_bytes() == path.read_bytes()
