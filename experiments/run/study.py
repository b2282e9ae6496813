"""A study's settings: a frozen config class, from whose fields come the flags, the help and the run's identity.

A field is annotated with its type and a `Flag` (help, and how its words are read). It either decides the numbers (it is
part of the configuration whose hash a run folder keeps) or is marked `presentation` (where to write, whether to show
progress). A file enters the configuration by its contents.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import keyword
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from experiments.commands import COMMANDS
from mech.errors import InputError


@dataclass(frozen=True)
class Flag:
    """What a config field's `Annotated[...]` says of its flag, beside name, type and default.

    Attributes:
        help: one line.
        parse: one word as the value, ValueError where it is none; None follows the annotation (str, int, float, Path).
        choices: the only words that make sense, where the annotation is no Literal.
        presentation: the field decides no number and is no part of the run's identity.
        positional: words without a name in front, parsed as a tuple.
        repeatable: the flag may be given several times; the values are a tuple in the order given, without those that
            say the default, which holds where nothing else was said.
    """

    help: str
    parse: Callable[[str], Any] | None = None
    choices: tuple[str, ...] | None = None
    presentation: bool = False
    positional: bool = False
    repeatable: bool = False


@dataclass(frozen=True)
class Option:
    """One flag as it is read and shown: that of a config's field.

    A `switch` takes no word: the flag is there or not. `word` is what the help shows in the value's place: INT, FLOAT,
    PATH, … For the rest see `Flag`.
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
    word: str = "STR"

    @property
    def key(self) -> str:
        """The name in the run's identity."""
        return self.name.replace("-", "_")

    @property
    def field(self) -> str:
        """The config's field: the key, and an underscore where that is a word of Python (`from_`)."""
        return f"{self.key}_" if keyword.iskeyword(self.key) else self.key

    def read(self, text: str) -> Any:
        """The value that a word says.

        Raises:
            InputError: it says none; the sentence begins with the flag.
        """
        if self.choices is not None and text not in self.choices:
            raise InputError(f"--{self.name}: '{text}' is not one of {', '.join(self.choices)}.")
        try:
            return _PLAIN.get(self.type, self.type)(text)
        except ValueError as error:
            raise InputError(f"--{self.name}: {str(error).rstrip('.')}.") from error


def options_of(config: Any) -> tuple[Option, ...]:
    """The flags of a config class, in the order of its fields."""
    return _options(config)


@functools.cache
def _options(config: Any) -> tuple[Option, ...]:
    hints = get_type_hints(config, include_extras=True)
    return tuple(_option(field, hints[field.name]) for field in dataclasses.fields(config))


_WORDS: Mapping[Any, str] = {int: "INT", float: "FLOAT", Path: "PATH", tuple[int, ...]: "INT,..."}


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    kind, flag = get_args(hint)
    members = [kind]
    if get_origin(kind) in (Union, types.UnionType):
        members = [one for one in get_args(kind) if one is not type(None)]
        kind = members[0]
    choices = get_args(kind) if get_origin(kind) is Literal else flag.choices
    return Option(
        field.name.rstrip("_").replace("_", "-"),
        flag.parse or (str if get_origin(kind) is Literal else kind),
        field.default,
        flag.help,
        choices,
        flag.presentation,
        flag.positional,
        kind is bool,
        flag.repeatable,
        "CHOICE" if choices is not None else _WORDS.get(kind, "STR") if len(members) == 1 else "STR",
    )


@dataclass(frozen=True)
class Report:
    """What a study has to say at the end; `ok` False makes the command exit with 1."""

    text: str
    ok: bool = True


C = TypeVar("C")
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Study(Generic[C]):
    """One subcommand: an example, its config class, and the function that does it.

    A study that maps over items is an `experiments.run.run_study.ItemStudy`.
    """

    name: str
    example: str
    config: type[C]
    run: Callable[[C], Report]

    @property
    def summary(self) -> str:
        """What it does, as `experiments.commands` says; empty for a study that is no command of `backfire`."""
        return COMMANDS[self.name].summary if self.name in COMMANDS else ""

    @property
    def options(self) -> tuple[Option, ...]:
        """Its flags."""
        return options_of(self.config)

    def settings(self, config: Any) -> dict[str, Any]:
        """The run's identity: every setting that decides the numbers, files by the SHA-256 of their contents."""
        return {
            option.key: _setting(value)
            for option, value in values_of(self, config).items()
            if not option.presentation
        }


def values_of(study: Study[Any], config: Any) -> dict[Option, Any]:
    """Every option with its value in a config."""
    return {option: getattr(config, option.field) for option in study.options}


