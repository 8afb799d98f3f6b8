"""Accumulators that a pass made several of: that each begins as the identity and that each is folded once.

A vectorized reduction sums up in lanes and folds them afterwards. Here every update leaves a token in the cell that it adds
to, a fold unites tokens, and in the end the element itself must hold every token, none of them twice. The loops' bounds play no
part: each loop is run once, each condition both ways, so that the answer holds for all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsc.errors import InternalError
from tsc.loop_ir.nodes import Allocate, Block, For, If, Intrin, Let, Stmt, Store
from tsc.te.compute import Compute
from tsc.te.expr import INDEX, Call, Const, Expr, Load, Var, format_expr, loads, substitute, walk
from tsc.te.intrinsics import MEANING

_Cell = tuple[str, tuple[str, ...]]
#: (statement, store, lanes) for an update; ("", what) for what was there before.
_Token = tuple[object, ...]
_Tokens = frozenset[_Token]
#: What an element held before any of its updates.
_BEFORE: _Token = ("",)


@dataclass(frozen=True, slots=True)
class _State:
    """What each cell holds, and every token there is. It changes as stores are executed."""

    cells: dict[_Cell, _Tokens]
    made: set[_Token]

    def copy(self) -> _State:
        return _State(dict(self.cells), set(self.made))


def check_folds(stmt: Stmt, computes: Mapping[str, Compute]) -> None:
    """Raise InternalError unless `stmt` combines every update of each of some statements (by name, with what they compute) with
    the one element that it reduces into, once, with what that held before, whichever private accumulators it takes on the way:
    they begin as the identity.
    """
    run = _Folds(computes, {c.target.name for c in computes.values()})
    for state in run.states(stmt, {}, frozenset(), [_State({}, set())]):
        for target in run.targets:
            wanted = {_BEFORE} | {t for t in state.made if computes[str(t[0])].target.name == target}
            held = [tokens for (name, _), tokens in state.cells.items() if name == target and tokens != {_BEFORE}]
            if held != [wanted] * (len(wanted) > 1):  # what is only initialised here may go by other names
                raise InternalError(f"what is reduced into {target} is not folded into it whole")


@dataclass(frozen=True, slots=True)
class _Folds:
    computes: Mapping[str, Compute]
    targets: set[str]

    def states(self, stmt: Stmt, values: Mapping[str, Expr], lanes: frozenset[str], before: list[_State]) -> list[_State]:
        """Every state that `stmt` can leave, each made from one of those `before`."""
        match stmt:
            case Store():
                self._store(stmt, values, before)
                return before
            case For(var=var, lo=Const(value=lo), hi=Const(value=hi), kind="vector" | "unroll", step=step, body=body):
                for i in range(int(lo), int(hi), step):
                    before = self.states(body, {**values, var: Const(i, INDEX)}, lanes | {var}, before)
                return before
            case For(body=body) | Let(body=body) | Allocate(body=body) | Intrin(meaning=body):
                return self.states(body, values, lanes, before)
            case If(condition=condition, then=then, otherwise=otherwise):
                if any(isinstance(n, Var) and n.name in lanes for n in walk(condition)):  # a masked lane adds nothing
                    return self.states(then, values, lanes, before)
                taken = self.states(then, values, lanes, [state.copy() for state in before])
                return taken + self.states(otherwise or Block(()), values, lanes, before)
            case Block(body=body):
                for part in body:
                    before = self.states(part, values, lanes, before)
                return before
        raise InternalError(f"a {type(stmt).__name__} within a reduction")

    def _store(self, store: Store, values: Mapping[str, Expr], states: Sequence[_State]) -> None:
        cell = _cell(Load(store.buffer, store.index), values)
        if store.instance is None:
            for state in states:
                state.cells[cell] = self._tokens(store.value, values, state)
            return
        compute = self.computes.get(store.instance.statement)
        if compute is None:  # of no reduction; what it stores is what its element holds before updates
            if cell[0] in self.targets and all(_cell(load, values) != cell for load in loads(store.value)):
                for state in states:
                    state.cells[cell] = frozenset({_BEFORE})
            return
        match store.value:
            case Call(fn=fn, args=(Load() as running, _)) if (
                    compute.monoid is not None and fn == compute.monoid.fn and _cell(running, values) == cell):
                token = (store.instance.statement, id(store), *((k, format_expr(v)) for k, v in sorted(values.items())))
                for state in states:
                    state.cells[cell] = self._combined(fn, self._held(cell, state)) | {token}
                    state.made.add(token)
                return
        raise InternalError(f"an update of {store.instance.statement} combines nothing with what was there: "
                            f"{format_expr(store.value)}")

    def _held(self, cell: _Cell, state: _State) -> _Tokens:
        if cell in state.cells:
            return state.cells[cell]
        if cell[0] not in self.targets:
            raise InternalError(f"accumulators {cell[0]} are used before they hold anything")
        return frozenset({_BEFORE})

    def _tokens(self, value: Expr, values: Mapping[str, Expr], state: _State) -> _Tokens:
        match value:
            case Const():
                return frozenset({("", value)})
            case Load():
                return self._held(_cell(value, values), state)
            case Call(fn=fn, args=args):
                united: _Tokens = frozenset()
                for part in (self._combined(fn, self._tokens(a, values, state)) for a in args):
                    if united & part:
                        raise InternalError("accumulators are folded twice")
                    united |= part
                if all(c.monoid is not None and c.monoid.fn == fn for t in united if t[0] for c in (self.computes[str(t[0])],)):
                    return united
        raise InternalError(f"{format_expr(value)} is no fold of accumulators")

    def _combined(self, fn: str, tokens: _Tokens) -> _Tokens:
        """What a cell gives to a combination: no token of what it began with, which has to be the identity."""
        monoid = next((c.monoid for c in self.computes.values() if c.monoid is not None and c.monoid.fn == fn), None)
        for start in (t[1] for t in tokens if not t[0] and t != _BEFORE):
            if monoid is None or not isinstance(start, Const) or monoid.identity(start.dtype) != start.value:
                raise InternalError(f"accumulators of '{fn}' begin with {start}")
        return frozenset(t for t in tokens if t[0] or t == _BEFORE)


def _cell(load: Load, values: Mapping[str, Expr]) -> _Cell:
    """A cell by its buffer's name and the text of its index, in which what is constant is folded."""
    return load.buffer.name, tuple(format_expr(_folded(substitute(i, values))) for i in load.index)


def _folded(expr: Expr) -> Expr:
    if isinstance(expr, Call):
        args = tuple(_folded(a) for a in expr.args)
        if all(isinstance(a, Const) for a in args):
            return Const(int(MEANING[expr.fn](*(np.int64(a.value) for a in args if isinstance(a, Const)))), "int64")
        return Call(expr.fn, args, expr.dtype)
    return expr
