"""Models that scikit-learn fits to made-up rows (imported where it is installed)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR


def fitted(name: str) -> tuple[Any, NDArray[np.float32]]:
    """A model by name, and the rows that it was fitted to."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    y = (2 * x[:, 0] + np.sin(3 * x[:, 1])).astype(np.float32)
    two, three = (y > 0.5).astype(np.int64) + 3, np.digitize(y, [-1, 1]).astype(np.int64) * 2
    mixed = x.copy()
    mixed[:, 4:] = rng.integers(0, 4, (200, 2))
    mixed[rng.random(200) < 0.1, :2] = np.nan
    columns = ColumnTransformer([("numbers", make_pipeline(SimpleImputer(), StandardScaler()), [0, 1, 2]),
                                 ("kinds", OneHotEncoder(handle_unknown="ignore"), [4, 5])])
    model, rows, wanted = {
        "two classes": (make_pipeline(StandardScaler(), LogisticRegression()), x, two),
        "three classes": (make_pipeline(StandardScaler(), LogisticRegression()), x, three),
        "line": (LinearRegression(), x, y),
        "forest of two classes": (RandomForestClassifier(10, max_depth=6, random_state=0), x, two),
        "forest of three classes": (RandomForestClassifier(10, random_state=0), x, three),
        "forest": (RandomForestRegressor(10, random_state=0), x, y),
        "boosted two classes": (GradientBoostingClassifier(n_estimators=10, random_state=0), x, two),
        "boosted three classes": (GradientBoostingClassifier(n_estimators=10, random_state=0), x, three),
        "boosted": (GradientBoostingRegressor(n_estimators=10, random_state=0), x, y),
        "columns": (make_pipeline(columns, LogisticRegression()), mixed, two),
        "neighbours": (KNeighborsClassifier(3), x, three),
        "perceptron": (MLPClassifier((8,), max_iter=300, random_state=0), x, three),
        "vectors": (SVC(), x, three),
        "vectors for numbers": (SVR(), x, y),
        "isolation": (IsolationForest(n_estimators=5, random_state=0), x, None)}[name]
    return model.fit(rows) if wanted is None else model.fit(rows, wanted), rows
