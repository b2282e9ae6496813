"""Decision points from the project's own toolshed: every gold call, spoilt by every operator that applies.

For each wrong call a× the environment supplies the rest: the error in its lengths, the acknowledgement, and
what a× would have been answered had it worked. A pool is a function of its seed alone.

`paper`: the six templates of the paper's design under one system prompt, observations framed as the wording says.
`all`: fourteen templates, six system prompts and four frames, so that a claim can be tested over them. A task's
prompt and frame follow from its place alone, template × prompt × frame crossed as evenly as 24 cells allow. A task of
a paper's template is the task of the `paper` pool; in the paper's prompt and frame its items are the very items of
that pool, elsewhere their ids say which prompt and frame they have.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from envs.base import Action, Task, WrongAction
from envs.toolshed import Toolshed
from envs.toolshed.calls import parse_call
from envs.toolshed.prompts import SYSTEM_PROMPTS
from envs.toolshed.tasks import TEMPLATES
from envs.toolshed.world import World
from mech.errors import InputError
from probes.items.item import FRAME, Item
from probes.items.selection import capped


@dataclass(frozen=True)
class _Step:
    """One gold call: the world before it, what it answers, and its wrong versions."""

    world: World
    gold: Action
    answer: str
    wrong: tuple[WrongAction[World], ...]


Templates = Literal["paper", "all"]

FRAMES: Mapping[str, str | None] = {
    "result": None,  # as the wording says
    "output": "[tool output] {observation}",
    "json": '{"status": "returned", "content": {json}}',
    "tags": "<observation>\n{observation}\n</observation>",
}
"""Ways to frame an observation, by name; see `probes.prompts.conditions.framed`."""

N_TASKS: Mapping[Templates, int] = {"paper": 60, "all": 112}
"""Tasks of a pool; 112 are eight of each of fourteen templates, and four or five of each prompt and frame."""


def build_toolshed_items(
    seed: int, n_tasks: int | None = None, per_operator: int | None = 45, templates: Templates = "paper"
) -> list[Item]:
    """The items of `n_tasks` tasks (N_TASKS), at most `per_operator` of an operator (all if None), sorted by id.

    Equal seeds give equal items, byte for byte. Every item has two distractors: other wrong calls of the same
    gold call, else of the nearest one. Raises InputError for numbers below 1, or an unknown set of templates.
    """
    if templates not in N_TASKS:
        raise InputError(f"The templates are {' or '.join(N_TASKS)}, not {templates}.")
    n_tasks = N_TASKS[templates] if n_tasks is None else n_tasks
    for name, number in (("n_tasks", n_tasks), ("per_operator", per_operator)):
        if number is not None and number < 1:
            raise InputError(f"{name} must be at least 1, not {number}.")

    def stream(name: str) -> random.Random:
        return random.Random(
            f"{seed}:{name}"
        )  # seeded by the text's SHA-512: each name has its own generator

    shed = Toolshed()
    pool = []
    varied = templates == "all"
    drawn = shed.varied_tasks(n_tasks, stream) if varied else shed.tasks(n_tasks, stream)
    for place, task in enumerate(drawn):
        rng = stream(f"toolshed-wrong-{task.task_id}")
        steps = _steps(shed, task, rng)
        for index, step in enumerate(steps):
            made = [_item(shed, task, steps, index, wrong, rng) for wrong in step.wrong]
            pool += [_worded(item, *wording_of(place)) for item in made] if varied else made
    if per_operator is not None:
        pool = capped(pool, per_operator, stream("toolshed-pool"), by_template=varied)
    return sorted(pool, key=lambda item: item.item_id)


def wording_of(place: int) -> tuple[str, str]:
    """The system prompt and the frame of the task in this place of the `all` pool, by name.

    Eight tasks of a template (112 in all) have each prompt once or twice and each frame twice, in eight pairs.
    """
    block, template = divmod(place, len(TEMPLATES))
    prompt = (template + block) % len(SYSTEM_PROMPTS)
    frame = (block + template // len(SYSTEM_PROMPTS)) % len(FRAMES)
    return list(SYSTEM_PROMPTS)[prompt], list(FRAMES)[frame]


def _worded(item: Item, prompt: str, frame: str) -> Item:
    """The item under another system prompt and in another frame, its id saying so; unchanged in those of the paper."""
    if (prompt, frame) == (next(iter(SYSTEM_PROMPTS)), next(iter(FRAMES))):
        return item
    text = FRAMES[frame]
    return replace(
        item,
        item_id=f"{item.item_id}-{prompt}-{frame}",
        system_prompt=SYSTEM_PROMPTS[prompt],
        meta={**item.meta, **({} if text is None else {FRAME: text})},
    )


def _steps(shed: Toolshed, task: Task[World], rng: random.Random) -> list[_Step]:
    steps = []
    world = shed.reset(task)
    for gold in task.gold:
        after, outcome = shed.execute(world, gold)
        steps.append(_Step(world, gold, outcome.result, shed.wrong_actions(world, gold, rng)))
        world = after
    return steps


def _item(
    shed: Toolshed,
    task: Task[World],
    steps: list[_Step],
    index: int,
    wrong: WrongAction[World],
    rng: random.Random,
) -> Item:
    step = steps[index]
    _, outcome = shed.execute(step.world, wrong.action)
    if outcome.failure is None:
        raise AssertionError(f"{wrong.action.text} was to fail in {task.task_id} and did not")
    others = _distractors(steps, index, wrong, rng)
    _, other_outcome = shed.execute(step.world, others[0])
    if other_outcome.failure is None:
        raise AssertionError(f"{others[0].text} was to fail in {task.task_id} and did not")
    return Item(
        item_id=f"{task.task_id}-s{index}-{wrong.operator}",
        env=shed.name,
        task_id=task.task_id,
        template=task.template,
        step_index=index,
        operator=wrong.operator,
        error_type=outcome.failure.error_type,
        system_prompt=shed.system_prompt,
        goal=task.goal,
        prefix_actions=tuple(each.gold.text for each in steps[:index]),
        prefix_observations=tuple(each.answer for each in steps[:index]),
        failed_action=wrong.action.text,
        gold_action=step.gold.text,
        obs_fail=shed.observe(wrong.action, outcome),
        obs_fail_terse=shed.observe(wrong.action, outcome, "terse"),
        obs_fail_verbose=shed.observe(wrong.action, outcome, "verbose"),
        obs_fail_echo=shed.observe(wrong.action, outcome, echo=True),
        obs_success=shed.success_like(wrong),
        obs_neutral=shed.acknowledge(),
        obs_fail_other=shed.observe(others[0], other_outcome),
        distractors=tuple(each.text for each in others),
        tool=parse_call(wrong.action.text).tool,
        meta={"changed": wrong.changed},
    )


def _distractors(
    steps: list[_Step], index: int, wrong: WrongAction[World], rng: random.Random
) -> tuple[Action, Action]:
    """Two other wrong calls: of this gold call in drawn order, then of the steps nearest to it."""
    found: list[Action] = []
    for near in sorted(range(len(steps)), key=lambda each: (abs(each - index), each)):
        candidates = [each.action for each in steps[near].wrong if each.operator != wrong.operator]
        rng.shuffle(candidates)
        found += [each for each in candidates if each not in (wrong.action, steps[index].gold, *found)]
    return found[0], found[1]
