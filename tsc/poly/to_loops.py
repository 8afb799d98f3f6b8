"""A schedule tree to loop IR, through isl's AST. Instances carry their coordinates, so no callback into isl is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tsc.errors import InternalError
from tsc.loop_ir.marks import BLOCK, KEPT, PARALLEL
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Instance, LoopKind, Scope, Stmt, Store, block, nest
from tsc.loop_ir.nodes import walk as walk_stmts
from tsc.poly import PatternMismatch, isl
from tsc.poly.linear import difference, shifted, tidy
from tsc.poly.promotion.promote import Assignment, Local, Promoted
from tsc.poly.scop import Scop
from tsc.poly.to_expr import to_expr
from tsc.te.expr import Call, Expr, Load, Var, format_expr, index, map_children, substitute, walk
from tsc.te.passes.messages import messages_of


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is visible at a point of the AST: iterators, and where each local begins."""

    iterators: Mapping[str, Expr]
    lows: Mapping[str, tuple[Expr, ...]]

    def with_iterator(self, name: str, value: Expr) -> _Scope:
        return replace(self, iterators={**self.iterators, name: value})


@dataclass(frozen=True, slots=True)
class _Context:
    """What does not change: the statements' assignments, and the locals by buffer and by alloc instance."""

    assignments: Mapping[str, Assignment]
    locals: Mapping[str, Local]
    allocations: Mapping[str, Local]
    guards: Mapping[str, Expr]
    kept: frozenset[str]


def iterators_for(scop: Scop, depth: int = 48) -> list[str]:
    """Names for the loops over the rows of a tree, by depth; none is a size's."""
    taken = {s.name for s in scop.program.sizes}
    return [f"c{d}" if f"c{d}" not in taken else f"c{d}_" for d in range(depth)]


def to_loops(promoted: Promoted, scop: Scop, name: str, kept: frozenset[str] = KEPT) -> Func:
    """The loop IR of a schedule: a perfect nest of block loops around everything else. Loops with a mark in `kept` are there
    even where they run once. Raises PatternMismatch where the statements have no nest of block loops in common."""
    program = scop.program
    context = _Context(promoted.assignments, {x.buffer.name: x for x in promoted.locals},
                       {x.statement: x for x in promoted.locals}, promoted.guards, kept)
    body = _convert(isl.generate(promoted.schedule, scop.context, iterators_for(scop)), "", _Scope({}, {}), context)
    body = _blocks_outside(body)
    inner = nest(body)[1] if isinstance(body, For) and body.kind == "block" else body
    if any(isinstance(s, For) and s.kind == "block" for s in walk_stmts(inner)):
        raise PatternMismatch("what is computed together has no blocks in common: isl made loops of their own for some of it")
    outputs = tuple(b.name for b in program.outputs)
    return Func(name, program.inputs + program.outputs, outputs, program.sizes, body, messages=messages_of(program))


def _convert(node: isl.AstNode, mark: str, scope: _Scope, context: _Context) -> Stmt:
    kind = node.get_type()
    if kind == isl.AstNodeType.for_:
        return _loop(node, mark, scope, context)
    if kind == isl.AstNodeType.mark:
        return _marked(node, scope, context)
    if kind == isl.AstNodeType.if_:
        otherwise = _convert(node.if_get_else_node(), mark, scope, context) if node.if_has_else_node() else None
        condition = to_expr(node.if_get_cond(), scope.iterators)
        return If(condition, _convert(node.if_get_then_node(), mark, scope, context), otherwise)
    return _sequence(_parts(node), mark, scope, context)


def _loop(node: isl.AstNode, mark: str, scope: _Scope, context: _Context) -> Stmt:
    name = str(node.for_get_iterator().get_id().get_name())
    low = to_expr(node.for_get_init(), scope.iterators)
    if node.for_is_degenerate():
        return _convert(node.for_get_body(), "", scope.with_iterator(name, low), context)
    inner = scope.with_iterator(name, Var(name))
    condition = node.for_get_cond()
    comparison, (_, bound) = isl.op_name(condition), isl.arguments(condition)
    if comparison not in ("lt", "le"):
        raise InternalError(f"isl made a loop with the condition {condition}, which the loop IR does not have")
    high = shifted(to_expr(bound, scope.iterators), 1 if comparison == "le" else 0)
    if mark == BLOCK and any(isinstance(e, Var) or not _is_plain(e) for e in (*walk(low), *walk(high))):
        raise PatternMismatch(f"the blocks of what is computed together are no box: a loop ends at {format_expr(high)}")
    if not (_is_plain(low) and _is_plain(high)):
        raise PatternMismatch(f"isl made a loop with bounds chosen by a condition: {format_expr(low)} .. {format_expr(high)}")
    step = int(node.for_get_inc().get_val().to_python())
    return For(name, low, high, _convert(node.for_get_body(), "", inner, context), step, _kind(mark), mark)


def _is_plain(bound: Expr) -> bool:
    """Whether a bound is one expression, no choice between several."""
    return not any(isinstance(e, Call) and e.fn == "select" for e in walk(bound))


