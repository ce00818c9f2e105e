"""Attacks on stored windows at all radii, below the bounds beside them, and measured again."""

import math

import pandas as pd
import pytest
from cases import random_case

from lab import experiments
from lab.experiments import remeasure, robustness
from lab.figures import robustness as figures
from lipnb.bounds import perturbation


def test_one_input_attacked_at_all_radii():
    for masked in (False, True):
        case = random_case(4 + masked, n=5)
        rows = robustness.attack(case.attention, case.x[0], (1e-3, 0.1, 1.0), steps=5)
        for row in rows:
            names = [name for name in robustness.ATTACKS if not math.isnan(row[name])]
            assert len(names) == 7 - 2 * masked
            assert row["random"] <= row["bound"] and row["random_median"] <= row["random"]
            assert row["singular"] <= row["aligned"] <= row["pgd"] <= row["bound"]
            assert row["pgd_random"] <= row["pgd"] and row["one_token"] <= row["bound"]
            assert row["bound"] == min(row[f"bound_{part}"] for part in ("jacobian", "taylor", "outputs", "general"))
            assert row["lipschitz"] <= row["local_upper"] * (1 + 1e-9)
        assert rows[0]["singular"] == pytest.approx(rows[0]["lipschitz"] * rows[0]["epsilon"], rel=0.05)


def test_stored_windows_are_attacked_again(monkeypatch):
    monkeypatch.setattr(robustness, "PANELS", (({**robustness.MINILM, "masked": False}, (0,), (3, 4)),))
    # so little that the tighter bound is taken for one radius alone, and not for all of them together
    monkeypatch.setattr(perturbation, "WORK", 2e10)
    monkeypatch.setattr(robustness, "RADII", (1e-3, 1e-2, 0.3))
    settings, units = experiments.TABLES["robustness"].work(
        texts=("python_reference",), count=1, radii=robustness.RADII
    )
    assert settings["count"] == 1 and len(units) == 2 and sum(unit.size for unit in units) == 6
    table = pd.DataFrame([row for unit in units for row in unit.measure()])
    found = remeasure(table, robustness.again, rows=2, seed=1, by=robustness.PLACE)
    assert len(found) == 6 and all(found[f"{name} difference"].max() < 1e-6 for name in robustness.COMPARED)
    gone = pd.concat([table.assign(corpus="gone.txt"), table], ignore_index=True)
    assert (remeasure(gone, robustness.again, rows=2).corpus == "python_reference").all()


def test_the_worst_change_and_its_bound_are_relative_to_output_and_tokens():
    table = pd.DataFrame(
        {"change": [1, 3], "random_best": [2, 1], "closed_form": 10, "received": [2, 4], "given": [4, 2]}
    )
    found = figures.worst(table)
    assert found[["worst", "relative_change", "certified"]].values.tolist() == [[2, 0.5, 5], [3, 1.5, 20]]
