"""What a scan says: each sentence from the tables, and nothing of what was not measured."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lipnb
from lipscan.scanning import fmt, report, sentences

ROOT = Path(__file__).parents[3]


def test_the_product_of_layers_is_told_only_where_all_were_scanned():
    whole = {"part": ["layer", "layer", "hidden"], "layer": [0, 1, -1], "lipschitz": [2.0, 3.0, 5.0]}
    whole = pd.DataFrame(whole).assign(length=8, relative=1.0, converged=True, composed=True)

    def said(whole, count):
        return " ".join(finding.sentence for finding in sentences._whole(whole, count))

    assert "the product of its layers, an upper bound, is about 6." in said(whole, 2)
    assert "product" not in said(whole, 30)
    assert "product" not in said(whole.assign(composed=[True, True, False]), 2)  # with a final norm


def test_each_finding_says_what_it_means_and_names_pages_that_are_there(found):
    scan, _ = found
    findings = sentences.findings(scan)
    assert len(findings) >= 9 and all(finding.pages for finding in findings)
    book = ROOT / "notebooks"
    for page, title in sentences.PAGES.items():
        assert f"# # {title}\n" in (book / f"{page}.py").read_text(encoding="utf-8"), page
    page = report.html(scan)
    links, places = set(re.findall(r'href="#([^"]+)"', page)), set(re.findall(r'id="([^"]+)"', page))
    assert links and links <= places
    top = sentences.roughest(scan.summary)
    assert f"<b>{fmt.short(top.lipschitz)}</b>" in page  # the tile says what the sentence says
    assert f"constant {fmt.short(top.lipschitz)} (mean of 2 windows" in findings[1].sentence


def test_the_first_screen_answers_in_three_sentences_from_the_tables(found):
    scan, _ = found
    rough, much, does = (sentence for _, sentence in sentences.answer(scan))
    good = scan.summary[scan.summary.length == 9]
    top, low = good.loc[good.lipschitz.idxmax()], good.loc[good.lipschitz.idxmin()]
    said = f"of what layer {top.layer} receives comes out {fmt.short(top.low)} to {fmt.short(top.high)} times"
    assert said in rough and f"in layer {low.layer}: {fmt.short(low.low)} to" in rough
    assert f"{fmt.up(top.certified_over)} times that, proved in 1 of 2 windows." in rough
    assert f"In the first window it is {top.over_random:.3g} times that of random weights" in much
    assert "from 5 to 9 tokens" in much
    end = scan.whole[scan.whole.part == "hidden"].iloc[0]
    most = good.loc[good.relative.idxmax()]
    assert f"up to {most.relative:.3g} in layer {most.layer}, where that is most (at 9 tokens, on average o" in does
    assert f"by up to {end.relative:.3g} (at 5 tokens, in the first window); most errors grow far less (63)" in does
    other = sentences._how_far(good.assign(relative=good.lipschitz.iloc[::-1].to_numpy()), top, scan.whole)
    assert f"in layer {low.layer}, where" in other and f"constant itself is largest in layer {top.layer})" in other
    same = sentences._how_far(good.assign(relative=good.lipschitz), top, scan.whole)
    assert "by up to" in other and "itself" not in same
    page = report.html(scan)
    assert page.index(str(report._linked(does))) < page.index('class="tiles"') < page.index("What was found")

    one = scan.summary[(scan.summary.length == 9) & (scan.summary.layer == top.layer)]
    one = one.assign(certified_over=np.nan, converged=False, low=2.0, high=2.0).drop(columns="over_random")
    bare = SimpleNamespace(summary=one.drop(columns="over_shuffled"), whole=scan.whole[:0], table=scan.table)
    rough, much, does = (sentence for _, sentence in sentences.answer(bare))
    assert rough.endswith(f"of what layer {top.layer} receives comes out at least 2 times as large.")
    assert much == "This scan has no baseline and one length, so it does not say." and "end to end" not in does
    for random, order, said in (
        (3, 1, "(more than its usual initialisation gives)"),
        (1.5, 1.3, "(about what its shape alone gives)"),
        (0.4, 1, "initialisation gives) and as large as that of the same"),
    ):
        bare.summary = one.assign(over_random=random, over_shuffled=order)
        told = sentences.answer(bare)[1][1]
        assert said in told and ("order matters little" in told) == (order == 1)
    assert sentences.answer(SimpleNamespace(summary=scan.summary.assign(passed=False))) == []


def test_words_on_baselines_follow_their_numbers():
    for there, said, not_said in [
        (
            {"over_random": 3.0, "over_shuffled": 1.05},
            ["larger than its usual initialisation", "order of the tokens plays little"],
            [],
        ),
        ({"over_random": 1.5, "over_shuffled": 0.6}, ["within a factor of two", "some part, less than a factor"], []),
        ({"over_random": 0.4, "over_shuffled": 0.3}, ["are rougher", "plays a part."], ["usual initialisation"]),
        ({}, [], ["order", "andom"]),
    ]:
        words = sentences._baselines(there)
        assert all(part in words for part in said) and not any(part in words for part in not_said)


def test_a_range_of_one_number_is_one_number_and_a_bound_is_rounded_upward(found):
    scan, _ = found
    alike = scan.summary.assign(
        lipschitz=0.4004, low=0.4004, high=0.4004, relative=3.0, over_shuffled=1.001, over_yudin=2.0
    )
    told = [one.sentence for one in [*sentences._roughest(alike), *sentences._growth(alike), *sentences._bounds(alike)]]
    assert "(mean of 2 windows); " in told[0] and "as large as that of shuffled text" in told[0]
    assert told[1] == "In units of their tokens layers are alike: 3."
    assert "changes by a factor of 1; the square root" in told[2]
    within = float(re.search(r"within a factor of (\S+) of", told[3])[1])
    assert alike.certified_over.max() <= within < alike.certified_over.max() * 1.01
    assert not any("at most" in one or re.search(r"(\d\S*) to \1[ ,.]", one) for one in told)
    whole = pd.DataFrame({"part": "layer", "layer": [0, 1], "length": 8, "lipschitz": 2.0, "relative": 1.0})
    assert [one.sentence for one in sentences._whole(whole, 2)][0].endswith(
        "MLP: 2 at 8 tokens, in the first window; in units of their tokens up to 1."
    )
    still = scan.tokens.assign(moves=scan.tokens.moves.where(scan.tokens.place > 0, 0.0))
    ends = scan.whole.assign(lipschitz=1010.0)
    page = report.html(SimpleNamespace(**{**vars(scan), "summary": alike, "tokens": still, "whole": ends}))
    assert '<td class="text">100</td>' in page and "100 to 100" not in page
    assert "it moves none" in page and "it moves none" not in report.html(scan)
    assert '<td class="main">1,010</td>' in page and "1.01e+03" not in page


def test_nothing_is_said_of_training_where_there_was_none(found):
    scan, _ = found
    about = {**scan.about, "settings": scan.about["settings"] | {"weights": "random"}}
    trained, random = (
        " ".join(f"{one.sentence} {one.means}" for one in sentences.findings(SimpleNamespace(**{**vars(scan), **more})))
        for more in (
            {"summary": scan.summary.assign(over_random=3.0)},
            {"about": about, "summary": scan.summary.drop(columns="over_random")},
        )
    )
    assert sentences._as_random(scan.summary.assign(over_random=1.05))
    assert not sentences._as_random(scan.summary.assign(over_random=[1.0, 1.0, 1.0, 2.0]))
    assert "Usual on trained layers" in trained and "Trained layers often lean" in trained
    assert "on trained layers" not in random and "often lean" not in random and "usual initialisation" not in random


def test_a_finding_names_head_and_token_and_what_is_usual(found):
    scan, _ = found
    told = [one.sentence for one in sentences.findings(scan)]
    top = sentences.roughest(scan.summary)
    heads, tokens = (table[table.layer == top.layer] for table in (scan.heads, scan.tokens))
    head = heads.loc[heads.lipschitz.idxmax(), "head"]
    token = tokens.loc[tokens.moves.idxmax()]
    assert f"its roughest head is head {head} and the token that moves the others most is" in told[1]
    assert f"number {token.place}, {token.written}." in told[1]
    most = scan.heads.loc[scan.heads.lipschitz.idxmax()]
    usual = most.lipschitz / scan.heads[scan.heads.layer == most.layer].lipschitz.median()
    assert f"{usual:.2g} times the median of that layer's heads" in next(one for one in told if "Roughest head" in one)
    assert sum("at 5 tokens, in the first window, " in one for one in told) == 2  # that head, and whole layers
    of_first = f"; in the first window it is {top.over_random:.3g} times that of random weights and "
    assert "(mean of 2 windows" in told[1] and of_first in told[1]  # constants are means over both
    one = scan.summary.assign(windows=1, measured=1)
    assert "window" not in next(sentences._roughest(one)).sentence + sentences._how_unusual(one, one.iloc[0])
    far = scan.tokens.loc[scan.tokens.moves.idxmax()]
    usual = far.moves / scan.tokens[scan.tokens.layer == far.layer].moves.median()
    assert f"{usual:.2g} times as far as the median token of layer {far.layer}" in " ".join(told)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_of_one_token_nothing_is_said_of_others(bert, story, tmp_path):
    options = {"lengths": [1], "windows": 1, "special": False, "upper": False, "progress": False}
    scan = lipnb.scan(bert, story, output=tmp_path / "out", **options)
    told = " ".join(one.sentence for one in sentences.findings(scan))
    assert len(scan.tokens) and "moves" not in told and "roughest head is" in told
    page = report.html(scan)
    assert "<h3>Which token" not in page and "moves the outputs of the others" not in page


def test_one_layer_is_neither_roughest_nor_smoothest(found):
    scan, _ = found
    one = scan.summary[scan.summary.layer == 1]
    told = " ".join(finding.sentence for finding in [*sentences._roughest(one), *sentences._growth(one, [5, 9])])
    assert "Layer 1 at 9 tokens: constant" in told
    assert not any(word in told for word in ("Roughest", "Smoothest", "depending on the layer", "compare"))
