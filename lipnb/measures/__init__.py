"""Discrete measures as weighted tokens: distances, the mean-field map, and the gain from splitting atoms."""

from lipnb.measures.transport import conditional_wasserstein, mean_field_map, repeat, uniform, wasserstein

__all__ = ["conditional_wasserstein", "mean_field_map", "repeat", "uniform", "wasserstein"]
