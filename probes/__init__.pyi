# The public names of `probes`, listed here and nowhere else (`mech.lazy`).

from probes.decomposition import Decomposition as Decomposition
from probes.decomposition import decompose as decompose
from probes.items.coderepair import build_coderepair_items as build_coderepair_items
from probes.items.item import Item as Item
from probes.items.item import dump_items as dump_items
from probes.items.item import load_items as load_items
from probes.items.item import select_items as select_items
from probes.items.toolshed import build_toolshed_items as build_toolshed_items
from probes.measures.measures import measure as measure
from probes.prompts.conditions import CONDITIONS as CONDITIONS
from probes.prompts.conditions import CORE as CORE
from probes.prompts.conditions import condition_messages as condition_messages
from probes.prompts.conditions import parse_conditions as parse_conditions
from probes.prompts.wording import Wording as Wording
from probes.prompts.wording import load_wording as load_wording
from probes.scoring.score import run_decision_point as run_decision_point
from probes.scoring.score import score_item as score_item
