"""No access of any kernel of the shared models is opaque, unless the index depends on data."""

from __future__ import annotations

import pytest

from tests.models.test_shared_models import DIMS, ENTRIES, FAMILIES, FOLDER, RECIPES, cases
from tsc.attempts import cut
from tsc.config import Options
from tsc.graph.define import needed
from tsc.graph.fusion.group import FusionGroup
from tsc.graph.fusion.to_te import lower_group
from tsc.ir import Graph
from tsc.kernels import workshop
from tsc.ops.define import is_custom
from tsc.pipeline import front
from tsc.poly.scop import build_scop
from tsc.sym import ShapeEnv
from tsc.te.compute import Program
from tsc.trace import Recorder

pytestmark = pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")


def programs_of(group: FusionGroup, graph: Graph, env: ShapeEnv) -> list[Program]:
    """What becomes of a group: one Program, but for one that brings its Computes."""
    if not is_custom(group.anchor):
        return [lower_group(group, graph, env).program]
    definitions = needed(group.anchor, group.outputs)
    return [lowered.program for _, lowered, _ in cut(definitions, group.outputs, env, Recorder(), lambda one, wanted=None: one)]


@pytest.mark.defect(23)
@pytest.mark.parametrize("name", cases(FAMILIES) or ["none"])
def test_only_what_depends_on_data_is_opaque(name: str) -> None:
    shop = workshop("cpu", Options(use_cache=False))
    graph, env, groups = front(FOLDER / ENTRIES[name]["file"], DIMS.get(name), shop.recorder, shop.device)
    programs = {program: group.name for group in groups for program in programs_of(group, graph, env)}
    notes = [f"{group}: {note}" for program, group in programs.items() for note in build_scop(program).notes]
    assert [note for note in notes if "of data" not in note] == []