def arguments(study: Study[Any], chosen: Mapping[str, Any]) -> Any:
    """A study's config with these values, by key, and defaults; names that it does not have are passed over."""
    known = {option: chosen[option.key] for option in study.options if option.key in chosen}
    return study.config(**{option.field: value for option, value in known.items()})


def keyed(config: Any) -> dict[str, Any]:
    """The values of a config by key, as `arguments` takes them."""
    return {name.removesuffix("_"): value for name, value in vars(config).items()}


def narrowed(config: Any, options: type[C]) -> C:
    """The settings that a group of options has, as that group; its defaults where the config has none."""
    names = {option.field for option in options_of(options)}
    return options(**{name: value for name, value in vars(config).items() if name in names})


def to_toml(study: Study[Any], config: Any) -> str:
    """All settings but those that are None, as TOML under the names of the flags, which --config reads."""
    lines = [
        f"{option.name} = {_toml(value)}"
        for option, value in values_of(study, config).items()
        if value is not None
    ]
    return "\n".join([f"# backfire {study.name} --config THIS", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    # A JSON string is one of TOML, but for the one control character that JSON leaves as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def whole_number(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"'{text}' is not a whole number") from error


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"'{text}' is not a number") from error
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


_PLAIN: Mapping[Any, Callable[[str], Any]] = {int: whole_number, float: number}


def _bounded(read: Callable[[str], N], allowed: Callable[[N], bool], fault: str) -> Callable[[str], N]:
    def parse(text: str) -> N:
        value = read(text)
        if not allowed(value):
            raise ValueError(f"{text} is {fault}")
        return value

    return parse


positive = _bounded(whole_number, lambda value: value >= 1, "less than 1")
not_negative = _bounded(whole_number, lambda value: value >= 0, "less than 0")
positive_number = _bounded(number, lambda value: value > 0, "not above 0")
not_negative_number = _bounded(number, lambda value: value >= 0, "not 0 or above")


def n_bytes(text: str) -> int:
    """`4GiB`, `900MiB`: a number of bytes, at least 1."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(GiB|MiB)\s*", text)
    if found is None or not float(found[1]):
        raise ValueError(f"{text} is no size: write it like 4GiB or 900MiB")
    return int(float(found[1]) * (2**30 if found[2] == "GiB" else 2**20))


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
    """An item file that a reference set is drawn from, and how many of its items are drawn at most; str: N@FILE."""

    path: Path
    n: int

    def __str__(self) -> str:
        return f"{self.n}@{self.path}"


REFERENCE_SIZE = 32


def reference_items(text: str) -> int | ReferenceFile:
    """`16`, `FILE` or `8@FILE`: how many reference items, and the file they are drawn from."""
    count, at, name = text.partition("@")
    if at and name and count.isdigit():
        return ReferenceFile(Path(name), positive(count))
    if re.fullmatch(r"\s*[+-]?\d+\s*", text):
        return positive(text)
    return ReferenceFile(Path(text), REFERENCE_SIZE)


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """Which model."""

    model: Annotated[str, Flag("bundled name, short name, folder, .gguf file or hub id")] = "smollm2-135m-q4"
    pre: Annotated[
        str | None,
        Flag("pre-tokenizer of a .gguf file that names none (tokenizer.ggml.pre), such as smollm or qwen2"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded."""

    dtype: Annotated[Literal["float32", "float64", "bfloat16", "float16"], Flag("parameter type")] = "float32"
    device: Annotated[str, Flag("torch device")] = "cpu"
    allow_special_in_content: Annotated[
        bool, Flag("special tokens spelt in items, wording or replies become real ones (else they are text)")
    ] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadOptions, NameOptions):
    """Which model, and how it is loaded."""


@dataclass(frozen=True, kw_only=True)
class SeedOptions:
    """The base seed."""

    seed: Annotated[int, Flag("base seed; every random draw has its own stream under it")] = 0


@dataclass(frozen=True, kw_only=True)
class SourceOptions(SeedOptions):
    """Where items come from."""

    env: Annotated[Literal["toolshed", "coderepair", "all"], Flag("environment the items are made in")] = (
        "toolshed"
    )
    templates: Annotated[
        Literal["all", "paper"],
        Flag(
            "toolshed's own pool: 14 kinds of task under 6 system prompts and 4 frames, or the paper's 6 under one"
        ),
    ] = "all"
    problems: Annotated[
        Path | None,
        Flag("coderepair's problems in MBPP's schema: JSON, JSON lines or a datasets folder"),
    ] = None
    items: Annotated[Path | None, Flag("items as JSON lines, instead of the environment's own")] = None


