"""The operators of classical models (domain ai.onnx.ml), which exporters of scikit-learn, LightGBM and XGBoost write.

They are made of the standard's, trees of a walk (`trees.py`). Where the standard is silent they do what ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Mapping

from tsc.ops.base import OpDef
from tsc.ops.ml import features, linear, svm, trees
from tsc.ops.ml.common import DOMAIN

OPS: tuple[OpDef, ...] = (*features.OPS, *linear.OPS, *trees.OPS, *svm.OPS)

__all__ = ["DOMAIN", "INSTEAD", "OPS"]

#: What to do about operators that are not supported.
INSTEAD: Mapping[str, str] = {
    "ZipMap": "a sequence of maps is no tensor: export the model with options={'zipmap': False}",
}
