"""TuRBO-m: Bayesian optimisation in several trust regions at once, each with a Gaussian process of its own.

A region is a box around the best config that it knows; it grows after successes, shrinks after failures and begins anew where
it has become too small. What is measured next is drawn by Thompson sampling over all regions together, which is the bandit
among them: a region that promises more gets more. What is sought is a cover, a few configs that together are fast at all sizes:
there is a region around each config of the best one that is known, which looks after the sizes where that is the fastest.
Eriksson et al. 2019, "Scalable Global Optimization via Local Bayesian Optimization"; section 5.1 of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tsc.poly.tile import Space, TileConfig
from tsc.tune.pool import cover
from tsc.tune.search import Times, first_of, valid

#: Sides of a region's box, in the unit cube: at first, at most, and below which it begins anew.
LENGTH, LONGEST, SHORTEST = 0.8, 1.6, 0.5**6
#: After so many batches with a better config in a row a region doubles; after so many without one it halves.
SUCCESSES, FAILURES = 2, 3
#: How much better, relative to its time, a config has to be to count.
BETTER = 1e-3
#: By how much a further config has to lower the mean size's time for a region of its own: what measurements waver by does not
#: make one, which would look after few sizes and leave others less.
APART = 0.02
#: Configs that a region knows before it has a model, candidates it draws from, and the configs its model is fitted to.
FIRST, CANDIDATES, MODELLED = 6, 256, 96
#: What a config that cannot be run counts as: so many times as long as the worst.
_FAILED = math.log(2.0)
#: Of many knobs about so many are turned at once: all of them are a far jump.
_TURNED = 20

Choices = tuple[int, ...]
Array = NDArray[np.float64]
#: (count, candidates) samples of functions with known values at known points, at others: x, y, candidates, count, seed.
Draws = Callable[[Array, Array, Array, int, int], Array]


@dataclass(frozen=True, slots=True)
class Region:
    """A trust region: the sizes (by number) whose mean logarithm of times it minimises, the side of its box, and how many
    batches went well or did not. It knows what was told from number `begun` on."""

    columns: tuple[int, ...]
    length: float = LENGTH
    successes: int = 0
    failures: int = 0
    begun: int = 0

    def values(self, times: Array) -> Array:
        """The value of each config that it knows, where the rows of `times` are what configs take."""
        found: Array = times[self.begun:, list(self.columns)].mean(axis=1)
        return found


def updated(region: Region, before: float, value: float, told: int) -> Region:
    """A region that knew of a value of `before` after a batch whose least is `value`, when so many configs were told of in
    all."""
    if value < before - BETTER:
        region = replace(region, successes=region.successes + 1, failures=0)
    else:
        region = replace(region, successes=0, failures=region.failures + 1)
    if region.successes == SUCCESSES:
        region = replace(region, length=min(2 * region.length, LONGEST), successes=0)
    elif region.failures == FAILURES:
        region = replace(region, length=region.length / 2, failures=0)
    return Region(region.columns, begun=told) if region.length < SHORTEST else region


def followed(regions: Sequence[Region], times: Array, fresh: int, most: int) -> tuple[Region, ...]:
    """At most so many regions after a batch, of which the last `fresh` rows of `times` are. The sizes are shared by the configs
    of the best cover; a share is looked after by the region that had most of it, or by a new one."""
    chosen = times[cover(np.exp(times), most, APART)]
    owners = chosen.argmin(axis=0)
    shares = sorted(tuple(np.flatnonzero(owners == number).tolist()) for number in set(owners.tolist()))
    kept: dict[int, Region] = {}
    for lacking, share, number in sorted((-len({*r.columns} & {*columns}), share, number)
                                         for share, columns in enumerate(shares) for number, r in enumerate(regions)):
        if lacking < 0 and share not in kept and regions[number] not in kept.values():
            kept[share] = regions[number]
    found = []
    for share, columns in enumerate(shares):
        region = replace(kept.get(share, Region(())), columns=columns)
        values = region.values(times)
        before, value = float(values[:-fresh].min(initial=math.inf)), float(values[-fresh:].min())
        found.append(updated(region, before, value, len(times)) if share in kept else region)
    return tuple(found)


class Grid:
    """The choices of a Space's knobs as points of the unit cube."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._counts = np.array([len(knob.sizes) for knob in space.knobs], np.int64)

    @property
    def dimensions(self) -> int:
        """How many knobs there are."""
        return len(self._counts)

    def unit(self, choices: Sequence[Choices]) -> Array:
        """A row for each of some choices."""
        found = np.array(choices, np.float64).reshape(len(choices), self.dimensions)
        return found / np.maximum(1, self._counts - 1)

    def projected(self, place: Array, towards: Choices | None) -> Choices | None:
        """The nearest choices to a place, moved towards others, which are valid, until they are valid too."""
        rounded = np.rint(np.clip(place, 0, 1) * (self._counts - 1)).astype(np.int64)
        choices: Choices = tuple(rounded.tolist())
        while self.space.refusal(self.space.at(choices)) is not None:
            if towards is None or choices == towards:
                return None
            choices = tuple(c - (c > t) + (c < t) for c, t in zip(choices, towards))
        return choices

    def nearest(self, config: TileConfig) -> Choices:
        """Choices that make a config, or as much of it as any do: each knob its nearest size."""
        found = []
        for knob in self.space.knobs:
            value = getattr(config, knob.field)
            for place in knob.place:
                value = value[place]
            found.append(min(range(len(knob.sizes)), key=lambda k: abs(knob.sizes[k] - value)))
        return tuple(found)


