"""Whole models compiled for a GPU and run in the emulator, beside ONNX Runtime: nothing runs on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tsc
from benchmarks.gpu.models import block, block_feeds, perceptron
from tests.models.test_shared_models import DIMS, ENTRIES, FOLDER, RECIPES
from tests.test_tiny import tiny_model
from tsc.config import Options, Precision
from tsc.explain import explain_node
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.plan.kernel import Kernel
from tsc.poly.pattern.warps import GROUP_TILE
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
from tsc.runtime.drivers.emu import EmuOptions, EmuPlatform
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

MODES = ("fast", "lazy", "race")


@pytest.fixture(scope="module")
def package() -> Package:
    return build_package(block(), None, workshop("emu:sm_80", Options(variants=2)))


def emulated(package: Package, mode: str) -> Executable:
    arch = next(iter(package.plans)).removeprefix("emu:")
    return Executable(package, driver=EmuPlatform(arch, EmuOptions(mode=mode)).open())


@pytest.mark.parametrize("mode", MODES)
def test_a_block_at_odd_shapes(package: Package, mode: str) -> None:
    executable = emulated(package, mode)
    session = onnxruntime.InferenceSession(block().SerializeToString(), providers=["CPUExecutionProvider"])
    for n, t in ((1, 1), (2, 7), (3, 17)):
        for got, want in zip(executable.run(None, block_feeds(n, t)), session.run(None, block_feeds(n, t)), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{mode} at {n}, {t}")


def expect_near(rounded: Package, exact: Package, fed: Sequence[dict[str, Any]], outputs: int | None = None) -> None:
    """The first `outputs` (None: all) are what fp32 gives, within 5e-3, in every mode."""
    for mode in MODES:
        executable = emulated(rounded, mode)
        for feeds in fed:
            found, wanted = (one.run(None, feeds)[:outputs] for one in (executable, emulated(exact, "fast")))
            for got, want in zip(found, wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3, err_msg=mode)


def test_products_in_tf32() -> None:
    """On matrix instructions, near what fp32 gives; a block's are beside those of halves below."""
    shop = workshop("emu:sm_80", Options(precision="tf32", variants=1))
    rounded = build_package(perceptron(), None, shop)
    exact = build_package(perceptron(), None, workshop("emu:sm_80", Options(variants=1)))
    expect_near(rounded, exact, [{"x": np.random.default_rng(n).standard_normal((n, 40), np.float32)} for n in (1, 33)])
    kernels = [k for k in shop.made.values() if isinstance(k, Kernel) and k.symbol.startswith("contraction")]
    assert kernels and all("mma_tile<tf32>" in code.source for kernel in kernels for code in kernel.codes)


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_a_cpu_computes_in_fp32_whatever_is_allowed(precision: Precision) -> None:
    x = np.random.default_rng(0).standard_normal((5, 13), np.float32)
    made, plain = tsc.compile(tiny_model(), options=Options(precision=precision)), tsc.compile(tiny_model())
    for one, other in zip(made.run(None, {"x": x}), plain.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(one, other)


def test_factors_in_fp16(package: Package) -> None:
    """Stored so, on matrix instructions, near what fp32 gives; what a mask adds is no factor."""
    shop = workshop("emu:sm_80", Options(precision="fp16", variants=1))
    rounded = build_package(block(), None, shop)
    fed = [block_feeds(n, t) for n, t in ((1, 1), (3, 17))]
    for feeds in fed:
        feeds["mask"] = np.where(feeds["mask"] < 0, np.finfo(np.float32).min, 0).astype(np.float32)
    expect_near(rounded, package, fed, outputs=1)
    kernels = [k for k in shop.made.values() if isinstance(k, Kernel) and k.symbol.startswith("contraction")]
    sources = [code.source for kernel in kernels for code in kernel.codes]
    halves = [source for source in sources if "mma_tile<f16>" in source]
    assert len(halves) == 4 and all("ldmatrix<4, " in source for source in halves)
    assert all("mma_tile<tf32>" in source for source in sources if source not in halves)  # a row of its factor is t long
    assert any("ldmatrix<4, true, " in source for source in halves)  # weights lie along columns


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_models_of_halves(precision: Precision) -> None:
    """What comes as halves is multiplied as that, where this is allowed: no kernel rounds it again. Else one widens each."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float16[m, 16] x, float16[16, 8] w) => (float16[m, 8] y) { h = MatMul(x, w) y = Tanh(h) }""")
    executable = tsc.compile(model, target="emu:sm_80", options=Options(precision=precision, variants=1))
    assert len(executable.launches) == (1 if precision == "fp16" else 3)
    rng = np.random.default_rng(5)
    for m in (1, 33):
        x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, 16), (16, 8)))
        got, = executable.run(None, {"x": x, "w": w})
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, np.tanh(x.astype(np.float64) @ w.astype(np.float64)), rtol=1e-3, atol=1e-6)


