"""A mistake of the user or of the disk is one sentence and an exit code; no row is lost and no folder spoilt."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

from mech.load import load_model
from probes.items.item import dump_items
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, shell  # noqa: F401 - a fixture
from tests.tiny_models import N_POSITIONS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the folder of one finished probe is kept."""
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def done(shell: Shell, finished: Path) -> Iterator[Shell]:
    """A folder with a finished probe, which the mistake that follows must leave as it is."""
    if not finished.exists():
        shell.ran("probe", "--conditions", "pre,neut")
        shutil.copytree(shell.tmp / "run", finished)
    shutil.copytree(finished, shell.tmp / "run", dirs_exist_ok=True)
    before = contents(shell.tmp / "run")
    yield shell
    assert contents(shell.tmp / "run") == before


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("smollm2-135m-q", ["no model or folder 'smollm2-135m-q'", "did you mean smollm2-135m"]),
        ("zzz", ["known names are smollm2-135m-q4"]),
        ("nobody/nothing-here", ["'nobody/nothing-here'", "offline"]),
        ("weights.gguf", ["no GGUF file 'weights.gguf'"]),
        (".", ["no config.json"]),
    ],
)
def test_an_unknown_model_is_one_sentence(name: str, parts: list[str], done: Shell) -> None:
    done("probe", "--model", name).sentence("backfire probe: ", *parts)


@pytest.mark.parametrize(
    ("study", "words", "parts"),
    [
        ("probe", ["--conditions", "pre,after"], ["no condition 'after': choose from core, all, pre, fail"]),
        ("probe", ["--conditions", ","], ["list of conditions is empty"]),
        ("probe", ["--conditions", "fail"], ["conditions", "pre,neut there, fail here", "another --out"]),
        ("probe", ["--keep", "attn.hook_z"], ["--cache"]),
        ("patch", ["--from", "before"], ["no condition 'before'"]),
        ("patch", ["--to", "after"], ["no condition 'after'"]),
        ("ablate", ["--heads", "L99H0"], ["L99H0 does not exist", "layers 0-2 and heads 0-3"]),
        ("ablate", ["--heads", "L0H4"], ["L0H4 does not exist"]),
        ("ablate", ["--heads", "L1H"], ["'L1H' is not a head: write it like L18H6"]),
        ("ablate", ["--heads", "L0H1;L1H0"], ["'L0H1;L1H0' is not a head"]),
        ("ablate", ["--heads", "L0H1,L0H1"], ["names a head twice"]),
        ("ablate", ["--heads", ","], ["list of heads is empty"]),
        ("ablate", ["--heads", "top:x"], ["'top:x' is not a head set"]),
        ("ablate", ["--heads", "top:0"], ["top 0 cannot be taken"]),
        ("ablate", ["--heads", "top:13"], ["12 heads: the top 13"]),
        ("ablate", ["--heads", "top:7"], ["7 of 12 heads are selected: no control set"]),
        ("ablate", ["--k", "4,99"], ["top 99 cannot be taken"]),
        ("ablate", ["--heads", "L0H1", "--k", "4"], ["--k needs a ranking"]),
        ("heads", ["--top", "99"], ["top 99 cannot be taken"]),
        ("heads", ["--length", "999"], ["too few for sequences of 999"]),
        ("probe", ["--device", "gpuu"], ["'gpuu' cannot be used"]),
    ],
)
def test_a_mistaken_option_is_one_sentence_and_leaves_no_trace(
    study: str, words: list[str], parts: list[str], done: Shell
) -> None:
    done(study, *words).sentence(f"backfire {study}: ", *parts)


def test_an_unknown_hook_to_keep_is_named_before_anything_is_run(done: Shell) -> None:
    words = ["--cache", str(done.tmp / "cache"), "--keep", "attn.hook_zz"]
    done("probe", *words, out="new").sentence("no hook named 'blocks.0.attn.hook_zz'", "Close names: ")
    assert not (done.tmp / "new").exists() and not (done.tmp / "cache").exists()


