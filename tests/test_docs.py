"""What the documentation says is so: its snippets run as their pages say, its links lead somewhere, and its site builds.

The blocks of a page run in order: Python's in one namespace, commands that begin with `python -m tsc` in processes of their
own, all in one folder that holds `model.onnx`, which `model.py` of the tutorial makes. What a page shows below a block is held
against what the block printed. Comments above a block say what is different about it:

    <!-- notest: why -->     it does not run; REASONS lists all of these
    <!-- needs: what -->     it runs where that module can be imported, or that command is there; NEEDS lists all of these
    <!-- loose -->           what it prints has figures or names of the machine in it: numbers may be others, lines may be more
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tsc
from tsc import te
from tsc.runtime.package import SCHEMA

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
#: Why blocks do not run.
REASONS = {
    "installs from the package index",
    "installs the project",
    "needs a GPU",
    "needs the extra cuda",
    "needs a Ray cluster",
    "needs a server",
    "serves until it is ended",
    "takes minutes",
    "the model is the reader's",
}
#: What blocks may need beside what the suite has.
NEEDS = {"cc", "cryptography", "torch"}
#: How many blocks run at least, so that none is lost without a word.
LEAST = 60

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (notest|needs|loose)(?:: (.*))? -->\s*\Z")
COMMAND = "python -m tsc"
#: What differs from machine to machine in what is printed loosely: hashes, targets, numbers.
OF_THE_MACHINE = [(re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{12,}(?![0-9A-Za-z])"), "#"), (re.compile(r"cpu-[a-z0-9-]+"), "cpu"),
                  (re.compile(r"(?<!\w)-?\d+(\.\d+)*(e[+-]?\d+)?"), "0"), (re.compile(r"\s+"), " ")]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it stands (`path:line`), its language, the rest of its info string, its text, and its marks."""

    place: str
    line: int
    language: str
    more: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        """Whether it is to be run."""
        return self.language == "python" or (self.language in ("console", "bash") and any(
            command.startswith((COMMAND, "cc ")) for command, _ in commands(self)))

    @property
    def skipped(self) -> str | None:
        """Why it is not run here, None where it is."""
        if "notest" in self.marks:
            return self.marks["notest"]
        needed = self.marks.get("needs")
        there = needed is None or importlib.util.find_spec(needed) is not None or shutil.which(needed) is not None
        return None if there else f"needs {needed}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, text, end = [], page.read_text(encoding="utf-8"), 0
    for match in FENCE.finditer(text):
        marks, before = {}, text[end:match.start()]
        while mark := MARK.search(before):
            marks[mark[1]] = mark[2] or ""
            before = before[:mark.start()]
        line = text.count("\n", 0, match.start()) + 1
        language, _, more = match["info"].strip().partition(" ")
        body = textwrap.dedent(match["body"]) if match["indent"] else match["body"]
        found.append(Block(f"{page.relative_to(ROOT)}:{line}", line, language, more, body, marks))
        end = match.end()
    return found


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a block of a shell's, each with what is shown below it; without prompts each line is one."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "bash":
            found += [(line, [])] if line.strip() and not line.startswith("#") else []
        elif line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


# -- running -----------------------------------------------------------------------------------------------------------

def compare(shown: list[str], said: list[str], place: str, loose: bool) -> None:
    """Hold what a page shows against what was said. An `…` stands for anything in a line, and for any lines alone. Loosely,
    only words count, and lines that are not shown do not."""
    def pattern(line: str) -> str:
        return ".*".join(map(re.escape, line.split("…")))

    if loose:
        for expression, sign in OF_THE_MACHINE:
            shown, said = ([expression.sub(sign, line) for line in lines] for lines in (shown, said))
    shown, said = ([line.rstrip() for line in lines if line.strip()] for lines in (shown, said))
    rest, anything = list(said), loose
    for line in shown:
        if line.strip() == "…":
            anything = True
            continue
        at = next((k for k, other in enumerate(rest) if re.fullmatch(pattern(line), other)), None)
        assert at is not None and (anything or at == 0), f"{place}: '{line}' is not what comes next of\n" + "\n".join(said)
        rest, anything = rest[at + 1:], loose
    assert anything or not rest, f"{place}: it also says\n" + "\n".join(rest)


