"""schedule_program as a whole: values, traces, goldens, overrides, promises about the form of the loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.poly import programs
from tests.poly.programs import at, axis, buffer
from tests.poly.support import SMALL, WIDE, check_values, inputs_for, prescribed_order, run, scheduled
from tests.te.expressions import banded, program_of
from tsc.errors import InputError
from tsc.loop_ir.nodes import Allocate, For, Store, walk
from tsc.loop_ir.print import format_func
from tsc.loop_ir.verify import verify
from tsc.poly import PatternMismatch
from tsc.poly.schedule import schedule_program
from tsc.poly.tile import TileConfig, config_to_json
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.expr import loads

PROGRAMS: dict[str, tuple[Callable[[], Program], list[dict[str, int]]]] = {
    "gemm": (programs.gemm, [{"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 11, "K": 3}, {"M": 4, "N": 8, "K": 7}]),
    "gemm_transposed": (lambda: programs.gemm(transposed=True), [{"M": 3, "N": 9, "K": 4}]),
    "gemm_gelu_static": (lambda: programs.gemm("M", 24, 9, act="gelu"), [{"M": 1}, {"M": 7}]),
    "gemm_empty": (lambda: programs.gemm(lo=0), [{"M": 0, "N": 2, "K": 2}, {"M": 3, "N": 0, "K": 1}, {"M": 3, "N": 5, "K": 0}]),
    "gemm_one_row": (lambda: programs.gemm(1, "N", "K"), [{"N": 1, "K": 1}, {"N": 13, "K": 5}]),
    "gemm_one_column": (lambda: programs.gemm("M", 1, "K"), [{"M": 1, "K": 1}, {"M": 9, "K": 4}]),
    "gemm_one_cell": (lambda: programs.gemm(1, 1, "K"), [{"K": 1}, {"K": 6}]),
    "gemm_one_step": (lambda: programs.gemm("M", "N", 1), [{"M": 3, "N": 5}]),
    "attention_scores": (programs.attention_scores, [{"B": 1, "L": 1, "T": 1}, {"B": 2, "L": 3, "T": 5}]),
    "attention_values": (programs.attention_values, [{"B": 1, "L": 1, "T": 1}, {"B": 2, "L": 5, "T": 3}]),
    "head_split": (programs.head_split, [{"M": 1, "K": 1}, {"M": 5, "K": 3}]),
    "head_split_odd": (lambda: programs.head_split(2, 5), [{"M": 3, "K": 2}]),
    "softmax": (programs.softmax, [{"R": 1, "C": 1}, {"R": 5, "C": 7}, {"R": 9, "C": 2}]),
    "softmax_empty": (lambda: programs.softmax(lo=0), [{"R": 0, "C": 3}, {"R": 2, "C": 0}]),
    "layer_norm": (lambda: programs.layer_norm(6), [{"B": 1, "L": 1}, {"B": 3, "L": 5}]),
    "embedding": (lambda: programs.layer_norm(6, gather=True), [{"B": 1, "L": 1, "V": 1}, {"B": 2, "L": 3, "V": 4}]),
    "shared_rows": (programs.shared_rows, [{"B": 1, "L": 1}, {"B": 3, "L": 5}]),
    "column_sums": (programs.column_sums, [{"R": 1, "C": 1}, {"R": 5, "C": 21}]),
    "total_and_rows": (programs.total_and_rows, [{"R": 1, "C": 1}, {"R": 4, "C": 3}]),
    "two_row_counts": (programs.two_row_counts, [{"N": 1, "M": 1}, {"N": 9, "M": 2}, {"N": 2, "M": 6}]),
    "total": (programs.total, [{"R": 1, "C": 1}, {"R": 4, "C": 3}]),
    "transpose": (programs.transpose, [{"B": 1, "L": 1}, {"B": 3, "L": 5}]),
    "concat": (programs.concat, [{"A": 1, "B": 1}, {"A": 2, "B": 5}]),
    "where": (programs.where, [{"M": 1, "N": 1}, {"M": 3, "N": 7}]),
    "conv": (programs.conv, [{"B": 1, "H": 1, "W": 1}, {"B": 2, "H": 3, "W": 5}]),
    "banded": (lambda: program_of(banded()), [{"s0": 1, "s1": 1}, {"s0": 6, "s1": 5}]),
    "conv_wide_kernel": (lambda: programs.conv(2, 3, (1, 4)), [{"B": 1, "H": 2, "W": 6}]),
}


@dataclass
class Overriding:
    """A recorder that replaces the schedule of one kernel."""

    text: str | None = None
    stage: str = "schedule"
    records: dict[str, str] = field(default_factory=dict)

    def override(self, stage: str, name: str) -> str | None:
        return self.text if stage == self.stage else None

    def record(self, stage: str, name: str, text: object) -> None:
        self.records[stage] = str(text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    make, cases = PROGRAMS[name]
    program = make()
    result = scheduled(program)
    verify(result.func)
    for sizes in cases:
        check_values(result.func, program, sizes)


@pytest.mark.parametrize(
    "name", ["gemm", "attention_scores", "head_split_odd", "softmax", "layer_norm", "column_sums", "where", "conv"])
def test_trace_is_the_order_of_the_tree(name: str) -> None:
    make, cases = PROGRAMS[name]
    program, sizes = make(), cases[1 if len(cases) > 1 else 0]
    result = scheduled(program)
    trace: list[tuple[str, tuple[int, ...]]] = []
    run(result.func, program, sizes, inputs_for(program, sizes), trace)
    added = ("copy_", "fill_")
    assert [(s, tuple(i)) for s, i in trace if not s.startswith(added)] == prescribed_order(result.tree, sizes)


@pytest.mark.parametrize("name", ["gemm", "softmax", "layer_norm"])
def test_golden_matrix_and_tree(name: str, golden: Callable[[str, str], None]) -> None:
    result = scheduled(PROGRAMS[name][0](), spec=WIDE)
    golden(f"poly/{name}.txt", "\n".join([*result.log, "tree", result.tree]))


def test_overriding_the_tree_changes_the_loops() -> None:
    program = programs.gemm()
    plain = scheduled(program)
    # the k loop outside of the i loop is as legal as it was inside; here the update's i and j loops are exchanged
    swapped = _exchange(plain.tree, 'mark: "i"', 'mark: "j"')
    assert swapped != plain.tree
    again = scheduled(program, recorder=Overriding(plain.tree))
    changed = scheduled(program, recorder=Overriding(swapped))
    assert format_func(again.func) == format_func(plain.func)
    assert format_func(changed.func) != format_func(plain.func)
    check_values(changed.func, program, {"M": 5, "N": 6, "K": 3})


def test_illegal_or_foreign_overrides_are_refused() -> None:
    program = programs.gemm()
    plain = scheduled(program).tree
    for bad in (
        "no tree at all",
        plain.replace("0 <= r < K", "0 <= r < K - 1"),                  # loses instances
        scheduled(programs.softmax()).tree,                             # another kernel's
        plain.replace("(r)", "(-r)").replace('mark: "k"', 'mark: "block"', 1),
        _reverse_sequence(plain),                                       # epilogue before the sum
    ):
        with pytest.raises(InputError, match="kernel"):
            scheduled(program, recorder=Overriding(bad))


@pytest.mark.parametrize("config", [
    TileConfig(), TileConfig((1, 4), (3, 4)), TileConfig((2, 8), (6, 16)), TileConfig((3, 4), (3, 8))])
def test_a_given_config_is_the_one_that_is_used(config: TileConfig) -> None:
    program = programs.gemm()
    result = scheduled(program, recorder=Overriding(config_to_json(config), "config"))
    assert result.config == config
    for sizes in ({"M": 1, "N": 1, "K": 1}, {"M": 7, "N": 17, "K": 5}):
        check_values(result.func, program, sizes)


@pytest.mark.parametrize("seed", range(12))
def test_any_config_gives_right_values(seed: int) -> None:
    rng = Random(seed)
    make, cases = PROGRAMS[rng.choice([*PROGRAMS])]
    program = make()
    like = scheduled(program).config

    def sizes(given: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(rng.choice((1, 2, 3, 4, 5, 8, 16)) for _ in given)

    config = replace(like, instr_tile=sizes(like.instr_tile), block_tile=sizes(like.block_tile), row_tile=sizes(like.row_tile),
                     stage_tiles=tuple((a, b) for a, b in map(sizes, like.stage_tiles)), lanes=rng.choice((0, 1, 2, 4)))
    result = scheduled(program, recorder=Overriding(config_to_json(config), "config"))
    for case in cases:
        check_values(result.func, program, case)


@pytest.mark.parametrize(("text", "reason"), [
    ("{", "no JSON"), ("[]", "expected a table"), ('{"instr_tile": [1, 1]}', "lacks 'block_tile'"),
    (config_to_json(TileConfig((0, 1))), "instr_tile"), (config_to_json(TileConfig(lanes=-1)), "lanes"),
    (config_to_json(TileConfig(stages=1)).replace("1}", "true}"), "stages"),
    (config_to_json(TileConfig((4,))), "instr_tile has 1")])
def test_a_config_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        scheduled(programs.gemm(), recorder=Overriding(text, "config"))


def test_a_config_whose_columns_are_no_part_of_a_packed_weights_is_refused() -> None:
    program = programs.gemm()
    weight = program.inputs[1].name
    for columns, fits in ((SMALL.instr_tile[1], True), (SMALL.instr_tile[1] // 2, True), (SMALL.instr_tile[1] + 1, False)):
        chosen = Overriding(config_to_json(TileConfig((2, columns), (4, columns))), "config")
        if fits:
            schedule_program(program, SMALL, None, chosen, "gemm", [weight])
        else:
            with pytest.raises(InputError, match="no part of the panels"):
                schedule_program(program, SMALL, None, chosen, "gemm", [weight])


def test_reversing_a_relaxed_reduction_is_legal() -> None:
    program = programs.gemm()
    plain = scheduled(program).tree
    reversed_ = plain.replace("acc_update[i, j, r] -> [(r)]", "acc_update[i, j, r] -> [(-r)]")
    assert reversed_ != plain
    check_values(scheduled(program, recorder=Overriding(reversed_)).func, program, {"M": 3, "N": 5, "K": 4})


def test_blocks_that_are_no_box_are_refused() -> None:
    x, y, p, q = buffer("x", 7, "N", "K"), buffer("y", "M", "L"), buffer("p", 7, "N"), buffer("q", "M", "L")
    i, j, k, a, b = axis("i", 7), axis("j", "N"), axis("k", "K"), axis("a", "M"), axis("b", "L")
    program = Program((x, y), (p, q), (Compute(p, (i, j), at(x, i, j, k), (k,), SUM), Compute(q, (a, b), at(y, a, b))),
                      tuple(SizeParam(s) for s in "NKML"))
    with pytest.raises(PatternMismatch, match="no box"):
        scheduled(program)


def test_config_and_tree_are_recorded() -> None:
    recorder = Overriding()
    result = scheduled(programs.softmax(), recorder=recorder)
    assert recorder.records == {"config": config_to_json(result.config), "schedule": result.tree}


def test_form_of_a_contraction() -> None:
    func = scheduled(programs.gemm(), TileConfig((2, 4), (6, 8))).func
    blocks = [s for s in walk(func.body) if isinstance(s, For) and s.kind == "block"]
    assert [b.step for b in blocks] == [8, 6]
    acc = next(s for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "register")
    assert [d.as_int() for d in acc.buffer.shape] == [2, 4]
    marks = [s.mark for s in walk(func.body) if isinstance(s, For)]
    assert marks == ["block", "block", "instr_n", "copy", "copy", "instr_m", "init", "init", "k", "i", "j", "epilogue",
                     "epilogue"]
    k = next(s for s in walk(func.body) if isinstance(s, For) and s.mark == "k")
    update, = (s for s in walk(k) if isinstance(s, Store))
    assert {load.buffer.name for load in loads(update.value)} == {"acc", "a", "acc_panel"}


def test_unit_loops_are_kept() -> None:
    func = scheduled(programs.gemm(1, "N", 1)).func
    assert {"k", "i", "j"} <= {s.mark for s in walk(func.body) if isinstance(s, For)}


def test_no_panel_where_whole_vectors_can_be_read() -> None:
    def has_panel(program: Program) -> bool:
        return any(isinstance(s, Allocate) and s.scope == "scratch" for s in walk(scheduled(program).func.body))

    assert not has_panel(programs.gemm("M", 8, "K"))
    assert has_panel(programs.gemm("M", 9, "K"))
    assert has_panel(programs.gemm("M", 8, "K", transposed=True))


def test_row_locals_are_small() -> None:
    func = scheduled(programs.softmax()).func
    shapes = {s.buffer.name: (s.scope, str(s.buffer.shape)) for s in walk(func.body) if isinstance(s, Allocate)}
    assert shapes == {"mx": ("register", "(1,)"), "sm": ("register", "(1,)"), "e": ("scratch", "(C,)")}


def _exchange(tree: str, first: str, second: str) -> str:
    """Exchange the two schedule lines that follow two marks."""
    lines = tree.splitlines()
    at = [next(i for i, line in enumerate(lines) if m in line) + 2 for m in (first, second)]
    texts = [lines[i].split("schedule:", 1) for i in at]
    for i, own, other in ((at[0], texts[0], texts[1]), (at[1], texts[1], texts[0])):
        lines[i] = f"{own[0]}schedule:{other[1]}"
    return "\n".join(lines) + "\n"


def _reverse_sequence(tree: str) -> str:
    """The children of the innermost sequence in reversed order."""
    lines = tree.splitlines()
    start = max(i for i, line in enumerate(lines) if line.strip() == "sequence:")
    indent = len(lines[start]) - len(lines[start].lstrip())
    heads = [i for i in range(start + 1, len(lines)) if lines[i].startswith(" " * indent + "- ")] + [len(lines)]
    parts = [lines[a:b] for a, b in itertools.pairwise(heads)]
    return "\n".join(lines[:heads[0]] + [line for part in reversed(parts) for line in part]) + "\n"


def test_default_tiles_follow_the_device() -> None:
    assert scheduled(programs.gemm(), spec=WIDE).config.instr_tile == (7, 64)
    assert scheduled(programs.attention_values(), spec=WIDE).config.instr_tile[1] == 32
    assert scheduled(programs.gemm(), spec=SMALL).config.instr_tile == (2, 4)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_constant_in_panels_is_read_where_it_lies(transposed: bool) -> None:
    """Whatever its order of dims was: in panels its columns are neighbours."""
    program = programs.gemm("M", 70, 33, transposed=transposed)
    fed, constant = (schedule_program(program, SMALL, None, None, "gemm", names).func for names in ([], ["w"]))
    panels = [any(isinstance(s, Allocate) and s.buffer.name == "acc_panel" for s in walk(f.body)) for f in (fed, constant)]
    assert panels == [True, False]
