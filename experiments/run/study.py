"""Command-line options as values: one list a study, from which come the flags, the help and the run's identity.

An option either decides the numbers (it is part of the configuration whose hash a run folder keeps) or is marked
`presentation` (where to write, whether to show progress). A file option enters the configuration by its contents.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mech.errors import InputError


@dataclass(frozen=True)
class Option:
    """One flag: `--name`, its type, default and help; `choices` where only some values make sense.

    A `positional` one is no flag: words without a name in front, parsed as a list; one at least, if it has no default.
    A `switch` takes no word: the flag is there or not. A `repeatable` flag may be given several
    times: the values are a tuple in the order given, without those that say the default, which stands where nothing
    else was said.
    """

    name: str
    type: Callable[[str], Any]
    default: Any
    help: str
    choices: tuple[str, ...] | None = None
    presentation: bool = False
    positional: bool = False
    switch: bool = False
    repeatable: bool = False

    @property
    def key(self) -> str:
        """The attribute under which the parsed value is found."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Report:
    """What a study has to say at the end; `ok` False makes the command exit with 1."""

    text: str
    ok: bool = True


@dataclass(frozen=True)
class Study:
    """One subcommand: what it does in a line, an example, its options, and the function that does it."""

    name: str
    summary: str
    example: str
    options: tuple[Option, ...]
    run: Callable[[argparse.Namespace], Report]

    def settings(self, args: argparse.Namespace) -> dict[str, Any]:
        """The configuration: every option that decides the numbers, files by the SHA-256 of their contents."""
        return {
            option.key: _setting(getattr(args, option.key))
            for option in self.options
            if not option.presentation
        }


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def not_negative(text: str) -> int:
    """A whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def not_negative_number(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or above")
    return value


def whole_numbers(text: str) -> tuple[int, ...]:
    """`4,8,16` as numbers, each at least 1, without repetition, in ascending order."""
    return tuple(sorted({positive(part) for part in text.split(",")}))


def existing(path: Path | None, what: str) -> Path | None:
    """The path if there is such a file, None for None; raises InputError otherwise."""
    if path is not None and not path.is_file():
        raise InputError(f"The {what} file {path} {'is no file' if path.exists() else 'does not exist'}.")
    return path


def _setting(value: Any) -> Any:
    if isinstance(value, Path):
        return _sha256(value)
    if isinstance(value, ReferenceFile):
        return {"n": value.n, "file": _sha256(value.path)}
    return list(value) if isinstance(value, tuple) else value


def _sha256(path: Path) -> str:
    """Hash of a file's contents, or of a folder's files and their names."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if not path.is_dir():
        raise InputError(f"The file {path} does not exist.")
    files = sorted(one for one in path.rglob("*") if one.is_file())
    described = [f"{one.relative_to(path).as_posix()} {_sha256(one)}" for one in files]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()


@dataclass(frozen=True)
class ReferenceFile:
    """An item file that a reference set is drawn from, and how many of its items are drawn at most."""

    path: Path
    n: int


REFERENCE_SIZE = 32


def reference_items(text: str) -> int | ReferenceFile:
    """`16`, `FILE` or `8@FILE`: how many reference items, and the file they are drawn from."""
    count, at, name = text.partition("@")
    if at and name and count.isdigit():
        return ReferenceFile(Path(name), positive(count))
    try:
        return positive(text)
    except ValueError:
        return ReferenceFile(Path(text), REFERENCE_SIZE)


MODEL = Option("model", str, "smollm2-135m-q4", "bundled name, short name, folder, .gguf file or hub id")
PRE = Option(
    "pre",
    str,
    None,
    "pre-tokenizer of a .gguf file that names none (tokenizer.ggml.pre), such as smollm or qwen2",
)
DTYPE = Option("dtype", str, "float32", "parameter type", ("float32", "float64", "bfloat16", "float16"))
DEVICE = Option("device", str, "cpu", "torch device")
ALLOW_SPECIAL = Option(
    "allow-special-in-content",
    bool,
    False,
    "special tokens spelt in items, wording or replies become real ones (else they are text)",
    switch=True,
)
SEED = Option("seed", int, 0, "base seed; every random draw has its own stream under it")
OUT = Option("out", Path, None, "run folder; resumed when it exists", presentation=True)
CACHE = Option(
    "cache", Path, None, "folder for kept activations, read before anything is run", presentation=True
)
QUIET = Option("quiet", bool, False, "no progress bars", presentation=True, switch=True)
ENV = Option("env", str, "toolshed", "environment the items are made in", ("toolshed", "coderepair", "all"))
TEMPLATES = Option(
    "templates",
    str,
    "all",
    "toolshed's own pool: 14 kinds of task under 6 system prompts and 4 frames, or the paper's 6 under one",
    ("all", "paper"),
)
PROBLEMS = Option(
    "problems", Path, None, "coderepair's problems in MBPP's schema: JSON, JSON lines or a datasets folder"
)
ITEMS = Option("items", Path, None, "items as JSON lines, instead of the environment's own")
IDS = Option("ids", Path, None, "JSON list of item ids to take")
LIMIT = Option("limit", positive, None, "take a balanced sample of this many items")
WORDING = Option("wording", Path, None, "JSON file with the wording of the conditions")
CONDITIONS = Option(
    "conditions", str, "core", "core (pre, fail, succ, neut, abstract) or a list such as pre,neut"
)
DELTA = Option("delta", positive_number, 0.5, "nats within which a change counts as none (equivalence)")
CLUSTER = Option(
    "cluster",
    str,
    "task",
    "what the intervals and tests resample: items of one task, of one template, or of one system prompt",
    ("task", "template", "system"),
    presentation=True,
)
METRIC = Option(
    "metric",
    str,
    "logprob",
    "what is shown and searched by: log p(a×), its margin over the reference call, or its diverging tokens alone",
    ("logprob", "margin", "diverging"),
    presentation=True,
)
ENGINE = Option(
    "engine", str, "packed", "reference: one hooked full forward a question", ("packed", "reference")
)

ON_MODEL: Sequence[Option] = (MODEL, PRE, DTYPE, DEVICE, ALLOW_SPECIAL)
ON_ITEMS: Sequence[Option] = (ENV, TEMPLATES, PROBLEMS, ITEMS, IDS, LIMIT, WORDING, SEED, CLUSTER)
RUNNING: Sequence[Option] = (ENGINE, OUT, CACHE, QUIET)


def arguments(study: Study, chosen: dict[str, Any]) -> argparse.Namespace:
    """A study's options at their defaults, but for those chosen; names it does not have are passed over."""
    values = {option.key: option.default for option in study.options}
    return argparse.Namespace(**{**values, **{key: value for key, value in chosen.items() if key in values}})
