"""Specs of sweeps: checked whole, and expanded to points that stay the same points."""

import math

import numpy as np
import pytest
from sweeping import overriding, parameters, written

from lipscan import sweeps
from lipscan.cli import words
from lipscan.sweeps import running, spec


def test_grid_and_zip_give_every_combination_in_order(place):
    got = parameters("parameters: {words: [x]}\ngrid: {n: [1, 2]}\nzip: {slope: [0.1, 1e-3], who: [a, b]}")
    assert got == [
        {"words": ["x"], "n": n, "slope": slope, "who": who}
        for n in (1, 2)
        for slope, who in ((0.1, "a"), (0.001, "b"))
    ]
    assert type(got[1]["slope"]) is float  # plain YAML would read 1e-3 as a word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(time, time) for time in ("12:00:00", "12:30", "1:2:3.5", "-1:30", "2026-11-27", "2001-12-14t21:59:43Z")],
        *[("010", 10), ("-007", -7), ("08", 8), ("+3", 3), ("0o17", 15), ("0x1F", 31), ("0", 0)],
        *[("1e3", 1000.0), ("1E+3", 1000.0), ("-1.e-3", -0.001), (".5", 0.5), ("1.", 1.0), ("-.INF", -math.inf)],
        *[("true", True), ("FALSE", False), ("tRUE", "tRUE"), ("y", "y"), ("N", "N"), ("'no'", "no"), ('"on"', "on")],
        *[("null", None), ("~", None), ("None", None), ("NULL", None), ("", None), ("'null'", "null")],
        *[("=", "="), ("1.2.3", "1.2.3"), ("2-0", "2-0"), ("e3", "e3"), ("!!int 010", 10), ("!!str 010", "010")],
        ("[yes please, no one, 1 000]", ["yes please", "no one", "1 000"]),
        ("{on: 1, no: [off the map]}", {"on": 1, "no": ["off the map"]}),
    ],
)
def test_words_and_numbers_are_those_of_yaml_1_2(place, text, value):
    """PyYAML reads 1.1: 12:00:00 was 43200, 010 was 8, 1e3 a text, and a date no text."""
    got = spec.read(written(f"parameters:\n  n: {text}")).parameters["n"]
    assert got == value and type(got) is type(value) and words.parameter(f"n={text}")[1] == value


def test_a_key_is_its_text_and_merges_stay(place):
    got = parameters("parameters:\n  n: {deep: {a: &a {<<: {x: 1}, x: 2}}}\n  m: {<<: *a, y: 3}\n  on: 4\n  no: 5")
    assert got == [{"n": {"deep": {"a": {"x": 2}}}, "m": {"x": 2, "y": 3}, "on": 4, "no": 5}]


def test_a_walltime_reaches_the_batch_system_as_hours_or_is_refused(place):
    """Without quotes 12:00:00 was 43200, a month of minutes to SLURM."""
    from dask_jobqueue.slurm import SLURMJob

    def options(limit, kind="SLURMCluster"):
        return spec.read(written(f"cluster: {{kind: {kind}, options: {{walltime: {limit}}}}}")).cluster["options"]

    for limit in ("12:00:00", "'12:00:00'", "1-12:00:00", "0:30:00", "120:00:00"):
        job = SLURMJob(None, "a job", cores=1, memory="1GB", **options(limit))
        assert f"#SBATCH -t {limit.strip(chr(39))}\n" in job.job_script()
    assert options("12:30", "LSFCluster") == {"walltime": "12:30"} and options("UNLIMITED") == {"walltime": "UNLIMITED"}
    for limit, kind in (("720", "SLURM"), ("'720'", "PBS"), ("12:30", "SLURM"), ("1.5", "SGE"), ("12:00:00", "LSF")):
        with pytest.raises(
            ValueError, match=r"small.yml: 'cluster': a walltime is hours:minutes.*; got .*, whose unit"
        ):
            options(limit, f"{kind}Cluster")
    with pytest.raises(ValueError, match="a walltime is hours:minutes:seconds, such as 12:00:00; got 43200"):
        spec.Spec(place / "small.py", cluster={"kind": "SLURMCluster", "options": {"walltime": 43200}})


