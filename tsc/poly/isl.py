"""The wall: the only file that imports islpy. Objects are made from text with named dimensions, in one Context.

Everything else in `poly/` works on isl objects that come from here and addresses their dimensions and tuples by name.
isl's objects are immutable values; its context is not, so all of them live in one Context and one thread at a time uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import islpy
from islpy import (
    AstBuild,
    AstExpr,
    AstNode,
    Map,
    MultiUnionPwAff,
    MultiVal,
    PwAff,
    PwMultiAff,
    Schedule,
    ScheduleNode,
    Set,
    UnionMap,
    UnionPwAff,
    UnionSet,
)
from islpy import Error as IslError

from tsc.poly import PatternMismatch

__all__ = [
    "AstExpr", "AstNode", "IslError", "Map", "MultiUnionPwAff", "PwAff", "Schedule", "ScheduleNode", "Set", "UnionMap",
    "UnionPwAff", "UnionSet",
]

#: The way to a node of a schedule tree: which child to take, from the root on.
Path: TypeAlias = tuple[int, ...]

IN, OUT, SET, PARAM = islpy.dim_type.in_, islpy.dim_type.out, islpy.dim_type.set, islpy.dim_type.param
NodeType = islpy.schedule_node_type
AstNodeType = islpy.ast_node_type
AstExprType = islpy.ast_expr_type

_SAME, _BACKWARD = UnionMap("{ [a] -> [a] }"), UnionMap("{ [a] -> [b] : a > b }")

# loops count the rows of the schedule, whatever their stride: what reads them back relies on it
islpy.DEFAULT_CONTEXT.set_ast_build_scale_strides(0)

_AST_OPS = {str(getattr(islpy.ast_expr_op_type, name)): name for name in dir(islpy.ast_expr_op_type) if name[0].islower()}


@contextmanager
def budget(operations: int) -> Iterator[None]:
    """At most so many of isl's elementary operations inside (a count, so that it does not depend on the machine's speed), or
    PatternMismatch. One budget may stand in another, which then begins to count anew."""
    outer = islpy.DEFAULT_CONTEXT.get_max_operations()
    islpy.DEFAULT_CONTEXT.reset_operations()
    islpy.DEFAULT_CONTEXT.set_max_operations(operations)
    try:
        yield
    except (IslError, TypeError) as error:  # islpy's text of an object is None once they are spent
        if not _spent():
            raise
        raise PatternMismatch(f"its index expressions take more than {operations} operations to schedule") from error
    finally:
        islpy.DEFAULT_CONTEXT.set_max_operations(outer)
        islpy.DEFAULT_CONTEXT.reset_operations()


def _spent() -> bool:
    """Whether no operation is left: isl then refuses all it is asked for, in the words of what it was about to do."""
    try:
        Set("{ : }")
    except IslError:
        return True
    return False


# -- sets and maps ---------------------------------------------------------------------------------------------

def sets_of(union: UnionSet) -> Iterator[Set]:
    """The Sets of a UnionSet, one a tuple name."""
    found = union.get_set_list()
    return (found.get_at(i) for i in range(union.n_set()))


def maps_of(union: UnionMap) -> Iterator[Map]:
    """The Maps of a UnionMap, one a pair of tuple names."""
    found = union.get_map_list()
    return (found.get_at(i) for i in range(union.n_map()))


def union_of_sets(params: str, sets: Iterable[Set]) -> UnionSet:
    """The union; empty over `params` (text such as "[M, N]") where there is none."""
    total = UnionSet(params + " -> { }")
    for item in sets:
        total = total.union(UnionSet.from_set(item))
    return total


def union_of_maps(params: str, maps: Iterable[Map]) -> UnionMap:
    """The union; empty over `params` where there is none."""
    total = UnionMap(params + " -> { }")
    for item in maps:
        total = total.union(UnionMap.from_map(item))
    return total


@lru_cache(maxsize=1024)
def condition(params: str, text: str) -> Set:
    """The values of `params` (text such as "[M, N]") at which a Presburger formula holds."""
    return Set(f"{params} -> {{ : {text} }}")


def halfspaces(points: Set, names: Sequence[str]) -> Iterator[list[tuple[list[int], int]]]:
    """Of each piece of a set of parameters the constraints over these `names`: coefficients and a constant, of sums that are at
    least 0. What is said of rests is left out: a piece may be larger than it is."""
    for piece in points.get_basic_sets():
        found = []
        for each in piece.remove_divs().get_constraints():
            places = [each.get_space().find_dim_by_name(PARAM, name) for name in names]
            sums = [int(each.get_coefficient_val(PARAM, p).to_python()) if p >= 0 else 0 for p in places]
            constant = int(each.get_constant_val().to_python())
            found += [([c * s for c in sums], constant * s) for s in ((1, -1) if each.is_equality() else (1,))]
        yield found


def depends_on(points: Set, name: str) -> bool:
    """Whether `points` depend on a parameter."""
    place = points.find_dim_by_name(PARAM, name)
    return place >= 0 and bool(points.involves_dims(PARAM, place, 1))


def restrict(union: UnionSet, names: Iterable[str]) -> UnionSet:
    """The part of `union` whose tuples are called `names`."""
    wanted = set(names)
    total = UnionSet.empty(union.get_space())
    for item in sets_of(union):
        if item.get_tuple_name() in wanted:
            total = total.union(UnionSet.from_set(item))
    return total


def tuple_names(union: UnionSet) -> set[str]:
    """The tuple names that occur."""
    return {str(item.get_tuple_name()) for item in sets_of(union)}


def filters(parts: Sequence[UnionSet]) -> Any:
    """A list of UnionSets, as `insert_sequence` wants it."""
    result = islpy.UnionSetList.alloc(parts[0].get_ctx(), len(parts))
    for part in parts:
        result = result.add(part)
    return result


# -- affine functions ------------------------------------------------------------------------------------------

def single_piece(function: PwAff) -> bool:
    """Whether it is one affine expression on its whole domain."""
    return bool(function.coalesce().isa_aff()) or function.n_piece() == 1


def function_text(function: PwAff) -> str:
    """The expression alone: "m", "floor((n)/64)"; pieces are separated by "; "."""
    body = str(function)
    body = body[body.index("{") + 1: body.rindex("}")]
    parts = []
    for piece in body.split(";"):
        found = re.search(r"\[\((.*?)\)\](?: :|\s*$)", piece.strip())
        parts.append(found.group(1) if found else piece.strip())
    return "; ".join(parts)


def tile_number(function: PwAff, size: int) -> PwAff:
    """`function` divided by `size`, rounded down."""
    return function.scale_down_val(islpy.Val.int_from_si(function.get_ctx(), size)).floor()


def rows(space_of: UnionSet, columns: Sequence[Sequence[PwAff]]) -> MultiUnionPwAff:
    """A multi-dimensional schedule: `columns[i]` holds the functions of row i, one a statement."""
    space = space_of.get_space().set_from_params().add_dims(SET, len(columns))
    total = islpy.UnionPwAffList.alloc(space_of.get_ctx(), len(columns))
    for functions in columns:
        row = UnionPwAff.from_pw_aff(functions[0])
        for function in functions[1:]:
            row = row.union_add(UnionPwAff.from_pw_aff(function))
        total = total.add(row)
    return MultiUnionPwAff.from_union_pw_aff_list(space, total)


def row(schedule: MultiUnionPwAff, position: int) -> MultiUnionPwAff:
    """One row as a one-dimensional schedule."""
    return MultiUnionPwAff.from_union_pw_aff(schedule.get_at(position))


def row_map(schedule: MultiUnionPwAff, position: int) -> UnionMap:
    """One row as a relation from instances to its value."""
    return UnionMap.from_multi_union_pw_aff(row(schedule, position))


def select_rows(schedule: MultiUnionPwAff, keep: Sequence[int]) -> MultiUnionPwAff:
    """The rows at the positions `keep`, in that order."""
    space = schedule.get_space().drop_dims(SET, 0, schedule.dim(SET)).add_dims(SET, len(keep))
    total = islpy.UnionPwAffList.alloc(schedule.get_ctx(), len(keep))
    for position in keep:
        total = total.add(schedule.get_at(position))
    return MultiUnionPwAff.from_union_pw_aff_list(space, total)


# -- schedule trees --------------------------------------------------------------------------------------------

def tile(node: ScheduleNode, sizes: Sequence[int]) -> ScheduleNode:
    """Tile a band: the tile loops run over multiples of `sizes`, the point loops from 0."""
    values = MultiVal.zero(node.band_get_space())
    for i, size in enumerate(sizes):
        values = values.set_val(i, size)
    return node.band_tile(values)


def mark(node: ScheduleNode, name: str) -> ScheduleNode:
    """Insert a mark above `node`; returns the mark node."""
    return node.insert_mark(islpy.Id(name))


def mark_name(node: ScheduleNode) -> str:
    """The name of a mark node."""
    return str(node.mark_get_id().get_name())


def mark_each(node: ScheduleNode, names: Sequence[str], coincident: bool = False) -> ScheduleNode:
    """Split a band into single rows, each below a mark of its name. Returns the node below the last of them."""
    for i, name in enumerate(names):
        if i + 1 < len(names):
            node = node.band_split(1)
        if coincident:
            node = node.band_member_set_coincident(0, 1)
        node = mark(node, name).child(0).child(0)
    return node


def atomic(node: ScheduleNode) -> ScheduleNode:
    """Ask that each row of a band becomes exactly one loop."""
    for i in range(node.band_n_member()):
        node = node.band_member_set_ast_loop_type(i, islpy.ast_loop_type.atomic)
    return node


def extension(relation: UnionMap) -> ScheduleNode:
    """The root of an extension tree, to be grafted: prefix values -> the instances it adds."""
    return ScheduleNode.from_extension(relation)


def parse_schedule(text: str) -> Schedule:
    """A schedule from text. Raises IslError."""
    return Schedule.read_from_str(islpy.DEFAULT_CONTEXT, text)


def tree_text(schedule: Schedule) -> str:
    """The schedule in isl's block style, which `parse_schedule` reads back."""
    printer = islpy.Printer.to_str(schedule.get_ctx())
    printer = printer.set_yaml_style(islpy.yaml_style.BLOCK)
    return str(printer.print_schedule(schedule).get_str())