@dataclass(frozen=True, kw_only=True)
class PoolOptions(SourceOptions):
    """Which items."""

    ids: Annotated[Path | None, Flag("JSON list of item ids to take")] = None
    limit: Annotated[int | None, Flag("take a balanced sample of this many items", positive)] = None


@dataclass(frozen=True, kw_only=True)
class WordingFileOptions:
    """How transcripts are worded."""

    wording: Annotated[Path | None, Flag("JSON file with the wording of the conditions")] = None


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What intervals resample."""

    cluster: Annotated[
        Literal["task", "template", "system"],
        Flag(
            "what the intervals and tests resample: items of one task, of one template, or of one system prompt",
            presentation=True,
        ),
    ] = "task"


@dataclass(frozen=True, kw_only=True)
class WordingOptions(ClusterOptions, WordingFileOptions):
    """How transcripts are worded, and what intervals resample."""


@dataclass(frozen=True, kw_only=True)
class ItemOptions(WordingOptions, PoolOptions):
    """Which items, how their transcripts are worded, and what intervals resample."""


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Where to write."""

    out: Annotated[Path | None, Flag("run folder; resumed when it exists", presentation=True)] = None


@dataclass(frozen=True, kw_only=True)
class OutOptions(FolderOptions):
    """Where to write, and whether to show progress."""

    quiet: Annotated[bool, Flag("no progress bars", presentation=True)] = False


@dataclass(frozen=True)
class Shard:
    """One of `of` parts, `number` counted from 1; str: NUMBER/OF."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def places(self, n: int) -> range:
        """Which of n units in order are its own: a run of them, so that shards one after another give all in order."""
        return range(n * (self.number - 1) // self.of, n * self.number // self.of)


def shard(text: str) -> Shard:
    """`2/8` as a shard."""
    number, slash, of = text.partition("/")
    if not slash or not 1 <= whole_number(number) <= whole_number(of):
        raise ValueError(f"'{text}' is no part of a whole such as 1/8 or 8/8")
    return Shard(int(number), int(of))


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where the units of a study are measured; no row depends on it."""

    executor: Annotated[
        Literal["serial", "processes", "ray"],
        Flag("where units are measured: in this process, in several, or on a Ray cluster", presentation=True),
    ] = "serial"
    workers: Annotated[
        int | None,
        Flag("how many workers; by default as many as there are CPUs", positive, presentation=True),
    ] = None
    threads: Annotated[
        int | None,
        Flag(
            "threads of a worker; by default the CPUs divided by the workers, on Ray 1",
            positive,
            presentation=True,
        ),
    ] = None
    address: Annotated[
        str, Flag("Ray cluster: auto, HOST:PORT, or local to start one here", presentation=True)
    ] = "auto"
    shard: Annotated[
        Shard | None,
        Flag(
            "I/N: the I-th of N parts of the units, in a folder of its own (`backfire merge`)",
            shard,
            presentation=True,
        ),
    ] = None


def require_whole(options: ExecutorOptions, name: str) -> None:
    """Raise InputError where a study that is no map over units of its own is asked for a shard."""
    if options.shard is not None:
        raise InputError(f"`{name}` has no shards: leave out --shard.")


def require_serial(options: ExecutorOptions, name: str) -> None:
    """Raise InputError where a study that runs in one process is asked for workers or a shard."""
    require_whole(options, name)
    if options.executor != "serial":
        raise InputError(f"`{name}` runs in one process: leave out --executor {options.executor}.")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which engine."""

    engine: Annotated[
        Literal["packed", "reference"], Flag("reference: one hooked full forward a question")
    ] = "packed"
    memory: Annotated[
        int | None,
        Flag(
            "bound on the process's memory, such as 4GiB: rows, sweeps and caches are cut to fit",
            n_bytes,
            presentation=True,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(EngineOptions, ExecutorOptions, OutOptions):
    """How a run on an engine goes."""

    cache: Annotated[
        Path | None,
        Flag("folder for kept activations, read before anything is run", presentation=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SessionOptions(RunOptions, ItemOptions, ModelOptions):
    """What every study of decision points is given: model, items, run."""


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """The metric that a report shows; rows and tables hold all of them."""

    metric: Annotated[
        Literal["logprob", "margin", "diverging"],
        Flag(
            "what is shown and searched by: log p(a×), its margin over the reference call, or its diverging "
            "tokens alone",
            presentation=True,
        ),
    ] = "logprob"


@dataclass(frozen=True, kw_only=True)
class DeltaOptions:
    """The bound of equivalence."""

    delta: Annotated[
        float, Flag("nats within which a change counts as none (equivalence)", positive_number)
    ] = 0.5
