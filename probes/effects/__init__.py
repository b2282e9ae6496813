"""From effects of heads and layers to shares, doses, agreements and circuits."""