def _marked(node: isl.AstNode, scope: _Scope, context: _Context) -> Stmt:
    mark, child = str(node.mark_get_id().get_name()), node.mark_get_node()
    degenerate = child.get_type() in (isl.AstNodeType.mark, isl.AstNodeType.user)
    if not degenerate or mark not in context.kept:
        return _convert(child, mark, scope, context)
    name = f"one{len(scope.iterators)}_{mark}"
    body = _convert(child, mark, scope.with_iterator(name, index(0)), context)
    return For(name, index(0), index(1), body, kind=_kind(mark), mark=mark)


def _kind(mark: str) -> LoopKind:
    return cast(LoopKind, mark) if mark in PARALLEL else "serial"


def _sequence(nodes: Sequence[isl.AstNode], mark: str, scope: _Scope, context: _Context) -> Stmt:
    """Statements in order; an alloc instance opens its buffer's life, which lasts to the end of the sequence. One that stands
    first under a condition opens it before: what follows may be under another condition."""
    done: list[Stmt] = []
    for i, node in enumerate(nodes):
        guarded = _parts(node.if_get_then_node()) if _is_plain_if(node) else []
        first = guarded or [node]
        count = next((k for k, n in enumerate(first) if _allocated(n, context) is None), len(first))
        if not count:
            done.append(_statement(node, mark, scope, context))
            continue
        opened, lives = scope, []
        for alloc in first[:count]:
            local = cast(Local, _allocated(alloc, context))
            values = _arguments(alloc, scope)
            opened = replace(opened, lows={**opened.lows, local.buffer.name: values[:len(local.buffer.shape)]})
            lives.append(local)
        rest = [_sequence(first[count:], mark, opened, context)] if first[count:] else []
        if guarded:
            rest = [If(to_expr(node.if_get_cond(), scope.iterators), s) for s in rest]
        body = block(*rest, _sequence(nodes[i + 1:], mark, opened, context))
        for local in reversed(lives):
            body = Allocate(local.storage, cast(Scope, local.scope), body)
        return block(*done, body)
    return block(*done) if done else Block(())


def _is_plain_if(node: isl.AstNode) -> bool:
    return bool(node.get_type() == isl.AstNodeType.if_ and not node.if_has_else_node())


def _parts(node: isl.AstNode) -> list[isl.AstNode]:
    """The nodes of a block, or the one node."""
    if node.get_type() != isl.AstNodeType.block:
        return [node]
    children = node.block_get_children()
    return [children.get_at(i) for i in range(children.n_ast_node())]


def _allocated(node: isl.AstNode, context: _Context) -> Local | None:
    """The local whose life an alloc instance opens; None for any other node."""
    return context.allocations.get(_name(node)) if node.get_type() == isl.AstNodeType.user else None


def _name(node: isl.AstNode) -> str:
    return str(isl.arguments(node.user_get_expr())[0].get_id().get_name())


def _arguments(node: isl.AstNode, scope: _Scope) -> tuple[Expr, ...]:
    """The coordinates of the instance that a user node executes."""
    return tuple(tidy(to_expr(a, scope.iterators)) for a in isl.arguments(node.user_get_expr())[1:])


def _statement(node: isl.AstNode, mark: str, scope: _Scope, context: _Context) -> Stmt:
    if node.get_type() != isl.AstNodeType.user:
        return _convert(node, mark, scope, context)
    return _store(_name(node), _arguments(node, scope), scope, context)


def _store(statement: str, values: tuple[Expr, ...], scope: _Scope, context: _Context) -> Stmt:
    assignment = context.assignments[statement]
    mapping = dict(zip(assignment.names, values))
    target = Load(assignment.buffer, tuple(substitute(i, mapping) for i in assignment.index))
    place = _localised(target, scope, context)
    if not isinstance(place, Load):
        raise InternalError(f"{statement} stores to no element")
    value = _localised(substitute(assignment.value, mapping), scope, context)
    store = Store(place.buffer, place.index, value, Instance(statement, values))
    guard = context.guards.get(statement)
    return store if guard is None else If(substitute(guard, mapping), store)


def _localised(expr: Expr, scope: _Scope, context: _Context) -> Expr:
    """Loads of local buffers with the place where their storage begins subtracted."""
    inner = map_children(lambda c: _localised(c, scope, context), expr)
    if not isinstance(inner, Load) or inner.buffer.name not in context.locals:
        return inner
    local = context.locals[inner.buffer.name]
    if inner.buffer.name not in scope.lows:
        raise InternalError(f"{inner.buffer.name} is accessed where it has no storage")
    lows = scope.lows[inner.buffer.name]
    place = tuple(index(0) if d < 0 else difference(inner.index[d], lows[d]) for d in local.dims)
    return Load(local.storage, place if local.layout is None else local.layout.place(place))


def _blocks_outside(stmt: Stmt) -> Stmt:
    """Conditions that isl put around a block loop go inside it: they do not depend on its variable."""
    match stmt:
        case For(kind="block"):
            return replace(stmt, body=_blocks_outside(stmt.body))
        case If(condition=condition, then=then, otherwise=None):
            inner = _blocks_outside(then)
            if isinstance(inner, For) and inner.kind == "block":
                return replace(inner, body=_blocks_outside(If(condition, inner.body)))
    return stmt
