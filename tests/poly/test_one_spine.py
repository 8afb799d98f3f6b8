"""What is known of a Program before a device is chosen is the same for all: dumped for a CPU and for a GPU, and compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.poly import programs
from tests.poly.support import GPU, SMALL, WIDE
from tsc.poly.analyse import analyse, formed, normalised
from tsc.poly.pattern import IN_WARPS, OWN, Forms
from tsc.poly.schedule import schedule_program
from tsc.poly.steps import Steps
from tsc.target import DeviceSpec
from tsc.te.compute import Program

PROGRAMS: dict[str, Callable[[], Program]] = {
    "matmul with epilogue": lambda: programs.gemm(act="gelu"), "softmax": programs.softmax, "transpose": programs.transpose}
#: What the GPU's own form of a Program begins with in the log.
FORM = "in the device's own form:"


def dumped(program: Program, spec: DeviceSpec, forms: Forms = OWN) -> tuple[list[tuple[str, str]], list[str]]:
    """The steps before any tree, and the log, each without what belongs to the device."""
    steps = Steps()
    made = schedule_program(program, spec, None, None, "kernel", (), steps, forms=forms)
    first = next(k for k, (title, _) in enumerate(steps.kept) if title.startswith("tree: "))
    log = list(made.log)
    return steps.kept[:first], log[:log.index(FORM)] if FORM in log else log


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_scop_one_matrix(name: str) -> None:
    program = PROGRAMS[name]()
    (small, log), (wide, wide_log), (gpu, gpu_log) = (
        dumped(program, *device) for device in ((SMALL,), (WIDE,), (GPU, IN_WARPS)))
    assert [title for title, _ in small] == ["program", "statements", "accesses", "dependences"]
    assert gpu[:len(small)] == wide == small
    assert gpu_log == wide_log == log and any(line.startswith(("matrix", "rows")) for line in log)
    general = analyse(normalised(program))  # and that is what no device is asked for
    assert list(general.log) == log


def test_a_form_of_its_own_is_told_apart() -> None:
    """A GPU computes softmax in lanes: its Scop is another one, dumped behind the common one; a product's is the same."""
    lanes, _ = dumped(programs.softmax(), GPU, IN_WARPS)
    assert [title for title, _ in lanes] == ["program", "statements", "accesses", "dependences"] * 2
    assert lanes[:4] != lanes[4:]
    general = analyse(normalised(programs.gemm()))
    product = formed(general, IN_WARPS)
    assert product.scop is not general.scop and product.scop.program == general.scop.program
    assert product.scop.domain.is_equal(general.scop.domain) and product.deps.relaxed.is_equal(general.deps.relaxed)
