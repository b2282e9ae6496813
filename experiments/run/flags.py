"""The words of a command line, and the lines of a --config file, as a study's config; the help; shell completion."""

from __future__ import annotations

import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError
from cyclopts.completion.detect import ShellDetectionError

from experiments.run.study import Option, Study, arguments
from mech.errors import InputError
from mech.input_files import read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEVELS = ("debug", "info", "warning", "error")
CONFIG = Option(
    "config", str, None, "TOML file with settings under the names of the flags; flags given win", word="PATH"
)
LOG_LEVEL = Option("log-level", str, None, "what is logged on stderr", LEVELS, word="CHOICE")
_RUNNERS = (CONFIG, LOG_LEVEL)


@dataclass(frozen=True)
class Command:
    """What a command line asks for: the study's config, or its help."""

    config: Any
    log_level: str | None = None
    help: str | None = None


def parse(study: Study[Any], words: Sequence[str]) -> Command:
    """Read a study's command line.

    Raises:
        InputError: an unknown flag or name, a word too many, or a value that its flag does not take.
    """
    try:
        command, bound, _ = app_of(study).parse_args(list(words), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise InputError(_sentence(error)) from error
    if getattr(command, "__name__", "") == "help_print":
        return Command(None, help=help_text(study, shutil.get_terminal_size().columns))
    given = {key: value for key, value in bound.arguments.items() if value is not None}
    file, level = given.pop("config", None), given.pop("log_level", None)
    said = {
        option.key: _said(option, given[option.field]) for option in study.options if option.field in given
    }
    from_file = read_config(Path(file), study.options) if file is not None else {}
    return Command(
        arguments(study, {**from_file, **said}), LOG_LEVEL.read(level) if level is not None else None
    )


def read_config(path: Path, options: Iterable[Option]) -> dict[str, Any]:
    """Values by key of a TOML file.

    Raises:
        InputError: the file cannot be read, is no TOML, or has unknown names or values of the wrong kind: all are
            named.
    """
    raw = read_bytes(path, "configuration file")
    try:
        lines = tomllib.loads(raw.decode("utf-8"))
    except ValueError as error:  # not UTF-8, or not TOML
        raise InputError(f"The configuration file {path} is not TOML ({error}).") from error
    known = {option.name: option for option in options}
    unknown = [name for name in lines if name not in known]
    faults = [f"unknown names: {', '.join(unknown)}"] if unknown else []
    found = {}
    for name, value in lines.items():
        if name in known:
            try:
                found[known[name].key] = _from_toml(known[name], value)
            except InputError as error:
                faults.append(str(error).removeprefix("--").rstrip("."))
    if faults:
        raise InputError(f"The configuration file {path} cannot be used: {'; '.join(faults)}.")
    return found


def _from_toml(option: Option, value: Any) -> Any:
    """A TOML value by way of the words that a command line would have."""
    values = value if isinstance(value, list) else [value]
    if option.switch != isinstance(value, bool) or not all(
        isinstance(one, (str, int, float)) for one in values
    ):
        kind = "true or false" if option.switch else "a text, a number or a list of them"
        raise InputError(f"--{option.name}: {value!r} is not {kind}.")
    if option.switch:
        return value
    words = [one if isinstance(one, str) else repr(one) for one in values]
    return _said(option, words if option.repeatable or option.positional else ",".join(words))


def _said(option: Option, words: Any) -> Any:
    """The value of a flag (or positional words) that was given."""
    if option.switch:
        return words
    unknown = [word for word in words if option.positional and word.startswith("-") and word != "-"]
    if unknown:
        raise InputError(f"Unknown option: {unknown[0]}. See --help.")
    if option.positional or option.repeatable:
        values = tuple(value for value in map(option.read, words) if value != option.default)
        return values or option.default
    return option.read(words)


def app_of(study: Study[Any]) -> App:
    """The study's own command line; it is parsed to words only, which `Option.read` turns into values."""
    shown = [(option, option.field) for option in study.options] + [(one, one.key) for one in _RUNNERS]
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_ONLY if option.positional else inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(option),
        )
        for option, name in sorted(shown, key=lambda one: not one[0].positional)
    ]

    def command(*args: Any, **values: Any) -> None:
        """Only its signature is used."""

    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    app = App(name=f"backfire {study.name}", help=study.summary, version_flags=[])
    app.default(command)
    return app


def help_text(study: Study[Any], width: int) -> str:
    """What `--help` prints: usage, summary and every option in lines of at most `width`, and the example in one."""
    words = [f"[{option.name.upper()} ...]" for option in study.options if option.positional]
    lines = [" ".join(["Usage: backfire", study.name, *words, "[--option value ...]"]), ""]
    lines += [*textwrap.wrap(study.summary, width), "", "Parameters:", "  --help, -h: show this text"]
    for option in sorted((*study.options, *_RUNNERS), key=lambda one: not one.positional):
        name = option.name.upper() if option.positional else f"--{option.name}"
        value = "" if option.switch or option.positional else f" {option.word}"
        said = [f"{name}{value}: {option.help}", "(may be given several times)" if option.repeatable else ""]
        said.append(f"[choices: {', '.join(option.choices)}]" if option.choices else "")
        said.append(f"[default: {_shown(option.default)}]" if _has_default(option) else "")
        lines += textwrap.wrap(
            " ".join(filter(None, said)),
            width,
            initial_indent="  ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, "", f"example: {study.example}"])


def _annotation(option: Option) -> Any:
    many = option.positional or option.repeatable
    kind: Any = bool if option.switch else list[str] if many else str
    return Annotated[
        kind | None,
        Parameter(
            name=option.name.upper() if option.positional else f"--{option.name}",
            help=option.help,
            metavar=None if option.switch or option.positional else option.word,
            negative=(),
            choices=option.choices,
            allow_repeating=True,
            allow_leading_hyphen=True,  # of a positional one: - alone, which is standard input
            consume_multiple=option.positional,
        ),
    ]


def _has_default(option: Option) -> bool:
    return not option.switch and option.default not in (None, (), "")


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _sentence(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"'{(error.unused_tokens or ['?'])[0]}' belongs to no flag."
    if isinstance(error, UnknownOptionError):
        return f"{str(error).strip()} See --help."
    return " ".join(str(error).split())


def completion(studies: Iterable[Study[Any]]) -> Path:
    """Install the shell's completion of all commands and flags; returns the file that was written.

    Raises:
        InputError: the shell is not known, or its files cannot be written.
    """
    root = App(name="backfire", version_flags=[])
    for study in studies:
        root.command(app_of(study), name=study.name)
    try:
        return root.install_completion()
    except (ShellDetectionError, OSError) as error:
        raise InputError(f"Completion could not be installed: {error}") from error
