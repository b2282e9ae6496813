"""`backfire bench-sandbox`: programs a second through the sandbox, beside a bare interpreter for each, in one run.

The programs are the bundled references with their asserts. The bare interpreter has no limits, no isolation and no
verdict but its exit code: it is what the sandbox costs nothing beside.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated

from envs.coderepair.problems import Problem, bundled_problems
from envs.sandbox import Sandbox
from experiments.bench.bench_timing import Method, compare, turns
from experiments.run.progress import progress
from experiments.run.study import Flag, Report, Study, positive


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """What `backfire bench-sandbox` is given."""

    programs: Annotated[int, Flag("bundled programs, each run once a round", positive)] = 60
    workers: Annotated[int, Flag("programs at a time", positive)] = 2
    repeats: Annotated[int, Flag("rounds; the median of a method's times counts", positive)] = 3
    quiet: Annotated[bool, Flag("no progress bars", presentation=True)] = False


def run(config: SandboxConfig) -> Report:
    """Take the two ways in turns and say how many programs a second each runs."""
    problems = bundled_problems()[: config.programs]
    with Sandbox(workers=config.workers) as sandbox:
        methods = [
            Method("programs", "sandbox", lambda: in_sandbox(sandbox, problems)),
            Method("programs", "a bare interpreter each", lambda: bare(problems, config.workers)),
        ]
        rounds = [unit for _ in range(config.repeats) for unit in enumerate([methods])]
        table = compare(turns(progress(rounds, len(rounds), "bench-sandbox", config.quiet), perf_counter))
        held = sandbox.isolation
    rates = {row.method: len(problems) / row.seconds for row in table.itertuples()}
    lines = [f"{name:<26}{rate:8.1f} programs a second" for name, rate in rates.items()]
    lines += [
        f"{len(problems)} programs, {config.workers} at a time, median of {config.repeats} rounds; "
        "all passed both ways",
        f"held by: network {held.network}, files {held.files}, processes {held.processes}",
    ]
    return Report("\n".join(lines))


def in_sandbox(sandbox: Sandbox, problems: Sequence[Problem]) -> Mapping[str, float]:
    """Run every program with its asserts in the sandbox; see `_passed`."""
    results = sandbox.run_many([(one.code, [*one.imports, *one.tests]) for one in problems])
    return _passed(problems, [found.outcome == "passed" for found in results])


def bare(problems: Sequence[Problem], workers: int) -> Mapping[str, float]:
    """Run every program with its asserts in a fresh interpreter; passing is exit code 0; see `_passed`."""

    def passes(one: Problem) -> bool:
        text = "\n".join([one.code, *one.imports, *one.tests])
        return (
            subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, check=False).returncode
            == 0
        )

    with ThreadPoolExecutor(workers) as pool:
        return _passed(problems, list(pool.map(passes, problems)))


def _passed(problems: Sequence[Problem], passed: Sequence[bool]) -> dict[str, float]:
    """1 by task; RuntimeError where a reference does not pass: then nothing was measured."""
    failing = [one.task_id for one, fine in zip(problems, passed, strict=True) if not fine]
    if failing:
        raise RuntimeError(f"The references of {', '.join(failing)} do not pass their own asserts.")
    return {one.task_id: 1.0 for one in problems}


STUDY = Study(
    "bench-sandbox",
    "backfire bench-sandbox --programs 60 --repeats 3",
    SandboxConfig,
    run,
)
