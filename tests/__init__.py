"""Tests, in folders that mirror the rooms."""

from tests import shape_checker as shape_checker  # jaxtyping looks it up as an attribute of this package
