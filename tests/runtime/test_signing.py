"""Signed Packages: who is trusted, what is not signed, and what was altered behind a signature."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tsc
from tsc.cli import cli
from tsc.errors import InputError, LaunchError, PackageError
from tsc.runtime.load import load
from tsc.runtime.package import Module, Package
from tsc.runtime.signing import Whoever, generate, signature, signers, trusted

pytest.importorskip("cryptography", reason="the extra 'sign' is not installed")
Command = Callable[..., Result]


@pytest.fixture
def command() -> Command:
    return lambda *args: CliRunner().invoke(cli, ["pack", *map(str, args)])


@pytest.fixture
def file(chain: Package, tmp_path: Path) -> Path:
    replace(chain, made={"model": "sha256 0"}).write(tmp_path / "m.tscpack")
    return tmp_path / "m.tscpack"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Of two people."""
    for name in ("ann", "ben"):
        generate(tmp_path / name)
    return tmp_path / "ann", tmp_path / "ben"


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def signed(file: Path, *keys: Path) -> None:
    for key in keys:
        assert CliRunner().invoke(cli, ["pack", "sign", str(file), "--key", str(key)]).exit_code == 0


def test_keys(tmp_path: Path) -> None:
    assert generate(tmp_path / "k") == tmp_path / "k.pub"
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    with pytest.raises(PackageError, match="not written over"):
        generate(tmp_path / "k")
    (tmp_path / "l.pub").write_text("")
    with pytest.raises(PackageError, match="not written over"):
        generate(tmp_path / "l")
    with pytest.raises(PackageError, match="cannot write the key"):
        generate(tmp_path / "none" / "k")
    key, own = signature(b"payload", tmp_path / "k")
    assert trusted(tmp_path / "k.pub") == trusted(bytes.fromhex(key)) == [key]
    assert signers(b"payload", {key: own}) == [key] and signers(b"payload", {"00" * 32: own}) == []
    assert signers(b"another", {key: own}) == signers(b"payload", {key: own[::-1]}) == []


