"""`tsc pack`: what is in a Package, who has signed it, how two differ, and less of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tsc.cli_output import FILE, answer, as_json
from tsc.errors import InputError
from tsc.runtime.bind import format_spec
from tsc.runtime.package import Package
from tsc.runtime.plan_json import plan_to_json
from tsc.runtime.signing import Whoever, generate, signature, signers

KEYS = click.Path(exists=True, path_type=Path)
NEW = click.Path(dir_okay=False, path_type=Path)
#: Of `diff`, as diff has it.
EXIT_DIFFERENT = 1


@click.group("pack")
def pack() -> None:
    """Look into Packages, sign them, and check who did."""


@pack.command("keygen")
@click.argument("key", type=NEW)
def keygen_command(key: Path) -> None:
    """Write a new private key to KEY and its public one to KEY.pub (Ed25519, PEM)."""
    click.echo(f"the private key is {key}, and the public one {generate(key)}; keep the first to yourself")


@pack.command("sign")
@click.argument("file", type=FILE)
@click.option("--key", type=FILE, required=True, help="A private key (`tsc pack keygen`).")
def sign_command(file: Path, key: Path) -> None:
    """Sign FILE, in place; signatures of other keys that are right stay."""
    package = Package.read(file, trust=Whoever.ANYBODY)
    payload = package.payload()
    public, own = signature(payload, key)
    kept = {signer: package.signatures[signer] for signer in signers(payload, package.signatures)}
    replace(package, signatures={**kept, public: own}).write(file)
    click.echo(f"{file} is signed by {public}")


@pack.command("verify")
@click.argument("file", type=FILE)
@click.option("--key", "keys", type=KEYS, multiple=True, required=True, help="A public key, or a folder of them. Repeatable.")
def verify_command(file: Path, keys: Sequence[Path]) -> None:
    """Say whether FILE is whole and signed by one of these keys; exit code 3 where it is not."""
    package = Package.read(file, trust=list(keys))
    click.echo(f"{file} is whole, and signed by {', '.join(signers(package.payload(), package.signatures))}")


@pack.command("info")
@click.argument("file", type=FILE)
@as_json
def info_command(file: Path, json_: bool) -> None:
    """Say what is in FILE, what it was made of, and whose signatures it has (who is trusted is for `verify` to say)."""
    package = Package.read(file, "shared", trust=Whoever.ANYBODY)
    plan = next(iter(package.plans.values()))
    facts: dict[str, Any] = {
        "tsc": package.version, "bytes": file.stat().st_size, "made": dict(package.made),
        "signed_by": signers(package.payload(), package.signatures) if package.signatures else [],
        "inputs": [format_spec(spec) for spec in plan.inputs], "outputs": [format_spec(spec) for spec in plan.outputs],
        "dims": {name: str(known) for name, known in plan.ranges.items()},
        "constants": len(package.constants), "constant_bytes": sum(array.nbytes for array in package.constants.values()),
        "targets": {name: {"cpu_flags": list(module.cpu_flags), "bytes": len(module.binary),
                           "launches": len(package.plans[name].launches),
                           "kernels": len({launch.kernel for launch in package.plans[name].launches})}
                    for name, module in package.modules.items()}}
    answer(json_, facts, [
        f"{file}: {facts['bytes'] / 1e6:.1f} MB, by tsc {package.version}",
        *(f"  input  {text}" for text in facts["inputs"]), *(f"  output {text}" for text in facts["outputs"]),
        *(f"  dim    {name}: {known}" for name, known in facts["dims"].items()),
        *(f"  {name}: {t['launches']} launches of {t['kernels']} kernels, {t['bytes'] / 1e3:.0f} KB"
          for name, t in facts["targets"].items()),
        f"  {facts['constants']} constants of {facts['constant_bytes'] / 1e6:.1f} MB",
        *(f"  made of {name}: {value}" for name, value in facts["made"].items()),
        *(f"  signed by {key}" for key in facts["signed_by"])])


@pack.command("diff")
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@as_json
def diff_command(first: Path, second: Path, json_: bool) -> None:
    """Say how two Packages differ, but for signatures; exit code 1 where they do."""
    found = differences(*(Package.read(file, "shared", trust=Whoever.ANYBODY) for file in (first, second)))
    answer(json_, {"differences": found}, found or ["they are the same"])
    if found:
        raise SystemExit(EXIT_DIFFERENT)


@pack.command("strip")
@click.argument("file", type=FILE)
@click.option("-o", "--output", type=NEW, required=True, help="The Package to write.")
@click.option("--target", "targets", multiple=True, help="A target to keep; default: all. Repeatable.")
def strip_command(file: Path, output: Path, targets: Sequence[str]) -> None:
    """Write FILE without its log and counts, and without other targets than those to keep; it has no signatures then."""
    package = Package.read(file, "shared", trust=Whoever.ANYBODY)
    for target in targets:
        if target not in package.plans:
            raise InputError(f"'{file}' has no target '{target}'; it has {', '.join(package.plans)}")
    kept = list(targets) or list(package.plans)
    plans = {name: package.plans[name] for name in kept}
    names = dict.fromkeys(name for plan in plans.values() for name in plan.constants)
    Package(plans, {name: package.constants[name] for name in names}, {name: package.modules[name] for name in kept},
            version=package.version, made=package.made).write(output)
    click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB of {file.stat().st_size / 1e6:.1f}")


def differences(one: Package, other: Package) -> list[str]:
    """How a Package differs from another, a line each."""
    found = [f"version: {one.version} and {other.version}"] if one.version != other.version else []
    for name in sorted({*one.made, *other.made}):
        a, b = one.made.get(name, "nothing"), other.made.get(name, "nothing")
        found += [f"made of {name}: {a} and {b}"] if a != b else []
    for target in sorted({*one.plans, *other.plans}):
        if target not in one.plans or target not in other.plans:
            found.append(f"{target}: only in the {'second' if target in other.plans else 'first'}")
            continue
        plans = [plan_to_json(package.plans[target]) for package in (one, other)]
        found += [f"{target}: other {key} in the plan" for key in sorted(plans[0]) if plans[0][key] != plans[1].get(key)]
        found += [f"{target}: other code"] if one.modules[target].binary != other.modules[target].binary else []
    for name in sorted({*one.constants, *other.constants}):
        if name not in one.constants or name not in other.constants:
            found.append(f"constant '{name}': only in the {'second' if name in other.constants else 'first'}")
            continue
        x, y = one.constants[name], other.constants[name]
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            found.append(f"constant '{name}': {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}")
        elif x.tobytes() != y.tobytes():
            found.append(f"constant '{name}': {np.count_nonzero(x != y)} of {x.size} elements differ")
    return found + (["other logs"] if one.log != other.log else [])
