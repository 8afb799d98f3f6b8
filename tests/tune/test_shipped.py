"""Records that ship: for whom they are, what of measurements is kept, and what a compile makes of them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.nets import resnet50
from benchmarks.transformers import bert_base, gpt2
from tests.tune.support import groups, product
from tests.tune.test_pool import SHORT, TALL, record, times
from tsc.codegen_c.specs import machine_class, machine_name
from tsc.config import Options
from tsc.kernels import order_of, workshop
from tsc.pipeline import front, lower_groups
from tsc.tune import shipped as module
from tsc.tune.pool import pool_of
from tsc.tune.records import Record, append, by_group, place_of, read, to_line
from tsc.tune.shipped import FOLDER, GENERIC, _lines, kept, of_blocks, path_of, shipped

ROOT = Path(__file__).parents[2]
FILES = sorted(FOLDER.glob("*"))


@pytest.mark.parametrize(("machine", "name"), [
    ("AMD EPYC, family 26, model 2", "amd-26-0"), ("AMD EPYC 9R14, family 25, model 17", "amd-25-1"),
    ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, family 6, model 143", "intel-6-8"),
    ("unknown, family ?, model ?", ""), ("", "")])
def test_classes(machine: str, name: str) -> None:
    assert machine_class(machine) == name


def test_files_that_ship_are_whole_and_of_what_they_say() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "tune/shipped/*.jsonl" in tomllib.loads(text)["tool"]["setuptools"]["package-data"]["tsc"]
    assert (ROOT / "kernels_cache" / "shipped").resolve() == FOLDER and FILES
    for path in FILES:
        found = read(path)
        assert "".join(f"{to_line(r)}\n" for r in found) == path.read_text()
        generic = path.name.startswith(GENERIC)
        assert {path_of(GENERIC if generic else machine_class(r.machine), r.target) for r in found} == {path}
        if generic:
            tiles = {(r.group, r.config.instr_tile, r.config.stage_tiles, r.config.prefetch) for r in found}
            assert len(tiles) == len({r.group for r in found})
        for own in by_group(found).values():  # nothing that no pool takes, and nothing twice
            assert set(pool_of(own, 16, sorted({r.units for r in own}))) == {r.config for r in own}
            assert len({(r.config, place_of(r.sizes), r.units) for r in own}) == len(own)


def test_records_that_ship_are_of_kernels_as_they_are_made_today() -> None:
    """A group is known by its Program: where what makes Programs changes, records of those before would serve nobody, in
    silence. What is measured serves all ranges that may be declared."""
    known: dict[str, set[str]] = {}
    for path in FILES:
        for own in read(path):
            known.setdefault(own.target, set()).add(own.group)
    assert all(groups_of <= alive(target) for target, groups_of in known.items())


def alive(target: str) -> set[str]:
    """The groups of the nets whose records ship."""
    shop, found = workshop(target, Options()), set[str]()
    for net, low in ((bert_base, 3), (gpt2, 16), (resnet50, 96)):
        model = net()
        names = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
        graph, env, groups = front(model, dict.fromkeys(names, (low, 200)), shop.recorder, shop.device)
        found |= {order_of(lowered, graph, shop).group for lowered in lower_groups(groups, graph, env, shop).values()}
    return found


def test_only_what_makes_the_pool_is_kept() -> None:
    """Two configs, each the fastest at some sizes, and a third that never is; of a group whose own config is best nothing."""
    slow = replace(TALL, prefetch=64)
    own = [*times(SHORT, 10, 40, 0), *times(TALL, 900, 300, 1), *times(slow, 2000, 600, 2)]
    best = [replace(r, group="other") for r in (*times(TALL, 9, 3, 1), *times(SHORT, 10, 400, 0))]
    again = [replace(r, nanoseconds=2 * (r.nanoseconds or 0)) for r in own]
    found = kept([*again, *own, *best, record(ODD_ONE, 7, None)], 3)
    assert {r.config for r in found} == {SHORT, TALL} and {r.group for r in found} == {"group"}
    assert sorted(map(to_line, found)) == sorted(to_line(r) for r in own if r.config != slow)
    assert pool_of(found, 3) == pool_of(own, 3)


def test_generic_records_are_of_blocks_alone() -> None:
    bigger, other, ahead = replace(TALL, block_tile=(112, 512)), replace(TALL, instr_tile=(3, 16)), replace(TALL, prefetch=64)
    found = of_blocks([r for k, c in enumerate((TALL, bigger, other, ahead)) for r in times(c, 10, 40, k)])
    assert {r.config for r in found} == {TALL, bigger}


ODD_ONE = replace(SHORT, raster=1)


def test_a_compile_takes_what_ships_for_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one's own comes first, of what it knows; without `shipped` the pattern's own config is all there is."""
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    found, shop = groups(tmp_path / "cache")
    order, target = product(found).order, shop.device.spec.name
    name = machine_class(machine_name())
    if not name:
        pytest.skip("this machine does not say what it is")
    other, third = (replace(SHORT, instr_tile=(rows, 16), block_tile=(rows, 16)) for rows in (2, 3))
    made = [replace(r, group=order.group, target=target, machine=machine_name()) for r in times(other, 10, 40, 0)]
    append(path_of(name, target), made)
    _lines.cache_clear()
    own = tmp_path / "own.jsonl"
    append(own, [replace(r, config=third, machine="another") for r in made])

    def pool(**options: object) -> list[object]:
        return list(workshop("cpu", Options(**options)).pool(order.group))  # type: ignore[arg-type]

    try:
        assert pool() == [other] and pool(records=own) == [third] and pool(shipped=False) == []
        assert list(workshop(target, Options()).pool(order.group)) == []  # code that others may run is the same everywhere
        assert shipped("AMD EPYC, family 1, model 1", target, order.group) == shipped("?", target, order.group) == []
        append(path_of(GENERIC, target), generic := [replace(r, config=third) for r in made])
        _lines.cache_clear()
        for machine in ("AMD EPYC, family 1, model 1", "?"):
            assert shipped(machine, target, order.group) == generic
        assert pool() == [other] and shipped(machine_name(), target, "of no file of this class") == []
        assert pool(records=_of_another_group(own, tmp_path)) == [other]
    finally:
        _lines.cache_clear()


def _of_another_group(path: Path, folder: Path) -> Path:
    made: list[Record] = [replace(r, group="another") for rs in by_group(read(path)).values() for r in rs]
    append(folder / "another.jsonl", made)
    return folder / "another.jsonl"
