"""No access of any kernel of the shared models is opaque, unless the index depends on data."""

from __future__ import annotations

import pytest

from tests.models.test_shared_models import CASES, ENTRIES, FOLDER, RECIPES
from tsc.config import Options
from tsc.graph.fusion.to_te import lower_group
from tsc.kernels import workshop
from tsc.pipeline import front
from tsc.poly.scop import build_scop

pytestmark = pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")


@pytest.mark.defect(23)
@pytest.mark.parametrize("name", CASES or ["none"])
def test_only_what_depends_on_data_is_opaque(name: str) -> None:
    shop = workshop("cpu", Options(use_cache=False))
    graph, env, groups = front(FOLDER / ENTRIES[name]["file"], None, shop.recorder, shop.device.spec)
    programs = {lower_group(group, graph, env).program: group.name for group in groups}
    notes = [f"{group}: {note}" for program, group in programs.items() for note in build_scop(program).notes]
    assert [note for note in notes if "of data" not in note] == []
