"""What a schedule tree must satisfy: every dependence goes forward, blocks are independent, all instances are executed.

The tree is walked from its root with the dependences not yet decided: a band row decides those with a positive distance and
passes on those at distance zero, a sequence decides those between its children. The answer is exact. Extension nodes bring
their own statements, whose dependences exist only below them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.deps import Dependences
from tsc.poly.scop import Scop

BLOCK = "block"

#: Who wants to see the tree after each step: the step's name and the tree.
Seen = Callable[[str, isl.Schedule], None]


def violations(node: isl.ScheduleNode, deps: isl.UnionMap, added: isl.UnionMap | None = None) -> isl.UnionMap:
    """The dependences that the tree below `node` does not respect; `added` are those of instances that extensions introduce."""
    found = isl.UnionMap.empty(deps.get_space())
    kind = node.get_type()
    if kind == isl.NodeType.extension and added is not None:
        deps = deps.union(added.intersect_domain(node.extension_get_extension().range()))
    if deps.is_empty():
        return found if added is None or kind == isl.NodeType.leaf else _below(node, deps, added)
    if kind == isl.NodeType.leaf:
        return deps
    if kind == isl.NodeType.band:
        schedule = node.band_get_partial_schedule()
        for i in range(node.band_n_member()):
            values = isl.row_map(schedule, i)
            found = found.union(deps.intersect(values.lex_gt_union_map(values)))
            deps = deps.eq_at_multi_union_pw_aff(isl.row(schedule, i))
    elif kind in (isl.NodeType.sequence, isl.NodeType.set):
        parts = [node.child(i).filter_get_filter() for i in range(node.n_children())]
        for i, first in enumerate(parts):
            leaving = deps.intersect_domain(first)
            inside = leaving.intersect_range(first)
            found = found.union(violations(node.child(i).child(0), inside, added))
            others = parts[:i] if kind == isl.NodeType.sequence else [p for j, p in enumerate(parts) if j != i]
            for second in others if not leaving.is_empty() else []:
                found = found.union(leaving.intersect_range(second))
        return found
    return found.union(_below(node, deps, added))


def _below(node: isl.ScheduleNode, deps: isl.UnionMap, added: isl.UnionMap | None) -> isl.UnionMap:
    found = isl.UnionMap.empty(deps.get_space())
    for i in range(node.n_children()):
        found = found.union(violations(node.child(i), deps, added))
    return found


def check_tree(schedule: isl.Schedule, scop: Scop, deps: Dependences, step: str, added: isl.UnionMap | None = None,
               sunk: bool = False, seen: Seen | None = None) -> None:
    """Raise InternalError unless `schedule` respects the relaxed dependences and executes exactly the Scop's instances.

    `sunk`: statements still sit at a row of the anchor that an empty reduction does not have; sizes where one is empty are left
    to the check of the separated tree. `seen` is told the step and its tree.
    """
    if seen is not None:
        seen(step, schedule)
    relaxed = deps.relaxed.intersect_params(scop.populated) if sunk else deps.relaxed
    wrong = violations(schedule.get_root(), relaxed, added)
    if not wrong.is_empty():
        raise InternalError(f"schedule step '{step}' breaks dependences: {wrong}")
    check_instances(schedule, scop, step)


def check_instances(schedule: isl.Schedule, scop: Scop, step: str) -> None:
    """Raise InternalError unless every instance reaches exactly one leaf."""
    own = isl.UnionSet.empty(scop.domain.get_space())
    for leaf in leaves(schedule.get_root(), Place(None, own)):
        if not own.is_disjoint(leaf.domain):
            raise InternalError(f"schedule step '{step}' executes instances twice: {own.intersect(leaf.domain)}")
        own = own.union(leaf.domain)
    if not own.is_equal(scop.domain):
        lost, extra = scop.domain.subtract(own), own.subtract(scop.domain)
        raise InternalError(f"schedule step '{step}' loses instances {lost} or adds {extra}")


@dataclass(frozen=True, slots=True)
class Place:
    """A point of a tree: the schedule rows above it (None: no row) and the instances that reach it."""

    rows: isl.MultiUnionPwAff | None
    domain: isl.UnionSet

    def below(self, node: isl.ScheduleNode) -> Place:
        """The place of the children of `node`."""
        kind = node.get_type()
        if kind == isl.NodeType.domain:
            return replace(self, domain=node.domain_get_domain())
        if kind == isl.NodeType.filter:
            return replace(self, domain=self.domain.intersect(node.filter_get_filter()))
        if kind == isl.NodeType.band:
            own = node.band_get_partial_schedule()
            return replace(self, rows=own if self.rows is None else self.rows.flat_range_product(own))
        return self


def leaves(node: isl.ScheduleNode, place: Place) -> list[Place]:
    """The leaves below `node`, which stands at `place`; instances that extensions add are left out."""
    if node.get_type() == isl.NodeType.leaf:
        return [place]
    inner = place.below(node)
    return [leaf for i in range(node.n_children()) for leaf in leaves(node.child(i), inner)]


def below_blocks(schedule: isl.Schedule) -> isl.ScheduleNode:
    """The node below the nest of bands marked `block` that the tree starts with."""
    node = schedule.get_root().child(0)
    while node.get_type() == isl.NodeType.mark and isl.mark_name(node) == BLOCK:
        node = node.child(0).child(0)
    return node


def check_blocks(schedule: isl.Schedule, deps: Dependences) -> None:
    """Raise InternalError unless no dependence, a reduction's on itself included, leads from one block to another."""
    inner = below_blocks(schedule)
    if _has_mark(inner, BLOCK):
        raise InternalError("a band marked 'block' is not part of the outermost nest")
    prefix = inner.get_prefix_schedule_multi_union_pw_aff()
    if prefix.dim(isl.SET) == 0:
        return
    crossing = deps.full.subtract(deps.full.eq_at_multi_union_pw_aff(prefix))
    if not crossing.is_empty():
        raise InternalError(f"blocks that run in parallel depend on each other: {crossing}")


