"""From the steps of rollouts to rates, survival and prediction; no model."""
