"""Workers on a Ray cluster of two raylets on this machine: the rows of a run of one process, whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.test_executors import troubled
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture
from tests.worker_study import MAY_LOSE_ITS_RAYLET

ROOT = Path(__file__).resolve().parent.parent.parent
STORE = 80 * 2**20
CODE = """
import json, sys
from experiments.run.flags import parse
from tests.worker_study import STUDY
print(json.dumps(STUDY.run(parse(STUDY, sys.argv[1:]).config).text))
"""


@pytest.fixture(autouse=True)
def needs_ray() -> None:
    if find_spec("ray") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("ray is missing: pip install 'backfire[ray]'")
        pytest.skip("ray is not installed: pip install 'backfire[ray]'")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two raylets with a CPU each; the second one may be killed."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray says of its own future
        from ray.cluster_utils import Cluster

        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False},
        )
        made.add_node(num_cpus=1, object_store_memory=STORE, env_vars={MAY_LOSE_ITS_RAYLET: "1"})
        yield made
        made.shutdown()


def on_ray(shell: Shell, address: str) -> subprocess.CompletedProcess[str]:
    """The study of `tests.worker_study` with two workers on the cluster, as a command of its own."""
    words = ["--model", shell.model, "--items", shell.tmp / "eight.jsonl", "--trouble", shell.tmp / "trouble"]
    words += ["--out", shell.tmp / "run", "--quiet", "--executor", "ray", "--address", address]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, *map(str, words), "--workers", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )


def same_as_whole(shell: Shell) -> None:
    for name in ("troubled.jsonl", "troubled.csv"):
        assert shell.path(name).read_bytes() == shell.path(name, "whole").read_bytes()


def test_two_raylets_give_the_rows_of_one_process_though_a_worker_is_killed(
    shell: Shell, cluster: Any
) -> None:
    troubled(shell, out="whole")
    (shell.tmp / "trouble" / "bed-2.die-once").touch()
    said = on_ray(shell, cluster.address)
    assert said.returncode == 0, said.stderr
    same_as_whole(shell)
    assert "A worker was lost" in said.stderr and "bed-2 (bed-2|pre, …) is measured again" in said.stderr
    extra = shell.about("troubled")["extra"]
    assert (extra["executor"], extra["workers"], extra["workers_lost"]) == ("ray", 2, 1)


def test_a_killed_raylet_loses_no_row_and_doubles_none_and_a_failing_unit_is_named(
    shell: Shell, cluster: Any
) -> None:
    troubled(shell, out="whole")
    for number in range(8):
        (shell.tmp / "trouble" / f"bed-{number}.raylet-once").touch()
    (shell.tmp / "trouble" / "bed-6.raise").touch()
    said = on_ray(shell, cluster.address)
    assert said.returncode == 0, said.stderr
    assert len(list((shell.tmp / "trouble").glob("*.raylet-once"))) == 7  # one of them had its raylet killed
    text = json.loads(said.stdout.splitlines()[-1])  # Ray says on stdout, too, that a raylet is gone
    assert text.startswith("not done: 1 of 8 units failed:\n  bed-6 (bed-6|pre, …): ValueError: bed-6 cannot")
    for file in (shell.tmp / "trouble").iterdir():
        file.unlink()
    assert troubled(shell).ok
    same_as_whole(shell)


def test_without_a_cluster_the_address_is_named(shell: Shell) -> None:
    troubled(shell, out="whole")
    said = on_ray(shell, "127.0.0.1:1")
    assert "InputError: There is no Ray cluster at '127.0.0.1:1'" in said.stderr
