"""The study that docs/architecture.md shows as an example: it runs, resumes, and measures what `probe` measures."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from experiments.run import flags
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "architecture.md"


def test_the_study_of_the_page_runs_and_is_resumed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert sum(bool(line) for line in block.splitlines()) < 40
    (shell.tmp / "gap_study.py").write_text(block)
    monkeypatch.syspath_prepend(str(shell.tmp))
    study = import_module("gap_study").STUDY
    words = [
        "--model",
        str(shell.model),
        "--items",
        str(shell.items),
        "--quiet",
        "--out",
        str(shell.path("")),
    ]
    config = flags.parse(study, words).config
    first, again = study.run(config), study.run(config)
    assert "forwards run: 0," not in first.text and "forwards run: 0," in again.text
    shell.ran("probe", "--conditions", "pre,fail", out="probe")
    gains = shell.table("measures", "probe").query("measure == 'G'")["value"]
    assert shell.table("gap")["gap"].tolist() == pytest.approx((-gains).tolist(), abs=NATS)
