"""Every file that is read, damaged in every way we know: it reads as something valid, or one sentence names it.

A reader is a valid file and a function that reads it as far as a study would. A damaged copy must read (a changed text
is still a text), or be refused by InputError (FigureError in the figures) whose sentence names the file. Where a
checksum is kept (`exact`), a copy that reads must give the very same result.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from envs.coderepair.problems import BUNDLED, load_problems
from envs.errors import InputError as EnvironmentInputError
from experiments.heads.ranking import ranking
from experiments.measure.compare import read_summary
from experiments.measure.scaling import is_done
from experiments.mechanism.ablation_tables import long_off_target, long_values
from experiments.mechanism.overlap import patched_entry, require_same
from experiments.mechanism.patch_tables import z_effects
from experiments.run import item_pools
from experiments.run.durable import naming, parse_rows
from experiments.run.run_folder import RunFolder, read_run, recorded
from experiments.run.session import _read_ids
from figures.ablate import dose_numbers
from figures.ablate_off_target import off_target_numbers
from figures.attribute import attribution_numbers
from figures.breakdown import family_numbers
from figures.circuit import circuit_numbers
from figures.direct import direct_numbers
from figures.layers import layer_numbers
from figures.load import FigureError, head_shares, of_metric, read_heads, selected_heads
from figures.manipulations import manipulation_numbers
from figures.patch_sites import site_numbers
from figures.path import path_numbers
from figures.predict import calibration_numbers
from figures.profiles import profile_numbers
from figures.rollout import rollout_numbers
from figures.rollout_survival import survival_numbers
from figures.scaling import scaling_numbers
from figures.summary import split_numbers
from figures.summary_repeats import repeat_numbers
from mech.engine.store import Store
from mech.errors import InputError
from mech.head_scores.head_lists import read_head_list
from mech.load import load_model
from mech.models.checkpoints import weight_files
from mech.models.model import Model
from probes.items.item import dump_items, load_items
from probes.measures.breakdowns import item_attributes
from probes.measures.measures import measure
from probes.measures.profiles import profiles
from probes.prompts.conditions import CONDITIONS, condition_messages, lacking
from probes.prompts.wording import DEFAULT_WORDING, load_wording
from tests.figure_tables import read_table
from tests.mech_cases import FolderFactory
from tests.study_cases import ITEMS, loaded_once
from tests.synthetic_run import write_run

REFUSALS = (InputError, EnvironmentInputError, FigureError)
SEED = 20260808
RAW = "<raw>"  # opens a string whose rest stands in the JSON text as it is
N_PLACES, N_FLIPS, N_CUTS = 6, 24, 10
VALUES: tuple[Any, ...] = (
    *(None, True, [], [1, "x"], {}, {"x": None}, "", "x", 0, -3, 2.5, 10**30, 10**400),
    *(
        f"{RAW}NaN",
        f"{RAW}-Infinity",
        f"{RAW}1e999",
        f"{RAW}{'9' * 5000}",
        f'{RAW}"\\ud83d"',
        "é",
    ),
    f"{RAW}{'[' * 3000}{']' * 3000}",
)
CELLS = ("", "x", "nan", "inf", "1e999", "-1", "true", "0.5", "9" * 40, '"', "a,b", "\x00")


@dataclass(frozen=True)
class Reader:
    """How a valid file is made in a folder, and how it is read; `exact`: what reads must be the same."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    exact: bool = False


def counted(text: str) -> int:
    return len(text.split())


def read_items_far(path: Path) -> Any:
    items = load_items(path)
    for one in items:
        for name in CONDITIONS:
            if lacking(one, name) is None:
                condition_messages(one, name, WORDING, counted)
        json.dumps({"id": one.item_id, "step": one.step_index}).encode()
    return items


def make_items(folder: Path) -> Path:
    dump_items(ITEMS, folder / "items.jsonl")
    return folder / "items.jsonl"


def make_wording(folder: Path) -> Path:
    return Path(shutil.copy(DEFAULT_WORDING, folder / "wording.json"))


def read_wording_far(path: Path) -> Any:
    wording = load_wording(path)
    (
        wording.abstract("no_such_tool", "cat"),
        wording.abstract_forbids("x", None),
        wording.pad_template.format(neutral="a", filler="b"),
    )
    return wording.sha256


