"""`backfire`: one subcommand a study. A user's mistake is one line and exit code 2, a failed check exit code 1."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from envs.errors import InputError as EnvironmentInputError
from experiments.options import Study
from mech.errors import InputError

STUDIES = {
    "doctor": "experiments.doctor",
    "items": "experiments.make_items",
    "probe": "experiments.probe_items",
    "decomposition": "experiments.decompose_items",
    "manipulations": "experiments.manipulate_record",
    "scaling": "experiments.scale_models",
    "heads": "experiments.find_heads",
    "patch": "experiments.patch_heads",
    "layers": "experiments.patch_layers",
    "direct": "experiments.direct_effects",
    "path": "experiments.patch_path",
    "ablate": "experiments.ablate_heads",
    "attribute": "experiments.attribute_heads",
    "cut": "experiments.cut_edges",
    "joint": "experiments.joint_sets",
    "overlap": "experiments.compare_effects",
    "mechanism": "experiments.mechanism",
    "placebo": "experiments.placebos",
    "agree": "experiments.agree_scores",
    "circuit": "experiments.find_circuit",
    "rollout": "experiments.roll_out",
    "predict": "experiments.predict_repeats",
    "compare": "experiments.compare_runs",
    "calibrate": "experiments.calibrate",
    "bench": "experiments.bench",
    "bench-sandbox": "experiments.bench_sandbox",
    "demo": "experiments.demo",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one study; returns the exit code."""
    # Before torch is loaded: OpenMP's default is to spin for milliseconds at every barrier, which on a machine that
    # others use too makes two threads ten times slower than one.
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help") or words[0] not in STUDIES:
        return _overview(words)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("experiments").setLevel(logging.INFO)
    study: Study = import_module(STUDIES[words[0]]).STUDY
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
    """The study's own parser; every option is a flag with a value, but for those that are positional."""
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
        made.add_argument(
            f"--{option.name}",
            action=_Repeated if option.repeatable else "store",
            nargs=None if option.alone is None else "?",
            const=None if option.alone is None else option.type(option.alone),
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


def _overview(words: Sequence[str]) -> int:
    lines = ["usage: backfire STUDY [--option value ...]   (backfire STUDY --help tells the options)", ""]
    lines += [f"  {name:<15}{import_module(module).STUDY.summary}" for name, module in STUDIES.items()]
    if not words or words[0] in ("-h", "--help"):
        print("\n".join(lines))
        return 0
    print(f"backfire: '{words[0]}' is not a study: choose one of {', '.join(STUDIES)}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
