"""From parsed options to what a study works with: the model in its engine, the items, the wording, the run folder."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import ConfigDict, TypeAdapter

from experiments.run.item_pools import by_template, checkpoint_cache, read_pool
from experiments.run.provenance import provenance
from experiments.run.run_folder import RunFolder
from experiments.run.seeds import derive, stream
from experiments.run.study import (
    FolderOptions,
    ModelOptions,
    PoolOptions,
    RunOptions,
    SessionOptions,
    Study,
    WordingFileOptions,
    existing,
    to_toml,
)
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.input_files import SHOWN, NotJson, checked, parse_json, read_bytes
from mech.load import load_model, load_redrawn
from mech.models.chat import require_role, template_sha256, tokenizer_sha256
from mech.models.model import Model
from probes.items.item import Item, select_items
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import Wording, load_wording
from probes.scoring.score import item_notes
from probes.stats.bootstrap import RngFactory


@dataclass(frozen=True)
class Session:
    """A study's inputs; `rng_for` gives the numpy stream of a name under the base seed.

    `left_out`: condition or measure → how many items are left out of it, and why (`experiments.run.left_out`).
    `cluster`: what intervals and tests resample (task, template or system prompt); tables are derived by it, rows not.
    """

    engine: Engine
    items: list[Item]
    wording: Wording
    rng_for: Callable[[str], np.random.Generator]
    left_out: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    cluster: str = "task"

    def clustered(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows of items with the label of their cluster in `task_id`, by which every table of `probes` resamples.

        Raises:
            InputError: a row is of an item that is not among this session's, whose cluster is therefore not known.
        """
        return by_cluster(rows, self.items, self.cluster)

    def streams(self, prefix: str) -> RngFactory:
        """As `rng_for`, every name after this prefix: tables of one kind do not share draws by accident."""
        return lambda name: self.rng_for(f"{prefix}/{name}")

    @property
    def model(self) -> Model:
        """The model inside the engine."""
        return self.engine.model


def by_cluster(rows: pd.DataFrame, items: Iterable[Item], level: str) -> pd.DataFrame:
    """Rows with the label of each item's cluster at a level in `task_id`.

    Raises:
        InputError: a row is of an item that is not among these.
    """
    if level == "task" or rows.empty:
        return rows
    labels = {item.item_id: cluster_label(item, level) for item in items}
    unknown = sorted(set(rows["item_id"]) - set(labels))
    if unknown:
        raise InputError(
            f"The folder holds rows of {len(unknown)} items that are not among those named now ({unknown[0]}): "
            f"their {level} is not known. Name the same items, or leave out --cluster."
        )
    return rows.assign(task_id=rows["item_id"].map(labels))


def cluster_label(item: Item, level: str) -> str:
    """The cluster of an item at a level: its task, its template, or (a hash of) its system prompt."""
    if level == "task":
        return item.task_id
    if level == "template":
        return f"{item.env}/{item.template}"
    return hashlib.sha256(item.system_prompt.encode()).hexdigest()[:16]


_IDS = TypeAdapter(list[str], config=ConfigDict(strict=True))


def read_items(args: PoolOptions) -> list[Item]:
    """The items that --env/--items, --ids and --limit name, each with its unrelated call; --limit holds for each env.

    Raises:
        InputError: a file is missing or malformed, an id is unknown.
    """
    pool = read_pool(args)
    chosen = select_items(pool, _read_ids(existing(args.ids, "ids")))
    items: list[Item] = []
    for env in dict.fromkeys(item.env for item in chosen):
        of_env = [item for item in chosen if item.env == env]
        limited = select_items(of_env, limit=args.limit, by_template=by_template(args, env))
        items += with_unrelated(limited, [item for item in pool if item.env == env])
    return items


