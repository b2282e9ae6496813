"""Workers that are processes: one is killed, a run is interrupted, weights are one copy for all."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from experiments.run.session import mapped_weights, open_model
from experiments.run.study import ModelOptions
from mech.errors import InputError
from mech.load import load_model
from mech.models.model import Model
from tests.experiments.test_executors import troubled
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_killed_worker_loses_no_row_and_doubles_none(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    troubled(shell, out="whole")
    (shell.tmp / "trouble" / "bed-2.die-once").touch()
    said = troubled(shell, "--executor", "processes", "--workers", "2", "--threads", "1")
    assert said.ok
    for name in ("troubled.jsonl", "troubled.csv"):
        assert shell.path(name).read_bytes() == shell.path(name, "whole").read_bytes()
    assert "A worker was lost (signal 9): bed-2 (bed-2|pre, …) is measured again." in caplog.text
    extra = shell.about("troubled")["extra"]
    assert (extra["executor"], extra["workers"], extra["workers_lost"]) == ("processes", 2, 1)


RUN = "import sys; from experiments.run.flags import parse; from tests.worker_study import STUDY as s"


def test_an_interrupt_ends_the_workers_and_the_run_goes_on_from_there(shell: Shell) -> None:
    troubled(shell, out="whole")
    wait = shell.tmp / "trouble" / "bed-5.wait"
    wait.touch()
    words = ["--model", shell.model, "--items", shell.tmp / "eight.jsonl", "--trouble", shell.tmp / "trouble"]
    more = ["--out", shell.tmp / "run", "--executor", "processes", "--workers", "1", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{RUN}; s.run(parse(s, sys.argv[1:]).config)", *map(str, [*words, *more])],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    rows = shell.path("troubled.jsonl")
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if rows.exists() and rows.read_bytes().count(b"\n") == 10:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # the workers say nothing
    assert gone_within(process.pid, 30)
    wait.unlink()
    assert troubled(shell).ok
    assert rows.read_bytes() == shell.path("troubled.jsonl", "whole").read_bytes()


def gone_within(group: int, seconds: float) -> bool:
    """Whether every process of a group has ended by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def mapped_from(model: Model) -> set[str]:
    """The files that the parameters' memory is mapped from; empty text where it is of no file."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, name = re.match(r"(\w+)-(\w+)(?: +\S+){4} *(.*)", line).groups()
        spans.append((int(start, 16), int(end, 16), name))
    places = [tensor.data_ptr() for tensor in model.bridge.original_model.parameters()]
    return {name for place in places for start, end, name in spans if start <= place < end}


def test_mapped_weights_are_those_of_the_file_and_give_the_same_logits(tiny_folder: FolderFactory) -> None:
    options = ModelOptions(model=str(tiny_folder("llama")))
    own = open_model(options)
    with mapped_weights():
        shared = open_model(options)
    assert open_model(options).mapped == own.mapped == ()
    assert all("safetensors" not in name for name in mapped_from(own))
    if Path("/proc/self/maps").exists():
        assert {Path(name).name for name in mapped_from(shared)} == {"model.safetensors"}
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        assert torch.equal(own.bridge(ids), shared.bridge(ids))
    assert own.identity == shared.identity


def test_a_file_that_changes_under_mapped_weights_is_found(
    tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("llama"), folder)
    model = load_model(str(folder), mapped=True, cache_dir=tmp_path / "cache", check=False)
    model.require_unchanged()
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    with pytest.raises(InputError, match="has changed, and the weights"):
        model.require_unchanged()
    load_model(str(folder), cache_dir=tmp_path / "cache", check=False).require_unchanged()


def test_a_model_in_memory_is_not_mapped(tiny_folder: FolderFactory) -> None:
    model = load_model(str(tiny_folder("llama")), check=False)
    with pytest.raises(InputError, match="used as it is"):
        load_model(model.bridge, mapped=True)
