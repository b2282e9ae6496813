"""A run folder loses no row and doubles no row, whatever happens to the process or the disk."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.run import run_folder as records
from experiments.run.run_folder import RunFolder, config_hash, read_run
from mech.errors import InputError
from probes.effects import attribution, dose
from probes.effects import direct as direct_shares
from probes.effects import shares as effects
from probes.measures import measures
from probes.stats import layout

ROOT = Path(__file__).resolve().parent.parent.parent


def _open(
    path: Path, study: str = "probe", clock: Callable[[], str] = lambda: "noon", **config: Any
) -> RunFolder:
    given = {
        key: config.pop(key)
        for key in ("sha256", "tokenizer_sha256", "chat_template_sha256")
        if key in config
    }
    provenance = {"model": {"sha256": "aa", **given}}
    return RunFolder.open(path, study, {"seed": 0, **config}, provenance, "backfire probe", clock=clock)


def _row(row_id: str, **columns: Any) -> dict[str, Any]:
    return {"id": row_id, "value": 1.5, **columns}


def _script(body: str, *args: object) -> list[str]:
    """A process of its own that opens the folder named first."""
    head = (
        "import sys; from experiments.run.run_folder import RunFolder\n"
        "run = RunFolder.open(sys.argv[1], 'probe', {'seed': 0}, {'model': {'sha256': 'aa'}}, 'c')\n"
    )
    return [sys.executable, "-c", head + body, *map(str, args)]


# --- claiming


def test_a_new_folder_says_what_it_is(tmp_path: Path) -> None:
    with _open(tmp_path / "a" / "run", clock=iter(["09:00", "10:00"]).__next__, k=[4, 8]) as run:
        entry = read_run(run.path)["studies"]["probe"]
        assert (entry["start"], entry["end"], entry["done"]) == ("09:00", None, False)
        assert entry["config"] == {"seed": 0, "k": [4, 8]}
        assert entry["config_hash"] == config_hash({"k": (4, 8), "seed": 0})
        run.finish({"forwards": 3})
    record = read_run(tmp_path / "a" / "run")
    assert record["schema"] == records.SCHEMA_VERSION
    entry = record["studies"]["probe"]
    assert (entry["end"], entry["done"], entry["extra"]) == ("10:00", True, {"forwards": 3})


def test_studies_share_a_folder_and_keep_their_own_entries(tmp_path: Path) -> None:
    with _open(tmp_path, limit=10) as run:
        run.append("scores", _score_row("a"))
        run.finish()
    with _open(tmp_path, study="heads", tokens=50) as run:
        assert run.done_ids("scores") == {"a"}
    studies = read_run(tmp_path)["studies"]
    assert studies["probe"]["done"] and not studies["heads"]["done"]
    assert studies["heads"]["config"] == {"seed": 0, "tokens": 50}


def test_resuming_under_other_settings_is_refused_by_their_names(tmp_path: Path) -> None:
    _open(tmp_path, limit=10, model={"dtype": "float32", "device": "cpu"}).close()
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(
        InputError, match=r"limit \(10 there, 20 here\), model.dtype \(float32 there"
    ) as caught:
        _open(tmp_path, limit=20, model={"dtype": "bfloat16", "device": "cpu"})
    assert "device" not in str(caught.value) and "seed" not in str(caught.value)
    assert (tmp_path / "run.json").read_bytes() == before
    _open(tmp_path, model={"device": "cpu", "dtype": "float32"}, limit=10).close()


def test_a_setting_that_is_new_or_gone_is_named(tmp_path: Path) -> None:
    _open(tmp_path, old=1).close()
    with pytest.raises(InputError, match=r"new \(absent there, 2 here\), old \(1 there, absent here\)"):
        _open(tmp_path, new=2)


def test_another_model_in_the_same_folder_is_refused_for_every_study(tmp_path: Path) -> None:
    _open(tmp_path, sha256="aa").close()
    for study in ("probe", "heads"):
        with pytest.raises(InputError, match="other weights"):
            _open(tmp_path, study=study, sha256="bb")


def test_another_tokenizer_in_the_same_folder_is_refused_for_every_study(tmp_path: Path) -> None:
    """The same weights read other ids: as after a conversion that read digits wrongly."""
    _open(tmp_path, tokenizer_sha256="aa").close()
    for study in ("probe", "heads"):
        with pytest.raises(InputError, match="another tokenizer"):
            _open(tmp_path, study=study, tokenizer_sha256="bb")


def test_another_chat_template_in_the_same_folder_is_refused_for_every_study(tmp_path: Path) -> None:
    _open(tmp_path, chat_template_sha256="aa").close()
    for study in ("probe", "heads"):
        with pytest.raises(InputError, match="another chat template"):
            _open(tmp_path, study=study, chat_template_sha256="bb")


def test_a_resume_is_recorded_with_its_own_provenance(tmp_path: Path) -> None:
    _open(tmp_path).close()
    _open(tmp_path, clock=lambda: "midnight").close()
    entry = read_run(tmp_path)["studies"]["probe"]
    assert entry["start"] == "noon"
    assert [resume["start"] for resume in entry["resumes"]] == ["midnight"]


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not a run folder"):
        _open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_and_one_whose_first_process_died_at_once_can_be_claimed(tmp_path: Path) -> None:
    for left_over in ([], [".lock"], [".lock", ".run.json.tmp"]):
        folder = tmp_path / str(len(left_over))
        folder.mkdir()
        for name in left_over:
            (folder / name).touch()
        _open(folder).close()
        assert read_run(folder)["studies"]["probe"]["start"] == "noon"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99, "studies": {}}'])
def test_a_run_json_nobody_can_read_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError):
        _open(tmp_path)
    assert (tmp_path / "run.json").read_text() == text
    (tmp_path / "run.json").unlink()
    _open(tmp_path).close()  # the refusal gave the claim back


def test_two_writers_at_once_are_refused_and_kill_9_frees_the_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        _script("print('held', flush=True); sys.stdin.read()", tmp_path),
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another run"):
            _open(tmp_path)
        holder.kill()
        holder.wait()
    with _open(tmp_path) as run, pytest.raises(InputError, match="another run"):
        _open(run.path, study="heads")


# --- rows


def _score_row(row_id: str, **columns: Any) -> dict[str, Any]:
    numbers = {"logprob": -1.5, "n_tokens": 3, "is_greedy": False}
    return {**dict.fromkeys(records.ROWS["scores"], "x"), **numbers, "id": row_id, **columns}


def test_rows_come_back_exactly(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(200) * 10.0 ** np.arange(-100, 100)
    written = [
        _row(f"r{i}", value=float(x), profile=[float(x), None], note="é\u2028\n")
        for i, x in enumerate(numbers)
    ]
    with _open(tmp_path) as run:
        run.append_all("any", written[:100])
        for row in written[100:]:
            run.append("any", row)
        assert run.rows("any").to_dict("records") == written
    with _open(tmp_path) as run:
        assert run.rows("any").to_dict("records") == written
        assert run.done_ids("any") == {row["id"] for row in written}
        assert run.rows("nothing").empty and run.done_ids("nothing") == set()


def test_a_row_exists_once(tmp_path: Path) -> None:
    with _open(tmp_path) as run:
        run.append("any", _row("a"))
        for rows in ([_row("a")], [_row("b"), _row("b")], [_row("c"), _row("a")]):
            with pytest.raises(InputError, match="already"):
                run.append_all("any", rows)
    with _open(tmp_path) as run:
        with pytest.raises(InputError, match="already"):
            run.append("any", _row("a"))
        assert run.done_ids("any") == {"a"}


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, np.float32("nan"), [0.0, math.nan], {"x": math.inf}]
)
def test_a_number_that_is_not_finite_is_refused_by_name(tmp_path: Path, bad: Any) -> None:
    with _open(tmp_path) as run:
        with pytest.raises(InputError, match=r"Row 'a' .* at 'logprob"):
            run.append("any", _row("a", logprob=bad))
        run.append("any", _row("a", logprob=None))
        assert len(run.rows("any")) == 1


def test_numpy_values_are_written_as_numbers(tmp_path: Path) -> None:
    with _open(tmp_path) as run:
        row = _row("a", n=np.int64(3), ok=np.bool_(True), x=np.float32(0.5), tokens=np.arange(2))
        run.append("any", row)
    text = (tmp_path / "any.jsonl").read_text()
    assert json.loads(text) == {"id": "a", "value": 1.5, "n": 3, "ok": True, "x": 0.5, "tokens": [0, 1]}


def test_a_score_row_without_a_column_of_the_schema_is_refused(tmp_path: Path) -> None:
    row = _score_row("a")
    del row["n_tokens"]
    with _open(tmp_path) as run:
        with pytest.raises(InputError, match="lacks n_tokens"):
            run.append("scores", row)
        for bad in ({}, {"id": ""}, {"id": 3}):
            with pytest.raises(InputError, match="no id"):
                run.append("any", bad)
        assert not (tmp_path / "scores.jsonl").exists()


@pytest.mark.parametrize(
    "torn", [b'{"id": "c", "val', b'{"id": "c", "value": 1.5}', b"\0\0\0\n", b'{"id": "c"\n', b"\n"]
)
def test_a_torn_tail_is_cut_off_and_the_row_done_again(tmp_path: Path, torn: bytes) -> None:
    with _open(tmp_path) as run:
        run.append_all("any", [_row("a"), _row("b")])
    whole = (tmp_path / "any.jsonl").read_bytes()
    with open(tmp_path / "any.jsonl", "ab") as file:
        file.write(torn)
    with _open(tmp_path) as run:
        assert run.done_ids("any") == {"a", "b"}
        assert (tmp_path / "any.jsonl").read_bytes() == whole
        run.append("any", _row("c"))
        assert run.rows("any")["id"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("bad", ['{"id": "b"', "[1]", '{"value": 1}', '{"id": "b", "value": NaN}', ""])
def test_a_broken_line_in_the_middle_is_named_and_nothing_is_cut(tmp_path: Path, bad: str) -> None:
    _open(tmp_path).close()
    text = f'{{"id": "a"}}\n{bad}\n{{"id": "c"}}\n'
    (tmp_path / "any.jsonl").write_text(text)
    with _open(tmp_path) as run, pytest.raises(InputError, match=r"any.jsonl, line 2,"):
        run.done_ids("any")
    assert (tmp_path / "any.jsonl").read_text() == text


def test_only_one_line_is_ever_cut_off(tmp_path: Path) -> None:
    _open(tmp_path).close()
    text = '{"id": "a"}\n{"id": "b"\n{"id": "c", "val'
    (tmp_path / "any.jsonl").write_text(text)
    with _open(tmp_path) as run, pytest.raises(InputError, match="line 2,"):
        run.done_ids("any")
    assert (tmp_path / "any.jsonl").read_text() == text


def test_a_row_that_stands_twice_in_a_file_is_named(tmp_path: Path) -> None:
    _open(tmp_path).close()
    (tmp_path / "any.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n{"id": "a"}\n')
    with _open(tmp_path) as run, pytest.raises(InputError, match="line 3, repeats the row 'a'"):
        run.rows("any")


WRITER = """
done = run.done_ids('any')
for i in range(100000):
    if f'r{i}' not in done:
        run.append('any', {'id': f'r{i}', 'text': 'x' * (3000 if i % 2 else 3)})
        print(f'r{i}', flush=True)
