"""Code repair: small programs, spoilt by one slip each, and what the interpreter says of them."""

from envs.coderepair.env import CodeRepair
from envs.coderepair.mutations import Mutant, mutants
from envs.coderepair.problems import Problem, bundled_problems, load_problems

__all__ = ["CodeRepair", "Mutant", "Problem", "bundled_problems", "load_problems", "mutants"]