def make_text(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return make


FROZEN = json.dumps({"by": "x", "k": 2, "heads": [{"layer": 0, "head": h, "score": 0.5} for h in (1, 2)]})


def make_problems(folder: Path) -> Path:
    lines = BUNDLED.read_text().splitlines()[:3]
    (folder / "problems.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "problems.jsonl"


def make_run(folder: Path) -> Path:
    for study in ("patch", "decomposition", "rollout"):
        model = {"name": "m", "sha256": "ab" * 32, "dtype": "float32", "device": "cpu", "n_parameters": 7}
        about = {"model": model, "wording_sha256": "cd", "tasks": ["t"], "versions": {"torch": "2"}}
        config = {"seed": 0, "env": "e", "tasks": 2, "items": None, "problems": None, "wording": None}
        with RunFolder.open(folder, study, config, about, "c", clock=lambda: "noon") as run:
            run.finish({"n": 1})
    return folder / "run.json"


def read_run_far(path: Path) -> Any:
    folder = path.parent
    record = read_run(folder)
    entry = record["studies"].get("rollout", {})
    for place, kind in (("config.tasks", int), ("config.env", str), ("provenance.tasks", list)):
        recorded(folder, entry, place, kind)
    one = patched_entry(folder, ("pre", "neut"))
    require_same(one, one)
    is_done(folder, {"seed": 0})
    recorded(folder, record["studies"].get("decomposition", {}), "provenance.model.n_parameters", int)
    about = {"model": {"sha256": "ab" * 32, "dtype": "float32"}}
    with RunFolder.open(folder, "heads", {"k": 1}, about, "c", clock=lambda: "noon") as run:
        run.finish()
    return record["studies"]["patch"]["config"]


def score_rows() -> list[dict[str, Any]]:
    rows = []
    for item in ("a", "b"):
        for place, condition in enumerate(("pre", "neut", "fail", "succ")):
            for candidate in ("failed", "gold"):
                values = [-1.0 - place, -0.5, -0.25]
                about = {"model": "m", "env": "e", "item_id": item, "task_id": f"t-{item}"}
                ids = [5, 6, 7] if candidate == "failed" else [5, 8, 7]
                row = {**about, "condition": condition, "candidate": candidate, "logprob": sum(values)}
                row |= {"n_tokens": 3, "is_greedy": False, "end_logprob": -0.5, "end_is_argmax": True}
                row |= {"token_ids": ids, "token_logprobs": values, "notes": [], "length_mismatch": None}
                row |= {"operator": "o", "error_type": "y", "template": "z", "step_index": 0}
                row |= {"quotes_source": None, "prompt_sha256": "ff", "intervention": "clean"}
                rows.append({"id": f"{item}|{condition}|{candidate}", **row})
    return rows


def make_rows(name: str, rows: list[dict[str, Any]]) -> Callable[[Path], Path]:
    return make_text(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def stream(name: str) -> np.random.Generator:
    return np.random.default_rng(len(name))


def read_scores_far(path: Path) -> Any:
    rows = pd.DataFrame(parse_rows(path)[0])
    if rows.empty or sum(path.read_bytes()) % 12:  # one of twelve further on: it takes time
        return len(rows)
    with naming(path):
        measure(rows)
        item_attributes(rows)
        profiles(rows, stream, n_draws=1)
    return len(rows)


PATCHES = [
    {
        **{
            "id": f"{item}|z|candidate|pre>neut|noise",
            "item_id": item,
            "task_id": item,
            "direction": "noise",
        },
        **{"site": "z", "at": "candidate", "from": "pre", "to": "neut", "screen": "all"},
        **{"references": "gold", "n_tokens": {"failed": 4, "gold": 5, "diverging": 2}},
        **{"delta": {"failed": 2.0, "gold": 1.0, "diverging": 1.5}, "members": {"top1": "L0H0"}},
        "heads": {name: {"L0H0": 0.5, "L0H1": 0.25} for name in ("failed", "gold", "diverging")},
        "sets": {name: {"top1": 0.5} for name in ("failed", "gold", "diverging")},
    }
    for item in ("a", "b", "c")
]
ABLATIONS = [
    {
        **{
            "id": f"none|none|{item}",
            "item_id": item,
            "task_id": item,
            "set": "none",
            "kind": "none",
            "k": 0,
        },
        **{"how": "none", "from": "pre", "to": "neut", "references": "none"},
        **{"scores": {"logprob": {"pre": [-2.0], "neut": [-0.5], "fail": [0.0]}}},
        **{"losses": {"prose_loss": [1.0, 2.0]}},
    }
    for item in ("a", "prose")
]


def read_ablations_far(path: Path) -> Any:
    rows = pd.DataFrame(parse_rows(path)[0])
    return len(long_values(rows)) + len(long_off_target(rows)) if len(rows) == 2 else None


MODEL: dict[str, Model] = {}  # the model that heads are ranked for


@pytest.fixture(autouse=True)
def tiny(tiny_folder: FolderFactory) -> None:
    MODEL["tiny"] = loaded_once(str(tiny_folder("llama")))


def make_heads_csv(folder: Path) -> Path:
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    frame = pd.DataFrame(heads, columns=["layer", "head"]).assign(prefix_matching=np.linspace(0, 1, 12))
    frame.assign(selected=[True, False] * 6).to_csv(folder / "heads.csv", index=False)
    return folder / "heads.csv"


def read_heads_far(path: Path) -> Any:
    return ranking(MODEL["tiny"], path.parent, 0)[0].to_dict("list")


IDENTITY = {"model_sha256": "ab" * 32, "dtype": "torch.float32"}


def make_store(folder: Path) -> Path:
    store = Store(folder, IDENTITY)
    store.put("run", {"tokens": "t"}, {"z": torch.arange(12.0).reshape(3, 4), "n": torch.tensor([True])})
    return store.path("run", {"tokens": "t"})


def read_store(path: Path) -> Any:
    found = Store(path.parent.parent, IDENTITY).get("run", {"tokens": "t"})
    assert found is not None
    return {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()}


def make_pool(folder: Path) -> Path:
    item_pools.write_pool(ITEMS, folder / "coderepair-key.jsonl")
    return folder / "coderepair-key.jsonl"


WORDING = load_wording()
READERS: dict[str, Reader] = {
    "items": Reader(make_items, read_items_far),
    "wording": Reader(make_wording, read_wording_far),
    "ids": Reader(make_text("ids.json", '["a", "b"]'), _read_ids),
    "problems": Reader(make_problems, load_problems),
    "heads.json": Reader(make_text("heads.json", FROZEN), lambda path: read_head_list(path, 3, 4)),
    "head list": Reader(
        make_text("list.json", json.dumps(json.loads(FROZEN)["heads"])),
        lambda path: read_head_list(path, 3, 4),
    ),
    "head map": Reader(
        make_text("map.json", '{"0-1": [0.5, 1], "1-2": 0.25}'), lambda path: read_head_list(path, 3, 4)
    ),
    "run.json": Reader(make_run, read_run_far),
    "scores": Reader(make_rows("scores", score_rows()), read_scores_far),
    "patch": Reader(make_rows("patch", PATCHES), lambda path: len(z_effects(path.parent, "pre", "neut"))),
    "ablate": Reader(make_rows("ablate", ABLATIONS), read_ablations_far),
    "weight index": Reader(
        make_text("model.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "one.safetensors"}}'),
        lambda path: [file.name for file in index_of(path)],
    ),
    "kept activations": Reader(make_store, read_store, exact=True),
    "pool of items": Reader(make_pool, item_pools.read_back, exact=True),
    "heads.csv": Reader(make_heads_csv, read_heads_far),
}


def index_of(path: Path) -> list[Path]:
    (path.parent / "config.json").write_text("{}")
    (path.parent / "one.safetensors").touch()
    return weight_files(path.parent)


# --- damage


def spoilt_bytes(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The file cut off, with bits turned over, empty, or something else altogether."""
    yield b""
    yield b"\x00" * len(data)
    yield bytes(rng.randrange(256) for _ in range(200))
    yield data + bytes(rng.randrange(256) for _ in range(20))
    yield data.decode("utf-8", "replace").encode("utf-16")
    yield b"\xff" + data
    for _ in range(N_CUTS):
        yield data[: rng.randrange(len(data))]
    for _ in range(N_FLIPS):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        yield from places(one, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


def without(value: Any, at: tuple[Any, ...]) -> Any:
    if len(at) > 1:
        return replaced(value, at[:1], without(value[at[0]], at[1:]))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    del copy[at[0]]
    return copy


def text_of(value: Any) -> str:
    """JSON, with what RAW opens put in as it is."""
    if isinstance(value, str) and value.startswith(RAW):
        return value.removeprefix(RAW)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {text_of(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return json.dumps(value)


def spoilt_json(text: str, rng: random.Random) -> Iterator[str]:
    """Every value as another type, every key gone or there twice."""
    value = json.loads(text)
    every = list(places(value))
    for at in every if len(every) <= N_PLACES else rng.sample(every, N_PLACES):
        for new in VALUES:
            yield text_of(replaced(value, at, new))
        if at:
            yield text_of(without(value, at))
            if isinstance(at[-1], str):
                pair = f"{json.dumps(at[-1])}: "
                yield text.replace(pair, f"{pair}null, {pair}", 1)


def spoilt_csv(text: str, rng: random.Random) -> Iterator[str]:
    """Cells of another kind, a column gone, a row twice or torn."""
    head, *rows = text.splitlines()
    columns = head.split(",")
    for index in range(len(columns)):
        yield "\n".join(
            ",".join(cells[:index] + cells[index + 1 :]) for cells in (x.split(",") for x in (head, *rows))
        )
        for cell in CELLS:
            at = rng.randrange(len(rows))
            cells = rows[at].split(",")
            cells[index] = cell
            yield "\n".join([head, *rows[:at], ",".join(cells), *rows[at + 1 :]])
    yield "\n".join([head, *rows, rows[0]])
    yield "\n".join([head, *rows, rows[0][: len(rows[0]) // 2]])
    yield head
    yield "\n".join(rows)


def damaged(path: Path, rng: random.Random) -> Iterator[bytes]:
    data = path.read_bytes()
    yield from spoilt_bytes(data, rng)
    if path.suffix == ".json":
        yield from (text.encode("utf-8", "surrogatepass") for text in spoilt_json(data.decode(), rng))
    if path.suffix == ".jsonl":
        lines = data.decode().splitlines()
        at = rng.randrange(len(lines) - 1)
        for line in spoilt_json(lines[at], rng):
            yield "\n".join([*lines[:at], line, *lines[at + 1 :], ""]).encode("utf-8", "surrogatepass")
    if path.suffix == ".csv":
        yield from (text.encode() for text in spoilt_csv(data.decode(), rng))


def check(path: Path, read: Callable[[Path], Any], expected: Any, exact: bool) -> bool:
    """Whether the file reads; anything but a result or a sentence that names the file fails the test."""
    try:
        found = read(path)
    except REFUSALS as refusal:
        said = str(refusal)
        assert path.name in said or str(path.parent) in said, said
        assert len(said) < 6000 and said.encode(), said
        return False
    assert not exact or found == expected
    return True


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_refused_by_name_or_reads(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = reader.make(tmp_path)
    whole = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    expected = reader.read(path)
    refused = 0
    for data in damaged(path, random.Random(SEED)):
        for file, kept in whole.items():
            file.write_bytes(kept)
        path.write_bytes(data)
        try:
            refused += not check(path, reader.read, expected, reader.exact)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}\n{data[:2000]!r}") from error
    assert refused > 25
    for file, kept in whole.items():
        file.write_bytes(kept)
    assert reader.read(path) == expected


@pytest.mark.parametrize(
    "name", [name for name in READERS if name != "heads.csv"]
)  # without it heads are scored
def test_a_folder_in_a_files_place_and_a_file_that_may_not_be_read_are_refused(
    name: str, tmp_path: Path
) -> None:
    reader = READERS[name]
    path = reader.make(tmp_path)
    if os.geteuid():  # root reads everything
        path.chmod(0)
        assert not check(path, reader.read, None, True)
        path.chmod(0o644)
    path.unlink()
    path.mkdir()
    (path / "inner").touch()
    assert not check(path, reader.read, None, True)


# --- tables


def tables_of(run: Path) -> dict[str, Callable[[], Any]]:
    """Table → what its figure computes of it."""

    def of(name: str) -> pd.DataFrame:
        table = read_table(run, name)
        of_metrics = ("patch_redundancy.csv", "direct.csv", "layers.csv", "path.csv", "attribute.csv")
        return of_metric(table, name, "logprob") if name in of_metrics else table

    return {
        "summary.csv": lambda: (
            split_numbers(of("summary.csv")),
            repeat_numbers(of("summary.csv")),
        ),
        "heads.csv": lambda: selected_heads(read_heads(run)),
        "patch.csv": lambda: head_shares(run),
        "patch_redundancy.csv": lambda: site_numbers(of("patch_redundancy.csv")),
        "direct.csv": lambda: direct_numbers(of("direct.csv")),
        "layers.csv": lambda: layer_numbers(of("layers.csv")),
        "path.csv": lambda: path_numbers(of("path.csv")),
        "attribute.csv": lambda: attribution_numbers(of("attribute.csv"), "z", "noise"),
        "ablate.csv": lambda: dose_numbers(of("ablate.csv"), "copy"),
        "ablate_off_target.csv": lambda: off_target_numbers(of("ablate_off_target.csv")),
        "circuit_curve.csv": lambda: circuit_numbers(of("circuit_curve.csv"), of("circuit.csv")),
        "circuit.csv": lambda: circuit_numbers(of("circuit_curve.csv"), of("circuit.csv")),
        "breakdown.csv": lambda: family_numbers(of("breakdown.csv"), "toolshed"),
        "manipulations.csv": lambda: manipulation_numbers(of("manipulations.csv")),
        "profiles.csv": lambda: profile_numbers(of("profiles.csv")),
        "scaling.csv": lambda: scaling_numbers(of("scaling.csv")),
        "rollout_rates.csv": lambda: rollout_numbers(of("rollout_rates.csv")),
        "rollout_survival.csv": lambda: survival_numbers(of("rollout_survival.csv")),
        "predict_calibration.csv": lambda: calibration_numbers(
            of("predict_calibration.csv"), of("predict.csv")
        ),
        "predict.csv": lambda: calibration_numbers(of("predict_calibration.csv"), of("predict.csv")),
        **{
            name: partial(of, name) for name in ("patch.csv", "joint.csv", "ablate_controls.csv", "agree.csv")
        },
    }


@pytest.fixture(scope="module")
def drawn_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("synthetic")
    write_run(run)
    return run


@pytest.mark.parametrize("name", tables_of(Path()))
def test_a_damaged_table_of_a_figure_is_refused_by_name_or_reads(name: str, drawn_run: Path) -> None:
    path = drawn_run / name
    whole = path.read_bytes()
    read = tables_of(drawn_run)[name]
    read()
    head, *rows = whole.decode().splitlines()
    path.write_text("\n".join([head, *rows[:400]]))  # the first are as good as all
    try:
        every, rng = list(damaged(path, random.Random(SEED))), random.Random(SEED)
        for data in rng.sample(every, min(len(every), 80)):
            path.write_bytes(data)
            try:
                check(path, lambda _: read(), None, False)
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error}\n{data[:1500]!r}") from error
    finally:
        path.write_bytes(whole)


def test_a_damaged_published_table_is_refused_by_name_or_reads(drawn_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    frame = read_table(drawn_run, "summary.csv").head(30)
    frame.assign(n_clusters=5).to_csv(path, index=False)
    for data in list(damaged(path, random.Random(SEED))):
        path.write_bytes(data)
        check(path, lambda one: read_summary(one), None, False)


# --- checkpoints

CHECKPOINT_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_damaged_checkpoint_file_is_refused_by_name_or_loads(
    name: str, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("llama"), folder)
    path = folder / name
    assert path.exists()
    rng = random.Random(SEED)
    every = [b"", b"[]", b"null", b"\xff\xfe", b"[" * 5000, *rng.sample(list(damaged(path, rng)), 5)]
    for data in every:
        path.write_bytes(data)
        try:
            check(path, lambda one: load_model(str(one.parent)).identity.sha256, None, False)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{data[:1500]!r}") from error