def path(node: ScheduleNode) -> Path:
    """The positions of the children on the way from the root to `node`."""
    found: Path = ()
    while node.has_parent():
        found = (int(node.get_child_position()), *found)
        node = node.parent()
    return found


class Moves:
    """How far one row of a schedule moves pairs of instances: the pairs of their values are looked at first, which is all that
    most rows need."""

    def __init__(self, pairs: UnionMap, schedule: MultiUnionPwAff, position: int) -> None:
        self._pairs, self._row = pairs, row(schedule, position)
        self._values = UnionMap.from_multi_union_pw_aff(self._row)
        self._moves = pairs.apply_domain(self._values).apply_range(self._values)

    def stay(self) -> bool:
        """Whether both instances of every pair have the same value."""
        return bool(self._moves.is_subset(_SAME))

    def forward(self) -> bool:
        """Whether no pair's second instance has a smaller value."""
        return bool(self._moves.is_disjoint(_BACKWARD))

    def staying(self) -> UnionMap:
        """The pairs of equal values."""
        return self._pairs if self.stay() else self._pairs.eq_at_multi_union_pw_aff(self._row)

    def backward(self) -> UnionMap:
        """The pairs whose second instance has a smaller value."""
        if self.forward():
            return UnionMap.empty(self._pairs.get_space())
        return self._pairs.intersect(self._values.lex_gt_union_map(self._values))