@pytest.mark.parametrize("study", ["probe", "heads", "patch", "ablate"])
def test_a_missing_out_is_said_before_the_model_is_loaded(
    study: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.run.session.load_model", lambda *_, **__: pytest.fail("loaded"))
    shell(study, out=None).sentence(f"backfire {study}: Say where to write with --out FOLDER.")


@pytest.mark.parametrize("flag", ["items", "ids", "wording"])
def test_a_missing_file_is_named(flag: str, done: Shell) -> None:
    for path, what in (("nowhere.json", "does not exist"), (done.tmp, "is no file")):
        done("probe", f"--{flag}", path).sentence(f"The {flag} file {path} {what}")


def test_a_transcript_longer_than_the_learned_positions_is_refused(
    shell: Shell, tiny_folder: FolderFactory
) -> None:
    long = dataclasses.replace(ITEMS[0], goal="Look after it. " * 140)  # bytes are tokens of the tiny models
    dump_items([long], shell.tmp / "long.jsonl")
    for engine in ("packed", "reference"):
        said = shell(
            "probe", "--model", tiny_folder("gpt2"), "--items", shell.tmp / "long.jsonl", "--engine", engine
        )
        said.sentence("tokens, and", f"knows {N_POSITIONS} positions")
    words = ["--items", shell.tmp / "long.jsonl", "--conditions", "pre"]
    shell.ran_for_rows("probe", "--model", tiny_folder("llama"), *words, out="rotary")


def item_lines(count: int, folder: Path) -> list[str]:
    dump_items(ITEMS[:count], folder / "lines")
    return (folder / "lines").read_text().splitlines()


@pytest.mark.parametrize(
    ("break_it", "parts"),
    [
        (lambda lines: [lines[0], lines[1][:-40]], ["line 2: it is not a whole JSON object"]),
        (lambda lines: [lines[0][:100], lines[1]], ["line 1: it is not a whole JSON object"]),
        (lambda lines: [lines[0], lines[0]], ["line 2 (item 'garden-0'): the item id is already on line 1"]),
        (lambda lines: [], ["holds no items"]),
    ],
)
def test_a_torn_item_file_is_named_by_its_line(
    break_it: Callable[[list[str]], list[str]], parts: list[str], done: Shell
) -> None:
    broken = done.tmp / "broken.jsonl"
    broken.write_text("\n".join(break_it(item_lines(2, done.tmp))))
    for study in ("probe", "patch", "ablate"):
        done(study, "--items", broken).sentence(str(broken), *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[", ["is not JSON"]),
        ('{"garden-0": 1}', ["must hold a JSON list of item ids"]),
        ("[1]", ["must hold a JSON list of item ids"]),
        ('["garden-0", "garden-99"]', ["garden-99"]),
        ("[]", []),
        ("\udcff", ["is not JSON"]),
    ],
)
def test_a_mistaken_ids_file_is_one_sentence(text: str, parts: list[str], done: Shell) -> None:
    ids = done.tmp / "ids.json"
    ids.write_text(text, errors="surrogateescape")
    done("probe", "--ids", ids).sentence("backfire probe: ", *parts)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_mistaken_wording_file_is_one_sentence(text: str, done: Shell) -> None:
    wording = done.tmp / "wording.json"
    wording.write_text(text)
    done("probe", "--wording", wording).sentence(str(wording))


def test_a_folder_of_other_things_is_left_alone(shell: Shell) -> None:
    folder = shell.tmp / "thesis"
    folder.mkdir()
    (folder / "heads.csv").write_text("layer,head,prefix_matching\n")
    before = contents(folder)
    shell("probe", out="thesis").sentence("is not a run folder")
    shell("patch", out="thesis").sentence("does not score prefix_matching for the 12 heads of this model")
    shell("heads", "--top", "4", out="thesis").sentence("is not a run folder")
    assert contents(folder) == before


@pytest.mark.parametrize("study", ["probe", "heads", "patch", "ablate"])
def test_a_folder_that_cannot_be_made_is_one_sentence(study: str, shell: Shell) -> None:
    (shell.tmp / "file").write_text("x")
    words = {"heads": ["--top", "4"], "ablate": ["--heads", "top:2", "--limit", "1"]}.get(study, [])
    for out in ("file/run", "file"):
        shell(study, *words, out=out).sentence("Cannot write", str(shell.tmp / out))
    assert (shell.tmp / "file").read_text() == "x"


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(shell: Shell) -> None:
    (shell.tmp / "file").write_text("x")
    for place in ("file/cache", "file"):
        shell("probe", "--cache", shell.tmp / place).sentence("cache folder", "cannot be written")
    shell.ran_for_rows("probe")  # nothing of it stands in the way
    assert len(shell.lines("scores")) == 3 * (5 * 2 + 2 * 2)


def test_an_item_file_that_cannot_be_written_is_one_sentence(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.cli import main

    (shell.tmp / "file").write_text("x")
    for place in ("file/items.jsonl", "."):
        capsys.readouterr()
        assert main(["items", "--items", str(shell.items), "--out", str(shell.tmp / place)]) == 2
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1 and "Cannot write the item file" in shown.err and not shown.out


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes, which to a program is a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_rows_so_far_and_the_run_goes_on_from_there(shell: Shell) -> None:
    shell.once("probe", out="whole")
    whole = shell.path("scores.jsonl", "whole").read_bytes()
    first = b"".join(whole.splitlines(keepends=True)[:14])
    with disk_of(len(first) + 100):
        said = shell("probe")
    said.sentence("scores.jsonl", "rows so far are kept; make room")
    assert shell.path("scores.jsonl").read_bytes() == first
    assert not shell.about("probe")["done"]
    shell.ran("probe")
    assert shell.path("scores.jsonl").read_bytes() == whole
    assert shell.path("summary.csv").read_bytes() == shell.path("summary.csv", "whole").read_bytes()


def test_a_full_cache_disk_is_one_sentence_and_leaves_no_part_of_an_entry(shell: Shell) -> None:
    cache = shell.tmp / "cache"
    with disk_of(6000):
        shell("probe", "--cache", cache).sentence("cache folder", "cannot be written")
    assert all(
        file.name.startswith(("prefix cache-", "scores-", "run-"))
        for file in cache.rglob("*")
        if file.is_file()
    )
    shell.ran_for_rows("probe", "--cache", cache)
    shell.ran_for_rows("probe", out="clean")
    assert shell.path("scores.jsonl").read_bytes() == shell.path("scores.jsonl", "clean").read_bytes()


def test_a_model_whose_cache_check_fails_is_refused_by_name(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What transformers 5.24 does: the attention never sees the cache, and nothing warns."""

    def ignore_cache(self: Any, k: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> tuple[Any, Any]:
        return k, v

    shell.ran_for_rows("probe")
    before = contents(shell.tmp / "run")
    monkeypatch.setattr(AttentionBridge, "_update_kv_cache", ignore_cache)
    monkeypatch.setattr("experiments.run.session.load_model", load_model)
    for study in ("probe", "heads", "patch", "ablate"):
        shell(study).sentence("fails the load-time checks cache_length", "transformers>=5.9,<5.24")
    assert contents(shell.tmp / "run") == before
    said = shell("doctor", out=None)
    assert said.code == 1 and not said.err
    marks = {line.split()[1]: line.split()[0] for line in said.out if line.startswith(("ok ", "FAIL "))}
    failed = [name for name, mark in marks.items() if mark == "FAIL"]
    assert {"cache_length", "suffix_on_cache", "greedy_cached"} <= set(failed)
    assert said.out[-1] == f"{len(marks) - len(failed)} of {len(marks)} checks passed"


def test_logits_that_are_not_finite_are_not_recorded(
    shell: Shell, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = load_model(str(tiny_folder("llama")), check=False)
    with torch.no_grad():
        spoilt.bridge.original_model.get_output_embeddings().weight[9] = torch.nan
    monkeypatch.setattr("experiments.run.session.load_model", lambda *_, **__: spoilt)
    said = shell("probe")
    assert said.code == 1 and len(said.err) == 1 and "not finite" in said.err[0]
    assert not shell.path("scores.jsonl").exists()


@pytest.mark.parametrize("text", ["", "layer,head\n0,0\n", "a,b\n1\n2,3,4\n"])
def test_a_table_of_heads_that_is_none_is_named(text: str, done: Shell) -> None:
    done.path("heads.csv").write_text(text)
    for study in ("patch", "ablate"):
        done(study).sentence("heads.csv", "score")
    done.path("heads.csv").unlink()


def test_a_run_in_progress_is_not_joined(done: Shell) -> None:
    from experiments.run.durable import take_lock

    with take_lock(done.tmp / "run"):
        done("probe", "--conditions", "pre,neut").sentence("is being written by another run")


def test_a_row_file_with_a_broken_line_is_named_and_not_cut(shell: Shell) -> None:
    shell.once("probe")
    path = shell.path("scores.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    broken = b"".join([*lines[:4], lines[4][:50] + b"\n", *lines[5:]])
    path.write_bytes(broken)
    shell("probe").sentence("scores.jsonl, line 5, is not a row")
    assert path.read_bytes() == broken
    assert os.path.exists(shell.path("summary.csv"))
    assert json.loads(shell.path("run.json").read_text())["studies"]["probe"]["config"]["seed"] == 0


def row_with(path: Path, number: int, **changes: Any) -> None:
    """Change a row of a row file; None takes a column away."""
    lines = path.read_text().splitlines()
    row = {**json.loads(lines[number - 1]), **changes}
    lines[number - 1] = json.dumps({name: value for name, value in row.items() if value is not None})
    path.write_text("\n".join([*lines, ""]))


def run_json_with(path: Path, place: str, value: Any) -> None:
    record = json.loads(path.read_text())
    inner = record
    *outer, last = place.split(".")
    for name in outer:
        inner = inner[name]
    inner[last] = value
    path.write_text(json.dumps(record))


def folder_at(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "spoil", "parts"),
    [
        ("run.json", lambda path: run_json_with(path, "studies", []), ["'studies' must be an object"]),
        (
            "run.json",
            lambda path: run_json_with(path, "studies.probe.provenance", ["x"]),
            ["provenance' must be"],
        ),
        (
            "run.json",
            lambda path: run_json_with(path, "studies.probe.resumes", {}),
            ["resumes' must be a list"],
        ),
        ("run.json", lambda path: run_json_with(path, "studies.probe.config.seed", 5), ["config_hash"]),
        ("run.json", lambda path: path.write_bytes(b"\xff{}"), ["cannot be read"]),
        ("run.json", lambda path: path.write_text("null"), ["not of schema 1"]),
        ("scores.jsonl", lambda path: row_with(path, 3, id=["x"]), ["line 3", "'id' must be a string"]),
        (
            "scores.jsonl",
            lambda path: row_with(path, 2, model=None, item_id=None),
            ["line 2", "'model' is missing"],
        ),
        (
            "scores.jsonl",
            lambda path: row_with(path, 4, token_ids="x"),
            ["line 4", "'token_ids' must be a list"],
        ),
        ("scores.jsonl", folder_at, ["Cannot read the row file"]),
    ],
)
def test_a_damaged_run_folder_is_one_sentence_with_file_and_line(
    name: str, spoil: Callable[[Path], object], parts: list[str], done: Shell
) -> None:
    path = done.path(name)
    whole, entry = path.read_bytes(), done.path("run.json").read_bytes()
    spoil(path)
    done("probe", "--conditions", "pre,neut").sentence(name, *parts)
    if path.is_dir():
        path.rmdir()
    path.write_bytes(whole)
    done.path("run.json").write_bytes(entry)  # the try is in it as a resumption


def test_all_faults_of_an_item_file_are_told_at_once(done: Shell) -> None:
    broken = done.tmp / "broken.jsonl"
    first, second = item_lines(2, done.tmp)
    broken.write_text("\n".join([first.replace('"goal"', '"gaol"'), second[:90]]))
    said = done("probe", "--items", broken)
    assert said.code == 2 and not said.out
    assert said.err[0] == f"backfire probe: The item file '{broken}' has 3 faults:"
    assert [line.split(":")[0].strip() for line in said.err[1:]] == ["line 1 (item 'garden-0')"] * 2 + [
        "line 2"
    ]