def _read_ids(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        ids, faults = parse_json(read_bytes(path, "ids file"))
    except NotJson as error:
        raise InputError(f"The ids file {path} is not JSON ({error}).") from error
    faults += checked(_IDS, ids)[1]
    if faults:
        what = "; ".join(faults[:SHOWN])
        raise InputError(f"The ids file {path} must hold a JSON list of item ids ({what}).")
    return ids


_MAPPED: ContextVar[bool] = ContextVar("mapped", default=False)


@contextmanager
def mapped_weights(mapped: bool = True) -> Iterator[None]:
    """Models that are opened in the body map their weights from the file, so that processes share them."""
    token = _MAPPED.set(mapped)
    try:
        yield
    finally:
        _MAPPED.reset(token)


def open_model(args: ModelOptions, wording: Wording | None = None) -> Model:
    """The model that --model names, checked; --allow-special-in-content says how it reads messages.

    Raises:
        InputError: as `load_model`, or its template does not know the role that the wording gives to observations.
    """
    mapped: dict[str, Any] = {"mapped": True} if _MAPPED.get() else {}
    model = load_model(args.model, **_loading(args), **mapped)
    model = dataclasses.replace(model, special_in_content=args.allow_special_in_content)
    if wording is not None:
        require_role(model, wording.observation_role)
    return model


def open_redrawn(args: ModelOptions, seed: int, name: str) -> Model:
    """The placebo of that model: weights drawn anew under the base seed and this name, checked as any."""
    model = load_redrawn(args.model, torch.Generator().manual_seed(derive(seed, name)), **_loading(args))
    return dataclasses.replace(model, special_in_content=args.allow_special_in_content)


def _loading(args: ModelOptions) -> dict[str, Any]:
    return {"dtype": args.dtype, "device": args.device, "cache_dir": checkpoint_cache(), "pre": args.pre}


def open_engine(model: Model, args: RunOptions) -> Engine:
    """The model in an engine, with its cache folder and the chosen path."""
    return Engine(model, cache_dir=args.cache, slow=args.engine == "reference", memory=args.memory)


def open_session(args: SessionOptions, one_env: bool = False) -> Session:
    """The place to write, items and wording first (a mistake there costs nothing), then the model.

    Raises:
        InputError: as `read_items`; with `one_env`, the items are of two environments: a table that pools them would
            mix their effects, and take tasks of the same name for one.
    """
    require_out(args)
    items = read_items(args)
    envs = sorted({item.env for item in items})
    if one_env and len(envs) > 1:
        raise InputError(
            f"These tables are of one environment, not of {' and '.join(envs)}: choose --env, or an item file of one."
        )
    wording = read_wording(args)
    engine = open_engine(open_model(args, wording), args)
    return Session(engine, items, wording, lambda name: stream(args.seed, name), cluster=args.cluster)


def read_wording(args: WordingFileOptions) -> Wording:
    """The wording that --wording names, or the project's own."""
    path = existing(args.wording, "wording")
    return load_wording() if path is None else load_wording(path)


def require_out(args: FolderOptions) -> Path:
    """The run folder that --out names; raises InputError where there is none."""
    if args.out is None:
        raise InputError("Say where to write with --out FOLDER.")
    return Path(args.out)


def open_run(
    study: Study[Any],
    args: FolderOptions,
    model: Model,
    more: Mapping[str, Any],
    derived: Mapping[str, Any] | None = None,
    entry: str | None = None,
) -> RunFolder:
    """Claim the run folder for a study.

    Args:
        study: whose options are the settings.
        args: their values.
        model: its identity is recorded.
        more: recorded beside it.
        derived: what decides rows as an option does but comes from elsewhere, such as head sets chosen by a table of
            the folder: part of the settings, so that a run is not resumed under others.
        entry: the run's name in run.json; None is the study's.

    Raises:
        InputError: no --out, or the folder cannot be used.
    """
    identity = {
        **dataclasses.asdict(model.identity),
        "dtype": str(model.dtype),
        "device": str(model.device),
        "attention": "eager",
        "tokenizer_sha256": tokenizer_sha256(model),
        "chat_template_sha256": template_sha256(model),
    }
    return open_folder(study, args, identity, more, derived, entry)


def open_folder(
    study: Study[Any],
    args: FolderOptions,
    identity: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    derived: Mapping[str, Any] | None = None,
    entry: str | None = None,
) -> RunFolder:
    """As `open_run`, of the model with this identity, or of none; at its end STUDY.toml has all settings but --out."""
    command = shlex.join(["backfire", *sys.argv[1:]])
    settings = {**study.settings(args), **(derived or {})}
    about = {**provenance(identity or {}), **(more or {})}
    folder = RunFolder.open(require_out(args), entry or study.name, settings, about, command)
    folder.settings = to_toml(study, dataclasses.replace(args, out=None))
    return folder


def about_items(session: Session) -> dict[str, Any]:
    """What a run records of its items and wording; `notes`: what of their transcripts is to be said, of which items."""
    names = [item.item_id for item in session.items]
    about: dict[str, Any] = {
        "n_items": len(names),
        "item_ids": names,
        "wording_sha256": session.wording.sha256,
    }
    notes: dict[str, list[str]] = {}
    for item in session.items:
        for note in item_notes(session.model, item, session.wording):
            notes.setdefault(note, []).append(item.item_id)
    left_out = {what: why for what, (_, why) in session.left_out.items()}
    return {**about, **({"left_out": left_out} if left_out else {}), **({"notes": notes} if notes else {})}
