"""TileConfig: the sizes of a schedule, and Space: those of one pattern on one device. Both are made in a pattern's module."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tsc.runtime import schema

#: No size of a config is larger.
MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes. A contraction has `block_tile` (rows, columns), a multiple of its register tile `instr_tile` (rows, columns);
    stages have `row_tile`, one size for each row, and those that are contractions a register tile each in `stage_tiles`. Of a
    stencil's register tile `lanes` columns are computed together, all of them where it is 0. Of an operand in panels the bytes
    `prefetch` ahead are asked for at each step (0: none are). Behind a block of a contraction comes the next one along its rows
    where `raster` is 0, along its columns where it is 1. Where `chunk` is not 0 reductions are cut into chunks of so many
    elements, whose results one launch computes, in the other sizes where its pattern has such, and another folds.

    On a GPU both have a third size, along k, and a block is cut into `warp_tile` (rows, columns), a warp each; `stages` of
    shared tiles are in flight.
    """

    instr_tile: tuple[int, ...] = (1, 1)
    block_tile: tuple[int, ...] = (1, 1)
    row_tile: tuple[int, ...] = ()
    stage_tiles: tuple[tuple[int, int], ...] = ()
    lanes: int = 0
    prefetch: int = 0
    raster: int = 0
    warp_tile: tuple[int, int] = (1, 1)
    stages: int = 1
    chunk: int = 0

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.block_tile[0] // self.warp_tile[0] * (self.block_tile[1] // self.warp_tile[1])

    def check_form(self, like: TileConfig) -> None:
        """Raise ValueError unless each field has as many sizes as that of another config of the same pattern."""
        for name, value in asdict(like).items():
            if isinstance(value, tuple) and len(getattr(self, name)) != len(value):
                raise ValueError(f"{name} has {len(getattr(self, name))} sizes, expected {len(value)}")

    def has_form_of(self, like: TileConfig) -> bool:
        """Whether each field has as many sizes as that of another config, as those of one pattern have."""
        try:
            self.check_form(like)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Knob:
    """A size of a TileConfig, by its field and the `place` in that, and the `sizes` that it can have, in rising order."""

    field: str
    place: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """What a config may take of something that a device has `most` of, by `name`."""

    name: str
    most: int
    taken: Callable[[TileConfig], int]


@dataclass(frozen=True, slots=True)
class Space:
    """The configs of a pattern on a device: its `default`, and those with other sizes, a choice for each of the `knobs`,
    `whole` as far as tiles are made of tiles, that keep within `limits`. Others are not worth trying. `seeds` are those that
    fill what the device has of each kind, with which a search begins."""

    default: TileConfig
    knobs: tuple[Knob, ...]
    limits: tuple[Limit, ...] = ()
    whole: Callable[[TileConfig], TileConfig] = lambda config: config
    seeds: tuple[TileConfig, ...] = ()

    def at(self, choices: Sequence[int]) -> TileConfig:
        """The config where knob k has its size number `choices[k]`."""
        config = self.default
        for knob, choice in zip(self.knobs, choices, strict=True):
            changed: dict[str, Any] = {knob.field: _with(getattr(config, knob.field), knob.place, knob.sizes[choice])}
            config = replace(config, **changed)
        return self.whole(config)

    def described(self, config: TileConfig) -> list[str]:
        """A line for each knob, with its sizes, and for each limit, with what a config takes of it."""
        places = ["".join(f"[{k}]" for k in knob.place) for knob in self.knobs]
        return [*(f"{knob.field}{at}: {', '.join(map(str, knob.sizes))}" for knob, at in zip(self.knobs, places)),
                *(f"{limit.name}: {limit.taken(config)} of {limit.most}" for limit in self.limits)]

    def refusal(self, config: TileConfig) -> str | None:
        """Which of the limits a config breaks; None where it keeps within all."""
        for limit in self.limits:
            if limit.taken(config) > limit.most:
                return f"{limit.name}: {limit.taken(config)} of {limit.most}"
        return None


def powers(most: int, least: int = 1) -> tuple[int, ...]:
    """`least` times powers of two, up to `most`; `least` itself in any case."""
    return tuple(least << k for k in range(max(1, (most // least).bit_length())))


def rounded(sizes: tuple[int, ...], parts: Sequence[int]) -> tuple[int, ...]:
    """`sizes`, the first of them rounded up to multiples of `parts`."""
    whole = (-(-size // part) * part for size, part in zip(sizes, parts))
    return (*whole, *sizes[len(parts):])


def _with(value: Any, place: Sequence[int], size: int) -> Any:
    """A size, or a tuple with another size at a place in it."""
    if not place:
        return size
    first, *rest = place
    return (*value[:first], _with(value[first], rest, size), *value[first + 1:])


def config_to_json(config: TileConfig) -> str:
    """One line that `config_from_json` reads back; of `chunk` it says nothing where nothing is cut."""
    return json.dumps({name: value for name, value in asdict(config).items() if name != "chunk" or value})


def config_from_json(text: str) -> TileConfig:
    """What `config_to_json` wrote. Raises ValueError on anything else."""
    given = schema.table(schema.from_json(text.encode(), "a config"), "a config")
    given = schema.table({**_LATER, **given}, "a config", asdict(TileConfig()))
    read: dict[str, Any] = {name: _sizes(value, name) for name, value in given.items() if name not in _OTHERS}
    return TileConfig(**read, **{name: reader(given[name], name) for name, reader in _OTHERS.items()})


def _sizes(value: Any, what: str, count: int | None = None) -> tuple[int, ...]:
    return tuple(schema.whole(size, what, 1, MOST) for size in schema.items(value, what, count))


def _pair(value: Any, what: str) -> tuple[int, ...]:
    return _sizes(value, what, 2)


#: How the fields are read that are no list of sizes of any length.
_OTHERS: Mapping[str, Callable[[Any, str], Any]] = {
    "stage_tiles": lambda value, what: tuple(_pair(tile, what) for tile in schema.items(value, what)),
    "lanes": lambda value, what: schema.whole(value, what, 0, MOST),
    "prefetch": lambda value, what: schema.whole(value, what, 0, MOST),
    "raster": lambda value, what: schema.whole(value, what, 0, 1),
    "warp_tile": _pair,
    "stages": lambda value, what: schema.whole(value, what, 1, MOST),
    "chunk": lambda value, what: schema.whole(value, what, 0, MOST)}
#: What configs did not say once, with what they meant.
_LATER: Mapping[str, Any] = {"prefetch": 0, "raster": 0, "chunk": 0}
