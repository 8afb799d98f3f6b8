"""The operand panel: what varies with the vector axis, copied once per column tile as [reduce axes...][columns].

The operand is whatever expression the product has there (a load at any stride, a cast, a padded read), so that a prologue is
composed into the copy; what is widened to whole numbers is copied as it was. Columns past the end are zero as far as the last
vector goes: the register tile may then compute them, and nothing stores them.
Section 5.3 of the paper (promotion statements).
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tsc.errors import InternalError
from tsc.loop_ir.marks import COPY, INSTR_N, SQUARE_DTYPES, alloc_of, copy_of, fill_of
from tsc.poly import PatternMismatch, isl
from tsc.poly.affine import size_text
from tsc.poly.pattern.nest import Nest
from tsc.poly.promotion.layout import plain
from tsc.poly.promotion.promote import Assignment, Local, Promoted, graft, replaced, zero
from tsc.poly.promotion.rounded import guard_of
from tsc.poly.scop import Scop
from tsc.poly.tree import node_below
from tsc.sym import ONE
from tsc.te.expr import Buffer, Expr, Load, Var, loads, select, variables
from tsc.te.linear import linear
from tsc.te.passes.narrow import as_narrow
from tsc.te.passes.products import unit_stride, without_casts

#: Elements that fill a vector of any device; those of all devices are a part of it.
LANES = 16


def promote_panel(promoted: Promoted, scop: Scop, found: Nest, operand: Expr, width: int) -> Promoted:
    """`promoted` with the operand of one contraction that varies with n read from a panel of `width` columns, unless it can be
    read in whole vectors where it stands.

    Raises InternalError when the copies do not cover what is read, PatternMismatch when it is laid out for other tiles.
    """
    if not _needed(scop, found, operand, width):
        return promoted
    update = scop.of(found.anchor)[-1]
    reduce = [a.name for a in found.anchor.reduce_axes]
    names = (*reduce, found.n, *found.batch)
    node = node_below(promoted.schedule, {INSTR_N}, update.name)
    relation = node.get_prefix_schedule_relation()
    live = isl.as_set(node.get_domain().apply(relation))
    low = _first_column(scop, found, relation).intersect_domain(live)

    # which operand elements a prefix reads, and which columns of its tile are past the end
    instance = f"{update.name}[{', '.join(a.name for a in update.axes)}]"
    read = isl.Map(f"{scop.params} -> {{ {instance} -> [{', '.join(names)}] }}").intersect_domain(update.domain)
    at_prefix = isl.as_map(relation.intersect_domain(isl.UnionSet.from_set(update.domain)))
    exact = at_prefix.reverse().apply_range(read)
    tile = isl.window(low, width, len(reduce), len(found.batch))
    any_column = exact.project_out(isl.OUT, len(reduce), 1).insert_dims(isl.OUT, len(reduce), 1)
    vectors = _vectors(low, exact.dim_max(len(reduce)), gcd(width, LANES), len(reduce), len(found.batch))
    whole = any_column.intersect(tile).intersect(vectors).coalesce()  # register tiles compute all columns of a vector
    if not exact.is_subset(tile):
        raise InternalError(f"the panel of {found.anchor.name} does not cover what its tile reads")

    # the instances, with their prefix in the tuple, and their loops
    extents = [a.extent for a in found.anchor.reduce_axes]
    kept = as_narrow(operand)
    virtual = Buffer(f"{found.anchor.name}_panel", kept.dtype,
                     (*extents, next(a.extent for a in found.anchor.axes if a.name == found.n)))
    layout = plain((*extents, width))
    local = Local(virtual, replace(virtual, shape=layout.storage), tuple(range(len(extents) + 1)), "scratch",
                  alloc_of(virtual.name), layout)
    first = isl.constant_on(live, 0)
    node = graft(node, isl.with_prefix(live, [first] * len(reduce) + [low], local.statement), [])
    columns_inside = any(load.index and found.n in variables(load.index[-1]) for load in loads(operand))
    copy, fill = copy_of(virtual.name), fill_of(virtual.name)
    # what is only moved is copied and filled by one statement, in masked vectors or in squares (`loop_ir/cpu`)
    guard = guard_of(exact.range(), whole.range(), names) if _is_moved(kept, found.n) else None
    for name, part in ((copy, exact), (fill, whole.subtract(exact).coalesce())) if guard is None else ((copy, whole),):
        instances = part.flat_range_product(live.identity()).set_tuple_name(isl.OUT, name)
        if not instances.is_empty():
            rows = [isl.coordinate(instances, i) for i in range(len(reduce))]
            column = isl.coordinate(instances, len(reduce)).sub(isl.on_range(instances, low))
            rows = [*rows, column] if columns_inside or name == fill else [column, *rows]
            node = graft(node, instances, [(COPY, r) for r in rows])

    # what they store, and what the update reads instead
    place = tuple(Var(n) for n in (*reduce, found.n))
    assignments = dict(promoted.assignments)
    nothing = zero(virtual.dtype)
    assignments[copy] = Assignment(names, virtual, place, kept if guard is None else select(guard, kept, nothing))
    assignments[fill] = Assignment(names, virtual, place, nothing)
    old = assignments[update.name]
    assignments[update.name] = replace(old, value=replaced(old.value, kept, Load(virtual, place)))
    return replace(promoted, schedule=node.get_schedule(), locals=(*promoted.locals, local), assignments=assignments)


def _needed(scop: Scop, found: Nest, operand: Expr, width: int) -> bool:
    panels = {load.buffer.panel[1] for load in loads(operand) if load.buffer.panel is not None}
    if any(columns % width for columns in panels):
        raise PatternMismatch(f"tiles of {width} columns are no part of the panels of {min(panels)} in which a constant is")
    if panels and isinstance(without_casts(operand), Load):
        return False
    if not isinstance(operand, Load) or not unit_stride(operand, found.n):
        return True
    extent = size_text(next(a.extent for a in found.anchor.axes if a.name == found.n))
    ragged = isl.Set(f"{scop.params} -> {{ : ({extent}) mod {width} != 0 }}")
    return not scop.context.intersect(ragged).is_empty()


def _is_moved(operand: Expr, n: str) -> bool:
    """Whether squares or masked vectors can move an operand: it is a load of elements of which the next column has the next."""
    if not isinstance(operand, Load) or operand.dtype not in SQUARE_DTYPES:
        return False
    steps = ([step for atom, step in linear(i).terms if n in variables(atom)] for i in operand.index)
    return all(ONE in found for found in steps if found)


def _vectors(low: isl.PwAff, last: isl.PwAff, size: int, before: int, after: int) -> isl.Map:
    """Each prefix -> all tuples whose entry at `before` lies in a vector of so many columns that is not behind the last one,
    vectors counted from `low`."""
    ends = isl.Map(f"{{ [l, e] -> [x] : x < l + {size} * floor((e - l) / {size}) + {size} }}")
    bounds = isl.Map.from_pw_aff(low).flat_range_product(isl.Map.from_pw_aff(last))
    return bounds.apply_range(ends).insert_dims(isl.OUT, 0, before).add_dims(isl.OUT, after)


def _first_column(scop: Scop, found: Nest, relation: isl.UnionMap) -> isl.PwAff:
    """The least n of each prefix, over all statements, so that it is defined where a reduction is empty."""
    position = found.matrix.names.index(found.n)
    schedule = found.matrix.band(scop, [position], list(found.matrix.entries))
    values = isl.as_map(isl.UnionMap.from_multi_union_pw_aff(schedule).intersect_domain(scop.domain).apply_domain(relation))
    return values.dim_min(0).coalesce().gist(values.domain()).coalesce()
