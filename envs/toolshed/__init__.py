"""The toolshed: a simulated workspace with twelve typed tools and known failures."""

from envs.toolshed.env import Toolshed

__all__ = ["Toolshed"]
