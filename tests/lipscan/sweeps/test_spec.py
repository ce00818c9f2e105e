"""Specs of sweeps: checked whole, and expanded to points that stay the same points."""

import math

import numpy as np
from sweeping import written

from lipscan import sweeps
from lipscan.cli import words
from lipscan.sweeps import running, spec


def parameters(text):
    return [point.parameters for point in sweeps.expand(sweeps.read(written(text)))]


def overriding(name, **values):
    return [point.parameters for point in running.plan(name, parameters=values).states]


def test_grid_and_zip_give_every_combination_in_order(place):
    got = parameters("parameters: {words: [x]}\ngrid: {n: [1, 2]}\nzip: {slope: [0.1, 1e-3], who: [a, b]}")
    pairs = ({"slope": 0.1, "who": "a"}, {"slope": 0.001, "who": "b"})
    assert got == [{"words": ["x"], "n": n} | pair for n in (1, 2) for pair in pairs]
    assert type(got[1]["slope"]) is float  # plain YAML would read 1e-3 as a word


TIMES = ("12:00:00", "12:30", "1:2:3.5", "-1:30", "2026-11-27", "2001-12-14t21:59:43Z")
VALUES = [
    *[(time, time) for time in TIMES],
    *[("010", 10), ("-007", -7), ("08", 8), ("+3", 3), ("0o17", 15), ("0x1F", 31), ("0", 0)],
    *[("1e3", 1000.0), ("1E+3", 1000.0), ("-1.e-3", -0.001), (".5", 0.5), ("1.", 1.0), ("-.INF", -math.inf)],
    *[("true", True), ("FALSE", False), ("tRUE", "tRUE"), ("y", "y"), ("N", "N"), ("'no'", "no"), ('"on"', "on")],
    *[("null", None), ("~", None), ("None", None), ("NULL", None), ("", None), ("'null'", "null")],
    *[("=", "="), ("1.2.3", "1.2.3"), ("2-0", "2-0"), ("e3", "e3"), ("!!int 010", 10), ("!!str 010", "010")],
    ("[yes please, no one, 1 000]", ["yes please", "no one", "1 000"]),
    ("{on: 1, no: [off the map]}", {"on": 1, "no": ["off the map"]}),
]


def test_words_and_numbers_are_those_of_yaml_1_2_in_a_spec_and_at_the_terminal(place):
    """PyYAML reads 1.1: 12:00:00 was 43200, 010 was 8, 1e3 a text, and a date no text."""
    for text, value in VALUES:
        got = spec.read(written(f"parameters:\n  n: {text}")).parameters["n"]
        assert got == value and type(got) is type(value) and words.parameter(f"n={text}") == ("n", value), text


def test_a_key_is_its_text_and_merges_stay(place):
    got = parameters("parameters:\n  n: {deep: {a: &a {<<: {x: 1}, x: 2}}}\n  m: {<<: *a, y: 3}\n  on: 4\n  no: 5")
    assert got == [{"n": {"deep": {"a": {"x": 2}}}, "m": {"x": 2, "y": 3}, "on": 4, "no": 5}]


def test_a_walltime_reaches_the_batch_system_as_hours(place):
    """Without quotes 12:00:00 was 43200, a month of minutes to SLURM."""
    from dask_jobqueue.slurm import SLURMJob

    def options(limit, kind="SLURM"):
        name = written(f"cluster: {{kind: {kind}Cluster, options: {{walltime: {limit}}}}}")
        return spec.read(name).cluster["options"]

    for limit in ("12:00:00", "'12:00:00'", "1-12:00:00", "0:30:00", "120:00:00"):
        job = SLURMJob(None, "a job", cores=1, memory="1GB", **options(limit))
        assert f"#SBATCH -t {limit.strip(chr(39))}\n" in job.job_script()
    assert options("12:30", "LSF") == {"walltime": "12:30"} and options("UNLIMITED") == {"walltime": "UNLIMITED"}


