"""The half of the GPU run that needs no GPU: one folder with everything the other half loads.

    python -m benchmarks.gpu.build [--emulated] [--out build/gpu]

It holds cubins for every architecture (with `--emulated` the emulator's modules too), the conformance cases with what the
emulator made of them, kernels that the compiler prints with what they must give, Packages of whole models with what ONNX
Runtime makes of these, of single layers, the C launcher, and manifest.json, which says what is what.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

from benchmarks.gpu.cases import SOURCES, make_cases
from benchmarks.gpu.configs import PRODUCTS
from benchmarks.gpu.conformance import attempt, write_cases
from benchmarks.gpu.hollow import write_hollow
from benchmarks.gpu.language import BUILT, built_name
from benchmarks.gpu.layers import LAYERS, MULTIPLYING, multiplied, with_weights
from benchmarks.gpu.models import MODELS, Whole, own, shared
from benchmarks.gpu.models import write_cases as write_models
from benchmarks.gpu.printed import PROGRAMS, SEEDS, make_printed
from benchmarks.gpu.references import REFERENCES
from benchmarks.gpu.timed import REDUCED, layer_name
from benchmarks.transformers import TRANSFORMERS
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import Cubin, CudaSource, build_cubins, build_emulated
from tsc.codegen_cuda.resources import read_cubin
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options, Precision
from tsc.kernels import Workshop, workshop
from tsc.pipeline import build_package
from tsc.poly.pattern.warps import GROUP_TILE, INSTR_TILE, MATRIX_TILE
from tsc.poly.tile import TileConfig, config_to_json
from tsc.runtime.cost import Rates
from tsc.runtime.drivers.emu import EmuPlatform
from tsc.runtime.package import Package

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "build" / "gpu"
#: The configs that are tried: blocks, warps, and stages; on matrix instructions fewer.
CONFIGS = tuple(TileConfig(INSTR_TILE, block, warp_tile=warp, stages=stages) for block, warp, stages in (
    ((16, 32, 64), (16, 16), 4), ((16, 32, 32), (16, 16), 4), ((16, 64, 32), (16, 16), 4), ((32, 32, 32), (16, 16), 4),
    ((32, 32, 32), (32, 16), 4), ((32, 32, 64), (16, 16), 3), ((32, 64, 32), (32, 16), 3), ((64, 64, 16), (32, 32), 2),
    ((64, 64, 32), (32, 16), 3), ((64, 64, 32), (32, 32), 3), ((128, 64, 16), (32, 32), 3), ((128, 64, 32), (64, 32), 3),
    ((128, 128, 16), (64, 32), 3)))
MATRIX_CONFIGS = tuple(TileConfig(MATRIX_TILE, block, warp_tile=warp, stages=stages) for block, warp, stages in (
    ((16, 32, 64), (16, 16), 4), ((16, 64, 32), (16, 16), 4), ((32, 32, 64), (16, 16), 4), ((32, 64, 32), (32, 16), 4),
    ((64, 64, 32), (32, 32), 3), ((64, 64, 32), (32, 32), 4), ((128, 64, 32), (64, 32), 3), ((128, 64, 32), (64, 32), 4),
    ((128, 128, 32), (64, 32), 3), ((128, 128, 16), (64, 64), 4), ((128, 128, 32), (64, 64), 3)))
HALF_CONFIGS = tuple(TileConfig(MATRIX_TILE, block, warp_tile=warp, stages=stages) for block, warp, stages in (
    ((16, 32, 64), (16, 16), 4), ((16, 64, 64), (16, 16), 4), ((16, 32, 128), (16, 16), 4), ((32, 32, 64), (16, 16), 4),
    ((32, 64, 64), (32, 16), 4), ((64, 64, 32), (32, 32), 4), ((64, 64, 64), (32, 32), 4), ((128, 64, 64), (64, 32), 3),
    ((128, 128, 32), (64, 64), 4), ((128, 128, 64), (64, 32), 3), ((128, 128, 64), (64, 64), 3), ((128, 256, 32), (64, 64), 4)))
#: Of warp groups, whose blocks have all of their columns.
GROUP_CONFIGS = tuple(TileConfig(GROUP_TILE, block, warp_tile=(16, block[1]), stages=stages) for block, stages in (
    ((64, 32, 64), 4), ((64, 64, 64), 4), ((64, 32, 128), 4), ((64, 128, 64), 4), ((64, 256, 64), 3), ((128, 64, 64), 4),
    ((128, 128, 64), 3), ((128, 128, 64), 4), ((128, 256, 64), 3), ((256, 128, 64), 3)))
#: What is tried, with the precision of its products.
TRIED: tuple[tuple[Precision, TileConfig], ...] = (
    *(("fp32", config) for config in CONFIGS), *(("tf32", config) for config in MATRIX_CONFIGS),
    *(("fp16", config) for config in HALF_CONFIGS + GROUP_CONFIGS))


def sources() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every source by name: its text, and the architectures it is for."""
    every = tuple(CUDA_SPECS)
    found = {r.name: (r.source, every if r.arch is None else (r.arch,)) for r in REFERENCES}
    found["primitives"] = ((SOURCES / "primitives.cu").read_text(encoding="utf-8"), every)
    found["hopper"] = ((SOURCES / "hopper.cu").read_text(encoding="utf-8"), ("sm_90a",))
    found["set_word"] = ((HERE / "set_word.cu").read_text(encoding="utf-8"), every)
    return found


