"""The report of shape coverage: its numbers by hand, and a page that a browser shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.runtime import test_variants
from tests.runtime.test_select import FEW, MANY
from tests.tune.support import model
from tsc.cli import cli
from tsc.poly.tile import TileConfig
from tsc.runtime.plan import Bind, Launch, Plan
from tsc.sym import Range, dim
from tsc.te.compute import Axis, Compute, Program, SizeParam
from tsc.te.expr import Buffer, Load, Var
from tsc.tune.coverage import Check, Coverage, Grid, Origin, coverage_of
from tsc.tune.coverage_html import coverage_html
from tsc.tune.records import Record

CONFIGS = TileConfig((1, 8), (1, 8)), TileConfig((1, 8), (64, 8))
EVIL = "</svg><script>alert('x' + \"y\")</script>&amp;"
SIZES = 4, 16, 32


def record(config: TileConfig, size: int, time: int) -> Record:
    return Record("g", "cpu", "here", config, {"s0": size}, 1, size, {"rows": size}, time)


#: The first config takes 100 ns a row, the second 1012 and 25 a row: as FEW and MANY, in other units.
RECORDS = [*(record(CONFIGS[0], n, 100 * n) for n in SIZES), *(record(CONFIGS[1], n, 1012 + 25 * n) for n in SIZES)]


def plan(node: str = "node") -> Plan:
    """A launch of FEW and MANY over n from 1 to 128."""
    def changed(step: object) -> object:
        match step:
            case Bind():
                return replace(step, range=Range(1, 128))
            case Launch():
                return replace(step, node=node)
        return step

    made = test_variants.plan(FEW, MANY)
    return replace(made, body=tuple(map(changed, made.body)))  # type: ignore[arg-type]


def origin() -> Origin:
    size = dim("s0")
    x, y = Buffer("x", "float32", (size,)), Buffer("y", "float32", (size,))
    program = Program((x,), (y,), (Compute(y, (Axis("i", size),), Load(x, (Var("i"),))),), (SizeParam("s0", 1),))
    return Origin(program, ["s0"], "g", CONFIGS)


def covered(node: str = "node") -> Coverage:
    return coverage_of(plan(node), "cpu", {"add": origin()}, RECORDS)


def test_what_runs_and_how_long_it_takes() -> None:
    (kernel,) = covered().kernels
    (_, sizes), = Grid.of({"n": Range(1, 128)}).axes
    assert sizes[0] == 1 and sizes[-1] == 128 and kernel.nanoseconds.shape == (len(sizes),)
    assert kernel.runs.tolist() == [int(n >= 14) for n in sizes]  # where MANY is ahead by 2 %
    np.testing.assert_allclose(kernel.nanoseconds * 1e6, [100 * n if n < 14 else 1012 + 25 * n for n in sizes])
    assert kernel.instances.tolist() == list(sizes) and kernel.launches == 1
    assert kernel.far.tolist() == [n < 2 or n > 64 for n in sizes]
    assert kernel.configs == ("block_tile (1, 8)", "block_tile (64, 8)")


def test_what_was_measured() -> None:
    """At 4 rows the first is the faster, at 16 and 32 the second, and the model of costs knows it; of one config the gain is
    none, of both the mean of 1, 1600 / 1412 and 3200 / 1812."""
    (kernel,) = covered().kernels
    assert kernel.check == Check(1.0, 1.0, 3)
    (one, first), (two, second) = kernel.curve
    assert (one, two, first) == (1, 2, 1.0)
    assert second == pytest.approx((1600 / 1412 * 3200 / 1812) ** (1 / 3))


def test_kernels_without_times_are_named() -> None:
    found = coverage_of(plan(), "cpu", {}, RECORDS)
    assert found.kernels == () and found.unknown == ("add",)
    assert "no times are known of 1 kernels: add" in coverage_html(found, "m")
    bare = test_variants.plan(test_variants.ONES)
    assert coverage_of(bare, "cpu", {"add": origin()}, RECORDS).unknown == ("add",)


@pytest.mark.parametrize(("ranges", "axes", "others"), [
    ({}, [], {}), ({"n": Range(3, 3)}, [("n", 1)], {}),
    ({"a": Range(1, 8), "b": Range(8, 512, 8), "c": Range(5, 6)}, [("a", 8), ("b", None)], {"c": 6})])
def test_a_grid_has_two_dims(ranges: dict[str, Range], axes: list[tuple[str, int | None]], others: dict[str, int]) -> None:
    grid = Grid.of(ranges)
    assert [name for name, _ in grid.axes] == [name for name, _ in axes] and grid.others == others
    for (name, sizes), (_, count) in zip(grid.axes, axes):
        known = ranges[name]
        assert len(sizes) == (count or len(sizes)) and list(sizes) == sorted(set(sizes))
        assert all(known.lo <= size <= (known.hi or 0) and size % known.divisor == 0 for size in sizes)
    points = grid.points()
    assert len(points) == int(np.prod(grid.shape)) and all(point.keys() == ranges.keys() for point in points)


def elements(html: str) -> list[ElementTree.Element]:
    """Of a page, which is well formed and fetches and runs nothing."""
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    found = list(root.iter())
    assert {e.tag for e in found} <= {
        "html", "head", "meta", "title", "body", "div", "b", "h3", "svg", "g", "rect", "text", "path"}
    assert not [a for e in found for a in e.attrib if a.startswith("on") or a in ("href", "src")]
    assert not re.search(r"https?:|url\(|@import|javascript:", html)
    return found


def test_a_page() -> None:
    coverage = covered(EVIL)
    html = coverage_html(coverage, EVIL)
    found = elements(html)
    (_, sizes), = coverage.grid.axes
    fills = [e.get("fill") for e in found if e.tag == "rect" and e.get("width") == "17"]
    assert len(fills) == 3 * len(sizes) and fills[-len(sizes):].count("#4477aa") == sum(n < 14 for n in sizes)
    titles = [e.text or "" for e in found if e.tag == "title"]
    assert any(re.fullmatch(r"n=128: 100% of the best, \S+ ns, nothing near was measured", t) for t in titles)
    assert EVIL in titles and "script" not in {e.tag for e in found}
    assert "what runs has 100.0% of the speed of the fastest on average over 3 measured sizes" in html


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    page, picture = tmp_path / "c.html", tmp_path / "c.png"
    page.write_text(coverage_html(covered(), "model"), encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("<rect") == coverage_html(covered(), "model").count("<rect") > 50
    subprocess.run([*command, f"--screenshot={picture}", page.as_uri()], capture_output=True, timeout=120, check=True)
    assert picture.stat().st_size > 5000


def test_a_job_writes_it(tmp_path: Path) -> None:
    file, report = tmp_path / "m.onnx", tmp_path / "c.html"
    file.write_bytes(model().SerializeToString())
    result = CliRunner().invoke(cli, ["tune", str(file), "--dim", "n=1:24", "--records", str(tmp_path / "r.jsonl"), "--configs",
                                      "2", "--report", str(report), "--search", "random"])
    assert result.exit_code == 0, result.output
    assert re.search(r"all kernels together: \d\.\d\d times as fast as untuned", result.output)
    html = report.read_text(encoding="utf-8")
    elements(html)
    assert "shape coverage of m.onnx" in html and "no times are known" not in html and html.count("<h3>") == 3
