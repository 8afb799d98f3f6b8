"""Programs by number that random search found to fail once, where what mattered is hard to write down in less."""

from __future__ import annotations

import pytest

from tests.fuzz.run import Wanted, run_batch
from tsc.codegen_c.specs import host_spec


@pytest.mark.parametrize(("seed", "number"), [
    (20271206, 1958),  # four rows of s elements: what divides a place in them by 4 * s was not read off its row
    (20271206, 375),  # a place in a table that data say, kept for all lanes, left a whole region unread
    (0, 5097),  # a register tile's loop of no constant trip count was unrolled; a place and a time that fit into no number
    (2026, 86),  # a load with a stride under a condition, harmless in all lanes, was not printed
    (7001, 287),  # nothing was known of a size that is a multiple of (x // y) * y
    (9001, 10124),  # the upper bound of a quotient without a lower one was lost
    (9001, 10406),  # isl made a loop whose bounds are chosen by a condition
    (9001, 13577),  # no bug: a square root of what cancels to nearly nothing
    (9001, 21221),  # a size rounded up lost its tie to the size that it was made from
    (9001, 3047),  # nothing tied a quotient that is rounded up to the one rounded down, or a remainder to its divisor
    (5001, 2397),  # isl gave a short output beside a long one no block loop
    (5001, 1),  # isl put a condition around the places where storage begins its life, and another around its use
    (2026, 845),  # isl would not say how large a footprint is whose bounds have quotients
    (77, 30),  # no bug: loops cut where a choice by indices changes sides were validated with another meaning of comparisons
    (77, 84),  # the same, of a cast to integers
    (1618, 127),  # no bug: lanes were folded to which nothing was ever added, a size being less than a vector
    (4001, 119),  # no bug: compiled with loops that gcc vectorises, which it gets wrong in rows of three and we do not ask for
    (88101, 51),  # an extent n0*n1 + n0 beside n1 + 1: sums of products that are sizes of their own
    (66012, 40),  # the square of a sum as an extent: nothing tied its parts, which are no sizes, to the sizes
    (66011, 72),  # all of a large packed constant was laid out to say where a few of its elements are: 12 GB, minutes
    (66011, 87),  # no bug: twenty thousand roots of a few integers, added one after another
    (77001, 218),  # a boundary between runs that is a product of a loop variable and a size
    (77001, 238),  # runs of equal quotients by a size, the first of which begins at a product
    (77001, 593),  # sums of no terms: whole outputs were evaluated
    (77001, 743),  # the bounds of a loop divided by a size that was zero
    (112201, 384),  # an order that holds because the boundary between a vector and its rest is whole vectors
    (112201, 2193),  # nothing was known of the product of a size and a quotient by it
    (112201, 2686),  # no bug: numbers made from indices counted as data where they are read from a target
    (112202, 2),  # an epilogue that reads one iteration of a loop around its tile was put before the tile
    (112201, 4941),  # elements that are initialised beside a fold counted as more that it reduces into
    (112203, 238),  # a place from data times a sum of sizes was multiplied out, with its load
    (112203, 1817),  # the rows of a register tile of 7, of which two hold 8, are stored in fours
    (112203, 3884),  # a guard says of a remainder what a place in a register tile says by the quotient
    (20261123, 725),  # what is read where two equations hold lay within a tile by these alone
    (20261124, 3233),  # a run of quotients by a size, of whole rows of it, was a loop that nobody saw to be one iteration
    (20261124, 2973),  # what a quotient by a size decides differs where that size is 2 alone, which was not tried
    (20261124, 4478),  # the same
    (20261125, 1287),  # storage was not proved of broken loops: a register tile too narrow, of a width that no size tried has
    (20261126, 343),  # a loop over runs of equal quotients that runs once at all sizes tried, whatever its step
    (20261126, 170),  # no bug: storage was asked to be proved of loops over the numbers of blocks
    (20261126, 677),  # a tile of 3 columns in one of 4: two variables of few values, one of which bounds the other
    (20261126, 1223),  # one element of a large local was stored: all of it was looked at, in 24 GB
    (20261130, 824),  # no bug: lanes are cleared for each term of a sum, at sizes that were too large for that
    (20261130, 2279),  # a guard and the rows of a tile, which have few values each, say together what lies within it
    (20261130, 4313),  # no bug: sizes were solved for without the products that tie them to each other
    (20261130, 4863),  # an axis as long as the factor of a product runs along a dim that is the product
    (20261201, 1922),  # an epilogue that reads one element at one size was sunk to where it is, before the tile
    (20261201, 3479),  # rows at a third of an axis, clamped to sizes of which one has no lower end but where it is read
    (20261205, 1243),  # every second element from where data says, under a mask, was not printed
    (20261211, 1663),  # nothing was known of a quotient by a size that isl has a name for
    (20261211, 2910),  # a run of quotients of a sum that is rounded down to a multiple was taken to begin elsewhere
    (20261211, 3388),  # what is known in part of a quotient by a size was taken for all
    (20261211, 4309),  # the same, where a tile's first row is a multiple, too
    (20261211, 7777),  # rows at a quotient that is a size, times another
    (20261211, 9367),  # of two conditions just one holds: it had no formula
    (20261213, 4042),  # one truth of all comparisons: few sizes tell "less" from "not more"
    (20261215, 1433),  # no bug: a compile holds calls to what accesses need, where no fact that was found says it
    (20261226, 3649),  # where a run of equal quotients begins was read off loops over single elements: here all are vectors
    (20261226, 8640),  # a choice by the distance of an index, which is an extremum, from another
    (20261226, 8990),  # rows of the half of a dim and one more, of which nothing was known but that it is a size
    (20261230, 461),  # no bug: what fourteen pieces of a loop leave out was looked at case by case, and given up
    (20261230, 947),  # a dim of two, which is a quotient by another dim, read at quotients of a distance from its end
    pytest.param(20261230, 4261, marks=pytest.mark.slow),  # no bug: as 461
    (20270102, 760),  # no bug: at one of the sizes tried the loops would take 2^62 steps, so that values were compared at none
    (20270102, 2305),  # no bug: loops that begin elsewhere, with an index of data between them, were not seen to be the same
    (20271312, 3430),  # the cells that are read were projected before it was asked whether they lie inside: isl gave up
    (20271312, 6922),  # a minimum of one number for each of many elements, beside one that is folded out of lanes
    (20271412, 8713),  # isl's operations were spent when a number's text was asked for, which then is None
    (20271412, 323),  # sizes were tried at which a number of elements is beyond 64 bits
    (20271612, 3401),  # what data say three places on, or at the end, was taken to have no formula: few vectors reach the end
    (20271902, 7068),  # a row whose elements are apart has less than none where a size is 0: memory behind it moved back
    (20271902, 9333),  # the same
    (20271902, 3406),  # conditions with remainders spent isl's operations on what the loops alone say of where is read
    (20272002, 1923),  # no bug: an index of three reshapes in one kernel is beyond any expression; a compile cuts such kernels
    (66001, 1061),  # a statement that initialises a sum was taken for one that adds to it, where both are read back at once
])
def test_it_is_right_now(seed: int, number: int) -> None:
    tally = run_batch(seed, range(number, number + 1), 0, host_spec(), Wanted(large=False))
    assert not tally.failures, str(tally)


@pytest.mark.parametrize("number", [102, 150])
def test_locals_have_the_length_of_a_row_and_not_of_the_longest(number: int) -> None:
    """A size may be up to 2^47: so long were the locals that hold its rows."""
    tally = run_batch(20271126, range(number, number + 1), 0, host_spec())
    assert not tally.failures, str(tally)


@pytest.mark.parametrize(("seed", "number"), [
    (33, 15),  # validation asked for no elements of a state, whose body asks for no elements of the same, without an end
    (33, 13),  # no bug: validated trip by trip, each of which asked for eight trips of another recurrence, half a minute
])
def test_a_recurrence_is_right_now(seed: int, number: int) -> None:
    tally = run_batch(seed, range(number, number + 1), wanted=Wanted(carried=True, large=False))
    assert not tally.failures, str(tally)
    assert tally.outcomes["right"] == 1


@pytest.mark.parametrize("number", [
    4853,  # a sum was chosen by one number, which was fed so that nothing chose it; its loads were not proved to stay inside
    7299,  # a side of what a Store chooses by its index, which no sizes that were tried execute
])
def test_broken_loops_are_refused_now(number: int) -> None:
    tally = run_batch(20272302, range(number, number + 1), device=host_spec())
    assert not tally.failures, str(tally)
