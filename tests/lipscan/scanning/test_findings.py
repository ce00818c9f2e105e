"""What a scan finds: each number from its tables, and nothing on what was not measured."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

import lipnb
from lipscan import models
from lipscan.scanning import findings, fmt, report, terminal, words


def changed(scan, **tables):
    return SimpleNamespace(**{**vars(scan), **tables})


def kinds(said):
    """The findings by their kind; the last of each."""
    return {one.key: one for one in said}


def test_findings_are_numbers_of_the_tables(finished):
    scan = finished
    said = kinds(findings.findings(scan))
    longest = scan.summary[scan.summary.length == 9]
    top, low = longest.loc[longest.lipschitz.idxmax()], longest.loc[longest.lipschitz.idxmin()]
    most, least = longest.loc[longest.relative.idxmax()], longest.loc[longest.relative.idxmin()]
    rows = scan.table[(scan.table.layer == top.layer) & (scan.table.length == 9)]
    certified, first = rows.certified, rows.lipschitz[rows.window == 0].item()
    growth = longest.lipschitz.to_numpy() / scan.summary[scan.summary.length == 5].lipschitz.to_numpy()
    whole, hidden = (scan.whole[scan.whole.part == part] for part in ("layer", "hidden"))
    head, token = (table.loc[table[by].idxmax()] for table, by in ((scan.heads, "lipschitz"), (scan.tokens, "moves")))
    here = scan.heads[scan.heads.layer == head.layer].lipschitz
    expected = {
        "roughest": (top.lipschitz, {"layer": top.layer, "length": 9, "layers": 2}),
        "windows": (top.high, {"low": top.low, "windows": 2}),
        "proved": (certified.max(), {"proved": 1, "windows": 2, "constant": first}),
        "smoothest": (low.lipschitz, {"layer": low.layer}),
        "typical": (top.typical, {"layer": top.layer, "worst": top.lipschitz}),
        "steepest": (top.steepest_share, {}),
        "growth": (growth.max(), {"low": growth.min(), "first": 5, "last": 9}),
        "relative": (most.relative, {"layer": most.layer}),
        "relative_least": (least.relative, {"layer": least.layer}),
        "to_hidden": (hidden.lipschitz.item(), {"relative": hidden.relative.item(), "length": 5}),
        "product": (whole.lipschitz.prod(), {"end": "last hidden states"}),
        "passed": (4, {"rows": 4}),
        "certified": (scan.summary.certified_over.max(), {}),
        "head": (head.lipschitz, {"layer": head.layer, "head": head["head"], "median": here.median()}),
        "token": (token.moves, {"layer": token.layer, "token": f"token {token.place} ({token.written})"}),
        "whole_layers": (whole.lipschitz.max(), {"low": whole.lipschitz.min()}),
        "whole_relative": (whole.relative.max(), {}),
    }
    for key, (value, where) in expected.items():
        assert said[key].value == pytest.approx(value) and where.items() <= said[key].where.items(), key
    assert said["random_alike" if top.over_random < 2 else "random_more"].value == top.over_random
    assert said["token_often"].value in (1, 2) and "shuffled" in " ".join(said)
    assert not {"open", "not_converged", "no_baseline"} & {*said}
    # every finding is in the report, with links that lead somewhere, the first of them above the tiles
    page = report.html(scan)
    for one in said.values():
        assert escape(str(one)) in page, one.key
    assert page.index("is the roughest of 2") < page.index('class="tiles"') < page.index("Self-checks passed")
    links, places = (set(re.findall(rf'{kind}([^"]+)"', page)) for kind in ('href="#', 'id="'))
    assert links and links <= places and f"<b>{fmt.short(top.lipschitz)}</b>" in page


def test_the_usual_change_is_told_beside_the_worst_and_where_that_lies(finished):
    scan = finished
    summary = scan.summary.assign(typical=0.25, steepest_token=3.0, steepest_share=0.875)
    said = kinds(findings.findings(changed(scan, summary=summary)))
    top = findings.roughest(summary)
    assert said["typical"].value == 0.25 and said["typical"].where["worst"] == top.lipschitz
    assert "87.5 % of the worst change, by squared length, lies on token 3 (" in str(said["steepest"])
    page = report.html(changed(scan, summary=summary, table=scan.table.assign(typical=0.25)))
    assert "<th>typical</th>" in page and "a random small change</text>" in page.replace("</tspan>", "")
    assert "steepest" not in kinds(findings.findings(changed(scan, summary=summary.assign(length=1))))


def test_the_layer_with_the_largest_relative_constant_need_not_be_the_roughest(finished):
    good = finished.summary
    for relative, there in ((good.lipschitz, False), (1 / good.lipschitz, True)):
        said = kinds(findings._relative(good.assign(relative=relative), findings.roughest(good)))
        assert any(key.startswith("relative_roughest") for key in said) == there
    assert {*said} == {"relative", "relative_roughest_least", "small"}
    assert not [*findings._relative(good.assign(relative=np.nan), findings.roughest(good))]


def test_a_proof_is_of_its_own_windows(finished):
    """Its number was told beside the mean over all windows."""
    scan = finished
    top = findings.roughest(scan.summary)
    here = (scan.table.layer == top.layer) & (scan.table.length == top.length)
    for certified, key in (([9.0, np.nan], "proved"), ([np.nan, 9.0], "proved_window"), ([8.0, 9.0], "proved_several")):
        table = scan.table.copy()
        table.loc[here, "certified"] = certified
        [said] = [one for one in findings.findings(changed(scan, table=table)) if one.key.startswith("proved")]
        own = table[here & table.certified.notna()]
        assert (said.key, said.value, said.where["constant"]) == (key, 9.0, own.lipschitz.max())
        assert f"constant is {fmt.short(own.lipschitz.max())}: no small" in str(said)


def test_an_open_solver_names_the_criterion_that_it_missed(finished):
    scan = finished
    top = findings.roughest(scan.summary)
    for probable, said in ((2.0, "probable upper bound is 2 times the constant"), (np.inf, "no probable upper bound")):
        table = scan.table.assign(converged=False, probable=probable * scan.table.lipschitz)
        left = pd.Series({**top, "converged": False})
        every = findings._roughest(scan.summary, left, changed(scan, table=table))
        [one] = [one for one in every if one.key.startswith("open")]
        assert said in str(one) and "0.0001, relative" in str(one) and "residual" not in str(one)
    ends = scan.whole.assign(converged=False)
    assert "(0.1 %)" in str(kinds(findings._whole(ends, 2))["end_open"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("zeroed", [(0,), (0, 1)])
def test_attention_that_gives_zero_is_told_in_one_sentence(families, story, tmp_path, capsys, zeroed):
    """Logarithms of 0 warned, the roughest head had 0 times, and a share of no change lay on token 0."""
    model = models.load(families / "llama")
    for layer in zeroed:
        model.module.layers[layer].self_attn.o_proj.weight.data.zero_()
    scan = lipnb.scan(model, story, lengths=[4, 9], output=tmp_path / "out", progress=False)
    assert (scan.summary.lipschitz == 0).tolist() == [layer in zeroed for layer in (0, 0, 1, 1)]
    terminal.show(scan)
    page = report.html(scan)
    shown = (capsys.readouterr().out + page).replace("no calculation", "")
    assert not re.search(r"\b(inf|nan)\b", shown, re.IGNORECASE)
    if zeroed == (0, 1):
        said = kinds(findings.findings(scan))
        assert [key for key in said if key in words.WORDS["rough"]] == ["zero"] and str(said["zero"]) in page
        others = {*words.WORDS["much"], *words.WORDS["usual"], "head", "token", "steepest_close", "relative"}
        assert not {*said} & others


@pytest.mark.parametrize(
    ("random", "shuffled", "expected"),
    [
        (3.0, 1.05, {"random_more", "shuffled_alike"}),
        (1.5, 0.6, {"random_alike", "shuffled"}),
        (0.4, 1.3, {"random_less", "shuffled"}),
        (np.nan, 0.93, {"shuffled_alike"}),
        (np.nan, np.nan, {"no_baseline"}),
    ],
)
def test_words_on_baselines_follow_their_numbers(random, shuffled, expected):
    top = pd.Series({"layer": 1, "length": 9, "over_random": random, "over_shuffled": shuffled})
    assert {*kinds(findings._baselines(top))} == expected


def test_the_product_of_layers_is_told_only_where_all_were_scanned():
    whole = {"part": ["layer", "layer", "hidden"], "layer": [0, 1, -1], "lipschitz": [2.0, 3.0, 5.0]}
    whole = pd.DataFrame(whole).assign(length=8, relative=1.0, converged=True, composed=True)
    assert kinds(findings._whole(whole, 2))["product"].value == 6
    assert "product" not in kinds(findings._whole(whole, 30))
    assert "product" not in kinds(findings._whole(whole.assign(composed=[True, True, False]), 2))  # with a final norm


def test_a_range_of_one_number_is_one_number_and_a_bound_is_rounded_upward(finished):
    scan = finished
    alike = scan.summary.assign(lipschitz=0.4004, low=0.4004, high=0.4004, relative=3.0, over_yudin=2.0)
    ends = scan.whole.assign(lipschitz=1010.0)
    still = scan.tokens.assign(moves=scan.tokens.moves.where(scan.tokens.place > 0, 0.0))
    lone = changed(scan, summary=alike, whole=ends, tokens=still)
    said = kinds(findings.findings(lone))
    assert {"windows_alike", "growth_alike", "closest_alike", "whole_layers_alike"} <= {*said}
    assert not {"windows", "growth", "relative_least", "whole_layers", "closest"} & {*said}
    assert not any(re.search(r"(\d\S*) (to|and) \1[ ,.]", str(one)) for one in said.values())
    within = float(re.search(r"are at most (\S+) times", str(said["certified"]))[1])
    assert alike.certified_over.max() <= within < alike.certified_over.max() * 1.01
    page = report.html(lone)
    assert '<td class="text">100</td>' in page and "100 to 100" not in page
    assert '<td class="main">1,010</td>' in page and "1.01e+03" not in page


def test_what_is_not_known_is_not_told(finished):
    scan = finished
    one = scan.summary[(scan.summary.layer == 1) & (scan.summary.length == 9)]
    one = one.assign(certified_over=np.nan, converged=False, measured=1).drop(columns=["over_random", "over_shuffled"])
    bare = {"summary": one, "whole": scan.whole[:0], "heads": scan.heads[:0], "tokens": scan.tokens[:0]}
    said = findings.findings(changed(scan, **bare, table=scan.table.assign(certified=np.nan)))
    keys = ["passed", "only_layer", "open", "unproved", "no_baseline"]
    keys += ["typical", "steepest", "relative_only", "small"]
    assert [one.key for one in said if not one.key.startswith(("closest", "formulas"))] == [*keys, "not_converged"]
    assert str(said[-1]).startswith("Not converged: 1 of 1 layers and lengths.")
    failed = findings.findings(changed(scan, summary=scan.summary.assign(passed=False)))
    lost = findings.findings(changed(scan, summary=scan.summary.assign(passed=False, self_check=np.nan)))
    assert [one.key for one in failed + lost] == ["none_passed", "none_measured"]


def test_many_gaps_of_one_reason_are_one_finding():
    table = pd.DataFrame({"table": "scan", "gap": [f"layer {n}" for n in range(20)], "reason": "overflow."})
    many, again = findings.gaps(table)
    assert (many.key, many.value, again.key) == ("gap_many", 20, "again")
    assert "layer 11 and others, 20 in all" in str(many) and str(many).endswith("Reason: overflow.")
    assert findings.gaps(table[:0]) == [] and findings.gaps(table[:2])[0].key == "gap"


def test_a_finding_of_each_layer_that_matters_names_its_head_and_token(finished):
    """Those of the roughest layer, where others are ahead of them."""
    scan = finished
    rows = scan.heads.assign(lipschitz=scan.heads.lipschitz * np.where(scan.heads.layer == 0, 100, 1))
    assert {*kinds(findings._heads(rows, 1))} == {"head", "head_of_roughest"}
    assert {*kinds(findings._heads(rows, 0))} == {"head"}
    assert {*kinds(findings._heads(rows[rows["head"] == 0], 0))} == {"only_head"}
    rows = scan.tokens.assign(moves=scan.tokens.moves * np.where(scan.tokens.layer == 0, 100, 1))
    assert {*kinds(findings._tokens(rows, 1))} == {"token", "token_of_roughest", "token_often"}
    pictures = rows.assign(written=[f"#{place}" for place in rows.place])
    assert re.fullmatch(r"token \d", kinds(findings._tokens(pictures, 0))["token"].where["token"])


def test_a_text_that_changes_with_python_says_of_which_it_is(finished):
    about = {**finished.about, "versions": {"python": "3.14.15"}}
    assert "edition" not in kinds(findings.left_out(about, finished.summary))
    about["settings"] = {**about["settings"], "text": "python_reference"}
    assert "comes with Python, here 3.14.15;" in str(kinds(findings.left_out(about, finished.summary))["edition"])


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_of_one_token_nothing_is_said_of_others(bert, story, tmp_path):
    options = {"lengths": [1], "windows": 1, "special": False, "upper": False, "progress": False}
    scan = lipnb.scan(bert, story, output=tmp_path / "out", **options)
    said = kinds(findings.findings(scan))
    assert not {"shuffled", "shuffled_alike"} & {*said}  # one token has no order
    assert len(scan.tokens) and "head" in said and not any("token" in key or "steepest" in key for key in said)
    assert "one_token" in kinds(findings.left_out(scan.about, scan.summary))
    page = report.html(scan)
    assert "<h3>Which token" not in page and "moves the outputs of the others" not in page
