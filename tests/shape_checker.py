"""The checker that pytest puts around every function of the rooms: beartype, with int where float is asked.

PEP 484 lets an int stand for a float and mypy agrees; beartype alone does not.
"""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
