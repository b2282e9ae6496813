"""From parsed options to what a study works with: the model in its engine, the items, the wording, the run folder."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.options import Study, existing
from experiments.provenance import provenance
from experiments.records import RunFolder
from experiments.seeds import stream
from mech.chat import template_sha256, tokenizer_sha256
from mech.engine import Engine
from mech.errors import InputError
from mech.load import default_cache_dir, load_model
from mech.model import Model
from probes.items import Item, load_items, select_items
from probes.toolshed_items import build_toolshed_items
from probes.wording import Wording, load_wording


@dataclass(frozen=True)
class Session:
    """A study's inputs; `rng_for` gives the numpy stream of a name under the base seed."""

    engine: Engine
    items: list[Item]
    wording: Wording
    rng_for: Callable[[str], np.random.Generator]

    @property
    def model(self) -> Model:
        """The model inside the engine."""
        return self.engine.model


def checkpoint_cache() -> Path:
    """Where converted checkpoints are kept: BACKFIRE_CACHE, or a folder in the user's cache."""
    named = os.environ.get("BACKFIRE_CACHE")
    return Path(named) if named else default_cache_dir()


def read_items(args: argparse.Namespace) -> list[Item]:
    """The items that --env/--items, --ids and --limit name.

    Raises:
        InputError: a file is missing or malformed, an id is unknown.
    """
    return select_items(read_pool(args), _read_ids(existing(args.ids, "ids")), args.limit)


def read_pool(args: argparse.Namespace) -> list[Item]:
    """All items of the file or the environment, before any selection."""
    path = existing(args.items, "items")
    return load_items(path) if path else build_toolshed_items(args.seed)


def _read_ids(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"The ids file {path} is not JSON ({error}).") from error
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise InputError(f"The ids file {path} must hold a JSON list of item ids.")
    return ids


def open_model(args: argparse.Namespace) -> Model:
    """The model that --model names, checked."""
    return load_model(args.model, dtype=args.dtype, device=args.device, cache_dir=checkpoint_cache())


def open_engine(args: argparse.Namespace) -> Engine:
    """The model that --model names in an engine, with its cache folder and the chosen path."""
    return Engine(open_model(args), cache_dir=args.cache, slow=args.engine == "reference")


def open_session(args: argparse.Namespace) -> Session:
    """The place to write, items and wording first (a mistake there costs nothing), then the model."""
    require_out(args)
    items = read_items(args)
    wording = read_wording(args)
    return Session(open_engine(args), items, wording, lambda name: stream(args.seed, name))


def read_wording(args: argparse.Namespace) -> Wording:
    """The wording that --wording names, or the project's own."""
    path = existing(args.wording, "wording")
    return load_wording() if path is None else load_wording(path)


def require_out(args: argparse.Namespace) -> Path:
    """The run folder that --out names; raises InputError where there is none."""
    if args.out is None:
        raise InputError("Say where to write with --out FOLDER.")
    return Path(args.out)


def open_run(
    study: Study,
    args: argparse.Namespace,
    model: Model,
    more: Mapping[str, Any],
    derived: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Claim the run folder for a study.

    Args:
        study: whose options are the settings.
        args: their values.
        model: its identity is recorded.
        more: recorded beside it.
        derived: what decides rows as an option does but comes from elsewhere, such as head sets chosen by a table of
            the folder: part of the settings, so that a run is not resumed under others.

    Raises:
        InputError: no --out, or the folder cannot be used.
    """
    out = require_out(args)
    made_with = provenance(
        {
            "name": model.identity.name,
            "source": model.identity.source,
            "sha256": model.identity.sha256,
            "n_parameters": model.identity.n_parameters,
            "architecture": model.identity.architecture,
            "dtype": str(model.dtype),
            "device": str(model.device),
            "attention": "eager",
            "tokenizer_sha256": tokenizer_sha256(model),
            "chat_template_sha256": template_sha256(model),
        }
    )
    command = shlex.join(["backfire", *sys.argv[1:]])
    settings = {**study.settings(args), **(derived or {})}
    return RunFolder.open(out, study.name, settings, {**made_with, **more}, command)


def about_items(session: Session) -> dict[str, Any]:
    """What a run records of its items and wording."""
    names = [item.item_id for item in session.items]
    return {"n_items": len(names), "item_ids": names, "wording_sha256": session.wording.sha256}