@dataclass(frozen=True, slots=True)
class Contents:
    """What the folder holds: code of `archs`, the emulator's modules too if `emulated`; `models` whole, single `layers`,
    `language` models in a precision each, products in `configs`, and printed kernels of `programs`, with random ones of
    `seeds`."""

    archs: tuple[str, ...] = tuple(CUDA_SPECS)
    emulated: bool = False
    models: Mapping[str, Whole] = field(default_factory=lambda: {name: own(name) for name in MODELS})
    layers: tuple[str, ...] = tuple(LAYERS)
    language: tuple[tuple[str, Precision], ...] = ()
    programs: tuple[str, ...] = PROGRAMS
    seeds: range = SEEDS
    configs: tuple[tuple[Precision, TileConfig], ...] = ()


def build(out: Path, contents: Contents, options: Options) -> dict[str, Any]:
    """Make the folder anew, and return its manifest. Without NVRTC there are no cubins; raises LaunchError where there is no
    C++ compiler."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    printed = make_printed(contents.programs, contents.seeds)
    texts = {**sources(), "printed": (printed.text, tuple(CUDA_SPECS))}
    binaries: dict[str, dict[str, str]] = {name: {} for name in texts}
    kernels: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in binaries}
    wanted = [(CudaSource(name, text), arch) for name, (text, of) in texts.items() for arch in of if arch in contents.archs]
    cubins: Sequence[Cubin] = build_cubins(wanted, options) if nvrtc.available() and wanted else ()
    for (source, arch), cubin in zip(wanted, cubins):
        binaries[source.name][arch] = _put(out, f"{source.name}.{arch}.cubin", cubin.binary)
        kernels[source.name][arch] = {info.name: asdict(info) for info in cubin.kernels}
    modules = {name: build_emulated(CudaSource(name, text), options) for name, (text, _) in texts.items()
               if contents.emulated or name in ("primitives", "hopper")}
    if contents.emulated:
        for name, module in modules.items():
            binaries[name]["emu"] = _put(out, f"{name}.emu.so", module)
    _emulate_cases(out / "cases.npz", modules)
    write_cases(out / "printed.npz", printed.cases, printed.expected)
    write_models(out / "models.npz", contents.models)
    targets = [*(["emu:sm_90a"] if contents.emulated else []), *(contents.archs if cubins else ())]
    shops = {target: workshop(target, options) for target in targets}
    packages = _packages(out, contents.models, shops)
    timed = _packages(out, {name: Whole(LAYERS[name](), {}) for name in contents.layers}, shops)
    for precision in REDUCED:
        rounded = {target: workshop(target, replace(options, precision=precision)) for target in targets}
        made = {name: LAYERS[name]() for name in contents.layers if name in MULTIPLYING}
        multiplying = {layer_name(name, precision): Whole(with_weights(layer) if precision == "fp16" else layer, {})
                       for name, layer in made.items()}
        timed |= _packages(out, multiplying, rounded)
    tried = _build_configs(out, contents, targets, options)
    language, hollow = _build_language(out, contents.language, targets, options)
    manifest = {"format": 3, "compiler": nvrtc.identity() if cubins else "none", "binaries": binaries, "kernels": kernels,
                "packages": packages, "layers": timed, "configs": tried,
                "language": language, "hollow": hollow,
                "configs_files": {name: entry["files"] for name, entry in tried.items()},
                "models": "models.npz", "cases": "cases.npz", "printed": "printed.npz",
                "tolerances": {name: (whole.relative, whole.absolute) for name, whole in contents.models.items()},
                "launcher": _build_launcher(out)}
    content = hashlib.sha256()
    for path in sorted(out.iterdir()):
        content.update(path.name.encode() + path.read_bytes())
    manifest["build"] = content.hexdigest()[:16]
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _build_configs(out: Path, contents: Contents, targets: Sequence[str], options: Options) -> dict[str, dict[str, Any]]:
    """A product in each of the configs, of each number of columns and terms, for GPUs."""
    shops = {(target, precision): workshop(target, replace(options, precision=precision))
             for target in targets if not target.startswith("emu:") for precision in get_args(Precision)}
    found: dict[str, dict[str, Any]] = {}
    for number, ((precision, config), (n, k)) in enumerate(product(contents.configs, PRODUCTS)):
        name, files, resident = f"config{number}", {}, 1
        for (target, _), shop in ((key, shop) for key, shop in shops.items() if key[1] == precision):
            if config in GROUP_CONFIGS and not (shop.device.spec.gpu and shop.device.spec.gpu.warp_groups):
                continue
            alone = replace(shop, pool=lambda group, config=config: {config: Rates()}, made={}, orders=[])
            files[target] = _package(out, f"{name}.{target}", Whole(multiplied(n, k), {}), alone)
            resident = _resident(Package.read(out / files[target]), shop)
        found[name] = {"config": json.loads(config_to_json(config)), "product": (n, k), "precision": precision,
                       "resident": resident, "files": files}
    return found


def _build_language(out: Path, wanted: Sequence[tuple[str, Precision]], targets: Sequence[str],
                    options: Options) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Files of language models for each target, and the digests of what was left out of them."""
    files: dict[str, dict[str, str]] = {}
    digests: dict[str, dict[str, str]] = {}
    for net, precision in wanted:
        name = built_name(net, precision)
        for target in targets:
            short = target.partition(":")[0]
            package = build_package(TRANSFORMERS[net](), {}, workshop(target, replace(options, precision=precision)))
            digests[name] = write_hollow(out / f"{name}.{short}.tscpack.gz", package)
            files.setdefault(name, {})[short] = f"{name}.{short}.tscpack.gz"
    return files, digests


