"""`backfire compare` as a user types it, on tables small enough to count by eye."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli import main
from experiments.measure.compare import parse_names
from experiments.run.schema import TABLES
from mech.errors import InputError
from tests.study_cases import Said

HEADER = "model,env,measure,mean,ci_lo,ci_hi,n,n_clusters"
PAPER = (
    "fig-1m,tools,G,-24.0,-26.0,-22.0,100,48",
    "fig-1m,tools,delta_echo,1.3,1.1,1.5,74,39",
    "fig-1m,tools,sem,2.0,1.5,2.9,100,48",
    "fig-1m,repair,G,-80.0,-90.0,-70.0,60,60",
    "elm-2m,tools,G,-9.0,-11.0,-7.0,30,20",
)
CORE = (
    "fig-1m-q4,tools,G,-25.0,-27.0,-23.0,100,48,0.001,0.001",
    "fig-1m-q4,tools,sem,-0.5,-0.9,-0.1,100,48,0.02,",
    "fig-1m-q4,tools,end,-0.5,,,100,1,,",
)
EXTENDED = (
    "fig-1m-q4,tools,G,-20.0,-22.0,-18.0,74,39,0.001,0.001",
    "fig-1m-q4,tools,delta_echo,1.2,1.0,1.4,74,39,0.001,",
)


def write(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def scoring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """`backfire compare …` in a folder with the runs `core` and `extended` and the paper's table."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "paper.csv", *PAPER)
    write(tmp_path / "core" / "summary.csv", *CORE, header=f"{HEADER},p,p_holm")
    write(tmp_path / "extended" / "summary.csv", *EXTENDED, header=f"{HEADER},p,p_holm")

    def run(*words: str) -> Said:
        capsys.readouterr()
        code = main(["compare", *words])
        shown = capsys.readouterr()
        return Said(code, shown.out.splitlines(), shown.err.splitlines())

    return run


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def test_several_runs_are_one_comparison(scoring: Callable[..., Said], tmp_path: Path) -> None:
    said = scoring("extended", "core", "--paper", "paper.csv")
    assert said.code == 0 and not said.err
    table = read(tmp_path / "extended" / "compare.csv")
    assert tuple(table.columns[: len(TABLES["compare"])]) == TABLES["compare"]
    assert table["paper_model"].tolist() == ["fig-1m"] * 4
    assert table["run"].fillna("").tolist() == ["core", "extended", "core", ""]
    assert table["ours"].fillna(0).tolist() == [-25.0, 1.2, -0.5, 0.0]
    assert [str(value) for value in table["overlap"]] == ["True", "True", "False", "nan"]
    assert not (tmp_path / "core" / "compare.csv").exists()


def test_the_text_has_a_block_an_environment_and_one_line_that_counts(scoring: Callable[..., Said]) -> None:
    said = scoring("core", "extended", "--paper", "paper.csv")
    text = "\n".join(said.out)
    assert "fig-1m-q4 against the paper's fig-1m, tools" in said.out
    assert "fig-1m-q4 against the paper's fig-1m, repair" in said.out
    [counted] = [line for line in said.out if line.startswith("4 lines of the paper's")]
    assert counted == (
        "4 lines of the paper's, 3 measured here: intervals overlap in 2; the sign is the same in 2 of the 3 whose "
        "published interval excludes zero (1 not measured, 1 of ours not published)"
    )
    shown = [line.split() for line in said.out if line.split()[:1] == ["delta_echo"]]
    assert shown == [
        ["delta_echo", "1.200", "[1.000,", "1.400]", "74", "1.300", "[1.100,", "1.500]", "74", "-0.100"]
        + ["yes", "same", "yes", "extended"]
    ]
    assert "other sign although the paper's interval excludes zero:" in text
    assert "fig-1m-q4 tools sem" in text and said.out[-1] == "written to core/compare.csv"


def test_the_file_may_be_named_and_is_the_same_each_time(
    scoring: Callable[..., Said], tmp_path: Path
) -> None:
    words = ("core", "core", "--paper", "paper.csv", "--out", "other.csv")  # a run named twice is one run
    assert scoring(*words).out[-1] == "written to other.csv"
    first = (tmp_path / "other.csv").read_bytes()
    assert scoring(*words).code == 0 and (tmp_path / "other.csv").read_bytes() == first
    assert {file.name for file in (tmp_path / "core").iterdir()} == {"summary.csv"}


def test_a_model_may_be_given_the_papers_name(scoring: Callable[..., Said], tmp_path: Path) -> None:
    said = scoring("core", "--paper", "paper.csv", "--names", "fig-1m-q4=elm-2m")
    assert said.code == 0 and "fig-1m-q4 against the paper's elm-2m, tools" in said.out
    table = read(tmp_path / "core" / "compare.csv")
    assert table[["model", "paper_model", "paper"]].to_numpy().tolist() == [["fig-1m-q4", "elm-2m", -9.0]]
    scoring("core", "--paper", "paper.csv", "--names", "fig=elm-2m").sentence("no model 'fig' in our runs")
    assert parse_names("a=b,c=d") == {"a": "b", "c": "d"} and parse_names("") == {}
    for wrong in ("a", "a=", "=b", "a=b,c"):
        with pytest.raises(InputError, match="--names OURS=PAPERS"):
            parse_names(wrong)


def test_no_run_or_no_table_is_said(scoring: Callable[..., Said]) -> None:
    scoring("core").sentence("--paper FILE")
    said = scoring("--paper", "paper.csv")
    assert said.code == 2 and "Name run folders" in said.err[-1]
    said = scoring("--help")
    assert said.code == 0 and "[RUN ...]" in " ".join(said.out)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ["Cannot read", "No such file"]),
        ("", ["is not a csv table"]),
        ('a,b\n"1', ["is not a csv table"]),
        ("a,b\n1,2,3\n1,2\n", ["lacks the columns model"]),
        (f"{HEADER}\nfig-1m,tools,G,low,,,9,9\n", ["a mean that is no number on line 1"]),
        (f"{HEADER}\nfig-1m,tools,G,,,,9,9\n", ["has no mean on line 1"]),
        (f"{HEADER}\n{PAPER[0]}\n{PAPER[0]}\n", ["has a line twice: fig-1m, tools, G"]),
        (f"{HEADER}\nash,tools,G,1,,,9,9\n", ["none of our models (fig-1m)", "it has ash"]),
        ("\udcff\udcfe", ["is not a csv table"]),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(
    text: str | None, parts: list[str], scoring: Callable[..., Said], tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    if text is not None:
        other.write_text(text, errors="surrogateescape")
    named = [] if text and "ash" in text else ["other.csv"]
    scoring("core", "--paper", "other.csv").sentence("backfire compare: ", *named, *parts)
    assert not (tmp_path / "core" / "compare.csv").exists()


def test_a_folder_that_is_no_finished_run_is_named(scoring: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        scoring("core", name, "--paper", "paper.csv").sentence(
            str(Path(name) / "summary.csv"), "No such file"
        )
    write(tmp_path / "torn" / "summary.csv", "fig-1m,tools,G", header=HEADER)
    scoring("torn", "--paper", "paper.csv").sentence(str(Path("torn") / "summary.csv"), "no mean on line 1")


def test_a_place_that_cannot_be_written_is_one_sentence(scoring: Callable[..., Said]) -> None:
    scoring("core", "--paper", "paper.csv", "--out", "paper.csv/x.csv").sentence("Cannot write", "x.csv")
