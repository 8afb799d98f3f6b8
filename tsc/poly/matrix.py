"""ScheduleMatrix: affine rows per statement, with `?` where a shift constant is to be found from the dependences.

Each `?` becomes a parameter; every dependence must have a non-negative distance in its row (so that the band of all rows is
permutable and can be tiled). A statement that follows the anchor gets the row's last value, or else the least that will do, one
that precedes it the greatest. Only a single affine expression valid in the whole context is accepted. Section 5.2 of the paper,
figure 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from tsc.poly import PatternMismatch, isl
from tsc.poly.scop import Scop

Row: TypeAlias = isl.PwAff | None  # None is `?`


@dataclass(frozen=True, slots=True)
class ScheduleMatrix:
    """`entries[statement][i]` is the row called `names[i]`: a function of the statement's instances, or None for `?`."""

    names: tuple[str, ...]
    entries: Mapping[str, tuple[Row, ...]]

    def __str__(self) -> str:
        table = [["", *self.names]]
        table += [[s, *("?" if r is None else isl.function_text(r) for r in rows)] for s, rows in self.entries.items()]
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths)).rstrip() for line in table) + "\n"

    def band(self, scop: Scop, rows: Sequence[int], statements: Sequence[str]) -> isl.MultiUnionPwAff:
        """Some rows of some statements as a partial schedule. All of them must be solved."""
        columns = [[self.solved(s, i) for s in statements] for i in rows]
        return isl.rows(scop.domain, columns)

    def solved(self, statement: str, position: int) -> isl.PwAff:
        """One entry. Raises PatternMismatch when it is still `?`."""
        entry = self.entries[statement][position]
        if entry is None:
            raise PatternMismatch(f"row {self.names[position]} of {statement} is not solved")
        return entry


def function(scop: Scop, statement: str, text: str, extra: str = "") -> isl.PwAff:
    """The function of a statement's instances that `text` says; `extra` is one more parameter."""
    dims = ", ".join(a.name for a in scop.statements[statement].axes)
    params = scop.params if not extra else f"[{', '.join(filter(None, (scop.params[1:-1], extra)))}]"
    return isl.PwAff(f"{params} -> {{ {statement}[{dims}] -> [({text})] }}")


def axis_of(scop: Scop, statement: str, row: isl.PwAff) -> str | None:
    """The axis of a statement that `row` is, at all its instances; None where it is none."""
    for i, axis in enumerate(scop.statements[statement].axes):
        if row.involves_dims(isl.IN, i, 1):
            return axis.name if row.ne_set(function(scop, statement, axis.name)).is_empty() else None
    return None


def solve(matrix: ScheduleMatrix, scop: Scop, deps: isl.UnionMap) -> ScheduleMatrix:
    """`matrix` with every `?` replaced. Raises PatternMismatch when there is no single affine solution.

    The statements of one matrix share a band; `deps` are those among them. The values are found for sizes at which every
    statement has instances; where a reduction is empty, the separated tree does not use them.
    """
    assumed = scop.populated
    entries = {s: list(rows) for s, rows in matrix.entries.items()}
    for position, row_name in enumerate(matrix.names):
        unknown = [s for s, rows in entries.items() if rows[position] is None]
        if not unknown:
            continue
        known = [s for s in entries if s not in unknown]
        before = _reaching(unknown, known, deps)
        for group, least in ((before, False), ([s for s in unknown if s not in before], True)):
            if group:
                rows = {s: entries[s][position] for s in entries if s in group or entries[s][position] is not None}
                found = _last(rows, group, scop, deps, assumed) if least else None
                found = found or _solve_row(rows, group, least, scop, deps, assumed, row_name)
                for statement, row in found.items():
                    entries[statement][position] = row
    return replace(matrix, entries={s: tuple(rows) for s, rows in entries.items()})


def _last(rows: Mapping[str, Row], unknown: list[str], scop: Scop, deps: isl.UnionMap,
          assumed: isl.Set) -> dict[str, isl.PwAff] | None:
    """The last value of a row for all `unknown` statements, which run behind those that vary with it; None where that is no
    affine expression, or breaks a dependence. What is needed of few iterations alone, or at few sizes, would else be said to
    run in the midst of them."""
    ends = [isl.maximum_over(r.intersect_domain(scop.statements[s].domain), assumed) for s, r in rows.items() if r is not None]
    if not ends:
        return None
    last = reduce(isl.PwAff.union_max, ends).gist_params(assumed).coalesce()
    if not isl.single_piece(last):
        return None
    found = {s: function(scop, s, isl.function_text(last)) for s in unknown}
    schedule = isl.row_map(isl.rows(scop.domain, [[found[s] if r is None else r for s, r in rows.items()]]), 0)
    backwards = deps.intersect(schedule.lex_gt_union_map(schedule)).params()
    return found if backwards.intersect(assumed.align_params(backwards.get_space())).is_empty() else None


def _reaching(unknown: list[str], known: list[str], deps: isl.UnionMap) -> list[str]:
    """The unknown statements from which a dependence path leads to a known one: they come first."""
    edges = {(str(m.get_tuple_name(isl.IN)), str(m.get_tuple_name(isl.OUT))) for m in isl.maps_of(deps)}
    goals, found = set(known), []
    grown = True
    while grown:
        new = [s for s in unknown if s not in goals and any((s, g) in edges for g in goals)]
        goals.update(new)
        found += new
        grown = bool(new)
    return [s for s in unknown if s in found]


def _solve_row(rows: Mapping[str, Row], unknown: list[str], least: bool, scop: Scop, deps: isl.UnionMap, assumed: isl.Set,
               row_name: str) -> dict[str, isl.PwAff]:
    names = {s: f"q_{s}" for s in unknown}
    together = ", ".join(names.values())
    functions = [function(scop, s, names[s], together) if r is None else r for s, r in rows.items()]
    schedule = isl.row_map(isl.rows(scop.domain, [functions]), 0)
    backwards = deps.intersect(schedule.lex_gt_union_map(schedule)).params()
    allowed = assumed.align_params(backwards.get_space()).subtract(backwards)
    solution = isl.extreme_parameters(allowed, list(names.values()), assumed, least)
    if solution is None:
        raise PatternMismatch(
            f"row {row_name}: no single affine shift of {', '.join(unknown)} keeps every dependence forward")
    return {s: function(scop, s, isl.function_text(solution[i])) for i, s in enumerate(unknown)}