def test_only_who_is_trusted(file: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    ann, ben = keys
    for trust in (public(ann), [public(ann), public(ben)]):
        with pytest.raises(PackageError, match="has no signature of a key that is trusted"):
            load(file, trust=trust)
    signed(file, ann)
    (folder := tmp_path / "trusted").mkdir()
    (folder / "ann.pub").write_bytes(public(ann).read_bytes())
    (folder / "notes.txt").write_text("no key")
    raw = bytes.fromhex(trusted(public(ann))[0])
    for good in (public(ann), str(public(ann)), [public(ben), public(ann)], raw, folder, Whoever.ANYBODY, None):
        assert len(load(file, trust=good).outputs) == 2
    with pytest.raises(PackageError, match="but none of a key that is trusted"):
        load(file, trust=public(ben))
    signed(file, ben)
    assert set(Package.read(file).signatures) == {*trusted([public(ann), public(ben)])}
    for key in keys:
        load(file, trust=public(key))


def test_the_environment_may_ask_for_it(file: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSC_TRUST", str(public(keys[0])))
    for read in (load, Package.read, tsc.InferenceSession):
        with pytest.raises(PackageError, match="has no signature"):
            read(file)
    signed(file, keys[0])
    for read in (load, Package.read, tsc.InferenceSession):
        read(file)
    with pytest.raises(PackageError, match="but none"):
        load(file, trust=public(keys[1]))


def test_what_is_altered_has_no_signature(file: Path, keys: tuple[Path, Path]) -> None:
    """Anything changed, hashes recomputed, the signatures kept."""
    signed(file, *keys)
    package = Package.read(file)
    target, module = next(iter(package.modules.items()))
    changes = [replace(package, version="9"), replace(package, made={"model": "another"}),
               replace(package, stats={"groups": 7}),
               replace(package, log=(*package.log, "more")), replace(package, log=()),
               replace(package, modules={target: Module(module.binary + b"\0", module.cpu_flags)}),
               replace(package, modules={target: Module(module.binary, (*module.cpu_flags, "avx"))})]
    for changed in changes:
        changed.write(file)
        assert Package.read(file).signatures == package.signatures
        with pytest.raises(PackageError, match="but none"):
            Package.read(file, trust=public(keys[0]))
    signed(file, keys[0])  # Ben's, which is wrong by now, is not kept
    assert list(Package.read(file, trust=public(keys[0])).signatures) == trusted(public(keys[0]))


def test_trust_comes_before_all_else(file: Path, keys: tuple[Path, Path]) -> None:
    """Parts that are damaged are not looked at."""
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(PackageError, match="has no signature"):
        load(file, trust=public(keys[0]))
    with pytest.raises(PackageError, match="is altered in part"):
        load(file)


def test_what_is_no_key(file: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    other, pem, plain = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "ec").write_bytes(other.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (tmp_path / "ec.pub").write_bytes(other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    locked = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "locked").write_bytes(other.private_bytes(pem, serialization.PrivateFormat.PKCS8, locked))
    (tmp_path / "text").write_text("no key")
    (tmp_path / "empty").mkdir()
    for key in ("text", "locked", "ec", "none"):
        with pytest.raises(InputError, match="key"):
            signature(b"", tmp_path / key)
    for trust in (tmp_path / "text", tmp_path / "ec.pub", tmp_path / "none", tmp_path / "empty", b"short", [], keys[0]):
        with pytest.raises(InputError, match="key"):
            load(file, trust=trust)


@pytest.mark.parametrize("signatures", [{"a": "b"}, {"0" * 64: 3}, {"0" * 64: "f" * 127}, {"0" * 64: "G" * 128}])
def test_malformed_signatures(file: Path, signatures: dict[str, Any]) -> None:
    replace(Package.read(file), signatures=signatures).write(file)
    with pytest.raises(PackageError, match="signatures are none"):
        Package.read(file)


def test_without_the_library(file: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    load(file)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(LaunchError, match=r"tsc-compiler\[sign\]"):
        load(file, trust=public(keys[0]))
    load(file)


def test_commands(file: Path, keys: tuple[Path, Path], tmp_path: Path, command: Command,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSC_TRUST", str(public(keys[1])))  # to look is always allowed
    assert command("keygen", tmp_path / "new").exit_code == 0 and (tmp_path / "new.pub").exists()
    facts = json.loads(command("info", file, "--json").output)
    assert facts["signed_by"] == [] and facts["made"] == {"model": "sha256 0"} and facts["bytes"] == file.stat().st_size
    assert all(target["launches"] and target["bytes"] for target in facts["targets"].values())
    first = file.read_bytes()
    signed(file, keys[0])
    text = command("info", file).output
    assert f"signed by {trusted(public(keys[0]))[0]}" in text and "input" in text and "made of model: sha256 0" in text
    assert command("verify", file, "--key", public(keys[0])).output.startswith(f"{file} is whole, and signed by")
    assert isinstance(command("verify", file, "--key", public(keys[1])).exception, PackageError)
    (before := tmp_path / "before.tscpack").write_bytes(first)
    same = command("diff", before, file)
    assert same.exit_code == 0 and same.output == "they are the same\n"
    changed = replace(Package.read(before, trust=Whoever.ANYBODY), version="9", log=(), made={})
    changed.write(before)
    found = json.loads(command("diff", file, before, "--json").output)["differences"]
    assert command("diff", file, before).exit_code == 1
    assert found[0].startswith("version: ") and found[1] == "made of model: sha256 0 and nothing" and found[-1] == "other logs"
    assert command("strip", file, "-o", tmp_path / "less.tscpack").exit_code == 0
    less = Package.read(tmp_path / "less.tscpack", trust=Whoever.ANYBODY)
    assert not less.log and not less.signatures and dict(less.made) == {"model": "sha256 0"}
    assert "only in the first" not in command("diff", file, tmp_path / "less.tscpack").output
    assert isinstance(command("strip", file, "-o", tmp_path / "x", "--target", "none").exception, InputError)


def test_differences_of_constants(tmp_path: Path, command: Command, lookup: Callable[[np.ndarray], Package]) -> None:
    one, other = lookup(np.arange(3, dtype=np.float32)), lookup(np.arange(4, dtype=np.float32))
    third = lookup(np.array([0, 1, 5], np.float32))
    for name, package in (("a", one), ("b", other), ("c", third)):
        package.write(tmp_path / name)
    assert "constant 'table': float32[3] and float32[4]" in command("diff", tmp_path / "a", tmp_path / "b").output
    assert command("diff", tmp_path / "a", tmp_path / "c").output == "constant 'table': 1 of 3 elements differ\n"
