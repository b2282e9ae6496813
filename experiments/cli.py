"""`backfire`: one subcommand a study. A user's mistake is one line and exit code 2, a failed check exit code 1."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from envs.errors import InputError as EnvironmentInputError
from experiments.commands import COMMANDS, GROUPS
from experiments.run.study import Study
from mech.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one study; returns the exit code."""
    # Before torch is loaded: OpenMP's default is to spin for milliseconds at every barrier, which on a machine that
    # others use too makes two threads ten times slower than one.
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        print(f"backfire {version('backfire')}")
        return 0
    if not words or words[0] in ("-h", "--help") or words[0] not in COMMANDS:
        return _overview(words)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("experiments").setLevel(logging.INFO)
    study: Study = import_module(COMMANDS[words[0]].module).STUDY
    try:
        report = study.run(parser(study).parse_args(words[1:]))
    except (InputError, EnvironmentInputError) as error:
        print(f"backfire {study.name}: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"backfire {study.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nbackfire {study.name}: stopped; the same command goes on from here.", file=sys.stderr)
        return 130
    print(report.text)
    return 0 if report.ok else 1


def parser(study: Study) -> argparse.ArgumentParser:
    """The study's own parser; every option is a flag with a value, but for switches and what is positional."""
    made = argparse.ArgumentParser(
        prog=f"backfire {study.name}",
        description=study.summary,
        epilog=f"example: {study.example}",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option in study.options:
        if option.positional:
            made.add_argument(
                option.key,
                metavar=option.name.upper(),
                nargs="+" if option.default is None else "*",
                type=option.type,
                default=option.default,
                help=option.help,
            )
            continue
        if option.switch:
            made.add_argument(f"--{option.name}", action="store_true", dest=option.key, help=option.help)
            continue
        made.add_argument(
            f"--{option.name}",
            action=_Repeated if option.repeatable else "store",
            dest=option.key,
            type=option.type,
            default=option.default,
            choices=option.choices,
            help=option.help,
        )
    return made


class _Repeated(argparse.Action):
    """Collects the values of a flag that may be given several times; one that says the default adds nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Put the value behind the earlier ones."""
        earlier = getattr(namespace, self.dest)
        if values != self.default:
            setattr(namespace, self.dest, (*(earlier if isinstance(earlier, tuple) else ()), values))


@dataclass(frozen=True)
class Flag:
    """One line of `backfire NAME --help`: how the option is written, its choices, its default, what it means."""

    words: str
    choices: tuple[str, ...]
    default: str
    help: str


def flags(name: str) -> list[Flag]:
    """The options of a command in the order of its help: what docs/command_line_reference.md is generated from."""
    study: Study = import_module(COMMANDS[name].module).STUDY
    found = []
    for option in study.options:
        words = option.name.upper() if option.positional else f"--{option.name}"
        if option.switch:
            default = ""
        elif isinstance(option.default, tuple):
            default = ",".join(map(str, option.default))
        else:
            default = "" if option.default is None else str(option.default)
        note = " (may be given several times)" if option.repeatable else ""
        found.append(Flag(words, tuple(option.choices or ()), default, option.help + note))
    return found


def example(name: str) -> str:
    """The command line that `backfire NAME --help` ends with."""
    return str(import_module(COMMANDS[name].module).STUDY.example)


def _overview(words: Sequence[str]) -> int:
    lines = ["usage: backfire COMMAND [--option value ...]   (backfire COMMAND --help tells the options)", ""]
    for group, about in GROUPS.items():
        lines.append(f"{group}: {about}")
        lines += [f"  {name:<15}{one.summary}" for name, one in COMMANDS.items() if one.group == group]
        lines.append("")
    if not words or words[0] in ("-h", "--help"):
        print("\n".join(lines).rstrip())
        return 0
    print(f"backfire: '{words[0]}' is not a command: choose one of {', '.join(COMMANDS)}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