def test_products_by_warp_groups() -> None:
    """A config of theirs is for the architecture that has groups; others have the pattern's own."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[m, 64] x, float[64, n] w, float[n] b) => (float[m, n] y) { h = MatMul(x, w) s = Add(h, b) y = Relu(s) }""")
    config = TileConfig(GROUP_TILE, (64, 64, 32), warp_tile=(16, 64), stages=3)

    def made(target: str) -> tuple[Package, list[str]]:
        shop = replace(workshop(target, Options(precision="fp16")), pool=lambda group: {config: Rates()})
        package = build_package(model, {"n": (8, 512, 8)}, shop)
        return package, [code.source for k in shop.made.values() if isinstance(k, Kernel) for code in k.codes]

    package, sources = made("emu:sm_90a")
    assert any("wgmma_steps<f16, 64>" in source for source in sources)
    rng = np.random.default_rng(7)
    for m, n in ((1, 8), (65, 136), (130, 64)):
        feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in (("x", (m, 64)), ("w", (64, n)), ("b", (n,)))}
        x, w = (feeds[name].astype(np.float16).astype(np.float64) for name in ("x", "w"))
        got, = emulated(package, "race").run(None, feeds)
        np.testing.assert_allclose(got, np.maximum(x @ w + feeds["b"], 0), rtol=1e-4, atol=1e-4)
    assert not any("wgmma" in source for source in made("emu:sm_80")[1])


def test_products_in_float64_have_no_matrix_instructions() -> None:
    """Accesses are of two numbers then, or of one; an infinity stays where it is."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (double[m, k] x, double[k, n] w) => (double[m, n] y) { y = MatMul(x, w) }""")
    executable = emulated(build_package(model, None, workshop("emu:sm_80", Options(variants=1, precision="tf32"))), "race")
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 1, 1), (33, 37, 65)):
        x, w = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        x[-1, 0] = np.inf
        np.testing.assert_allclose(executable.run(None, {"x": x, "w": w})[0], x @ w, rtol=1e-12, atol=1e-12)


def test_a_precision_that_there_is_not() -> None:
    with pytest.raises(tsc.InputError, match="precision is 'fp8', expected one of fp32, tf32, fp16"):
        Options(precision="fp8")  # type: ignore[arg-type]


def test_data_errors_are_named(package: Package) -> None:
    wrong = block_feeds(2, 3)
    wrong["ids"][1, 2] = 11
    with pytest.raises(tsc.InputError, match=r"'ids' holds an index that is out of bounds.*Gather"):
        emulated(package, "fast").run(None, wrong)


def test_a_package_is_saved_and_loaded(tmp_path: Path) -> None:
    made = tsc.compile(tiny_model(), target="emu:sm_90a")
    made.save(tmp_path / "m.tscpack")
    loaded = tsc.load(tmp_path / "m.tscpack")
    x = np.random.default_rng(0).standard_normal((5, 13), np.float32)
    np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], made.run(None, {"x": x})[0])
    assert "emu:sm_90a" in loaded.explain()


def test_the_same_dependences_as_on_a_cpu() -> None:
    """Of a group that both keep whole, as both dump it."""
    texts = {target: explain_node(tiny_model(), "dense", target=target) for target in ("cpu-avx2", "emu:sm_80")}
    parts = {target: text[text.index("--- dependences"):text.index("--- pattern and matrix")].splitlines()[1:]
             for target, text in texts.items()}
    assert set(parts["cpu-avx2"]) <= set(parts["emu:sm_80"])


@pytest.mark.slow
@pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize("name", ["bert.ts", "albert.ts", "gpt2.ts", "gpt2_kv.ts", "vit.ts", "t5.ts", "llama_kv.ts", "nerf.ts"])
def test_shared_models(name: str) -> None:
    entry = ENTRIES[name]
    package = build_package(FOLDER / entry["file"], DIMS.get(name), workshop("emu:sm_80", Options()))
    session = onnxruntime.InferenceSession(str(FOLDER / entry["file"]), providers=["CPUExecutionProvider"])
    names = [output["name"] for output in entry["outputs"]]
    for mode in MODES:
        executable = emulated(package, mode)
        for seed, shape in enumerate(entry["shapes"][:2] + RECIPES.random_shapes(entry, 2, seed=1)):
            fed = RECIPES.feeds(entry, shape, seed)
            for got, want in zip(executable.run(None, fed), session.run(names, fed), strict=True):
                np.testing.assert_allclose(got, want, rtol=entry["rtol"], atol=entry["atol"], err_msg=f"{mode} at {shape}")


@pytest.mark.slow
@pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize("name", ["bert.ts", "vit.ts", "gpt2.ts", "t5.ts"])
def test_shared_models_in_fp16(name: str) -> None:
    """Within 5e-3 of the largest value of each output."""
    entry = ENTRIES[name]
    shop = workshop("emu:sm_80", Options(precision="fp16", variants=1))
    package = build_package(FOLDER / entry["file"], DIMS.get(name), shop)
    session = onnxruntime.InferenceSession(str(FOLDER / entry["file"]), providers=["CPUExecutionProvider"])
    executable = emulated(package, "fast")
    for seed, shape in enumerate(entry["shapes"][:3]):
        fed = RECIPES.feeds(entry, shape, seed)
        found = executable.run(None, fed)
        for got, want in zip(found, session.run([output["name"] for output in entry["outputs"]], fed), strict=True):
            assert np.abs(got - want).max(initial=0) <= 5e-3 * np.abs(want).max(initial=0), shape
