"""Which of the kernel's means hold a program, strongest first, and all that a run of one needs to know."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from envs.sandbox.limits import Limits
from envs.sandbox.results import Isolation

MECHANISMS = ("namespace", "seccomp", "landlock")


@dataclass(frozen=True)
class Plan:
    """One combination of means. `two_users`: in its namespace the program is another user than its supervisor."""

    namespaces: bool = False
    two_users: bool = False
    seccomp: bool = False
    landlock: bool = False
    as_root: bool = False  # the server runs as root, for whom the kernel counts no processes

    @property
    def isolation(self) -> Isolation:
        """What a result says of this plan."""
        return Isolation(
            network="namespace" if self.namespaces else "seccomp" if self.seccomp else "none",
            files="namespace" if self.namespaces else "landlock" if self.landlock else "none",
            processes="namespace" if self.namespaces else "seccomp" if self.seccomp else "limits",
        )

    @property
    def may_start_processes(self) -> bool:
        """Only where the kernel both counts them and ends them with their namespace; threads always may start."""
        return self.namespaces and (self.two_users or not self.as_root)


def plans(allowed: Collection[str], as_root: bool) -> list[Plan]:
    """All plans of the allowed mechanisms, strongest first; the last needs nothing of the kernel."""
    combinations = [
        (True, as_root, True, False),
        (True, False, True, False),
        (True, as_root, False, False),
        (True, False, False, False),
        (False, False, True, True),
        (False, False, True, False),
        (False, False, False, True),
        (False, False, False, False),
    ]
    made = [Plan(*each, as_root=as_root) for each in combinations]
    return list(dict.fromkeys(plan for plan in made if _means(plan) <= set(allowed)))


def _means(plan: Plan) -> set[str]:
    wanted = (plan.namespaces, plan.seccomp, plan.landlock)
    return {name for name, used in zip(MECHANISMS, wanted, strict=True) if used}


@dataclass(frozen=True)
class Setting:
    """What every run of a server has in common.

    command: the interpreter and its arguments. readable: what the program may read. extensions: folders of the
    interpreter's extension modules. memory_base: bytes of address space of a fresh interpreter, 0 where they cannot
    be measured (memory is then not limited). payload: the code that runs in the program's interpreter. own_memory: the
    same as memory_base for the server, of which the process that runs the tests is a fork.
    """

    plan: Plan
    limits: Limits
    machine: str
    command: tuple[str, ...]
    readable: tuple[str, ...]
    extensions: tuple[str, ...]
    memory_base: int
    payload: tuple[bytes, ...]
    own_memory: int
