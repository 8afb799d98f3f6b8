"""Machine code in loops: read from text, and solved for how often each is executed."""

from __future__ import annotations

import pytest

from tsc.codegen_cuda.sass import INSTRUCTION, Sass
from tsc.sol.loops import Known, Region, executed, matrix_of, regions_of

#: A loop over tiles, which copies, with a loop within; behind the end a loop that nobody comes to.
TEXT = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDGSTS.E.BYPASS.LTC128B.128 [R2], desc[UR4][R4.64] ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
        /*0030*/                   IADD3 R3, R3, 0x1, RZ ;
.L_x_1:
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/              @!PT LDS RZ, [RZ] ;
        /*0060*/               @P1 LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
.L_x_2:
        /*0070*/                   LDS.128 R8, [R6] ;
        /*0080*/                   LDSM.16.MT88.4 R12, [R7] ;
        /*0090*/                   FFMA R20, R8, R9, R20 ;
        /*00a0*/                   HMMA.16816.F32 R32, R16, R28, RZ ;
        /*00b0*/                   HMMA.16816.F32 R36, R16, R28, RZ ;
        /*00c0*/               @P2 BRA `(.L_x_2) ;
        /*00d0*/               @P3 BRA `(.L_x_1) ;
        /*00e0*/                   STG.E.64 desc[UR4][R4.64], R32 ;
        /*00f0*/                   EXIT ;
.L_x_3:
        /*0100*/                   BRA `(.L_x_3);
        /*0110*/                   NOP;
"""


def sass(text: str) -> Sass:
    found = map(INSTRUCTION.match, text.splitlines())
    return Sass("kernel", text, tuple(match[1] for match in found if match))


def test_regions() -> None:
    outer, tiles, inner = regions_of(sass(TEXT))
    assert outer == Region(0, 6, 0, Known(0, 0, 512, 512, 256))
    assert tiles == Region(0, 4, 0, Known(0, 0, 512, 512, 0))
    assert inner == Region(1, 6, 1, Known(2, 512 + 512, 0, 0, 0))


def test_how_often() -> None:
    """Four warps, ten tiles, three times around in each: what a block does in all says so."""
    found = executed(regions_of(sass(TEXT)), Known(4 * 60, 4 * 30 * 1024, 4 * 11 * 512, 4 * 11 * 512, 4 * 256), 4)
    assert found.instructions == pytest.approx(4 * (6 + 10 * 4 + 30 * 6)) and found.floats == pytest.approx(4 * 30)
    assert found.unexplained < 1e-6 and not found.least


def test_copies_that_are_predicated_off() -> None:
    """The loop's last three copies are not made: the loop within is told by its products all the same."""
    found = executed(regions_of(sass(TEXT)), Known(4 * 60, 4 * 30 * 1024, 4 * 8 * 512, 4 * 8 * 512, 4 * 256), 4)
    assert found.floats == pytest.approx(4 * 30, rel=1e-3)
    assert found.instructions == pytest.approx(4 * (6 + 7 * 4 + 180), rel=0.01)


def test_a_loop_of_which_nothing_is_known() -> None:
    text = TEXT.replace("LDS.128 R8, [R6]", "MOV R8, R6").replace("LDSM.16.MT88.4 R12, [R7]", "MOV R12, R7").replace(
        "HMMA.16816.F32", "FADD")
    found = executed(regions_of(sass(text)), Known(0, 0, 4 * 11 * 512, 4 * 11 * 512, 4 * 256), 4)
    assert found.least and found.instructions == pytest.approx(4 * (6 + 10 * 4 + 10 * 6))


def test_matrix_instructions() -> None:
    assert matrix_of(sass(TEXT)).kind == "mma.f16" and matrix_of(sass(TEXT)).products == 16 * 8 * 16
    narrow = matrix_of(Sass("kernel", "", ("HMMA.1688.F32.TF32",)))
    assert (narrow.kind, narrow.products, narrow.warps) == ("mma.tf32", 16 * 8 * 8, 1)
    group = matrix_of(sass("        /*0000*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0 ;"))
    assert (group.kind, group.products, group.warps) == ("wgmma.f16", 64 * 128 * 16, 4)
    assert group.shared_bytes == (64 + 128) * 16 * 2
    (own,) = regions_of(sass("        /*0000*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0 ;"))
    assert own.known == Known(1, group.shared_bytes / 4)
    assert matrix_of(Sass("kernel", "", ("FFMA",))).kind == ""
