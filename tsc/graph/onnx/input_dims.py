"""The dims of the model's inputs: names from the file, and what the user declares about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from tsc.errors import ShapeError
from tsc.sym import ShapeEnv, SymExpr, dim, identifier

#: Per dim name: a size, (lo, hi) or (lo, hi, divisor), hi None for unbounded.
#: Per input name: a shape of ints, dim names, and None where the model's own dim stays.
DimsArgument = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input as the file declares it: each dim an int, the file's dim_param, or None (dynamic without a name)."""

    name: str
    dims: tuple[int | str | None, ...]


@dataclass(slots=True)
class _Names:
    """Identifiers for the dim names of a file; the same name is always the same identifier."""

    known: dict[str, str] = field(default_factory=dict)

    def identifier(self, raw: str) -> str:
        if raw not in self.known:
            self.known[raw] = self._unused(identifier(raw))
        return self.known[raw]

    def unnamed(self, input_name: str, k: int) -> str:
        name = self._unused(identifier(f"{input_name}_{k}"))
        self.known[name] = name
        return name

    def _unused(self, base: str) -> str:
        taken, name, k = set(self.known.values()), base, 1
        while name in taken:
            k += 1
            name = f"{base}_{k}"
        return name


def input_shapes(inputs: Sequence[DeclaredInput], dims: DimsArgument, env: ShapeEnv) -> dict[str, tuple[SymExpr, ...]]:
    """The symbolic shape of every input, its Dims declared in `env` with the user's ranges.

    Raises ShapeError for a name in `dims` that is neither a dim nor an input, and for a malformed range or shape.
    """
    names = _Names()
    for raw in (d for i in inputs for d in i.dims if isinstance(d, str)):
        names.identifier(raw)
    asked = _asked_shapes(inputs, dims)
    shapes = {i.name: _shape(i, asked.get(i.name), names, env) for i in inputs}
    used = {d for shape in shapes.values() for e in shape for d in e.dims()}
    fixed: dict[str, SymExpr] = {}
    for key, value in dims.items():
        if key in asked:
            continue
        name = names.known.get(key, key)
        if name not in used:
            raise ShapeError(f"dims names '{key}', which is neither a dim ({_listing(used)}) nor an input ({_listing(shapes)})")
        if _whole(value):
            fixed[name] = SymExpr.of(_size(key, value))
            continue
        env.declare(name, *_range(key, value), asked=True)
        known = env.ranges[name]
        if known.lo == known.hi:  # a range of one size is that size
            fixed[name] = SymExpr.of(known.lo)
    return {name: tuple(e.substitute(fixed) for e in shape) for name, shape in shapes.items()}


def _asked_shapes(inputs: Sequence[DeclaredInput], dims: DimsArgument) -> dict[str, Sequence[Any]]:
    """The entries of `dims` that are shapes of inputs. A dim of the same name comes first, if the value is a range."""
    params = {d for i in inputs for d in i.dims if isinstance(d, str)}
    found: dict[str, Sequence[Any]] = {}
    for declared in inputs:
        value = dims.get(declared.name)
        if value is None or _whole(value):
            continue
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ShapeError(f"dims gives input '{declared.name}' the shape {value!r}, expected a tuple of sizes and dim names")
        if declared.name in params and not any(isinstance(v, str) for v in value):
            continue
        if len(value) != len(declared.dims):
            rank = len(declared.dims)
            raise ShapeError(f"dims gives input '{declared.name}' the shape {tuple(value)}, but it has {rank} dims")
        found[declared.name] = value
    return found


def _shape(declared: DeclaredInput, asked: Sequence[Any] | None, names: _Names, env: ShapeEnv) -> tuple[SymExpr, ...]:
    result = []
    for k, own in enumerate(declared.dims):
        wanted = None if asked is None else asked[k]
        if isinstance(wanted, str):
            result.append(env.declare(_named(str(wanted), declared.name), asked=True))
        elif wanted is not None:
            result.append(SymExpr.of(_size(declared.name, wanted)))
        elif isinstance(own, int):
            result.append(SymExpr.of(own))
        else:
            name = names.identifier(own) if own else names.unnamed(declared.name, k)
            if name not in env.ranges:
                env.declare(name)
            result.append(dim(name))
    return tuple(result)


def _named(name: str, of: str) -> str:
    if identifier(name) != name:
        raise ShapeError(f"dims calls a dim of input '{of}' {name!r}; use an identifier such as '{identifier(name)}'")
    return name


def _size(of: str, value: Any) -> int:
    if not _whole(value) or value < 0:
        raise ShapeError(f"dims gives '{of}' the size {value!r}, expected a whole number, a dim name or None")
    return int(value)


def _range(name: str, value: Any) -> tuple[int, int | None, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) not in (2, 3):
        raise ShapeError(f"dims gives '{name}' the range {value!r}, expected a size, (lo, hi) or (lo, hi, divisor)")
    lo, hi, divisor = value[0], value[1], value[2] if len(value) == 3 else 1
    if not (_whole(lo) and lo >= 0 and (hi is None or _whole(hi)) and _whole(divisor) and divisor >= 1):
        raise ShapeError(f"dims gives '{name}' the range {tuple(value)}, expected whole numbers (lo, hi) or (lo, hi, divisor)")
    return int(lo), None if hi is None else int(hi), int(divisor)


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _listing(names: Any) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names)) or "none"