# -- abstract syntax trees -------------------------------------------------------------------------------------

def generate(schedule: Schedule, context: Set, iterators: Sequence[str]) -> AstNode:
    """isl's loops for a schedule; `iterators[d]` names the loop over row d of the tree."""
    names = islpy.IdList.alloc(context.get_ctx(), len(iterators))
    for name in iterators:
        names = names.add(islpy.Id(name))
    return AstBuild.from_context(context).set_iterators(names).node_from_schedule(schedule)


def expression(function: PwAff) -> AstExpr:
    """The AST expression of a function of parameters only."""
    return AstBuild.from_context(Set("{ : }")).expr_from_pw_aff(function)


def named_function(function: PwAff, names: Sequence[str]) -> AstExpr:
    """The AST expression of a function of instances whose coordinates are called `names`."""
    for i, name in enumerate(names):
        function = function.set_dim_id(IN, i, islpy.Id(name))
    function = function.move_dims(PARAM, function.dim(PARAM), IN, 0, len(names))
    return AstBuild.from_context(Set("{ : }")).expr_from_pw_aff(function.project_domain_on_params())


def named_condition(points: Set, names: Sequence[str]) -> AstExpr:
    """The AST expression of being in `points`, whose coordinates are called `names`."""
    for i, name in enumerate(names):
        points = points.set_dim_id(SET, i, islpy.Id(name))
    points = points.move_dims(PARAM, points.dim(PARAM), SET, 0, len(names))
    return AstBuild.from_context(Set("{ : }")).expr_from_set(points.params())


