"""README and docs: every command they name is one that the command line takes, and every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mech
from experiments.commands import COMMANDS
from experiments.run.flags import parse
from mech.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LEFT_OUT = "…"  # a command that a page shortens


def commands(text: str) -> list[str]:
    """Commands in code spans and in the lines of code blocks, without comments and with continued lines joined."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
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


PYTHON = [
    (page, number, block)
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [one for one in targets if "://" not in one and not (page.parent / one).exists()]
    assert not missing