def test_several_zipped_groups_are_axes_of_their_own(place):
    got = parameters("zip: [{slope: [1, 2], n: [3, 4]}, {a: [5, 6]}]")
    assert got == [{"slope": s, "n": n, "a": a} for s, n in ((1, 3), (2, 4)) for a in (5, 6)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("{range: [2, 9, 3]}", [2, 5, 8]),
        ("{range: [3]}", [0, 1, 2]),
        ("{range: [3, 0, -1]}", [3, 2, 1]),
        ("{linspace: [0, 0.3, 4]}", [0.0, 0.1, 0.2, 0.3]),
        ("{geomspace: [1, 100, 3]}", [1.0, 10.0, 100.0]),
        ("{logspace: [-1, 1, 3]}", [0.1, 1.0, 10.0]),
    ],
)
def test_ranges_are_those_of_numpy_in_round_numbers(place, values, expected):
    assert [point["n"] for point in parameters(f"grid: {{n: {values}}}")] == expected


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("grids: {n: [1]}", "there is no key 'grids': the keys are notebook, parameters, grid"),
        ("grid: {n: 3}", "grid: n: give a list with at least one value"),
        ("grid: {n: []}", "at least one value"),
        ("grid: {n: [1, 1]}", "the value 1 is there twice"),
        ("grid: {n: {range: [0.5, 2]}}", "grid: n: range takes one to three whole numbers"),
        ("grid: {n: {range: [0, 2, 0]}}", "range takes"),
        ("grid: {n: {linspace: [0, 1]}}", "linspace takes .first, last, count."),
        ("grid: {n: {geomspace: [-1, 1, 3]}}", "same sign"),
        ("grid: {n: {random: [0, 1]}}", "one of range, linspace, geomspace, logspace"),
        ("grid: {n: {range: [2000000]}}", "grid: n: more than 1000000 values"),
        ("grid: {n: {range: [2000]}, slope: {range: [2000]}}", "4000000 points are too many: at most 1000000"),
        ("grid: {n: [1]}\nparameters: {n: 2}", "the parameter 'n' is there twice"),
        ("grid: {n: [!!timestamp 2024-01-01]}", "line 2: not YAML: could not determine a constructor"),
        (
            "parameters:\n  n: no",
            "line 3: 'no' could be meant in two ways: write true or false, or put a text in quotes",
        ),
        ("grid: {who: [{a: [b, On]}]}", "line 2: 'On' could be meant in two ways: write true or false"),
        ("workers: off", "'off' could be meant in two ways"),
        ("grid: {n: [1_000]}", "'1_000' could be meant in two ways: write a number in plain digits, .inf or .nan, or"),
        ("grid: {n: [0b11]}", "'0b11' could be meant"),
        ("grid: {n: [-0x1F]}", "'-0x1F' could be meant"),
        ("grid: {n: [0o9]}", "'0o9' could be meant"),
        ("grid: {n: [-inf]}", "'-inf' could be meant"),
        ("grid: {n: [1e999]}", "'1e999' is no float here"),
        ("grid: {n: [!!bool maybe]}", "'maybe' is no bool here: write true or false"),
        ("grid: {n: [!!int x]}", "'x' is no int here"),
        ("grid: {n: [!!float x]}", "'x' is no float here"),
        ("grid:\n\tn: [1]", "line 3: not YAML: .* .a tab: indent with spaces."),
        ("parameters: {n: {a: 1, 'a': 2}}", "the key 'a' is there twice"),
        ("grid: {<<: {n: [1]}, <<: {m: [2]}}", "the key '<<' is there twice"),
        ("timeout: 12:00:00", "'timeout' is a number of seconds for each point; got '12:00:00'"),
        ("grid: {n: [!!set {a}]}", "n: .* is a set; "),
        ("grid: {n: [!!binary aGk=]}", "n: .* is a bytes; "),
        ("parameters: {n: [{1: a}]}", "n: the key 1 of a mapping is no text: put it in quotes"),
        ("parameters: {n: {null: a}}", "n: the key None of a mapping is no text"),
        ("grid: {point: [1]}", "'point' is a column of the tables"),
        ("grid: {error: [1]}", "'error' is a column of the tables"),
        ("grid: &g {n: *g}", "nested too deeply, or within themselves"),
        ("output: 3", "'output' is a folder; got 3"),
        ("cluster: {kind: [LocalCluster]}", "'cluster' takes kind"),
        ("cluster: {jobs: 3}", "'cluster' takes kind"),
        ("cluster: {kind: LocalCluster, workers: 3}", "'cluster' takes kind"),
        ("cluster: {kind: LocalCluster, jobs: 0}", "'jobs' is a whole number from 1 on; got 0"),
        ("grid: {'a b': [1]}", "'a b' is not the name of a parameter"),
        ("zip: {n: [1, 2], slope: [1]}", "equally long and not empty; here: n 2, slope 1"),
        ("zip: {n: [1, 1], slope: [2, 2]}", "zip: n, slope: the value .* is there twice"),
        ("grid: {n: [1]}\nexclude: [{m: 1}]", "'exclude' names 'm', which this sweep does not set"),
        ("grid: {n: [1]}\nexclude: [{n: 2}]", 'exclude: {"n":2} matches no point'),
        ("grid: {n: [1]}\nexclude: [{n: 1}]", "no point left"),
        ("grid: {n: [1]}\nsample: {count: 2}", "only 1 points, not 2"),
        ("grid: {n: [1]}\nsample: {size: 2}", "'sample' takes a count"),
        ("workers: 0", "'workers' is a whole number from 1 on; got 0"),
        ("timeout: soon", "'timeout' is a number of seconds"),
        ("gpus: -1", "'gpus' is how many"),
        (
            "grid: !!python/object/apply:os.system ['touch owned']",
            "line 2: not YAML: could not determine a constructor",
        ),
        ("grid: {n: [1]}\ngrid: {n: [2]}", "the key 'grid' is there twice"),
        ("grid: [", "not YAML"),
    ],
)
def test_each_mistake_in_a_spec_gets_a_sentence_and_leaves_nothing(place, text, sentence):
    with pytest.raises(ValueError, match=f"small.yml.*{sentence}"):
        sweeps.run(written(text))
    assert not (place / "sweeps").exists() and not (place / "owned").exists()


def test_equal_points_have_equal_names_whatever_the_order(place):
    one = sweeps.expand(sweeps.read(written("grid: {slope: [1], n: [2]}")))
    other = sweeps.expand(sweeps.read(written("grid: {n: [2], slope: [1]}")))
    assert one[0].id == other[0].id and len(one[0].id) == 12


def test_points_of_a_spec_made_by_hand(answered):
    by_hand = spec.Spec(notebook=answered / "small.py", grid={"n": [4]}, output=answered / "mine")
    assert list(sweeps.run(by_hand, progress=False).table.value) == [40]
    assert spec.canonical({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    with pytest.raises(ValueError, match="n: .* is a tuple; parameters are"):  # papermill would write a text
        sweeps.run(spec.Spec(notebook=answered / "small.py", grid={"n": [(1, 2)]}, output=answered / "mine"))


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