def op_name(expr: AstExpr) -> str:
    """The operation of an AST expression by name: "add", "min", "call"."""
    return _AST_OPS[str(expr.op_get_type())].rstrip("_")


def arguments(expr: AstExpr) -> list[AstExpr]:
    """The arguments of an operation."""
    return [expr.op_get_arg(i) for i in range(expr.op_get_n_arg())]


def lex_lt(pairs: Map) -> Map:
    """All pairs of tuples of the domain's space, the first lexicographically less than the second."""
    return Map.lex_lt(pairs.get_space().domain())


def extreme_parameters(allowed: Set, names: Sequence[str], context: Set, least: bool) -> list[PwAff] | None:
    """The lexicographically least (from 0 up) or greatest values of some parameters in `allowed`, as functions of the others.

    None unless each is a single affine expression that covers all of `context`.
    """
    values = Set.from_params(allowed)
    for i, name in enumerate(names):
        values = values.insert_dims(SET, i, 1) if values.find_dim_by_name(PARAM, name) < 0 else values.move_dims(
            SET, i, PARAM, values.find_dim_by_name(PARAM, name), 1)
        if least:
            values = values.lower_bound_val(SET, i, 0)
    if not least and not all(values.dim_has_upper_bound(SET, i) for i in range(len(names))):
        return None
    found = values.lexmin_pw_multi_aff() if least else values.lexmax_pw_multi_aff()
    if not context.align_params(found.domain().get_space()).is_subset(found.domain()):
        return None
    pieces = [found.get_at(i).gist(context).coalesce() for i in range(len(names))]
    return pieces if all(single_piece(p) for p in pieces) else None


def components(relation: Map) -> list[PwAff]:
    """The coordinates of a single-valued relation, as functions of its domain."""
    function = PwMultiAff.from_map(relation)
    return [function.get_at(i) for i in range(relation.dim(OUT))]


def sample(points: Set) -> tuple[dict[str, int], list[int]]:
    """Some element of a non-empty set: its parameters by name, and its coordinates."""
    names = [points.get_dim_name(islpy.dim_type.param, i) for i in range(points.dim(islpy.dim_type.param))]
    found = points.move_dims(SET, 0, islpy.dim_type.param, 0, len(names)).sample_point()
    values = [int(found.get_coordinate_val(SET, i).to_python()) for i in range(len(names) + points.dim(SET))]
    return dict(zip(names, values)), values[len(names):]


# -- footprints ------------------------------------------------------------------------------------------------

def as_map(union: UnionMap) -> Map:
    """The only Map of a UnionMap."""
    return Map.from_union_map(union)


def as_set(union: UnionSet) -> Set:
    """The only Set of a UnionSet."""
    return Set.from_union_set(union)


def maximum(function: PwAff) -> int | None:
    """The greatest value that `function` takes anywhere, None when that depends on a parameter."""
    value = Map.from_pw_aff(function).range().dim_max_val(0)  # PwAff.max_val refuses quotients
    return int(value.to_python()) if value.is_int() else None


def least(points: Set) -> int | None:
    """The least first coordinate of all points, None where it has no constant bound."""
    value = points.dim_min_val(0)
    return int(value.to_python()) if value.is_int() else None


def values(function: PwAff, domain: Set) -> Set:
    """The values that a function takes on a domain."""
    return Map.from_pw_aff(function).intersect_domain(domain).range()


def maximum_over(function: PwAff, context: Set) -> PwAff:
    """The greatest value of `function` over its domain, as a function of the parameters."""
    return Map.from_pw_aff(function).range().intersect_params(context).dim_max(0).coalesce().gist_params(context)