def _resident(package: Package, shop: Workshop) -> int:
    """How many blocks of a Package's last kernel a multiprocessor has room for."""
    launches, limits = next(iter(package.plans.values())).launches, shop.device.spec.gpu
    (call,) = launches[-1].calls
    registers = read_cubin(next(iter(package.modules.values())).binary)[call.function].registers
    return max(1, limits.resident(call.threads, registers, call.shared)) if limits is not None else 1


def _emulate_cases(path: Path, modules: Mapping[str, bytes]) -> None:
    driver = EmuPlatform("sm_90a").open()
    stream = driver.create_stream()
    loaded = {name: driver.load(modules[name], name) for name in ("primitives", "hopper")}
    cases = make_cases()
    write_cases(path, cases, {case.name: attempt(driver, loaded[case.source], case, stream) for case in cases})
    driver.close()


def _build_launcher(out: Path) -> str:
    command = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    call = [command] if command else [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*call, "-O2", "-shared", "-fPIC", "-o", str(out / "launcher.so"), str(HERE / "launcher.c")], check=True)
    return "launcher.so"


def _packages(out: Path, models: Mapping[str, Whole], shops: Mapping[str, Workshop]) -> dict[str, dict[str, str]]:
    """The file of each model's Package for each target, of the emulator's as "emu"."""
    return {name: {target.partition(":")[0]: _package(out, f"{name}.{target.partition(':')[0]}", whole, shop)
                   for target, shop in shops.items()} for name, whole in models.items()}


def _package(out: Path, name: str, whole: Whole, shop: Workshop) -> str:
    build_package(whole.model, whole.dims, shop).write(out / f"{name}.tscpack")
    return f"{name}.tscpack"


def _put(out: Path, name: str, content: bytes) -> str:
    (out / name).write_bytes(content)
    return name


def main(arguments: Sequence[str]) -> int:
    """Build, and say what it came to."""
    parser = argparse.ArgumentParser(description="Build what the GPU run needs.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--emulated", action="store_true", help="put the emulator's modules in too")
    parser.add_argument("--archs", nargs="+", choices=tuple(CUDA_SPECS), default=tuple(CUDA_SPECS), help="only these")
    parser.add_argument("--shared", nargs="*", default=(), help="these shared models too, at listed and 25 random shapes")
    parser.add_argument("--language", nargs="*", choices=tuple(built_name(*one) for one in BUILT), default=(),
                        help="these language models too, whose weights are made where they run")
    parser.add_argument("--configs", action="store_true", help="products in many configs too, to fit Rates to")
    chosen = parser.parse_args(arguments)
    models = {name: own(name) for name in MODELS} | {name: shared(name, 25) for name in chosen.shared}
    configs = TRIED if chosen.configs else ()
    language = tuple(one for one in BUILT if built_name(*one) in chosen.language)
    contents = Contents(tuple(chosen.archs), chosen.emulated, models, language=language, configs=configs)
    manifest = build(chosen.out, contents, Options())
    size = sum(path.stat().st_size for path in chosen.out.iterdir())
    count = sum(map(len, manifest["binaries"].values()))
    print(f"{chosen.out}: {count} binaries, {size / 1e6:.1f} MB, build {manifest['build']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
