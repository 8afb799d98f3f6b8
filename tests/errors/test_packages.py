"""Truncated and altered Packages: refused whole, before anything is mapped or loaded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import onnx
import pytest

import tsc

Refused = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="module")
def package(lookup_model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("package") / "good.tscpack"
    tsc.compile(lookup_model).save(path)
    return path.read_bytes()


def test_no_such_package(tmp_path: Path, refused: Refused) -> None:
    with refused(tsc.PackageError, "absent.tscpack"):
        tsc.load(tmp_path / "absent.tscpack")


@pytest.mark.parametrize("keep", [0, 1, 7, 64, 0.2, 0.5, 0.9, 0.999])
def test_truncated(package: bytes, tmp_path: Path, refused: Refused, keep: float) -> None:
    path = tmp_path / "cut.tscpack"
    path.write_bytes(package[:keep if isinstance(keep, int) else int(len(package) * keep)])
    with refused(tsc.PackageError, "cut.tscpack"):
        tsc.load(path)
    assert [p.name for p in tmp_path.iterdir()] == ["cut.tscpack"]


def test_one_byte_too_many(package: bytes, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "long.tscpack"
    path.write_bytes(package + b"\0")
    with refused(tsc.PackageError, "long.tscpack"):
        tsc.load(path)


def test_any_flipped_byte(package: bytes, tmp_path: Path, refused: Refused) -> None:
    """Every part is checked: flips at the start, at the end and at 40 random places."""
    path = tmp_path / "flipped.tscpack"
    places = {0, 4, 8, 16, len(package) - 1, *np.random.default_rng(0).integers(0, len(package), 40).tolist()}
    for place in sorted(places):
        damaged = bytearray(package)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with refused(tsc.PackageError, "flipped.tscpack"):
            tsc.load(path)


def test_an_onnx_file_is_no_package(lookup_model: onnx.ModelProto, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(lookup_model.SerializeToString())
    with refused(tsc.PackageError, "model.onnx"):
        tsc.load(path)


def test_failed_save_leaves_nothing(lookup_model: onnx.ModelProto, tmp_path: Path, refused: Refused) -> None:
    executable = tsc.compile(lookup_model)
    with refused(tsc.PackageError, "absent"):
        executable.save(tmp_path / "absent" / "model.tscpack")
    assert list(tmp_path.iterdir()) == []
