"""Files: what is never replaced, what a shared Package's change in place does, and what a machine's own faults say."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tsc.errors import LaunchError, PackageError, TscError
from tsc.runtime import files
from tsc.runtime.executable import Executable
from tsc.runtime.files import write_atomically
from tsc.runtime.load import load
from tsc.runtime.package import Package

Lookup = Callable[[np.ndarray], Package]


@pytest.mark.defect(17)
def test_save_replaces_regular_files_only(chain: Package, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "fifo", tmp_path / "link", Path("/dev/null"), tmp_path / "loop", tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(PackageError, match="cannot write"):
            chain.write(path)
    for odd in (None, 7, "a\0b", ["a"]):
        with pytest.raises(PackageError, match="path"):
            chain.write(odd)  # type: ignore[arg-type]
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode) and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "link", "loop"]


@pytest.mark.defect(17)
def test_read_only_files_stay_and_permissions_are_kept(chain: Package, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"mine")
    path.chmod(0o444)
    with pytest.raises(PackageError, match="read-only"):
        chain.write(path)
    assert path.read_bytes() == b"mine"
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    chain.write(tmp_path / "link")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and (tmp_path / "link").is_symlink() and load(path).inputs
    old = os.umask(0o027)
    try:
        chain.write(tmp_path / "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.defect(17)
@pytest.mark.parametrize("harm", [
    lambda path: os.truncate(path, 100), lambda path: os.truncate(path, 0),
    lambda path: path.write_bytes(bytes(path.stat().st_size))])
def test_a_shared_file_changed_in_place_is_an_error(lookup: Lookup, tmp_path: Path, harm: Callable[[Path], object]) -> None:
    """In a child: what went wrong before was a signal."""
    path = tmp_path / "p"
    lookup(np.arange(100_000, dtype=np.float32)).write(path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model = load(path, 1, "shared")
            model.run(None, {"ids": np.array([99_999])})
            os.utime(path, ns=(1, 1))
            harm(path)
            for action in (lambda: model.run(None, {"ids": np.array([99_999])}), lambda: model.save(tmp_path / "other")):
                try:
                    action()
                    code = 2
                except PackageError as error:
                    code = code if "changed while" in str(error) else 3
            code = 0 if code == 1 else code
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_shared_file_may_be_replaced_by_another(lookup: Lookup, tmp_path: Path) -> None:
    lookup(np.arange(9, dtype=np.float32)).write(tmp_path / "p")
    model = load(tmp_path / "p", 1, "shared")
    lookup(np.zeros(9, np.float32)).write(tmp_path / "p")
    assert model.run(None, {"ids": np.array([7])})[0] == 7 and load(tmp_path / "p").run(None, {"ids": np.array([7])})[0] == 0
    (tmp_path / "p").unlink()
    assert model.run(None, {"ids": np.array([8])})[0] == 8


@pytest.mark.defect(18)
@pytest.mark.parametrize("code, words", [
    (errno.ENOSPC, "free some space"), (errno.EMFILE, "ulimit -n"), (errno.ENOMEM, "memory")])
def test_the_machines_faults_say_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, words: str) -> None:
    def fail(*a: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "_write_all", fail)
    with pytest.raises(LaunchError, match=words):
        write_atomically(tmp_path / "p", [b"x"])
    assert not list(tmp_path.iterdir())


@pytest.mark.defect(18)
def test_a_full_disk(tmp_path: Path) -> None:
    """/dev/full is no regular file, but a limit on the size of files is much like it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            write_atomically(tmp_path / "p", [bytes(5000)])
        except TscError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0 and not list(tmp_path.iterdir())


FEW = """
import resource, sys
import numpy as np
import tsc
from tsc.errors import LaunchError
tsc.load(sys.argv[1], threads=1).run(None, {"ids": np.array([1])})   # all is imported
kept = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        kept.append(open("/dev/null"))
except OSError:
    pass
for spare in range(3):
    for file in kept[:spare]:
        file.close()
    try:
        tsc.load(sys.argv[1], threads=1, weights="shared").run(None, {"ids": np.array([1])})
    except LaunchError as error:
        assert "ulimit -n" in str(error), error
    else:
        assert spare
"""


@pytest.mark.defect(18)
def test_too_few_descriptors_to_load(lookup: Lookup, tmp_path: Path) -> None:
    lookup(np.arange(9, dtype=np.float32)).write(tmp_path / "p")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", FEW, str(tmp_path / "p")], check=True, env=environment)


def test_executables_of_one_package_are_apart(chain: Package) -> None:
    assert Executable(chain, 1).stats["runs"] == 0