def test_several_zipped_groups_are_axes_of_their_own(place):
    got = parameters("zip: [{slope: [1, 2], n: [3, 4]}, {a: [5, 6]}]")
    assert got == [{"slope": s, "n": n, "a": a} for s, n in ((1, 3), (2, 4)) for a in (5, 6)]


def test_ranges_are_those_of_numpy_in_round_numbers(place):
    ranges = {"range: [2, 9, 3]": [2, 5, 8], "range: [3]": [0, 1, 2], "range: [3, 0, -1]": [3, 2, 1]}
    ranges |= {"linspace: [0, 0.3, 4]": [0.0, 0.1, 0.2, 0.3], "geomspace: [1, 100, 3]": [1.0, 10.0, 100.0]}
    ranges |= {"logspace: [-1, 1, 3]": [0.1, 1.0, 10.0]}
    for values, expected in ranges.items():
        assert [point["n"] for point in parameters(f"grid: {{n: {{{values}}}}}")] == expected


def test_exclusions_are_partial_points(place):
    got = parameters("grid: {slope: [1, 2], n: [1, 2, 3]}\nexclude: [{slope: 1}, {slope: 2, n: 3}]")
    assert got == [{"slope": 2, "n": 1}, {"slope": 2, "n": 2}]


def test_samples_are_nested_and_stay_when_the_grid_grows(place):
    def drawn(count, n, seed=0):
        return parameters(f"grid: {{n: {{range: [{n}]}}}}\nsample: {{count: {count}, seed: {seed}}}")

    few, more = drawn(10, 100), drawn(20, 100)
    assert len(few) == 10 and all(point in more for point in few) and more == sorted(more, key=lambda p: p["n"])
    assert drawn(10, 100) == few != drawn(10, 100, seed=1)
    kept = [point for point in drawn(20, 110) if point["n"] < 100]
    assert len(kept) >= 10 and all(point in more for point in kept)


def test_samples_are_uniform(place):
    every = sweeps.expand(sweeps.read(written("grid: {n: {range: [10]}}")))
    hits = np.zeros(10)
    for seed in range(300):
        for point in spec._drawn(every, 3, seed):
            hits[point.parameters["n"]] += 1
    assert ((hits - 90) ** 2 / 90).sum() < 27.9  # chi squared, 9 degrees of freedom, one in a thousand


def test_equal_points_have_equal_names_whatever_the_order(place):
    one = sweeps.expand(sweeps.read(written("grid: {slope: [1], n: [2]}")))
    other = sweeps.expand(sweeps.read(written("grid: {n: [2], slope: [1]}")))
    assert one[0].id == other[0].id and len(one[0].id) == 12


def test_points_of_a_spec_made_by_hand(answered):
    by_hand = spec.Spec(notebook=answered / "small.py", grid={"n": [4]}, output=answered / "mine")
    assert list(sweeps.run(by_hand, progress=False).table.value) == [40]
    assert spec.canonical({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'


def test_a_parameter_overrides_whatever_the_spec_says_of_it(place):
    name = written(
        "parameters: {who: b}\ngrid: {n: [1, 2, 3]}\nzip: {slope: [0.5, 1.5], m: [7, 8]}\n"
        "exclude: [{n: 1, slope: 0.5}, {n: 2}]"
    )
    assert len(overriding(name)) == 3
    assert overriding(name, who="c", n=1) == [{"who": "c", "n": 1, "slope": 1.5, "m": 8}]
    assert [point["n"] for point in overriding(name, slope=0.5)] == [3, 3]  # the exclusion of n = 1 holds for 0.5
    assert [point["n"] for point in overriding(name, slope=9.0)] == [1, 1, 3, 3]  # and for no other slope
    assert overriding(name, n=4, m=0) == [{"who": "b", "n": 4, "m": 0, "slope": slope} for slope in (0.5, 1.5)]
    # the same point whether a grid or an option names its value
    [one] = running.plan(written("grid: {n: [1, 2]}"), parameters={"n": 2}).states
    assert one in running.plan("small.yml").states
