"""Packages for real GPUs, where NVRTC is installed: made, read and refused here; run where there is a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.test_tiny import tiny_model
from tsc.cli import cli
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.resources import read_cubin
from tsc.codegen_cuda.sass import disassemble, find_disassembler
from tsc.config import Options
from tsc.errors import LaunchError, PackageError
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.runtime.drivers.stub import StubDriver
from tsc.runtime.elf import read_exports
from tsc.runtime.executable import Executable
from tsc.runtime.interface import read_interface
from tsc.runtime.package import Package

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed: `pip install tsc-compiler[cuda]`")


@pytest.fixture(scope="module")
def package() -> Package:
    try:
        return build_package(tiny_model(), None, workshop("sm_80", Options()))
    except LaunchError as error:
        pytest.skip(str(error))


def test_the_table_stands_in_the_cubin(package: Package) -> None:
    binary = package.modules["sm_80"].binary
    interface = read_interface(binary)
    assert interface.target == "sm_80" and read_exports(binary).is_cubin
    calls = [call for kernel in interface.kernels.values() for variant in kernel.variants for call in variant.calls]
    assert calls and {call.function for call in calls} <= read_exports(binary).functions
    assert all(call.threads % 32 == 0 for call in calls)
    with pytest.raises(ValueError, match="damaged"):
        read_interface(binary[:2000])


@pytest.mark.parametrize("arch, waits", [("sm_80", False), ("sm_90a", True)])
def test_kernels_wait_for_the_launch_before_them_where_they_can(arch: str, waits: bool) -> None:
    try:
        made = build_package(tiny_model(), None, workshop(arch, Options()))
    except LaunchError as error:
        pytest.skip(str(error))
    binary = made.modules[arch].binary
    assert read_interface(binary).in_turn is waits
    if find_disassembler() is not None:
        for sass in disassemble(binary).values():
            order = [opcode.partition(".")[0] for opcode in sass.opcodes]
            assert order.count("ACQBULK") == order.count("PREEXIT") == waits, sass.kernel  # griddepcontrol
            touched = [number for number, opcode in enumerate(order) if opcode in ("LDG", "LDGSTS", "STG", "ATOMG", "RED")]
            assert not waits or order.index("ACQBULK") < min(touched), f"{sass.kernel} does not wait before it looks at memory"


def test_without_a_gpu_it_says_so(package: Package) -> None:
    with pytest.raises(LaunchError, match=r"driver|GPU|CUDA"):
        Executable(package)


def test_a_package_is_made_where_there_is_none(tmp_path: Path) -> None:
    model, made = tmp_path / "tiny.onnx", tmp_path / "tiny.tscpack"
    model.write_bytes(tiny_model().SerializeToString())
    result = CliRunner().invoke(cli, ["compile", str(model), "-o", str(made), "--target", "sm_90a"])
    assert result.exit_code == 0, result.output
    assert list(Package.read(made).plans) == ["sm_90a"]
    data = bytearray(made.read_bytes())
    data[-200] ^= 1
    made.write_bytes(data)
    with pytest.raises(PackageError):
        Package.read(made)


def test_launches_have_the_arguments_that_the_machine_code_takes(package: Package) -> None:
    """As a driver without a device sees them, at several shapes."""
    takes = {name: (8,) * (found.parameter_bytes // 8) for name, found in read_cubin(package.modules["sm_80"].binary).items()}
    driver = StubDriver(layouts=takes)
    executable = Executable(package, driver=driver)
    for rows in (1, 33):
        executable.run(None, {"x": np.zeros((rows, 13), np.float32)})
    assert {launch.function.name for launch in driver.runs} == takes.keys()
    assert all(launch.block[0] % 32 == 0 and launch.grid[0] > 0 for launch in driver.runs)
