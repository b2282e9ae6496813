"""`backfire`: one subcommand a study. A user's mistake is one line and exit code 2, a failed check exit code 1."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from envs.errors import InputError as EnvironmentInputError
from experiments.commands import COMMANDS, GROUPS, RENAMED
from mech.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one study; returns the exit code."""
    # Before torch is loaded: OpenMP's default is to spin for milliseconds at every barrier, which on a machine that
    # others use too makes two threads ten times slower than one.
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        with _reader_may_stop():
            print(f"backfire {version('backfire')}")
        return 0
    if words == ["--install-completion"]:
        return _install_completion()
    if not words or words[0] in ("-h", "--help") or words[0] not in COMMANDS:
        return _overview(words)
    from experiments.run.flags import parse

    study = import_module(COMMANDS[words[0]].module).STUDY
    try:
        asked = parse(study, words[1:])
        if asked.help is not None:
            with _reader_may_stop():
                print(asked.help)
            return 0
        _log(asked.log_level)
        report = study.run(asked.config)
    except (InputError, EnvironmentInputError) as error:
        print(f"backfire {study.name}: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"backfire {study.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nbackfire {study.name}: stopped; the same command goes on from here.", file=sys.stderr)
        return 130
    with _reader_may_stop():
        print(report.text)
    return 0 if report.ok else 1


@contextmanager
def _reader_may_stop() -> Iterator[None]:
    """Output that its reader stops reading (`backfire --help | head -3`) is no error; the exit code stays."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # and the interpreter's own flush at its end finds an open file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log(level: str | None) -> None:
    """What is logged on stderr: warnings, and of the studies also what they are at; or all of a level."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("experiments").setLevel(level.upper() if level else logging.INFO)
    for room in ("mech", "probes", "envs"):
        logging.getLogger(room).setLevel(level.upper() if level else logging.NOTSET)


def _install_completion() -> int:
    from experiments.run.flags import completion

    try:
        print(f"written to {completion([import_module(one.module).STUDY for one in COMMANDS.values()])}")
    except InputError as error:
        print(f"backfire: {error}", file=sys.stderr)
        return 2
    return 0


@dataclass(frozen=True)
class Flag:
    """One line of `backfire NAME --help`: how the option is written, its choices, its default, what it means."""

    words: str
    value: str
    choices: tuple[str, ...]
    default: str
    help: str


def flags(name: str) -> list[Flag]:
    """The options of a command in the order of its help: what docs/command_line_reference.md is generated from."""
    study: Any = import_module(COMMANDS[name].module).STUDY
    found = []
    for option in study.options:
        words = option.name.upper() if option.positional else f"--{option.name}"
        value = "" if option.switch or option.positional else option.word
        if option.switch:
            default = ""
        elif isinstance(option.default, tuple):
            default = ",".join(map(str, option.default))
        else:
            default = "" if option.default is None else str(option.default)
        note = " (may be given several times)" if option.repeatable else ""
        found.append(Flag(words, value, tuple(option.choices or ()), default, option.help + note))
    return found


def example(name: str) -> str:
    """The command line that `backfire NAME --help` ends with."""
    return str(import_module(COMMANDS[name].module).STUDY.example)


def _overview(words: Sequence[str]) -> int:
    lines = ["usage: backfire COMMAND [--option value ...]   (backfire COMMAND --help lists the options)", ""]
    for group, about in GROUPS.items():
        lines.append(f"{group}: {about}")
        lines += [f"  {name:<15}{one.summary}" for name, one in COMMANDS.items() if one.group == group]
        lines.append("")
    if not words or words[0] in ("-h", "--help"):
        with _reader_may_stop():
            print("\n".join(lines).rstrip())
        return 0
    if words[0] in RENAMED:
        print(f"backfire: '{words[0]}' is now '{RENAMED[words[0]]}'.", file=sys.stderr)
        return 2
    print(f"backfire: '{words[0]}' is not a command: choose one of {', '.join(COMMANDS)}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
