"""The half of the GPU run that needs no GPU: one folder with everything the other half loads.

    python -m benchmarks.gpu.build [--emulated] [--out build/gpu]

It holds cubins for every architecture (with `--emulated` the emulator's modules too), the conformance cases with what the
emulator made of them, Packages of whole models with what ONNX Runtime makes of these, the C launcher, and manifest.json, which
says what is what.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import SOURCES, make_cases
from benchmarks.gpu.conformance import run_case, write_cases
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.models import write_cases as write_models
from benchmarks.gpu.references import REFERENCES
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import Cubin, CudaSource, build_cubins, build_emulated
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.runtime.drivers.emu import EmuPlatform

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "build" / "gpu"


def sources() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every source by name: its text, and the architectures it is for."""
    every = tuple(CUDA_SPECS)
    found = {r.name: (r.source, every if r.arch is None else (r.arch,)) for r in REFERENCES}
    found["primitives"] = ((SOURCES / "primitives.cu").read_text(encoding="utf-8"), every)
    found["hopper"] = ((SOURCES / "hopper.cu").read_text(encoding="utf-8"), ("sm_90a",))
    found["set_word"] = ((HERE / "set_word.cu").read_text(encoding="utf-8"), every)
    return found


def build(out: Path, emulated: bool, options: Options, archs: Sequence[str] | None = None,
          models: Sequence[str] = tuple(MODELS)) -> dict[str, Any]:
    """Make the folder anew, for all architectures or for `archs`, with some whole models, and return its manifest. Without
    NVRTC there are no cubins; raises LaunchError where there is no C++ compiler."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    binaries: dict[str, dict[str, str]] = {name: {} for name in sources()}
    kernels: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in binaries}
    wanted = [(CudaSource(name, text), arch) for name, (text, own) in sources().items()
              for arch in own if archs is None or arch in archs]
    cubins: Sequence[Cubin] = build_cubins(wanted, options) if nvrtc.available() and wanted else ()
    for (source, arch), cubin in zip(wanted, cubins):
        binaries[source.name][arch] = _put(out, f"{source.name}.{arch}.cubin", cubin.binary)
        kernels[source.name][arch] = {info.name: asdict(info) for info in cubin.kernels}
    modules = {name: build_emulated(CudaSource(name, text), options) for name, (text, _) in sources().items()}
    if emulated:
        for name, module in modules.items():
            binaries[name]["emu"] = _put(out, f"{name}.emu.so", module)
    _emulate_cases(out / "cases.npz", modules)
    targets = [*(["emu:sm_90a"] if emulated else []),
               *(arch for arch in CUDA_SPECS if cubins and (archs is None or arch in archs))]
    packages = {name: {target.partition(":")[0]: _package(out, name, target, options) for target in targets} for name in models}
    write_models(out / "models.npz", list(models))
    manifest = {"format": 1, "compiler": nvrtc.identity() if cubins else "none", "binaries": binaries, "kernels": kernels,
                "packages": packages, "models": "models.npz", "cases": "cases.npz", "launcher": _build_launcher(out)}
    content = hashlib.sha256()
    for path in sorted(out.iterdir()):
        content.update(path.name.encode() + path.read_bytes())
    manifest["build"] = content.hexdigest()[:16]
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _emulate_cases(path: Path, modules: dict[str, bytes]) -> None:
    driver = EmuPlatform("sm_90a").open()
    stream = driver.create_stream()
    loaded = {name: driver.load(modules[name], name) for name in ("primitives", "hopper")}
    cases = make_cases()
    results = {case.name: run_case(driver, driver.function(loaded[case.source], case.kernel), case, stream) for case in cases}
    driver.close()
    write_cases(path, cases, results)


def _build_launcher(out: Path) -> str:
    command = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    call = [command] if command else [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*call, "-O2", "-shared", "-fPIC", "-o", str(out / "launcher.so"), str(HERE / "launcher.c")], check=True)
    return "launcher.so"


def _package(out: Path, model: str, target: str, options: Options) -> str:
    make, _, _ = MODELS[model]
    name = f"{model}.{target.partition(':')[0]}.tscpack"
    build_package(make(), None, workshop(target, options)).write(out / name)
    return name


def _put(out: Path, name: str, content: bytes) -> str:
    (out / name).write_bytes(content)
    return name


def main(arguments: Sequence[str]) -> int:
    """Build, and say what it came to."""
    parser = argparse.ArgumentParser(description="Build what the GPU run needs.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--emulated", action="store_true", help="put the emulator's modules in too")
    chosen = parser.parse_args(arguments)
    manifest = build(chosen.out, chosen.emulated, Options())
    size = sum(path.stat().st_size for path in chosen.out.iterdir())
    count = sum(map(len, manifest["binaries"].values()))
    print(f"{chosen.out}: {count} binaries, {size / 1e6:.1f} MB, build {manifest['build']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
