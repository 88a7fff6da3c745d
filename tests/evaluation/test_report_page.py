"""The page of a report: what it says and escapes, and how it behaves in headless Chromium."""

import json
import re

import pytest
import sacrebleu
from helpers.browser import opened, overflow
from helpers.run_folders import BASE, MACARON, edit, make_run, sentences, write_lines

from macaron_fairseq.common import html_page
from macaron_fairseq.evaluation.report import report as reporting
from macaron_fairseq.evaluation.report import report_page
from macaron_fairseq.schemes import splitting

EVIL = '<script>alert("&")</script>'
LOOP = "Wien, " * 9


def hypotheses(out, arch, seed, change):
    """Change a run's translations, and its score with them."""
    folder = out / arch / f"seed{seed}" / "test_a"
    lines = change((folder / "hypotheses.txt").read_text("utf-8").splitlines())
    write_lines(folder / "hypotheses.txt", lines)
    score = sacrebleu.corpus_bleu(lines, [sentences()]).score
    edit(folder / "scores.json", lambda x: x["scores"][0].update(score=score))


def make_report(out, seeds=(1,), **options):
    """A report on two architectures of which one loops and has a translation that is HTML."""
    rates = {BASE: 0.4, MACARON: 0.3}
    folders = [make_run(out, arch, x, errors=rates[arch]) for arch in rates for x in seeds]
    for seed in seeds:
        hypotheses(out, BASE, seed, lambda lines: [LOOP, *lines[1:]])
        hypotheses(out, MACARON, seed, lambda lines: [lines[0], EVIL, *lines[2:]])
    write_lines(out / "reference" / "test_a.en", ["Source 0.", EVIL] + ["Source."] * 38)
    write_lines(out / "train.de", ["Word1 Word2 ."] * 3)
    reporting.write(folders, out / "report", train_text=out / "train.de", **options)
    return out / "report" / "report.html"


