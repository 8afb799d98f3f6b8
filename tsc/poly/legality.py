"""What a schedule tree must satisfy: every dependence goes forward, blocks are independent, all instances are executed.

The tree is walked from its root with the dependences not yet decided: a band row decides those with a positive distance and
passes on those at distance zero, a sequence decides those between its children. The answer is exact. Extension nodes bring
their own statements, whose dependences exist only below them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.loop_ir.marks import BLOCK
from tsc.poly import isl
from tsc.poly.deps import Dependences
from tsc.poly.scop import Scop

#: Who wants to see the tree after each step: the step's name and the tree.
Seen = Callable[[str, isl.Schedule], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What a tree makes of dependences: those it breaks, and by node (its path from the root) those inside single runs of it;
    a node that is not there has none."""

    broken: isl.UnionMap
    inside: Mapping[isl.Path, isl.UnionMap]

    def within(self, path: isl.Path) -> isl.UnionMap:
        """The dependences between instances of one and the same run of a node."""
        return self.inside.get(path, isl.UnionMap.empty(self.broken.get_space()))


def order_of(schedule: isl.Schedule, deps: isl.UnionMap, added: isl.UnionMap | None = None) -> Order:
    """What `schedule` makes of `deps`; `added` are those of instances that extensions introduce."""
    inside: dict[isl.Path, isl.UnionMap] = {}
    return Order(_walk(schedule.get_root(), (), deps, added, inside), inside)


def _walk(node: isl.ScheduleNode, path: isl.Path, deps: isl.UnionMap, added: isl.UnionMap | None,
          inside: dict[isl.Path, isl.UnionMap]) -> isl.UnionMap:
    """The dependences that the tree below `node` breaks; what is still undecided at each node goes to `inside`."""
    inside[path] = deps
    broken = isl.UnionMap.empty(deps.get_space())
    kind = node.get_type()
    if kind == isl.NodeType.leaf:
        return deps
    if kind == isl.NodeType.extension and added is not None:
        deps = deps.union(added.intersect_domain(node.extension_get_extension().range()))
    if deps.is_empty() and added is None:
        return broken
    if kind in (isl.NodeType.sequence, isl.NodeType.set):
        parts = [node.child(i).filter_get_filter() for i in range(node.n_children())]
        for i, first in enumerate(parts):
            leaving = deps.intersect_domain(first)
            broken = broken.union(_walk(node.child(i).child(0), (*path, i, 0), leaving.intersect_range(first), added, inside))
            others = parts[:i] if kind == isl.NodeType.sequence else [p for j, p in enumerate(parts) if j != i]
            for second in others if not leaving.is_empty() else []:
                broken = broken.union(leaving.intersect_range(second))
        return broken
    if kind == isl.NodeType.band:
        schedule = node.band_get_partial_schedule()
        for i in range(node.band_n_member()):
            moves = isl.Moves(deps, schedule, i)
            broken, deps = broken.union(moves.backward()), moves.staying()
    for i in range(node.n_children()):
        broken = broken.union(_walk(node.child(i), (*path, i), deps, added, inside))
    return broken


def check_tree(schedule: isl.Schedule, scop: Scop, deps: Dependences, step: str, added: isl.UnionMap | None = None,
               sunk: bool = False, seen: Seen | None = None) -> Order:
    """Raise InternalError unless `schedule` respects the relaxed dependences and executes exactly the Scop's instances.

    `sunk`: statements still sit at a row of the anchor that an empty reduction does not have; sizes where one is empty are left
    to the check of the separated tree. `seen` is told the step and its tree. Returns what the tree makes of all dependences.
    """
    if seen is not None:
        seen(step, schedule)
    order = order_of(schedule, deps.full.intersect_params(scop.populated) if sunk else deps.full, added)
    if not order.broken.is_empty():
        wrong = order.broken.subtract(deps.full.subtract(deps.relaxed))
        if not wrong.is_empty():
            raise InternalError(f"schedule step '{step}' breaks dependences: {wrong}")
    check_instances(schedule, scop, step)
    return order


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


def check_blocks(schedule: isl.Schedule, deps: Dependences, order: Order) -> None:
    """Raise InternalError unless no dependence, a reduction's on itself included, leads from one block to another. `order` is
    what the schedule makes of all of them."""
    inner = below_blocks(schedule)
    if _has_mark(inner, BLOCK):
        raise InternalError("a band marked 'block' is not part of the outermost nest")
    crossing = deps.full.subtract(order.within(isl.path(inner)))
    if not crossing.is_empty():
        raise InternalError(f"blocks that run in parallel depend on each other: {crossing}")


def _has_mark(node: isl.ScheduleNode, name: str) -> bool:
    if node.get_type() == isl.NodeType.mark and isl.mark_name(node) == name:
        return True
    return any(_has_mark(node.child(i), name) for i in range(node.n_children()))


def coincident(node: isl.ScheduleNode, deps: isl.UnionMap) -> list[bool]:
    """For each row of a band: whether all dependences inside it have distance zero there."""
    return [moves.stay() for moves in _moves(node, deps)]


def with_flags(node: isl.ScheduleNode, deps: isl.UnionMap) -> isl.ScheduleNode:
    """The band with its flags as computed: a row is coincident where every dependence inside the band has distance zero in it,
    the band permutable where none has a negative distance in any row."""
    rows = _moves(node, deps)
    for i, moves in enumerate(rows):
        node = node.band_member_set_coincident(i, int(moves.stay()))
    return node.band_set_permutable(int(all(moves.forward() for moves in rows)))


def _moves(node: isl.ScheduleNode, deps: isl.UnionMap) -> list[isl.Moves]:
    domain = node.get_domain()
    local = deps.intersect_domain(domain).intersect_range(domain)
    prefix = node.get_prefix_schedule_multi_union_pw_aff()
    if prefix.dim(isl.SET) > 0:
        local = local.eq_at_multi_union_pw_aff(prefix)
    schedule = node.band_get_partial_schedule()
    return [isl.Moves(local, schedule, i) for i in range(schedule.dim(isl.SET))]
