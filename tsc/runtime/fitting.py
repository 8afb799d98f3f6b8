"""Which plan of a Package runs on this machine, held against its module, before any code of it is mapped."""

from __future__ import annotations

from dataclasses import dataclass

from tsc.errors import PackageError
from tsc.runtime.bounds import Bounds
from tsc.runtime.check import check_plan
from tsc.runtime.drivers.cpu import choose_module, read_cpu_flags
from tsc.runtime.interface import ModuleInterface, read_interface
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import Plan


@dataclass(frozen=True, slots=True)
class Fitting:
    """A plan that runs here: the target's name, what its module says of its kernels, and the bounds that all numbers keep."""

    target: str
    plan: Plan
    interface: ModuleInterface
    bounds: Bounds


def fitting(package: Package) -> Fitting:
    """What of a Package runs here. Raises PackageError when no binary of it suits this machine or its parts contradict each
    other."""
    where = "the compiled model" if package.path is None else f"Package '{package.path}'"
    modules = {name: module for name, module in package.modules.items() if name in package.plans}
    target = choose_module(modules, read_cpu_flags(), where)
    plan, interface = package.plans[target], _interface(package.modules[target], target, where)
    check_plan(plan, package.constants, interface, where)
    sizes = [package.constants[name].nbytes for name in plan.constants]
    return Fitting(target, plan, interface, Bounds(plan, sizes, interface.kernels, where))


def _interface(module: Module, name: str, where: str) -> ModuleInterface:
    """The module's own table, from its bytes. Raises PackageError where it has none, or other CPU flags than the Package."""
    try:
        interface = read_interface(module.binary)
    except ValueError as error:
        raise PackageError(f"{where} has a module '{name}' that cannot be used ({error}); compile it again") from error
    if sorted(interface.cpu_flags) != sorted(module.cpu_flags):
        raise PackageError(f"{where} gives its module '{name}' other CPU flags than it was compiled for; compile it again")
    return interface