def shell(block: Block, folder: Path) -> None:
    """Run a block of commands; `echo $?` tells the exit code of the one before, which else is 0."""
    code: int | None = None
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    for command, shown in commands(block):
        if command == "echo $?":
            assert shown == [str(code)], f"{block.place}: the exit code is {code}"
            code = 0
            continue
        assert not code, f"{block.place}: the command before '{command}' failed with exit code {code}"
        assert command.startswith((COMMAND, "cc ", "./")), f"{block.place}: '{command}' does not begin with '{COMMAND}'"
        line = command.replace("python", shlex.quote(sys.executable), command.startswith(COMMAND))
        done = subprocess.run(["sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, check=False)
        code = done.returncode
        compare(shown, (done.stdout + done.stderr).splitlines(), f"{block.place}: {command}", loose=True)
    assert not code, f"{block.place}: the last command failed with exit code {code}: {done.stderr}"


def python(block: Block, names: dict[str, Any]) -> str:
    """Run a block of Python; what it printed."""
    said = io.StringIO()
    code = compile("\n" * block.line + block.text, block.place.partition(":")[0], "exec")
    with contextlib.redirect_stdout(said):
        exec(code, names)
    return said.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """`model.onnx`, as the tutorial makes it."""
    maker = next(block for block in blocks(TUTORIAL) if 'title="model.py"' in block.more)
    folder = tmp_path_factory.mktemp("model")
    with contextlib.chdir(folder):
        python(maker, {"__name__": "__main__"})
    return (folder / "model.onnx").read_bytes()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets(page: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TSC_TRUST", raising=False)
    (tmp_path / "model.onnx").write_bytes(model)
    names: dict[str, Any] = {"__name__": "__main__"}
    said: str | None = None
    for block in blocks(page):
        if not block.is_code:
            if block.language == "c":
                (tmp_path / block.more.removeprefix('title="').removesuffix('"')).write_text(block.text)
            if said is not None and block.language == "text":
                compare(block.text.splitlines(), said.splitlines(), block.place, "loose" in block.marks)
            said = None
        elif block.skipped is not None:
            said = None
        elif block.language == "python":
            said = python(block, names)
        else:
            said = None
            shell(block, tmp_path)


def test_most_snippets_run() -> None:
    """Those that do not are marked, and their reasons are the ones above."""
    code = [block for page in PAGES for block in blocks(page) if block.is_code or "notest" in block.marks]
    assert {block.marks["notest"] for block in code if "notest" in block.marks} == REASONS
    assert {block.marks["needs"] for block in code if "needs" in block.marks} == NEEDS
    assert sum("notest" not in block.marks for block in code) >= LEAST
    plain = [block.place for page in PAGES for block in blocks(page) if block.language not in (
        "python", "bash", "console", "text", "json", "c") and "ROADMAP" not in block.text and page.name != "README.md"]
    assert not plain, f"blocks without a language, which nothing looks at: {plain}"


@pytest.mark.parametrize("shown, said, loose", [
    (["a 1"], ["a 1"], False), (["a …"], ["a 1"], False), (["a", "…", "c"], ["a", "b", "c"], False),
    (["…", "c"], ["a", "c"], False), (["a 1 ms"], ["x", "a 2.5 ms", "y"], True),
    (["k_0123456789ab on cpu-avx2"], ["k_fedcba987654 on cpu-generic"], True)])
def test_what_is_shown_may_be_so(shown: list[str], said: list[str], loose: bool) -> None:
    compare(shown, said, "here", loose)


@pytest.mark.parametrize("shown, said, loose", [
    (["a 1"], ["a 2"], False), (["a"], ["a", "b"], False), (["c"], ["b", "c"], False), (["b", "a"], ["a", "b"], True),
    (["a ms"], ["b ms"], True), (["a"], [], True)])
def test_what_is_shown_may_be_wrong(shown: list[str], said: list[str], loose: bool) -> None:
    with pytest.raises(AssertionError):
        compare(shown, said, "here", loose)


# -- links, names and the site -----------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its fenced blocks, and with the file that it takes in."""
    def taken(found: re.Match[str]) -> str:
        return (ROOT / found[1]).read_text(encoding="utf-8")

    return FENCE.sub("", re.sub(r'^--8<-- "(.*)"$', taken, page.read_text(encoding="utf-8"), flags=re.MULTILINE))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a page, each as a file ("" for this one) and an anchor."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for target in LINK.findall(text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings as the site and GitHub make them, and names that it documents."""
    text = prose(page)
    headings = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[\s-]+", "-", title) for title in headings} | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links(page: Path) -> None:
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to '{file}', which is not there"
        assert page.parent != DOCS or target.is_relative_to(DOCS), f"{page.name} links to '{file}', which is not in the site"
        assert not anchor or anchor in anchors(target), f"{page.name} links to '#{anchor}' of {target.name}"


def test_the_reference_has_all_public_names() -> None:
    documented = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(documented) == len(set(documented))
    found = []
    for name in documented:
        module, _, last = name.rpartition(".")
        found.append(getattr(importlib.import_module(module), last))
        assert (found[-1].__doc__ or "").strip(), f"{name} has no docstring"
    public = {name: getattr(tsc, name) for name in tsc.__all__ if name not in ("te", "__version__")}
    public |= {f"te.{name}": getattr(te, name) for name in te.__all__}
    missing = [name for name, value in public.items() if all(value is not other for other in found)]
    assert not missing, f"docs/api.md lacks {missing}"


def test_the_versions_agree() -> None:
    """Of the wheel, of the module, and the newest in the changelog."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([0-9.]+)\]", log, re.MULTILINE)
    assert newest is not None and project["version"] == tsc.__version__ == newest[1]
    assert f"only with the format: {SCHEMA}." in log


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^  - .*: (\S+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {page.name for page in DOCS.glob("*.md")} == set(listed)


def test_the_site_builds(tmp_path: Path) -> None:
    """Without a warning, and without anything that a browser would fetch from elsewhere."""
    lacking = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} not installed; the extra 'docs' brings it (python3 dev.py docs)")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* href=\"?https?:", text), page.name
    assert 'id="tsc.compile"' in (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