class Turbo:
    """The Search. `count` says how many regions there are at most; `draws` samples from their posteriors."""

    def __init__(self, space: Space, seed: int, draws: Draws, count: int = 3) -> None:
        self._space, self._grid, self._draws, self._count = space, Grid(space), draws, count
        self._rng = np.random.default_rng(seed)
        self._choices: dict[TileConfig, Choices] = {}  # of all that was asked for
        self._left = valid(space) if math.prod(len(knob.sizes) for knob in space.knobs) <= CANDIDATES else []
        self._first = first_of(space)
        self._told: list[Choices] = []
        self._times: Array = np.empty((0, 0))
        self.regions: tuple[Region, ...] = ()

    def ask(self, count: int) -> list[TileConfig]:
        """As a Search does: the default and the seeds first, then what the regions draw, and what chance does while they know
        too little."""
        found: list[TileConfig] = []
        while self._first and len(found) < count:
            config = self._first.pop(0)
            self._take(config, self._grid.nearest(config), found)
        ready = [k for k, region in enumerate(self.regions) if len(self._told) - region.begun >= FIRST]
        for choices in self._sampled(ready, count - len(found)) if ready and len(found) < count else ():
            self._take(self._space.at(choices), choices, found)
        for _ in range(20 * count):
            if len(found) >= count:
                break
            drawn = self._grid.projected(self._rng.random(self._grid.dimensions), None)
            if drawn is not None:
                self._take(self._space.at(drawn), drawn, found)
        while self._left and len(found) < count:  # of a small Space what nobody drew
            config = self._left.pop()
            self._take(config, self._grid.nearest(config), found)
        return found

    def tell(self, results: Mapping[TileConfig, Times]) -> None:
        """As a Search does."""
        known = [times for times in results.values() if times is not None]
        if not results or not (known or len(self._times)):
            return
        before = self._times if len(self._times) else np.empty((0, len(known[0])))
        failed = np.full(before.shape[1], max(before.max(initial=-math.inf), *map(max, known), -math.inf) + _FAILED)
        self._times = np.array([*before, *(failed if times is None else times for times in results.values())], np.float64)
        self._told += [self._choices.get(config) or self._grid.nearest(config) for config in results]
        self.regions = followed(self.regions, self._times, len(results), self._count)

    def _take(self, config: TileConfig, choices: Choices, found: list[TileConfig]) -> None:
        if config not in self._choices and self._space.refusal(config) is None:
            self._choices[config] = choices
            found.append(config)

    def _sampled(self, regions: Sequence[int], count: int) -> list[Choices]:
        """The least of each of several draws from all regions' posteriors, each compared with the region's best."""
        drawn = [(candidates, self._gains(k, candidates, 2 * count)) for k in regions if (candidates := self._candidates(k))]
        found: dict[Choices, None] = {}
        for row in range(2 * count if drawn else 0):
            _, choices = min((float(gains[row].min()), candidates[int(gains[row].argmin())]) for candidates, gains in drawn)
            found[choices] = None
        return list(found)[:count]

    def _candidates(self, number: int) -> list[Choices]:
        """Valid choices in a region's box around its best, of configs that were not asked for."""
        best, length = self._best(number), self.regions[number].length
        centre, dimensions = self._grid.unit([best])[0], self._grid.dimensions
        low, high = np.maximum(0, centre - length / 2), np.minimum(1, centre + length / 2)
        places = low + self._rng.random((CANDIDATES, dimensions)) * (high - low)
        turned = self._rng.random((CANDIDATES, dimensions)) < min(1.0, _TURNED / max(1, dimensions))
        found = (self._grid.projected(place, best) for place in np.where(turned, places, centre))
        return [c for c in dict.fromkeys(found) if c is not None and self._space.at(c) not in self._choices]

    def _gains(self, number: int, candidates: Sequence[Choices], count: int) -> Array:
        """Samples of a region's posterior at candidates, less its best value."""
        region = self.regions[number]
        unit, values = self._grid.unit(self._told[region.begun:]), region.values(self._times)
        nearest = np.abs(unit - unit[values.argmin()]).max(axis=1, initial=0).argsort(kind="stable")[:MODELLED]
        seed = int(self._rng.integers(1 << 31))
        drawn = self._draws(unit[nearest], values[nearest], self._grid.unit(candidates), count, seed)
        return drawn - float(values.min())

    def _best(self, number: int) -> Choices:
        region = self.regions[number]
        return self._told[region.begun + int(region.values(self._times).argmin())]
