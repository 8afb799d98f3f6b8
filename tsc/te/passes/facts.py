"""Facts of a Program: what ties its sizes to each other and holds at every call, read off a ShapeEnv.

A size like `min(n, 4) - 1` or `(h - 3) // 2 + 1` is one integer to the kernel; that an index made from it stays within `n`
can be proved from the fact alone. Dims that are no size of the Program occur in facts as integers that exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from tsc.sym import ZERO, ShapeEnv, SymExpr, dim, exact_quotient, product
from tsc.sym.affine import is_quasi_affine
from tsc.sym.expr import Apply, Atom, Monomial, apply
from tsc.te.compute import Fact


def size_facts(names: Mapping[SymExpr, str], env: ShapeEnv, products: bool = False,
               multiples: bool = False) -> tuple[Fact, ...]:
    """The equalities and the guards that relate the sizes `names` (expression -> size name) to each other, with `products` also
    what ties a product to its factors, with `multiples` that it is no less than they are."""
    hidden: dict[Monomial, str] = {}
    made = [Fact(dim(name), "==", _expanded(expr, names, hidden)) for expr, name in names.items()
            if len(expr.terms) > 1 or _applies(expr)]
    made += [fact for expr in names for fact in _exact_facts(expr, names, hidden, env)]
    quotients = [fact for expr in names for fact in _remainder_facts(expr, names, hidden)]
    quotients += [fact for expr in names for fact in _quotient_facts(expr, names, hidden)]
    multiplied = _product_facts(names, hidden) if products else []
    multiplied += _multiple_facts(names, env) if multiples else []
    ordered = _ordered_facts(names, hidden, env)
    facts = _related([*made, *multiplied, *quotients, *ordered], set(names.values()))
    facts += [fact for fact in quotients if fact not in facts]  # one size and a number
    known = {*names.values(), *(name for fact in facts for name in fact.names())}
    for guard in env.remaining_guards():
        if guard.relation in ("==", "<="):
            found = Fact(_renamed(guard.left, names, hidden), guard.relation, _renamed(guard.right, names, hidden))
            tied = len(found.names()) > 1 or (guard.relation == "==" and found.names())  # a size may be a number, too
            if tied and found.names() <= known:
                facts.append(found)
    used = {name for fact in facts for name in fact.names()}
    return tuple(_numbered([*_ranges(hidden, used, env), *facts], set(names.values())))


def _expanded(expr: SymExpr, names: Mapping[SymExpr, str], hidden: dict[Monomial, str]) -> SymExpr:
    """`expr` in terms of the other sizes."""
    return _renamed(expr, {e: n for e, n in names.items() if e != expr}, hidden)


def _renamed(expr: SymExpr, names: Mapping[SymExpr, str], hidden: dict[Monomial, str]) -> SymExpr:
    """`expr` over the names of sizes; what is neither a size nor affine in sizes gets a name in `hidden`."""
    if expr in names:
        return dim(names[expr])
    if -expr in names:
        return -dim(names[-expr])
    total = SymExpr.of(0)
    for monomial, coefficient in expr.terms:
        single = SymExpr(((monomial, 1),))
        if not monomial:
            factor = SymExpr.of(1)
        elif single in names or -single in names:
            factor = dim(names[single]) if single in names else -dim(names[-single])
        elif len(monomial) == 1 and is_quasi_affine(monomial[0]):
            factor = apply(monomial[0].fn, [_renamed(a, names, hidden) for a in monomial[0].args])
        elif len(monomial) == 1 and _rounds_up(monomial[0]):  # x // y == -((-x - 1) // y) - 1
            whole, by = monomial[0].args
            factor = -_renamed((-whole - 1) // by, names, hidden) - 1
        else:
            factor = dim(hidden.setdefault(monomial, f"?{len(hidden)}"))
        total = total + factor * coefficient
    return total


def _exact_facts(expr: SymExpr, names: Mapping[SymExpr, str], hidden: dict[Monomial, str], env: ShapeEnv) -> list[Fact]:
    """`n * y * (x // n) == x * y`, where `expr` has such products of quotients that leave no rest."""
    whole, times = expr, 1
    for atom in dict.fromkeys(expr.atoms()):
        match atom:
            case Apply(fn="//", args=(x, by)) if (n := by.as_int() or 0) > 1 and env.prove_divides(n, x):
                rest = [(m, c) for m, c in whole.terms if atom not in m]
                parts = [SymExpr(((tuple(a for k, a in enumerate(m) if k != m.index(atom)), c),))
                         for m, c in whole.terms if atom in m]
                whole, times = sum((part * x for part in parts), SymExpr(tuple(rest)) * n), times * n
    is_product = any(len(monomial) > 1 for monomial, _ in expr.terms)  # others are given as they are
    return [Fact(dim(names[expr]) * times, "==", _renamed(whole, names, hidden))] if times > 1 and is_product else []


def _remainder_facts(expr: SymExpr, names: Mapping[SymExpr, str], hidden: dict[Monomial, str]) -> list[Fact]:
    """`x % y < y`, where `expr` is such a remainder."""
    (monomial, times), *more = expr.terms
    first = monomial[0] if len(monomial) == 1 else None
    if not more and times == 1 and isinstance(first, Apply) and first.fn == "%":
        return [Fact(dim(names[expr]) + 1, "<=", _renamed(first.args[1], names, hidden))]
    return []


def _quotient_facts(expr: SymExpr, names: Mapping[SymExpr, str], hidden: dict[Monomial, str]) -> list[Fact]:
    """`x - y < (x // y) * y <= x` for the quotients in `expr`, where that product is a sum of sizes or `expr` a multiple of it
    and a rest."""
    found = []
    for atom in dict.fromkeys(expr.atoms()):
        if not isinstance(atom, Apply) or atom.fn != "//" or atom.args[1].as_int() is not None:
            continue
        by, single = atom.args[1], SymExpr((((atom,), 1),))
        share = exact_quotient(SymExpr(tuple((m, c) for m, c in expr.terms if atom in m)), single * by)
        times = None if share is None else share.as_int()
        if times is not None:
            made, rest = dim(names[expr]), _renamed(expr - single * by * times, names, hidden)
        elif _is_sum(single * by, names):
            made, rest, times = _renamed(single * by, names, {}), ZERO, 1
        else:
            continue
        whole, divisor = (_renamed(a, names, hidden) for a in atom.args)
        ends = ((whole - divisor + 1) * times + rest, whole * times + rest)
        least, most = ends if times > 0 else ends[::-1]
        found += [Fact(least, "<=", made), Fact(made, "<=", most)]
    return found


def _ordered_facts(names: Mapping[SymExpr, str], hidden: Mapping[Monomial, str], env: ShapeEnv) -> list[Fact]:
    """`x // z <= y // z` for quotients by one size, sizes or hidden names, where x <= y."""
    singles = {e.terms[0][0]: name for e, name in names.items() if len(e.terms) == 1 and e.terms[0][1] == 1}
    quotients = [(atom, name) for (atom, *more), name in {**hidden, **singles}.items()
                 if not more and isinstance(atom, Apply) and atom.fn == "//" and atom.args[1].as_int() is None]
    return [Fact(dim(one), "<=", dim(other)) for a, one in quotients for b, other in quotients
            if one != other and a.args[1] == b.args[1] and env.prove_le(1, a.args[1]) and env.prove_le(a.args[0], b.args[0])]


def _is_sum(expr: SymExpr, names: Mapping[SymExpr, str]) -> bool:
    """Whether every term of `expr` is a multiple of a size."""
    singles = [SymExpr(((monomial, 1),)) for monomial, _ in expr.terms if monomial]
    return all(single in names or -single in names for single in singles)


def _product_facts(names: Mapping[SymExpr, str], hidden: dict[Monomial, str]) -> list[Fact]:
    """What sizes and hidden names that are products have as factors."""
    monomials = {expr.terms[0][0]: name for expr, name in names.items() if len(expr.terms) == 1 and expr.terms[0][1] == 1}
    found = []
    for monomial, name in [*monomials.items(), *hidden.items()]:
        if len(monomial) > 1:
            factors = [_renamed(SymExpr((((atom,), 1),)), names, hidden) for atom in monomial]
            found.append(Fact(dim(name), "==", product(factors)))
    return found


def _multiple_facts(names: Mapping[SymExpr, str], env: ShapeEnv) -> list[Fact]:
    """`x <= x * y` for sizes of which one is the other times something positive."""
    return [Fact(dim(one), "<=", dim(other)) for a, one in names.items() for b, other in names.items()
            if one != other and (times := exact_quotient(b, a)) is not None and env.prove_le(1, times) and env.prove_le(0, a)]


def _rounds_up(atom: Atom) -> TypeGuard[Apply]:
    """Whether an atom is a quotient of a negative dividend: the negation of one that is rounded up."""
    return isinstance(atom, Apply) and atom.fn == "//" and all(times < 0 for _, times in atom.args[0].terms)


def _applies(expr: SymExpr) -> bool:
    return any(isinstance(atom, Apply) for atom in expr.atoms())


def _related(facts: Iterable[Fact], sizes: set[str]) -> list[Fact]:
    """The facts that, with others over the same hidden names, say something about two sizes at least."""
    groups: list[tuple[frozenset[str], list[Fact]]] = []
    for fact in facts:
        hidden, together = fact.names() - sizes, [fact]
        for group in [g for g in groups if g[0] & hidden]:
            groups.remove(group)
            hidden |= group[0]
            together = group[1] + together
        groups.append((hidden, together))
    return [fact for _, together in groups if len({n for f in together for n in f.names()} & sizes) > 1 for fact in together]


def _ranges(hidden: Mapping[Monomial, str], used: set[str], env: ShapeEnv) -> list[Fact]:
    found = []
    for monomial, name in hidden.items():
        low, high = env.bounds(SymExpr(((monomial, 1),)))
        if name in used:
            found += [Fact(SymExpr.of(low), "<=", dim(name))] if low is not None else []
            found += [Fact(dim(name), "<=", SymExpr.of(high))] if high is not None else []
    return found


def _numbered(facts: Iterable[Fact], sizes: set[str]) -> list[Fact]:
    """`facts` with hidden names h0, h1, ... in order of use."""
    result: list[Fact] = []
    numbers: dict[str, SymExpr] = {}
    for fact in facts:
        for name in sorted(fact.names() - sizes - numbers.keys(), key=lambda n: int(n[1:])):
            numbers[name] = dim(f"h{len(numbers)}")
        result.append(Fact(fact.left.substitute(numbers), fact.relation, fact.right.substitute(numbers)))
    return result
