"""Named random streams, provenance and the progress bar."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.run import seeds
from experiments.run.progress import progress
from experiments.run.provenance import PACKAGES, git_state, provenance


def test_a_seed_is_the_upper_63_bits_of_the_hash() -> None:
    assert seeds.derive(7, "controls") == 4154400365964167359
    assert seeds.derive(7, "controls") == int(hashlib.sha256(b"7:controls").hexdigest()[:16], 16) >> 1
    assert all(0 <= seeds.derive(seed, "x") < 2**63 for seed in range(-20, 20))


def test_streams_are_what_they_were_when_the_package_was_written() -> None:
    assert seeds.stream(7, "controls").integers(1000, size=4).tolist() == [467, 932, 997, 998]
    assert seeds.py_stream(7, "controls").randrange(10**6) == 425782


def test_a_draw_from_one_stream_moves_no_other() -> None:
    alone = seeds.stream(1, "b").random(8)
    seeds.stream(1, "a").random(1000)
    np.testing.assert_array_equal(seeds.stream(1, "b").random(8), alone)


def test_every_name_and_every_seed_has_its_own_stream() -> None:
    pairs = [(seed, name) for seed in (0, 1, -1, 11) for name in ("", "a", "b", "1:a", "a:1")]
    assert len({seeds.derive(*pair) for pair in pairs}) == len(pairs)
    assert len({seeds.stream(*pair).random() for pair in pairs}) == len(pairs)
    assert len({seeds.py_stream(*pair).random() for pair in pairs}) == len(pairs)


def test_provenance_is_json_and_passes_the_model_through() -> None:
    record = json.loads(json.dumps(provenance({"name": "m", "sha256": "ab"})))
    assert record["model"] == {"name": "m", "sha256": "ab"}
    assert set(record["versions"]) == {"python", *PACKAGES}
    assert record["versions"]["numpy"] == np.__version__
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_threads_are_those_torch_computes_with() -> None:
    import torch

    assert provenance({})["threads"] == torch.get_num_threads()


def _git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_and_the_dirty_flag_are_those_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.delenv("GIT_INDEX_FILE", raising=False)
    monkeypatch.delenv("GIT_WORK_TREE", raising=False)
    assert git_state(tmp_path) == {"commit": None, "dirty": None}
    _git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == {"commit": None, "dirty": None}
    (tmp_path / "code.py").write_text("x = 1\n")
    _git(tmp_path, "add", "code.py")
    _git(tmp_path, "commit", "-qm", "one")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "scores.jsonl").write_text("")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "code.py").write_text("x = 2\n")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}
    # An installed package inside somebody's repository is not that repository's code.
    (tmp_path / "site-packages").mkdir()
    assert git_state(tmp_path / "site-packages") == {"commit": None, "dirty": None}


def test_a_machine_without_git_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == {"commit": None, "dirty": None}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stderr", "quiet", "shown"), [(_Terminal, False, True), (_Terminal, True, False)])
def test_the_bar_shows_only_where_somebody_watches(
    stderr: type[io.StringIO], quiet: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr())
    assert list(progress(iter("abc"), 3, "scoring", quiet=quiet)) == ["a", "b", "c"]
    assert ("scoring" in sys.stderr.getvalue()) is shown  # the replacement keeps its text


def test_the_bar_is_silent_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    assert list(progress([1, 2], 2, "scoring")) == [1, 2]
    assert log.getvalue() == ""
