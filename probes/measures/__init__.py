"""From score rows to G, Δcopy, Δsem and their tables; no model."""
