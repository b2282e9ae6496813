"""The environments' own decision points, all of them, before any selection.

CodeRepair's come from executing thousands of programs. A pool that was built once is kept beside the converted
checkpoints, under a key of everything it depends on (seed, problems, the code that makes it, the Python that ran it),
and read back: the next command starts at once, and has the same items however busy the machine was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import envs.base
import envs.coderepair
import envs.sandbox
import probes.items.coderepair
import probes.items.item
import probes.items.selection
from envs.coderepair.problems import Problem, bundled_problems, load_problems
from experiments.run.durable import replace
from experiments.run.progress import bar
from experiments.run.study import SourceOptions, existing
from mech.errors import InputError
from mech.load import default_cache_dir
from probes.items.coderepair import coderepair_pool
from probes.items.item import Item, dump_items, item_line, load_items
from probes.items.toolshed import build_toolshed_items

logger = logging.getLogger(__name__)


def checkpoint_cache() -> Path:
    """BACKFIRE_CACHE, or a folder in the user's cache."""
    named = os.environ.get("BACKFIRE_CACHE")
    return Path(named) if named else default_cache_dir()


def read_pool(args: SourceOptions) -> list[Item]:
    """All items of the file that --items names, or of the environments that --env names.

    Raises:
        InputError: a file is missing or malformed, or the sandbox cannot work here.
    """
    path = existing(args.items, "items")
    if path:
        return load_items(path)
    pool: list[Item] = []
    if args.env in ("toolshed", "all"):
        pool += build_toolshed_items(args.seed, templates=args.templates)
    if args.env in ("coderepair", "all"):
        problems = load_problems(args.problems) if args.problems else bundled_problems()
        pool += executed_once(args.seed, problems, checkpoint_cache(), getattr(args, "quiet", False))
    return pool


def by_template(args: SourceOptions, env: str) -> bool:
    """Whether --limit balances these items over templates and prompts: toolshed's own ones of all templates.

    Item files, the paper's pool and CodeRepair keep the selection that published and recorded runs have.
    """
    return args.items is None and env == "toolshed" and args.templates == "all"


def executed_once(seed: int, problems: Sequence[Problem], cache_dir: Path, quiet: bool) -> list[Item]:
    """CodeRepair's items, executed now or read back."""
    place = cache_dir / "items" / f"coderepair-{pool_key(seed, problems)[:24]}.jsonl"
    if place.is_file():
        return read_back(place)
    try:  # before minutes of executing
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {place.parent} cannot be written ({error.strerror}): set BACKFIRE_CACHE."
        ) from error
    logger.info("executing the mutants of %d programs, once: %s", len(problems), place)
    try:
        with bar("execute", quiet) as show:
            pool = coderepair_pool(seed, problems, on_progress=show)
    except RuntimeError as error:
        raise InputError(f"The sandbox cannot work here: {error}") from error
    reasons = "; ".join(f"{task}: {why}" for task, why in sorted(pool.left_out.items()))
    if not pool.items:
        raise InputError(f"No decision point comes of these problems ({reasons}).")
    if reasons:
        logger.warning("%d problems left out: %s", len(pool.left_out), reasons)
    write_pool(pool.items, place)
    return pool.items


def write_pool(items: Sequence[Item], place: Path) -> None:
    """Keep a pool, its hash first: whoever finds the items finds the hash as well."""
    lines = "".join(f"{item_line(item)}\n" for item in items)
    replace(_sum_of(place), hashlib.sha256(lines.encode()).hexdigest() + "\n")
    dump_items(items, place)


def read_back(place: Path) -> list[Item]:
    """The pool as it was written: a text that changed on the disk would be another item under the same name."""
    kept = _sum_of(place)
    try:
        whole = kept.read_text(encoding="utf-8").strip() == _sha256(place)
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise InputError(
            f"{place} is not as it was written (its SHA-256 is not in {kept.name}): delete both and run again."
        )
    return load_items(place)


def _sum_of(place: Path) -> Path:
    return place.with_suffix(".sha256")


def _sha256(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def pool_key(seed: int, problems: Sequence[Problem]) -> str:
    """SHA-256 over all that the pool follows from."""
    modules = (probes.items.coderepair, probes.items.item, probes.items.selection, envs.base)
    sources = [Path(str(module.__file__)) for module in modules]
    for room in (envs.coderepair, envs.sandbox):
        sources += sorted(Path(str(room.__file__)).parent.rglob("*.py"))
    code = [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]
    described = [seed, [asdict(problem) for problem in problems], code, sys.version]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