def data(page):
    return json.loads(page.with_name("report.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return make_report(tmp_path_factory.mktemp("two models"), title=f"A {EVIL} title")


def test_what_comes_from_data_is_escaped(page):
    text = page.read_text("utf-8")
    assert text.count("<script") == 1  # the page's own
    assert "<h1>A &lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt; title</h1>" in text
    assert len(re.findall(r"&lt;script&gt;alert", text)) >= 4  # title twice, source, translation


@pytest.mark.parametrize("lowercase", [False, True])
def test_words_that_differ_in_case_are_marked_where_case_counts(lowercase, tmp_path):
    pair = [make_run(tmp_path, BASE, 1, lowercase=lowercase)]
    pair.append(make_run(tmp_path, MACARON, 1, errors=0.4, lowercase=lowercase))
    reporting.write(pair, tmp_path / "report")
    marked = re.findall("<mark>(.*?)</mark>", (tmp_path / "report/report.html").read_text("utf-8"))
    assert {word.strip(".") for word in marked} == {"x"}
    # The same translations, as if case counted.
    if lowercase:
        shown = report_page.marked("x word1 Word2", "Word1 Word2", "de", lowercase=False)
        assert shown == "<mark>x</mark> <mark>word1</mark> Word2"


@pytest.mark.parametrize("language", ["zh", "zho", "ja_JP"])
def test_of_text_without_spaces_the_characters_that_differ_are_marked(language):
    shown = report_page.marked("我昨天 买了BMW。", "我今天买了车。", language, lowercase=False)
    assert shown == "我<mark>昨</mark>天 买了<mark>BMW</mark>。"
    assert report_page.marked("我昨天", "我今天", "de", lowercase=False) == "<mark>我昨天</mark>"


def test_the_verdict_stands_above_any_p_value(page):
    for text in (page.read_text("utf-8"), page.with_suffix(".md").read_text("utf-8")):
        verdict = text.index("One seed: the difference says nothing about the scheme.")
        warning = text.index("Some translations loop or reach the maximum length")
        assert verdict < warning < text.index("aired bootstrap")
    row = data(page)["tests"][0]["translations"][0]
    assert (row["looping"], row["cut_off"], row["failing_lines"]) == (1, None, [1])
    lines = (page.parent.parent / BASE / "seed1/test_a/hypotheses.txt").read_text().splitlines()
    without = sacrebleu.corpus_bleu(lines[1:], [sentences()[1:]])
    assert row["bleu_without"] == pytest.approx(without.score)
    whole = sacrebleu.corpus_bleu(lines, [sentences()])
    assert (row["bleu"], row["length_ratio"]) == pytest.approx((whole.score, whole.ratio))


def test_speed_is_not_offered_for_comparison(page):
    for name in ("report.html", "report.md"):
        text = page.with_name(name).read_text("utf-8")
        assert "Neither is comparable between runs: the runs did not take turns" in text


def test_examples_frequencies_and_lengths_are_in_the_data(page):
    test = data(page)["tests"][0]
    examples = test["comparisons"][0]["sentences"]["examples"]
    (first,) = (x for x in examples if x["number"] == 1)
    assert (first["source"], first["baseline"]) == ("Source 0.", LOOP)
    assert first["reference"] == sentences()[0]
    sizes = [abs(x["difference"]) for x in examples]
    assert sizes == sorted(sizes, reverse=True)
    # Of the references' words, only Word1, Word2 and the full stop are in the training text.
    words = " ".join(sentences()).replace(".", " .").split()
    known = sum(word in ("Word1", "Word2", ".") for word in words)
    groups = {(row["from"], row["to"]): row["words"] for row in test["by_frequency"]}
    assert groups == {(0, 0): len(words) - known, (2, 4): known}
    lengths = [len(line.replace(".", " .").split()) for line in sentences()]  # not of LOOP
    for row in test["by_length"]:
        assert row["sentences"] == sum(row["from"] <= x <= row["to"] for x in lengths)


def test_the_page_counts_sentences_and_says_which_translation_loops(page):
    text = page.read_text("utf-8")
    lines = [
        (page.parent.parent / arch / "seed1/test_a/hypotheses.txt").read_text().splitlines()
        for arch in (BASE, MACARON)
    ]
    bleu = [
        [
            round(sacrebleu.sentence_bleu(x, [y]).score, 6)
            for x, y in zip(of_one, sentences(), strict=True)
        ]
        for of_one in lines
    ]
    better, worse = (
        sum(sign * (b - a) > 0 for a, b in zip(*bleu, strict=True)) for sign in (1, -1)
    )
    assert better != worse
    assert (
        f"is higher for {better} of 40 sentences, lower for {worse}, and equal for "
        f"{40 - better - worse}." in text
    )
    (first,) = re.findall(r'<span class="soft">line 1</span>.*?</li>', text)
    notes = re.findall(r"<small>(.*?)</small>", first)
    assert ["loops" in x for x in notes] == [True, False]  # the baseline's comes first


def test_a_page_on_dynamics_is_linked_where_it_is(tmp_path):
    (tmp_path / "dynamics").mkdir()
    (tmp_path / "dynamics" / "dynamics.html").touch()
    text = make_report(tmp_path).read_text("utf-8")
    assert '<a href="../dynamics/dynamics.html">' in text
    (tmp_path / "dynamics" / "dynamics.html").unlink()
    assert "dynamics.html" not in make_report(tmp_path).read_text("utf-8")


def test_over_seeds_verdict_and_examples(tmp_path):
    found = data(make_report(tmp_path, seeds=(1, 2)))
    assert found["verdict"][0]["headline"].endswith("over seeds includes 0.")
    comparison = found["tests"][0]["comparisons"][0]
    assert (comparison["seeds"], comparison["sentences"]["seed"]) == ([1, 2], 1)
    runs = {(x["arch"], x["seed"]): x["scores"]["test_a"]["BLEU"] for x in found["runs"]}
    differences = [runs[MACARON, seed] - runs[BASE, seed] for seed in (1, 2)]
    assert comparison["difference"]["mean"] == pytest.approx(sum(differences) / 2)


# --- in a browser --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_search_filters(page, browser):
    with opened(browser, page) as shown:
        section = shown.locator(".examples").first
        visible = section.locator("li:visible")
        examples = data(page)["tests"][0]["comparisons"][0]["sentences"]["examples"]
        assert visible.count() == 10
        assert section.locator("output").inner_text() == f"10 of {len(examples)}"
        section.locator("input").fill("wien, WIEN")
        assert visible.count() == 1 and "Source 0." in visible.inner_text()
        for nowhere in ("nowhere to be found", "BLEU", "reference"):  # the page's own words
            section.locator("input").fill(nowhere)
            assert visible.count() == 0
        section.locator("input").fill("")
        section.locator("select").select_option("worse")
        worse = sum(x["difference"] < 0 for x in examples)
        assert section.locator("output").inner_text() == f"{min(10, worse)} of {worse}"
        section.locator("select").select_option("failing")
        assert visible.count() == 1
        section.locator("select").select_option("")
        section.locator(".more").click()
        assert visible.count() == min(20, len(examples))
        assert shown.evaluate("document.activeElement.tagName") == "LI"


@pytest.mark.slow
def test_on_paper_nothing_is_folded(page, browser):
    with opened(browser, page) as shown:
        examples = data(page)["tests"][0]["comparisons"][0]["sentences"]["examples"]
        visible, folded = (
            shown.locator(".examples li:visible"),
            shown.locator("details:not([open])"),
        )
        count = folded.count()
        shown.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert (visible.count(), folded.count()) == (len(examples), 0)
        shown.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert (visible.count(), folded.count()) == (10, count) and count > 0 and len(examples) > 10


@pytest.mark.slow
def test_tables_sort_by_keyboard(page, browser):
    with opened(browser, page) as shown:
        table = shown.locator("table", has_text="F1 of words by their frequency")
        words = [row["words"] for row in data(page)["tests"][0]["by_frequency"]]
        head = table.locator("thead th").nth(1)

        def column():
            return [
                int(x.replace(",", ""))
                for x in table.locator("tbody td:nth-child(2)").all_inner_texts()
            ]

        head.locator("button").focus()
        shown.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending" and column() == sorted(words)
        shown.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert column() == sorted(words, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(page, browser, width, scheme):
    with opened(browser, page, width, color_scheme=scheme) as shown:
        for details in shown.locator("details").all():
            details.evaluate("x => { x.open = true; }")
        assert overflow(shown) == [0, []]
        colours = "x => ['color', 'backgroundColor'].map((y) => getComputedStyle(x)[y])"
        text, back = (
            sum(map(int, re.findall(r"\d+", x)[:3]))
            for x in shown.locator("body").evaluate(colours)
        )
        assert (text < back) == (scheme == "light") and abs(text - back) > 500


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_many_runs_on_many_test_sets_are_not_cut_off(browser, tmp_path_factory, width):
    out = tmp_path_factory.getbasetemp() / "many"
    path = out / "report" / "report.html"
    if not path.exists():
        tests = [f"test_2016_flickr_{i}" for i in range(3)]
        archs = (BASE, "macaron_transformer_wmt_en_de_big", "other")
        runs = [make_run(out, arch, i, tests=tests) for arch in archs for i in (1, 2)]
        reporting.write(runs, out / "report")
    with opened(browser, path, width) as shown:
        assert overflow(shown) == [0, []]


@pytest.mark.slow
def test_without_scripts_all_is_there(page, browser):
    with opened(browser, page, java_script_enabled=False) as shown:
        examples = data(page)["tests"][0]["comparisons"][0]["sentences"]["examples"]
        assert shown.locator(".examples li:visible").count() == len(examples)
        assert shown.locator(".controls:visible").count() == 0


def test_all_schemes_have_a_colour_each():
    found = [html_page.key(i, name) for i, name in enumerate(splitting.SCHEMES)]
    names = [re.search(r"--series-\d+", key)[0] for key in found]
    page = html_page.page("colours", found)
    for of in page.partition("@media")[0], page.split("@media")[1]:
        colours = {re.search(rf"{name}: (#\w+);", of)[1] for name in names}
        assert len(colours) == len(splitting.SCHEMES)
