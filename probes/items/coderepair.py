"""Decision points from programming problems: the reference program of each, spoilt by every operator that applies.

Every text comes from executing the programs in the sandbox. A pool is a function of its seed and the problems, as
far as execution is: a program that takes about as long as the sandbox allows may time out here and not there, and one
that grows a list for ever meets its time limit on one machine and its memory limit, which makes no item, on another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from envs.base import Action, Stream, Task, WrongAction
from envs.coderepair.env import Bench, CodeRepair
from envs.coderepair.mutations import Mutant
from envs.coderepair.observation import quotes_source
from envs.coderepair.problems import Problem, bundled_problems
from envs.sandbox import Limits, Sandbox
from mech.errors import InputError
from probes.items.item import Item
from probes.items.selection import capped

# The slowest reference but one of both sets of problems takes 0.04 s. Processor time, since it is the same on a busy
# machine; the wall clock is for programs that wait.
LIMITS = Limits(cpu_s=1, wall_s=10)
_BATCH = 16  # problems between two reports of progress
_DISTRACTORS = 2
_SPARE = 3  # failing mutants of each operator where one each does not make up an item


@dataclass(frozen=True)
class Pool:
    """Items; how often each outcome was met while executing; and why each problem without items has none."""

    items: list[Item]
    outcomes: Counter[str]
    left_out: dict[str, str]


def build_coderepair_items(
    seed: int,
    problems: Sequence[Problem] | None = None,
    n_tasks: int | None = None,
    per_operator: int | None = None,
    sandbox: Sandbox | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Item]:
    """The items of `n_tasks` problems (all if None), at most `per_operator` of an operator, sorted by id.

    Equal seeds and problems give equal items, byte for byte. Every item has two distractors: other failing mutants
    of its problem. Without a sandbox one is opened, and closed at the end; `on_progress` gets the number of problems
    done and the number of all. Raises InputError for numbers below 1, for more tasks than problems, and where the
    sandbox cannot work.
    """
    return coderepair_pool(seed, problems, n_tasks, per_operator, sandbox, on_progress).items


def coderepair_pool(
    seed: int,
    problems: Sequence[Problem] | None = None,
    n_tasks: int | None = None,
    per_operator: int | None = None,
    sandbox: Sandbox | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Pool:
    """As `build_coderepair_items`, with an account of what was executed and left out."""
    for name, number in (("n_tasks", n_tasks), ("per_operator", per_operator)):
        if number is not None and number < 1:
            raise InputError(f"{name} must be at least 1, not {number}.")

    def stream(name: str) -> random.Random:
        return random.Random(f"{seed}:{name}")  # as in the toolshed: each name has its own generator

    problems = bundled_problems() if problems is None else problems
    items: list[Item] = []
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        if sandbox is None:
            sandbox = stack.enter_context(Sandbox(LIMITS))
        env = CodeRepair(sandbox, problems)
        tasks = env.tasks(len(problems) if n_tasks is None else n_tasks, stream)
        for start in range(0, len(tasks), _BATCH):
            batch = tasks[start : start + _BATCH]
            items += _items(env, batch, stream, left_out)
            if on_progress is not None:
                on_progress(start + len(batch), len(tasks))
    if per_operator is not None:
        items = capped(items, per_operator, stream("coderepair-pool"))
    return Pool(sorted(items, key=lambda item: item.item_id), env.outcomes(), left_out)


def _items(
    env: CodeRepair, batch: Sequence[Task[Bench]], stream: Stream, left_out: dict[str, str]
) -> list[Item]:
    """The items of some problems; adds to `left_out` why a problem has none."""
    references = env.run([(task.start.problem, task.gold[0].text) for task in batch])
    tasks = []
    for task, reference in zip(batch, references, strict=True):
        if reference.outcome == "passed":
            tasks.append(task)
        else:
            why = reference.message if reference.outcome == "unverifiable" else reference.outcome
            left_out[task.task_id] = f"the reference does not pass ({why})"
    jobs = [(task.start.problem, task.gold[0].text) for task in tasks]
    rngs = [stream(f"coderepair-wrong-{task.task_id}") for task in tasks]
    items = []
    for task, job, rng, spoilt in zip(tasks, jobs, rngs, env.failing_mutants(jobs, rngs), strict=True):
        spare = spoilt
        if not all(_others(mutant, spoilt) for mutant in spoilt):
            (spare,) = env.failing_mutants([job], [rng], _SPARE)
        found = []
        for mutant in spoilt:
            others = _others(mutant, rng.sample(spare, len(spare)))
            if others:
                found.append(_item(env, task, mutant, others))
        if not found:
            left_out[task.task_id] = f"only {len(spare)} failing mutants"
        items += found
    return items


def _others(mutant: Mutant, candidates: Sequence[Mutant]) -> tuple[Mutant, ...]:
    """The first two others, of other operators where there are; none where there are not two.

    None of the three is the beginning of another one: its score would contain the other's.
    """
    chosen = [mutant]
    for each in sorted(candidates, key=lambda each: each.operator == mutant.operator):
        fits = not any(_prefixed(each.code, one.code) for one in chosen)
        if fits and len(chosen) <= _DISTRACTORS:
            chosen.append(each)
    return tuple(chosen[1:]) if len(chosen) > _DISTRACTORS else ()


def _prefixed(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _item(env: CodeRepair, task: Task[Bench], mutant: Mutant, others: Sequence[Mutant]) -> Item:
    state, gold, action = env.reset(task), task.gold[0], Action(mutant.code)
    wrong = WrongAction(action, mutant.operator, mutant.changed, gold, state)
    after, outcome = env.execute(state, action)
    other = Action(others[0].code)
    _, other_outcome = env.execute(state, other)
    if outcome.failure is None or other_outcome.failure is None or after != state:
        raise AssertionError(f"a mutant of {task.task_id} was to fail and did not")
    (result,) = env.run([(state.problem, mutant.code)])
    observed = env.observe(action, outcome)
    return Item(
        item_id=f"{task.task_id}-{mutant.operator}",
        env=env.name,
        task_id=task.task_id,
        template=task.template,
        step_index=0,
        operator=mutant.operator,
        error_type=outcome.failure.error_type,
        system_prompt=env.system_prompt,
        goal=task.goal,
        prefix_actions=(),
        prefix_observations=(),
        failed_action=mutant.code,
        gold_action=gold.text,
        obs_fail=observed,
        obs_fail_terse=env.observe(action, outcome, "terse"),
        obs_fail_verbose=env.observe(action, outcome, "verbose"),
        obs_fail_echo=env.observe(action, outcome, echo=True),
        obs_success=env.success_like(wrong),
        obs_neutral=env.acknowledge(),
        obs_fail_other=env.observe(other, other_outcome),
        distractors=tuple(each.code for each in others),
        tool=None,
        meta={
            "traceback_quotes_source": quotes_source(observed, mutant.code),
            "tests_passed_before_failure": result.n_passed,
            "n_tests": result.n_tests,
            "changed": mutant.changed,
            "line": mutant.line,
        },
    )
