"""Probes: decision points, the conditions they are written in, and what is measured of them.

    from mech import Engine, load_model, patch
    from probes import build_toolshed_items, decompose, run_decision_point

    engine = Engine(load_model("smollm2-135m-q4"))
    items = build_toolshed_items(seed=0)                   # or load_items("items.jsonl"), or Item(…) by hand

    found = decompose(engine, items[:8])                   # G, Δcopy and Δsem of every item
    found.to_dataframe(), found.plot()
    found.summary(rng)                                     # means with intervals, tasks as clusters

    pre, neut = (run_decision_point(engine, items[0], condition) for condition in ("pre", "neut"))
    patch(engine, recipient=neut, donor=pre).plot()        # noising, head by head

`CONDITIONS` are the ways to write a decision point, `condition_messages` gives the messages of one.
Importing this package loads no library; a name's module is loaded where it is first used.
"""

from mech.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
