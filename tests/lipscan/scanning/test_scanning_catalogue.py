"""No bound is stated beside a layer for which it is not proved."""

from cases import normal

from lipnb import Attention
from lipscan.scanning import catalogue


def test_a_scan_states_no_bound_that_is_not_proved_for_windows():
    x, maps = normal(9, 4), [normal(2, 3, 4, seed=seed) for seed in range(3)]
    whole = Attention(*maps, normal(2, 5, 3, seed=3), query_bias=normal(2, 3, seed=4), masked=True)
    for f, there in ((whole.replace(window=3), False), (whole, True)):
        keys, reasons = catalogue.applicable(f)
        for name in ("mean_field", "mean_field_sharp"):
            assert (name in keys) == there == ("window" not in reasons.get(name, ""))
        assert set(catalogue.evaluate(f, catalogue.prepare(f), x)) == set(keys)
