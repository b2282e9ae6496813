"""The pool of workers that a study's settings ask for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.run.executors.pool import Pool
from experiments.run.executors.processes import Processes, cpus
from experiments.run.executors.ray_cluster import RayCluster
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
        InputError: the study is no STUDY of a module.
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
    device = str(getattr(config, "device", "cpu"))
    crew = RayCluster(spec, options.address, gpu=not device.startswith("cpu")) if on_ray else Processes(spec)
    return Pool(crew, spec, options.workers)
