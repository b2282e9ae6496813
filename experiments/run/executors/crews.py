"""The pool of workers that a study's settings ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.run.executors.pool import Pool
from experiments.run.executors.tasks import Spec
from experiments.run.run_folder import RunFolder
from experiments.run.study import ExecutorOptions
from mech.errors import InputError


def pool(
    study: Any, config: Any, folder: RunFolder, identity: Mapping[str, str], options: ExecutorOptions
) -> Pool:
    """Workers that are processes of this machine or actors of a Ray cluster.

    Args:
        study: the STUDY of an importable module.
        config: its config.
        folder: claimed for it.
        identity: what workers must have as well.
        options: how many, with how many threads, and where.

    Raises:
        InputError: the study is no STUDY of a module; Ray is not there, or has no cluster.
    """
    module = study.report.__module__
    if module == "__main__" or getattr(sys.modules.get(module), "STUDY", None) is not study:
        raise InputError(
            f"Workers import '{study.name}' as STUDY of a module, and '{module}' has none of that name: measure with "
            "--executor serial, or put the study into a module."
        )
    on_ray = options.executor == "ray"
    threads = options.threads or (1 if on_ray else max(1, cpus() // (options.workers or cpus())))
    spec = Spec(module, config, folder.path.resolve(), folder.study, Path.cwd(), threads, identity)
    if on_ray:
        from experiments.run.executors.ray_cluster import RayCluster

        crew = RayCluster(
            spec, options.address, gpu=not str(getattr(config, "device", "cpu")).startswith("cpu")
        )
        return Pool(crew, spec, options.workers or crew.room())
    from experiments.run.executors.processes import Processes

    return Pool(Processes(spec), spec, options.workers or cpus())


def cpus() -> int:
    """CPUs that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
