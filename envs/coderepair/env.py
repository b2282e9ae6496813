"""The code repair environment: a program in, and out what its tests say of it.

Every program runs in the sandbox, the reference and its mutants included. A program that has run once in an
environment is not run again there: its result is kept.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

from envs.agent import Extraction, Reading
from envs.base import Action, Length, Outcome, Stream, Task, WrongAction
from envs.coderepair import extraction, replies
from envs.coderepair.mutations import Mutant, mutants
from envs.coderepair.observation import FAMILIES, failure, success
from envs.coderepair.problems import Problem, bundled_problems
from envs.errors import InputError
from envs.sandbox import ExecResult, Sandbox

SYSTEM_PROMPT = (
    "You write Python. You are told what a function should do and shown the asserts it will be checked with.\n"
    "\n"
    "Your whole reply is run as it stands, so it has to be one Python program: the function, under the name the "
    "asserts call it by, and whatever it needs. Write no asserts, no explanation and no code fences."
)
_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)

_LONGEST_TO_WRITE = 420  # characters of a reference that a policy is to write itself

Job = tuple[Problem, str]  # a problem, and a program to be run under its tests


@dataclass(frozen=True)
class Bench:
    """The state: which problem is worked on, and whether a program has passed its tests."""

    problem: Problem
    solved: bool = False


class CodeRepair:
    """Programming problems, one a task; answers to `envs.agent.AgentEnvironment[Bench]`.

    The sandbox is the caller's, who also closes it. `problems` are the bundled ones unless given.
    """

    name = "coderepair"
    system_prompt = SYSTEM_PROMPT
    demonstrations = replies.DEMONSTRATIONS

    def __init__(self, sandbox: Sandbox, problems: Sequence[Problem] | None = None) -> None:
        self._sandbox = sandbox
        self._problems = tuple(bundled_problems() if problems is None else problems)
        self._results: dict[Job, ExecResult] = {}

    def tasks(self, n: int, stream: Stream) -> tuple[Task[Bench], ...]:
        """The first n problems in an order drawn from the stream `coderepair-order`.

        Raises InputError for more tasks than there are problems.
        """
        return self._first(n, set(self._problems), stream, "problems")

    def rollout_tasks(self, n: int, stream: Stream) -> tuple[Task[Bench], ...]:
        """Of `tasks`, those whose reference program has at most 420 characters, as in the paper.

        Raises InputError for more tasks than there are such problems.
        """
        short = {each for each in self._problems if len(each.code) <= _LONGEST_TO_WRITE}
        return self._first(n, short, stream, "problems short enough for a rollout")

    def _first(self, n: int, chosen: Set[Problem], stream: Stream, called: str) -> tuple[Task[Bench], ...]:
        """The first n of the chosen problems, in the order drawn of all problems."""
        if n > len(chosen):
            raise InputError(f"There are {len(chosen)} {called}: ask for at most so many tasks, not {n}.")
        order = list(self._problems)
        stream("coderepair-order").shuffle(order)
        return tuple(self._task(problem) for problem in [each for each in order if each in chosen][:n])

    def _task(self, problem: Problem) -> Task[Bench]:
        goal = "\n".join([problem.prompt, "", "The asserts:", *problem.tests])
        start = Bench(problem)
        return Task(
            problem.task_id, "code", goal, (Action(problem.code),), start, replace(start, solved=True)
        )

    def reset(self, task: Task[Bench]) -> Bench:
        """The bench a task starts at."""
        return task.start

    def execute(self, state: Bench, action: Action) -> tuple[Bench, Outcome]:
        """The next bench and what came of the program; a program that fails leaves the bench as it was."""
        problem = state.problem
        result = self.run([(problem, unfenced(action.text))])[0]
        if result.outcome != "passed":
            return state, Outcome(failure=failure(result, problem.tests))
        return replace(state, solved=True), Outcome(result=success(len(problem.tests)))

    def run(self, jobs: Sequence[Job]) -> list[ExecResult]:
        """What comes of programs under the tests of their problems, in order."""
        new = [job for job in dict.fromkeys(jobs) if job not in self._results]
        if new:
            with ThreadPoolExecutor() as threads:  # more than a sandbox has workers: they wait for their turn
                for job, result in zip(new, threads.map(self._run, new), strict=True):
                    self._results[job] = result
        return [self._results[job] for job in jobs]

    def _run(self, job: Job) -> ExecResult:
        problem, program = job
        return self._sandbox.run(program, problem.tests, problem.imports)

    def outcomes(self) -> Counter[str]:
        """How many of the programs run so far had each outcome."""
        return Counter(result.outcome for result in self._results.values())

    def observe(
        self, action: Action, outcome: Outcome, length: Length = "standard", echo: bool = False
    ) -> str:
        """The observation as text; `echo` adds the program to a failure."""
        if outcome.failure is None:
            return outcome.result
        text = outcome.failure.text(length)
        return f"{text}\nThis was the program:\n{action.text}" if echo else text

    def acknowledge(self) -> str:
        """A valence-free observation: the program arrived, nothing is said of how it went."""
        return "The program was received."

    def wrong_actions(self, state: Bench, gold: Action, rng: random.Random) -> tuple[WrongAction[Bench], ...]:
        """Failing mutants of a gold program, one an operator that has any; what they mean is the gold program."""
        (found,) = self.failing_mutants([(state.problem, gold.text)], [rng])
        return tuple(
            WrongAction(Action(each.code), each.operator, each.changed, gold, state) for each in found
        )

    def failing_mutants(
        self, jobs: Sequence[Job], rngs: Sequence[random.Random], per_operator: int = 1
    ) -> list[tuple[Mutant, ...]]:
        """For each program, mutants that fail in one of FAMILIES: at most so many of each operator, as drawn.

        The first draw of every operator is run, then the next draw of those that still lack one, and so on; all
        programs at once, since a sandbox with one program left to run leaves its other workers idle.
        """
        draws = [_Draw(code, rng, per_operator) for (_, code), rng in zip(jobs, rngs, strict=True)]
        problems = [problem for problem, _ in jobs]
        while True:
            batches = [draw.next() for draw in draws]
            if not any(batches):
                return [draw.found() for draw in draws]
            tried = [(at, mutant) for at, batch in enumerate(batches) for mutant in batch]
            results = self.run([(problems[at], mutant.code) for at, mutant in tried])
            for (at, mutant), result in zip(tried, results, strict=True):
                if result.outcome in FAMILIES:
                    draws[at].failing[mutant.operator].append(mutant)

    def success_like(self, wrong: WrongAction[Bench]) -> str:
        """What the wrong program would have been answered, had it worked: all tests pass."""
        return success(len(wrong.imagined.problem.tests))

    def solved(self, task: Task[Bench], state: Bench) -> bool:
        """Whether a program has passed the task's tests."""
        return state == task.wanted

    def extract(self, raw: str, task: Task[Bench] | None = None) -> Extraction:
        """The program in a reply, of several the largest that defines what the task's tests call."""
        return extraction.extract(raw, _wanted(task))

    def clean(self, raw: str, task: Task[Bench] | None = None) -> Action:
        """The program that `extract` finds."""
        return self.extract(raw, task).action

    def stops(self, text: str, task: Task[Bench] | None = None) -> bool:
        """Whether a code fence closes a program that defines what the task's tests call, or a broken one."""
        return extraction.ended(text, _wanted(task))

    def canonical(self, text: str) -> str:
        """The program without comments and layout; what does not parse, with white space collapsed."""
        return replies.canonical(text)

    def reading(self, action: Action, cut_off: bool) -> Reading:
        """How a cleaned reply can be read: `call` is a program that parses, see `envs.coderepair.replies`."""
        return replies.reading(action.text, cut_off)

    def ban_everywhere(self, text: str) -> bool:
        """Never: a program that fails may be the beginning of one that works."""
        return False

    def tool(self, action: Action) -> None:
        """None: programs call no tool."""
        return None


