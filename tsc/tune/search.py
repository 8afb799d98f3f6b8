"""Searches of a Space: which configs are measured next, given what those before took."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from random import Random
from typing import Protocol

from tsc.poly.tile import Space, TileConfig

#: Draws without a new valid config after which a Space counts as known.
_PATIENCE = 200

#: The logarithms of a config's times at the sizes that are measured; None: it cannot be run.
Times = Sequence[float] | None


class Search(Protocol):
    """Asked for configs, told what they took. A config is asked for once."""

    def ask(self, count: int) -> list[TileConfig]:
        """At most so many configs to measure next; none, where the Space is known."""

    def tell(self, results: Mapping[TileConfig, Times]) -> None:
        """What was measured."""


class RandomSearch:
    """The Space's default and seeds, then valid configs as a generator draws them; of a small Space all, in a random order."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._rng = space, Random(seed)
        self._asked: set[TileConfig] = set()
        self._first = [*reversed(first_of(space))]
        self._all: list[TileConfig] | None = None
        if prod(len(knob.sizes) for knob in space.knobs) <= _PATIENCE:
            self._all = valid(space)
            self._rng.shuffle(self._all)

    def ask(self, count: int) -> list[TileConfig]:
        """As a Search does."""
        found: list[TileConfig] = []
        while len(found) < count:
            config = self._next()
            if config is None:
                break
            self._asked.add(config)
            found.append(config)
        return found

    def tell(self, results: Mapping[TileConfig, Times]) -> None:
        """Nothing is learnt."""

    def _next(self) -> TileConfig | None:
        while self._first:
            if (known := self._first.pop()) not in self._asked:
                return known
        while self._all:
            if (known := self._all.pop()) not in self._asked:
                return known
        for _ in range(_PATIENCE if self._all is None else 0):
            config = drawn(self._space, self._rng)
            if config is not None and config not in self._asked:
                return config
        return None


def first_of(space: Space) -> list[TileConfig]:
    """The default of a Space and its seeds, those that keep within its limits, each once."""
    return [config for config in dict.fromkeys((space.default, *space.seeds)) if space.refusal(config) is None]


def drawn(space: Space, rng: Random) -> TileConfig | None:
    """A random config, None where it breaks a limit."""
    config = space.at([rng.randrange(len(knob.sizes)) for knob in space.knobs])
    return config if space.refusal(config) is None else None


def valid(space: Space) -> list[TileConfig]:
    """Every config of a Space that keeps within its limits, once each."""
    made = (space.at(choices) for choices in itertools.product(*(range(len(knob.sizes)) for knob in space.knobs)))
    return list(dict.fromkeys(config for config in made if space.refusal(config) is None))