def with_prefix(live: Set, functions: Sequence[PwAff], name: str) -> Map:
    """`live` prefix values -> `name[functions..., prefix...]`."""
    relation = live.identity()
    for function in reversed(functions):
        relation = Map.from_pw_aff(function).flat_range_product(relation)
    return relation.set_tuple_name(OUT, name)


def window(low: PwAff, width: int, before: int, after: int) -> Map:
    """Each point of the domain of `low` -> all tuples whose entry at `before` lies in `low .. low + width - 1`."""
    inside = Map(f"{{ [l] -> [x] : l <= x < l + {width} }}")
    return Map.from_pw_aff(low).apply_range(inside).insert_dims(OUT, 0, before).add_dims(OUT, after)


def constant_on(domain: Set, value: int) -> PwAff:
    """A constant function on `domain`."""
    return PwAff.val_on_domain(domain, islpy.Val.int_from_si(domain.get_ctx(), value))


def coordinate(relation: Map, position: int) -> PwAff:
    """One coordinate of the range tuples of `relation`, as a function of them."""
    target = relation.range()
    return PwAff.var_on_domain(islpy.LocalSpace.from_space(target.get_space()), SET, position).intersect_domain(target)


def instance_coordinate(relation: Map, position: int) -> PwAff:
    """One coordinate of the range tuples of `relation`, as a function of all tuples of their space."""
    space = relation.range().get_space()
    return PwAff.var_on_domain(islpy.LocalSpace.from_space(space), SET, position)


def modulo(function: PwAff, size: int) -> PwAff:
    """`function` modulo a constant."""
    return function.mod_val(islpy.Val.int_from_si(function.get_ctx(), size))


def on_range(relation: Map, function: PwAff) -> PwAff:
    """`function` of the domain of `relation`, as a function of its range (whose tuples determine the domain)."""
    return components(relation.reverse().apply_range(Map.from_pw_aff(function)))[0]


def within(cells: Map, lives: Map, extents: Sequence[str], params: str) -> bool:
    """Whether `cells` (prefix values -> cells) lie in boxes of `extents`, each of which begins where the first coordinates of
    `lives` say."""
    count = len(extents)
    lows = lives.project_out(OUT, count, lives.dim(OUT) - count).reset_tuple_id(OUT)
    names = ", ".join(f"x{i}" for i in range(count))
    begins = ", ".join(f"l{i}" for i in range(count))
    where = " and ".join(f"l{i} <= x{i} < l{i} + {extent}" for i, extent in enumerate(extents)) or "1 = 1"
    boxes = lows.apply_range(Map(f"{params} -> {{ [{begins}] -> [{names}] : {where} }}"))
    return bool(cells.reset_tuple_id(OUT).is_subset(boxes))


def split_range(tuples: Set, count: int) -> Map:
    """Tuples of which the first `count` coordinates belong to the rest, as a relation from the rest to them."""
    return Map.from_range(tuples.reset_tuple_id()).move_dims(IN, 0, OUT, count, tuples.dim(SET) - count)


def prefix_relation(domain: UnionSet, rows_above: MultiUnionPwAff | None) -> UnionMap:
    """`domain` -> the values of the schedule rows above it; to the empty tuple where there are none."""
    if rows_above is None:
        return UnionMap.from_domain_and_range(domain, UnionSet("{ [] }"))
    return UnionMap.from_multi_union_pw_aff(rows_above).intersect_domain(domain)


def selected_rows(domain: Set, rows_above: MultiUnionPwAff | None, depths: Sequence[int]) -> Map:
    """`domain` -> the values of the rows at `depths`; 0 where a depth is -1."""
    zero = PwAff.zero_on_domain(islpy.LocalSpace.from_space(domain.get_space()))
    return values_of(domain, [zero if depth < 0 or rows_above is None else
                              rows_above.get_at(depth).extract_pw_aff(zero.get_space()) for depth in depths])


def values_of(domain: Set, functions: Sequence[PwAff]) -> Map:
    """`domain` -> the values of some functions of it."""
    result = Map.from_domain_and_range(domain, Set("{ [] }"))
    for function in functions:
        result = result.flat_range_product(Map.from_pw_aff(function))
    return result
