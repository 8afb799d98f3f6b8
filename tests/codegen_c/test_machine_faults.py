"""Compilers that fail, disks that are full, caches that are shared or poisoned: errors say what to do, and caches heal."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tsc.codegen_c import build, work
from tsc.codegen_c.build import build_module
from tsc.codegen_c.cache import CompiledCache, digest
from tsc.codegen_c.specs import CPU_SPECS
from tsc.codegen_c.work import work_folder
from tsc.config import Options
from tsc.errors import LaunchError

GENERIC = CPU_SPECS["cpu-generic"]
SOURCE = '#include "tsc_kernel.h"\nint32_t k(const tsc_args *a, int64_t b, int64_t e, void *s) { return 0; }\n'

#: Compilers as shell scripts, all of which know their version, and what the error must say.
COMPILERS = {
    "writes nothing": ("exit 0", "wrote nothing"),
    "writes an empty file": ('while [ "$1" != -o ]; do shift; done; : > "$2"', "wrote nothing"),
    "writes garbage": ('while [ "$1" != -o ]; do shift; done; echo garbage > "$2"', "made no shared object"),
    "fails": ("echo 'x.c:1: error: I do not like it' >&2; exit 1", "I do not like it"),
    "fails in other letters": ("printf '\\377\\376' >&2; exit 1", "failed at"),
    "is killed": ("kill -9 $$", "failed at"),
}


@pytest.mark.defect(18)
@pytest.mark.parametrize("name", COMPILERS)
def test_broken_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    body, words = COMPILERS[name]
    script = tmp_path / "cc"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo broken 1.0; exit 0; }}\n{body}\n')
    script.chmod(0o755)
    monkeypatch.setenv("TSC_CC", str(script))
    with pytest.raises(LaunchError, match=words) as caught:
        build_module({"k": SOURCE}, GENERIC, Options(cache_dir=tmp_path / "cache"))
    assert "TSC_CC" in str(caught.value)
    monkeypatch.delenv("TSC_CC")
    assert build_module({"k": SOURCE}, GENERIC, Options(cache_dir=tmp_path / "cache")).startswith(b"\x7fELF")


@pytest.mark.defect(18)
def test_compilers_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cc").write_text("no program")
    (tmp_path / "cc").chmod(0o755)
    with pytest.raises(LaunchError, match="TSC_CC"):
        build.find_compiler(str(tmp_path / "cc"))
    assert build.find_compiler("  ").command == build.find_compiler(None).command

    def busy(*a: object, **k: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(build.subprocess, "run", busy)
    with pytest.raises(LaunchError, match="ulimit -u"):
        build.find_compiler(None)


@pytest.mark.defect(18)
@pytest.mark.parametrize("code, words", [
    (errno.ENOSPC, "free some space"), (errno.EMFILE, "ulimit -n"), (errno.EACCES, "TMPDIR")])
def test_no_room_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, words: str) -> None:
    def fail(*a: object, **k: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(work.tempfile, "TemporaryDirectory", fail)
    with pytest.raises(LaunchError, match=words):
        build_module({"k": SOURCE}, GENERIC, Options(cache_dir=tmp_path))


@pytest.mark.defect(18)
def test_a_disk_that_fills_up_while_building(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="free some space"), work_folder() as folder:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))


# -- the cache -------------------------------------------------------------------------------------------------------

@pytest.mark.defect(17)
def test_others_may_read_the_cache(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        CompiledCache(tmp_path / "c").put(digest("x"), b"body")
    finally:
        os.umask(old)
    (entry,) = (p for p in (tmp_path / "c").rglob("*") if p.is_file())
    assert stat.S_IMODE(entry.stat().st_mode) == 0o644 and stat.S_IMODE(entry.parent.stat().st_mode) == 0o755


@pytest.mark.defect(17)
def test_an_entry_in_another_ones_place_counts_as_absent(tmp_path: Path) -> None:
    cache = CompiledCache(tmp_path)
    cache.put(digest("x"), b"body")
    cache.put(digest("y"), b"other")
    one, other = (tmp_path / digest(name)[:2] / digest(name)[2:] for name in "xy")
    one.write_bytes(other.read_bytes())
    assert cache.get(digest("x")) is None and cache.get(digest("y")) == b"other"
    os.mkfifo(one)
    assert cache.get(digest("x")) is None


@pytest.mark.defect(17)
@pytest.mark.parametrize("poison", [b"", b"garbage", b"\x7fELF" + bytes(100)])
@pytest.mark.parametrize("keep", [lambda body: body.startswith(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\3"), lambda body: False],
                         ids=["objects", "all"])
def test_bad_entries_with_good_checksums_heal(tmp_path: Path, poison: bytes, keep: Callable[[bytes], bool]) -> None:
    options = Options(cache_dir=tmp_path)
    first = build_module({"k": SOURCE}, GENERIC, options)
    cache, head, left = CompiledCache(tmp_path), len(b"tsc-cache-2\n") + 32, 0
    for path in [p for p in tmp_path.rglob("*") if p.is_file() and "zig" not in p.relative_to(tmp_path).parts]:
        if keep(path.read_bytes()[head:]):
            path.unlink()  # the module: its objects are needed then
            continue
        cache.drop(path.parent.name + path.name)
        cache.put(path.parent.name + path.name, poison)
        left += 1
    assert left >= 2
    assert build_module({"k": SOURCE}, GENERIC, options) == first
    assert build_module({"k": SOURCE}, GENERIC, options) == first


@pytest.mark.defect(17)
def test_folders_of_killed_builds_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(work.tempfile, "tempdir", str(tmp_path))
    dead, young = tmp_path / "tsc-build-dead", tmp_path / "tsc-build-young"
    for folder in (dead, young):
        folder.mkdir()
        (folder / "unit.c").write_text("x")
    (tmp_path / "tsc-build-link").symlink_to(tmp_path)
    os.utime(dead, (0, time.time() - 3600))
    with work_folder() as alive:
        os.utime(alive, (0, 0))
        with work_folder():  # finds the other one old, and locked
            pass
        assert alive.is_dir() and not dead.exists() and young.is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tsc-build-link", "tsc-build-young"]


@pytest.mark.defect(17)
def test_a_build_killed_in_the_middle(tmp_path: Path) -> None:
    """The folder it leaves is gone after the next build that finds it old enough."""
    child = os.fork()
    if child == 0:
        work.tempfile.tempdir = str(tmp_path)
        with work_folder():
            os.kill(os.getpid(), 9)
        sys.exit(1)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    work._sweep(tmp_path)
    assert not left.exists()
