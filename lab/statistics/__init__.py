"""Statistics of the stored tables: fits, slopes, rank correlations and effects, each with its interval.

`power_laws` fits one series, and `growth` slopes of a few windows at each length. `head_rates` and `layer_growth` apply
them to heads and to layers, `predicted_slopes` compares slopes with what predicts them, `ranking` has rank correlations
with clustered intervals, and `factorial` the effects of a factorial design. Nothing here imports torch.
"""
