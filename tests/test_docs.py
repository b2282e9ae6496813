"""README and docs: commands are taken, Python runs, links and paths lead somewhere, generated pages are up to date."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mech
from experiments.commands import COMMANDS
from experiments.run.flags import parse
from mech.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), *NOTEBOOKS]
LEFT_OUT = "…"  # a command that a page shortens


def commands(text: str) -> list[str]:
    """Commands in code spans and in the lines of code blocks, without comments and with continued lines joined."""
    text = text.replace("\\\n", " ")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if language in ("", "sh")]
    lines = [line.split("  #")[0].split(" #")[0] for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return [
        one.strip() for one in [*lines, *spans] if re.match(r"backfire [a-z]", one) and LEFT_OUT not in one
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one_that_the_command_line_takes(page: Path) -> None:
    wrong = []
    for line in commands(page.read_text()):
        name, *words = shlex.split(line)[1:]
        if name not in COMMANDS:
            wrong.append(line)
            continue
        try:
            parse(import_module(COMMANDS[name].module).STUDY, words)
        except InputError as error:
            wrong.append(f"{line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_commands_are_found_in_blocks_and_in_prose() -> None:
    text = "Run `backfire probe\n--limit 3`:\n```sh\nbackfire joint --k 4 \\\n  --limit 2   # sets\n```\n`backfire …`"
    assert commands(text) == ["backfire joint --k 4    --limit 2", "backfire probe --limit 3"]


def python_blocks(page: Path) -> list[str]:
    """The blocks of Python of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


PYTHON = [
    (page, number, block)
    for page in PAGES
    if page not in NOTEBOOKS
    for number, block in enumerate(python_blocks(page))
]


@pytest.mark.parametrize(
    ("page", "number", "block"), PYTHON, ids=[f"{page.name}-{n}" for page, n, _ in PYTHON]
)
def test_every_block_of_python_runs_on_the_bundled_model(
    page: Path,
    number: int,
    block: str,
    smollm2: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = []

    def loaded(name: str) -> Any:
        names.append(name)
        return smollm2

    monkeypatch.setattr(mech, "load_model", loaded)
    exec(compile(block, f"{page.name}-{number}", "exec"), {"__name__": "__main__"})
    assert names == ["smollm2-135m-q4"] and capsys.readouterr().out.strip()


def test_there_are_blocks_of_python() -> None:
    assert {page.name for page, _, _ in PYTHON} >= {"README.md", "python.md"}


@pytest.mark.real_model
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_the_cells_of_a_notebook_run_in_order(
    page: Path, smollm2: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.setattr(mech, "load_model", lambda name: smollm2)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = python_blocks(page)
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{page.name}-{number}", "exec"), names)
    assert cells and capsys.readouterr().out.strip()


def test_both_notebooks_are_jupytext_markdown() -> None:
    assert len(NOTEBOOKS) == 2
    for page in NOTEBOOKS:
        assert page.read_text().startswith("---\njupyter:\n  jupytext:\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [one for one in targets if "://" not in one and not (page.parent / one).exists()]
    assert not missing


@pytest.mark.parametrize(
    "page", [one for one in PAGES if one.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_every_path_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:mech|probes|envs|experiments|figures|tests|docs)/[\w./-]*)`", page.read_text())
    missing = [one for one in named if not (ROOT / one).exists()]
    assert not [one for one in missing if not re.search(r"NAME|GROUP", one)]


def test_every_name_that_the_page_on_architecture_gives_is_in_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    source = "\n".join(
        path.read_text()
        for room in ("mech", "probes", "envs", "experiments", "figures", "tests")
        for path in (ROOT / room).rglob("*.py")
        if path != Path(__file__)
    )
    words = set(re.findall(r"\w+", source))
    named = set(re.findall(r"`([A-Za-z_]\w*)(?:\(\w*\))?`", prose))
    examples = {"G_fail_polite", "delta_fail_polite", "draw_NAME"}
    assert examples <= named and len(named) > 60 and not named - words - examples
    after = re.findall(r"`(\w+/[\w/]+\.py)`, `(\w+)`", prose)
    before = [(file, name) for name, file in re.findall(r"`(\w+)`(?:,| in) `(\w+/[\w/]+\.py)`", prose)]
    lost = [
        (file, name)
        for file, name in [*after, *before]
        if not re.search(rf"^ *(?:(?:def|class) {name}\b|{name}\b.* = )", (ROOT / file).read_text(), re.M)
    ]
    assert len(after) > 10 and len(before) > 5 and not lost


def test_every_error_message_that_the_page_explains_is_one_of_the_code() -> None:
    page = (ROOT / "docs" / "limits.md").read_text().split("## Error messages", 1)[1]
    symptoms = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    parts = [part for one in symptoms for part in re.split(r"`<\w+>`|…|;|\(`\w+`\)|\(s\)", one)]
    phrases = [" ".join(part.split()).strip("` ") for part in parts]
    said = "\n".join(texts_of_the_code())
    wrong = [phrase for phrase in phrases if phrase != "symptom" and phrase.strip("().,:") not in said]
    assert len(phrases) > 60 and not wrong


def texts_of_the_code() -> Iterator[str]:
    """Every text in the packages, with a blank for what is formatted into it."""
    for room in ("mech", "probes", "envs", "experiments"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = [one.value if isinstance(one, ast.Constant) else "\x00" for one in node.values]
                    yield "".join(map(str, parts))


def test_generated_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    assert set(pages) == {"command_line_reference.md", "run_folder.md"}
    for name, text in pages.items():
        assert (ROOT / "docs" / name).read_text() == text, f"{name}: run python docs/generate.py"
