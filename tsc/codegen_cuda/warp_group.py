"""Products of warp groups: all steps of a tile of k as one call, each operand as a descriptor of where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tsc.codegen_c.scalar import Scope
from tsc.codegen_cuda.narrow import place_text
from tsc.errors import InternalError
from tsc.loop_ir.gpu.mma import WGMMA_F16
from tsc.loop_ir.gpu.warp_group import GroupOperand, read_group_product
from tsc.loop_ir.nodes import Stmt
from tsc.loop_ir.simplify import simplify_expr
from tsc.te.expr import Load, item_bytes

_KINDS = {WGMMA_F16.name: "f16"}


def wgmma_lines(name: str, meaning: Stmt, lane: str, warps: Mapping[str, range], scope: Scope) -> Iterator[str]:
    """The instructions of a block whose lanes and warps are numbered by such variables, for a tile of k."""
    found, kind = read_group_product(meaning, lane, warps), _KINDS.get(name)
    if isinstance(found, str) or kind is None:
        raise InternalError(f"there is no CUDA for the intrinsic {name}: {found}")
    sums, (a, b) = scope.name(f"buffer {found.tile.acc.name}"), (found.left, found.right)
    yield "{"
    for letter, operand in (("a", a), ("b", b)):
        yield f"  constexpr u32 {letter}_steps[{len(operand.steps)}] = {_list(operand.steps)};"
        yield f"  const {_type(operand)} {letter} = {{{_address(operand, scope)}, {operand.leading}u, {operand.stride}u}};"
    yield f"  wgmma_steps<{kind}, {found.columns}>({sums}, a, a_steps, b, b_steps);"
    yield "}"


def _list(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(f'{number}u' for number in numbers)}}}"


def _type(operand: GroupOperand) -> str:
    return f"WgmmaOperand<{operand.span}, {str(operand.mn_major).lower()}>"


def _address(operand: GroupOperand, scope: Scope) -> str:
    first = simplify_expr(operand.first, scope.facts)
    assert isinstance(first, Load)
    place = place_text(first.buffer, first.index, scope, item_bytes(first.dtype))
    return f"{scope.name(f'buffer {first.buffer.name}')} + {place}"