"""


def test_kill_9_loses_no_row_and_doubles_no_row(tmp_path: Path) -> None:
    run_folder, acknowledged = tmp_path / "run", tmp_path / "acknowledged"
    path = run_folder / "any.jsonl"
    for _ in range(3):
        before = path.stat().st_size if path.exists() else 0
        with open(acknowledged, "ab") as stdout:
            process = subprocess.Popen(_script(WRITER, run_folder), cwd=ROOT, stdout=stdout)
        deadline = time.monotonic() + 60
        while (path.stat().st_size if path.exists() else 0) < before + 50_000 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with open(path, "ab") as file:  # the kernel takes a row whole, so the tear is made by hand
            file.write(b'{"id": "r99999", "text": "xx')
        with _open(run_folder) as run:
            ids = run.rows("any")["id"].tolist()
        assert ids == [f"r{i}" for i in range(len(ids))]
        written = acknowledged.read_text().split()
        assert len(written) > 0 and set(written) <= set(ids)


FILL = """
import resource
from mech.errors import InputError
run.append_all('any', [{'id': 'kept', 'text': 'x' * 1000}])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for _ in range(2):
    try:
        run.append('any', {'id': 'lost', 'text': 'y' * 1500})
    except InputError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
run.append('any', {'id': 'after'})
"""


def test_a_full_disk_is_one_sentence_and_keeps_the_rows_so_far(tmp_path: Path) -> None:
    result = subprocess.run(_script(FILL, tmp_path), cwd=ROOT, capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("any.jsonl" in line and "rows so far are kept" in line for line in lines)
    with _open(tmp_path) as run:
        assert run.done_ids("any") == {"kept", "after"}


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "run", tmp_path / "file"):
        with pytest.raises(InputError, match="Cannot write"):
            _open(path)


# --- tables


def _table(values: list[float | None], name: str = "measures") -> pd.DataFrame:
    frame = pd.DataFrame({"value": pd.Series(values, dtype=float)})
    for column in ("model", "env", "item_id", "task_id", "measure"):
        frame[column] = "none"
    return frame[list(records.TABLES[name])]


def test_a_table_reads_back_exactly_and_equal_tables_are_equal_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = [*(rng.standard_normal(500) * 10.0 ** rng.integers(-300, 300, 500)), 0.1, 1e22, -0.0, None]
    with _open(tmp_path) as run:
        path = run.write_table("measures", _table(values))
        first = path.read_bytes()
        back = run.read_table("measures")
        np.testing.assert_array_equal(back["value"].to_numpy(), np.array(values, dtype=float))
        assert back["model"].eq("none").all()
        assert run.write_table("measures", back).read_bytes() == first
    assert b"\r" not in first and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "\r", " a", "é—\u2028"])
def test_text_of_any_kind_is_read_back(tmp_path: Path, text: str) -> None:
    frame = _table([1.0, 2.0])
    frame["item_id"] = [text, "plain"]
    with _open(tmp_path) as run:
        run.write_table("measures", frame)
        assert list(run.read_table("measures")["item_id"]) == [text, "plain"]


def test_a_table_of_another_shape_or_with_an_infinite_number_is_refused(tmp_path: Path) -> None:
    with _open(tmp_path) as run:
        kept = run.write_table("measures", _table([1.0])).read_bytes()
        with pytest.raises(InputError, match="lacks the columns env, item_id"):
            run.write_table("measures", _table([1.0])[["value", "model"]])
        with pytest.raises(InputError, match="infinite"):
            run.write_table("measures", _table([math.inf]))
        assert (tmp_path / "measures.csv").read_bytes() == kept
        with pytest.raises(InputError, match=r"heads.csv does not exist"):
            run.read_table("heads")


def test_a_row_file_of_an_old_name_is_refused_with_the_new_one(tmp_path: Path) -> None:
    with _open(tmp_path):
        pass
    (tmp_path / "patches.jsonl").touch()
    with pytest.raises(InputError, match=r"patches\.jsonl has another name now: rename it to patch\.jsonl"):
        _open(tmp_path)


def test_columns_come_in_the_order_of_the_schema_and_a_frame_without_rows_needs_none(tmp_path: Path) -> None:
    with _open(tmp_path) as run:
        first = run.write_table("measures", _table([1.0])).read_bytes()
        turned = _table([1.0]).iloc[:, ::-1].assign(more=1)
        run.write_table("measures", turned)
        assert tuple(run.read_table("measures").columns) == (*records.TABLES["measures"], "more")
        assert run.write_table("measures", turned.drop(columns="more")).read_bytes() == first
        run.write_table("measures", pd.DataFrame())
        assert (tmp_path / "measures.csv").read_text() == ",".join(records.TABLES["measures"]) + "\n"


def test_head_tables_may_add_score_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"layer": [0, 1], "head": [2, 3], "prefix_matching": [0.1, 0.9]})
    with _open(tmp_path) as run:
        run.write_table("heads", frame)
        pd.testing.assert_frame_equal(run.read_table("heads"), frame)


def test_the_frames_of_probes_have_the_columns_of_the_schema() -> None:
    assert measures.COLUMNS == records.TABLES["measures"]
    assert (*layout.KEYS, "condition", "candidate", *layout.VALUES) == records.ROWS["scores"][1:]
    assert ("metric", *attribution.ATTRIBUTION) == records.TABLES["attribute"]
    assert ("metric", *attribution.SCREENING) == records.TABLES["attribute_screening"]
    assert ("metric", *attribution.NEGATIVES) == records.TABLES["attribute_false_negatives"]
    assert ("metric", *attribution.MISSES) == records.TABLES["attribute_screen_misses"]
    assert ("metric", *effects.EFFECTS) == records.TABLES["patch_effects"][: len(effects.EFFECTS) + 1]
    assert ("metric", *direct_shares.DIRECT, "family_size", "from", "to") == records.TABLES["direct"]
    assert ("metric", "site", "direction", "layer", *effects.SHARE_CELLS, "from", "to") == records.TABLES[
        "layers"
    ]
    assert ("how", "metric", *dose.ABLATION) == records.TABLES["ablate"]