class _Draw:
    """The mutants of one program, operator by operator in drawn order, and those that were seen to fail."""

    def __init__(self, code: str, rng: random.Random, per_operator: int) -> None:
        self._queues: dict[str, list[Mutant]] = {}
        for mutant in mutants(code):
            self._queues.setdefault(mutant.operator, []).append(mutant)
        for queue in self._queues.values():
            rng.shuffle(queue)
        self._per_operator = per_operator
        self.failing: dict[str, list[Mutant]] = {operator: [] for operator in self._queues}

    def next(self) -> list[Mutant]:
        """One more mutant of each operator that has some left and not enough that fail."""
        lacking = (name for name, found in self.failing.items() if len(found) < self._per_operator)
        return [self._queues[name].pop(0) for name in lacking if self._queues[name]]

    def found(self) -> tuple[Mutant, ...]:
        """Those that fail, in the order of operators."""
        return tuple(mutant for found in self.failing.values() for mutant in found)


def _wanted(task: Task[Bench] | None) -> frozenset[str]:
    return frozenset() if task is None else _called_by_tests(task.start.problem)


@lru_cache(maxsize=1024)
def _called_by_tests(problem: Problem) -> frozenset[str]:
    return frozenset(problem.functions)


def unfenced(text: str) -> str:
    """The program inside, where a text is one code block between fences and nothing else; else the text."""
    match = _FENCED.fullmatch(text.strip())
    return match[1] if match and "```" not in match[1] else text