def _has_mark(node: isl.ScheduleNode, name: str) -> bool:
    if node.get_type() == isl.NodeType.mark and isl.mark_name(node) == name:
        return True
    return any(_has_mark(node.child(i), name) for i in range(node.n_children()))


def coincident(node: isl.ScheduleNode, deps: isl.UnionMap) -> list[bool]:
    """For each row of a band: whether all dependences inside it have distance zero there."""
    return _coincident(*_inside(node, deps))


def permutable(node: isl.ScheduleNode, deps: isl.UnionMap) -> bool:
    """Whether every dependence inside a band has a non-negative distance in each of its rows."""
    return _permutable(*_inside(node, deps))


def with_flags(node: isl.ScheduleNode, deps: isl.UnionMap) -> isl.ScheduleNode:
    """The band with its permutable and coincident flags as computed."""
    schedule, local = _inside(node, deps)
    for i, flag in enumerate(_coincident(schedule, local)):
        node = node.band_member_set_coincident(i, int(flag))
    return node.band_set_permutable(int(_permutable(schedule, local)))


def _coincident(schedule: isl.MultiUnionPwAff, local: isl.UnionMap) -> list[bool]:
    return [bool(local.is_subset(local.eq_at_multi_union_pw_aff(isl.row(schedule, i)))) for i in range(schedule.dim(isl.SET))]


def _permutable(schedule: isl.MultiUnionPwAff, local: isl.UnionMap) -> bool:
    for i in range(schedule.dim(isl.SET)):
        values = isl.row_map(schedule, i)
        if not local.intersect(values.lex_gt_union_map(values)).is_empty():
            return False
    return True


def _inside(node: isl.ScheduleNode, deps: isl.UnionMap) -> tuple[isl.MultiUnionPwAff, isl.UnionMap]:
    domain = node.get_domain()
    local = deps.intersect_domain(domain).intersect_range(domain)
    prefix = node.get_prefix_schedule_multi_union_pw_aff()
    if prefix.dim(isl.SET) > 0:
        local = local.eq_at_multi_union_pw_aff(prefix)
    return node.band_get_partial_schedule(), local
