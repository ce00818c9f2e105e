"""Discrete measures as weighted tokens: distances between them, the mean-field map, and what splitting atoms gains."""

from lipnb.measures.transport import conditional_wasserstein, mean_field_map, repeat, uniform, wasserstein

__all__ = ["conditional_wasserstein", "mean_field_map", "repeat", "uniform", "wasserstein"]
