"""backfire overlap: two patched differences of one folder or two, and what is refused."""

from __future__ import annotations

import pytest

from experiments.cli import main
from experiments.run.session import cluster_label
from probes.items.item import load_items
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture

SEM = ["--from", "neut", "--to", "fail", "--k", "2"]


def test_both_differences_may_stand_in_one_folder_or_in_two(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.ran("patch", "--k", "2", "--direction", "noise")
    shell.ran("patch", *SEM, "--direction", "noise")
    shell.ran("patch", *SEM, "--direction", "noise", out="sem")
    run, sem = str(shell.path("").resolve()), str(shell.path("", "sem").resolve())
    assert main(["overlap", "--out", run]) == 0
    assert "spearman" in capsys.readouterr().out
    one = shell.path("overlap.csv").read_bytes()
    assert set(shell.table("overlap")["metric"]) == {"logprob", "margin", "diverging"}
    table = shell.logprob("overlap").set_index(["statistic", "of"])
    assert set(table["direction"]) == {"noise"} and (table["n"] == 3).all()
    assert -1 <= table["estimate"].xs("spearman").iloc[0] <= 1
    # Of the one difference alone there is nothing to compare; in another folder there is, and it is the same.
    lines = shell.path("patch.jsonl").read_text().splitlines(keepends=True)
    shell.path("patch.jsonl").write_text("".join(lines[:3]))
    assert main(["overlap", "--out", run]) == 2
    assert "not from neut to fail" in capsys.readouterr().err
    assert main(["overlap", "--out", run, "--with", sem]) == 0
    assert shell.path("overlap.csv").read_bytes() == one
    # Items made under another seed may be other ones, and a patch that was stopped has not all of them.
    shell.ran("patch", *SEM, "--direction", "noise", "--seed", "7", out="seven")
    assert main(["overlap", "--out", run, "--with", str(shell.path("", "seven").resolve())]) == 2
    assert "another seed (0 and 7)" in capsys.readouterr().err
    about = shell.path("run.json", "sem")
    about.write_text(about.read_text().replace('"done": true', '"done": false'))
    assert main(["overlap", "--out", run, "--with", sem]) == 2
    assert "not finished" in capsys.readouterr().err


def test_its_intervals_resample_what_cluster_says(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.ran("patch", "--k", "2", "--direction", "noise")
    shell.ran("patch", *SEM, "--direction", "noise")
    run = str(shell.path("").resolve())
    for level in ("task", "system", "template"):
        assert main(["overlap", "--out", run, "--cluster", level]) == 0
        clusters = {cluster_label(item, level) for item in load_items(shell.items)}
        assert set(shell.table("overlap")["n_clusters"]) == {len(clusters)}
    # The items are read again, and must be those that were patched.
    shell.items.write_text(shell.items.read_text() + "\n")
    assert main(["overlap", "--out", run, "--cluster", "template"]) == 2
    assert "other items than were patched" in capsys.readouterr().err
    assert main(["overlap", "--out", run]) == 0
    assert main(["overlap", "--out", run, "--quiet"]) == 2


def test_a_difference_is_two_conditions_and_a_folder_has_been_run(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("pre", "pre,pre", "pre,neut,fail"):
        assert main(["overlap", "--one", words, "--out", str(shell.tmp / "run")]) == 2
        assert "--one: " in capsys.readouterr().err
    assert main(["overlap", "--out", str(shell.tmp / "nothing")]) == 2
    assert "not a run folder" in capsys.readouterr().err.splitlines()[-1]
