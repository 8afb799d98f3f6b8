"""TileConfig: the sizes of a schedule. Those that a pattern takes without tuning are in its own module."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tsc.runtime import schema

#: No size of a config is larger.
MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes. A contraction has `block_tile` (rows, columns), a multiple of its register tile `instr_tile` (rows, columns);
    stages have `row_tile`, one size for each row, and those that are contractions a register tile each in `stage_tiles`. Of a
    stencil's register tile `lanes` columns are computed together, all of them where it is 0.

    On a GPU both have a third size, along k, and a block is cut into `warp_tile` (rows, columns), a warp each; `stages` of
    shared tiles are in flight.
    """

    instr_tile: tuple[int, ...] = (1, 1)
    block_tile: tuple[int, ...] = (1, 1)
    row_tile: tuple[int, ...] = ()
    stage_tiles: tuple[tuple[int, int], ...] = ()
    lanes: int = 0
    warp_tile: tuple[int, int] = (1, 1)
    stages: int = 1

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.block_tile[0] // self.warp_tile[0] * (self.block_tile[1] // self.warp_tile[1])

    def check_form(self, like: TileConfig) -> None:
        """Raise ValueError unless each field has as many sizes as that of another config of the same pattern."""
        for name, value in asdict(like).items():
            if isinstance(value, tuple) and len(getattr(self, name)) != len(value):
                raise ValueError(f"{name} has {len(getattr(self, name))} sizes, expected {len(value)}")


def config_to_json(config: TileConfig) -> str:
    """One line that `config_from_json` reads back."""
    return json.dumps(asdict(config))


def config_from_json(text: str) -> TileConfig:
    """What `config_to_json` wrote. Raises ValueError on anything else."""
    given = schema.table(schema.from_json(text.encode(), "a config"), "a config", asdict(TileConfig()))
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
    "warp_tile": _pair,
    "stages": lambda value, what: schema.whole(value, what, 1, MOST)}
