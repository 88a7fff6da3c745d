"""The page of `macaron-fairseq dynamics` in headless Chromium."""

import base64
import json
import re
import urllib.parse
import zlib
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.browser import opened, overflow
from helpers.stored import CHECKPOINT, noisy, write_test_set
from sklearn.decomposition import PCA

from macaron_fairseq import cli
from macaron_fairseq.analysis import models, sentences
from macaron_fairseq.analysis.dynamics import page as dynamics_page
from macaron_fairseq.analysis.dynamics import report as dynamics_report
from macaron_fairseq.analysis.dynamics import sentence_views, token_page
from macaron_fairseq.common import html_page

LABELS = ["stock", "noisy"]
FOCUSED = "#encoder ~ .cards .card:first-child figure svg"  # mean cosine


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Two models, four sentences, and the command's words for them."""
    folder = tmp_path_factory.mktemp("page")
    data = write_test_set(folder / "data")
    paths = [CHECKPOINT, noisy(CHECKPOINT, folder)]
    words = ["dynamics", "--path", *paths, "--label", *LABELS, "--data", data, "--cpu"]
    words += ["--jacobian-sentences", "1", "--tokens-page", "-o", folder / "out"]
    loaded, opened_data = models.load(paths, data)
    return SimpleNamespace(
        words=[str(word) for word in words],
        out=folder / "out",
        loaded=loaded,
        data=opened_data,
        sample=sentences.read(opened_data),
    )


@pytest.fixture(scope="module")
def made(given):
    """What the command itself writes of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamics_report, "overview", lambda models: b"")
        cli.main(given.words)
    first = given.sample.sentences[0]
    return SimpleNamespace(
        path=given.out / "dynamics.html",
        content=json.loads((given.out / "dynamics.json").read_text("utf-8")),
        tokens=given.out / "tokens.html",
        csv=(given.out / "dynamics.csv").read_text("utf-8"),
        views=[sentence_views.look(x.runnable(), first, given.data) for x in given.loaded],
    )


@pytest.fixture
def page(browser, made):
    with opened(browser, made.path) as found:
        found.wait_for_selector("#sentence-view[data-shown]")
        yield found


def cosine(made, model, time):
    states = made.content["models"][model]["sides"][0]["states"]
    return next(x for x in states if x["time"] == time)["figures"]["cosine"]["mean"]


def shown(value):
    """A number as the page writes it: three digits, no zeros at the end, a true minus."""
    text = np.format_float_positional(float(f"{value:.3g}"), trim="-")
    return text.replace("-", "\N{MINUS SIGN}")


def tip(page):
    return page.locator("#encoder ~ .cards .card:first-child output").first


def test_focus_shows_values_and_the_arrow_keys_go_through_the_layers(page, made):
    page.locator(FOCUSED).first.focus()
    for model, label in enumerate(LABELS):
        assert f"{label}: {shown(cosine(made, model, 0))}" in tip(page).inner_text()
    page.keyboard.press("End")
    assert "after layer 2" in tip(page).inner_text()
    for model, label in enumerate(LABELS):
        assert f"{label}: {shown(cosine(made, model, 2))}" in tip(page).inner_text()
    page.keyboard.press("Escape")
    assert tip(page).inner_text() == ""


def test_the_pointer_shows_values(page, made):
    chart = page.locator(FOCUSED).first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + box["height"] / 2)
    assert f"stock: {shown(cosine(made, 0, 2))}" in tip(page).inner_text()


def test_models_hide(page):
    page.get_by_label("stock", exact=True).uncheck()
    page.locator(FOCUSED).first.focus()
    assert "stock" not in tip(page).inner_text()
    assert "noisy" in tip(page).inner_text()
    assert page.locator("#sentence-view .choice").count() == 2  # cosines and attention
    page.get_by_label("noisy", exact=True).uncheck()
    assert page.locator(FOCUSED).count() == 0
    assert page.get_by_text("No model is shown.").count() > 0


def test_without_a_second_model_maps_say_that_there_is_no_difference(page):
    page.get_by_label("difference from stock").check()
    page.get_by_label("noisy", exact=True).uncheck()
    said = page.locator("#sentence-view").get_by_text("No difference to show: only stock is shown.")
    assert said.count() == 2
    page.get_by_label("stock", exact=True).uncheck()
    assert page.locator("#sentence-view").get_by_text("No model is shown.").count() == 2


def test_the_letters_of_all_pictures_are_of_one_size(page, made):
    without_script = re.findall(r"<text[^>]*font-size: ([\d.]+)px", made.path.read_text("utf-8"))
    assert {*without_script} == {"8", "9"}  # legends, and all others
    sizes = page.evaluate(
        """() => Object.fromEntries(["lines", "distributions"].map(kind => [kind,
          [...document.querySelectorAll("figure")]
            .filter(x => x.querySelector("script")?.textContent.includes(`"kind":"${kind}"`))
            .flatMap(x => [...x.querySelectorAll("svg text")].map(text => {
              const svg = text.ownerSVGElement;
              const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
              return Math.round(parseFloat(getComputedStyle(text).fontSize) * scale * 10) / 10;
            }))]))"""
    )
    assert sizes["lines"] and {*sizes["distributions"]} == {*sizes["lines"]}


def test_differences_are_of_each_model_from_the_first(page, made):
    page.get_by_label("difference from stock").check()
    page.locator(FOCUSED).first.focus()
    page.keyboard.press("End")
    difference = cosine(made, 1, 2) - cosine(made, 0, 2)
    value = tip(page).inner_text().split("noisy: ")[1]
    spoken = page.locator(FOCUSED).first.get_attribute("aria-label")
    assert f"less stock. noisy: {shown(cosine(made, 1, 0) - cosine(made, 0, 0))} at 0 to " in spoken
    assert "stock: " not in spoken
    assert float(value.replace("\N{MINUS SIGN}", "-")) == pytest.approx(difference, rel=0.02)
    assert "stock:" not in tip(page).inner_text()


def test_differences_of_distributions_have_a_scale(page, made):
    page.get_by_label("difference from stock").check()
    counts = [
        np.array([row["cosine_histogram"] for row in model["sides"][0]["states"]], dtype=float)
        for model in made.content["models"]
    ]
    shares = [x / x.sum(axis=1, keepdims=True) for x in counts]
    largest = 100 * np.abs(shares[1] - shares[0]).max()
    figures = page.locator("#encoder ~ .card figure:visible")
    assert f"+{shown(largest)} % of the pairs" in figures.first.inner_text()


def called(page, name, *arguments):
    """What a function of the page's script returns."""
    return page.evaluate(
        r"""([name, given]) => {
          const script = document.querySelector("script[type=module]").textContent;
          const source = script.match(new RegExp(`function ${name}\\([^]*?\\n}`))[0];
          return new Function("given", `${source}; return ${name}(...given)`)(given);
        }""",
        [name, [*arguments]],
    )


def test_numbers_near_one_keep_their_digits(page):
    found = [called(page, "number", x) for x in (0.9996, -0.99963, 0.5, 1, 0.98765, 12345)]
    assert found == ["0.9996", "\N{MINUS SIGN}0.99963", "0.5", "1", "0.988", "12300"]


def test_lines_that_no_logarithm_can_show_leave_points_out(page):
    """Of an operator that adds nothing the local error is 0: its ratio would have no end."""
    line = {"x": [1, 2, 3], "means": [0.5, 0, 2], "sds": None}
    zero = {"x": [1], "means": [0], "sds": [0]}
    left = {"x": [1, 3], "means": [0.5, 2], "sds": None}
    assert called(page, "drawable", [line, zero], True) == [left]
    assert called(page, "drawable", [line, zero], False) == [line, zero]


def test_controls_that_a_browser_has_kept_are_those_of_the_pictures(page):
    """Some keep them where a page is loaded again."""
    page.add_init_script(
        """new MutationObserver(() => {
          const kept = document.querySelector("[value=difference]");
          if (kept) kept.checked = true;
        }).observe(document, { childList: true, subtree: true });"""
    )
    page.reload()
    page.locator(FOCUSED).first.focus()
    assert "noisy:" in tip(page).inner_text() and "stock:" not in tip(page).inner_text()


def test_attention_of_a_chosen_head(page, made):
    part = page.locator("#sentence-view > section").nth(1)
    part.get_by_label("decoder cross-attention").check()
    part.get_by_role("radio", name="layer 1, mean of the heads").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert part.get_by_role("radio", name="layer 2, head 2").first.is_checked()
    part.locator("svg").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    values = part.locator("output").inner_text().splitlines()
    for line, label, view in zip(values, LABELS, made.views, strict=True):
        decoder = view.sides[1]
        (found,) = (x for x in decoder.attentions if (x.kind, x.layer) == ("cross-attention", 2))
        names = f"“{decoder.tokens[2]}” attends to “{found.keys[1]}”:"
        assert re.sub("[\u2068\u2069]", "", line).startswith(f"{label}: {names} ")
        assert float(line.split()[-1]) == pytest.approx(found.weights[1, 2, 1], abs=0.0006)


def test_tokens_that_meet(page, made):
    part = page.locator("#sentence-view > section").first
    least = part.get_by_label("Tokens meet where their cosine is above")
    least.fill("-1")
    tokens = made.views[0].sides[0].tokens
    pairs = len(tokens) * (len(tokens) - 1) // 2
    first_row = part.locator("tbody tr").first.inner_text()
    assert first_row.startswith("before the first layer")
    assert first_row.count(" \N{EN DASH} ") == 2 * min(8, pairs)
    nearest = part.locator("tbody tr").last.inner_text()
    cosines = made.views[0].sides[0].cosines
    upper = np.triu_indices(len(tokens), 1)
    best = max(x[upper].max() for x in cosines)
    assert shown(round(best, 4)) in nearest
    least.fill("")
    assert part.locator("tbody").count() == 0


def test_names_and_paths_that_are_no_utf8_are_shown_as_escapes(given):
    (model,), _ = models.load([CHECKPOINT], given.data.folder, names=["a\udcff"])
    assert model.label == r"a\udcff"
    content = '{"path": "a\udcff"}'
    held = html_page.download("x.json", content).split("base64,")[1].split('"')[0]
    assert json.loads(base64.b64decode(held)) == {"path": "a\udcff"}
    held = html_page.download("x.csv", content).split("utf-8,")[1].split('"')[0]
    assert json.loads(urllib.parse.unquote(held)) == {"path": "a\udcff"}


def test_cosines_near_one_keep_four_decimals():
    """Whether 0.9996 is above a threshold of 0.9995 can be seen."""
    cosines = np.array([[[1.0, 0.9996], [0.9996, -1.0]]])
    side = sentence_views.SideView("encoder", ["a", "b"], cosines, [])
    packed = dynamics_page.packed(sentence_views.View(1, [side]))
    whole = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"])), "<i2")
    scale = packed["sides"][0]["maps"][0]["scale"]
    assert (whole / scale).tolist() == [1.0, 0.9996, 0.9996, -1.0]


def test_no_level_of_headings_is_left_out(page):
    found = page.locator("h1, h2, h3, h4").evaluate_all("x => x.map(y => Number(y.tagName[1]))")
    assert all(below <= above + 1 for above, below in pairwise(found))


def test_another_sentence(page, made):
    page.get_by_label("Sentence", exact=True).select_option(index=1)
    page.wait_for_selector("#sentence-view[data-shown='1']")
    texts = page.locator("#sentence-view .maps svg text").all_text_contents()
    assert {"the", "new"} <= set(texts)
    assert "öl" not in texts


def test_downloads_are_the_files(page, made):
    links = [x.get_attribute("href") for x in page.locator("a[download]").all()]
    found = json.loads(base64.b64decode(links[0].partition("base64,")[2]))
    assert found == made.content
    assert urllib.parse.unquote(links[1].partition(",")[2]) == made.csv


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (800, "light"), (390, "light")]
)
def test_nothing_is_cut_off(browser, made, width, scheme):
    with opened(browser, made.path, width, color_scheme=scheme) as page:
        page.wait_for_selector("#sentence-view[data-shown]")
        wider, cut = overflow(page)
        assert wider == 0
        assert not [x for x in cut if "scroll" not in x]


def test_a_browser_that_cannot_unpack_says_so(browser, made):
    for path, kept in ((made.path, FOCUSED), (made.tokens, "#controls")):
        with opened(browser, path) as page:
            page.add_init_script("delete window.DecompressionStream")
            page.reload()
            assert page.get_by_text("This browser is too old to unpack this").is_visible()
            assert page.locator(kept).first.is_visible()


def test_without_javascript_the_pictures_stand(browser, made):
    with opened(browser, made.path, java_script_enabled=False) as page:
        assert page.locator("figure > svg[role=img]").count() == 2 * (2 + 8) + 11 * (3 + 4)
        assert page.locator("noscript p").is_visible()
        assert not page.locator("#controls").is_visible()
        assert page.locator("ul.legend").first.is_visible()


# The page of moving tokens.


def states(given, side, model=1):
    """The directions of all shown sentences' tokens, (states, tokens, channel), by hooks."""
    stack = getattr(given.loaded[model].model, side).layers
    found = []
    for sentence in given.sample.sentences:
        own = []
        hooks = [stack[0].register_forward_pre_hook(lambda _, args, own=own: own.append(args[0]))]
        hooks += [
            layer.register_forward_hook(lambda _, args, out, own=own: own.append(out[0]))
            for layer in stack
        ]
        with torch.no_grad():
            lengths = torch.tensor([len(sentence.source)])
            given.loaded[model].model(sentence.source[None], lengths, sentence.target[None])
        for hook in hooks:
            hook.remove()
        x = torch.stack([y.reshape(y.shape[0], -1) for y in own]).double().numpy()
        found.append(x / np.linalg.norm(x, axis=2, keepdims=True))
    return found


def test_principal_components_are_those_of_scikit_learn():
    points = np.random.default_rng(1).normal(size=(30, 6)) * np.arange(1, 7)
    mean, axes, shares = token_page.principal_components(points)
    known = PCA(3).fit(points)
    assert shares == pytest.approx(known.explained_variance_ratio_)
    assert np.abs(np.diag(axes @ known.components_.T)) == pytest.approx([1, 1, 1])
    assert mean == pytest.approx(known.mean_)
    flat = token_page.principal_components(points[:, :2])
    assert flat[1].shape == (3, 2) and flat[2][2] == 0


def test_tokens_page_needs_a_sentence(given):
    with pytest.raises(SystemExit, match="give --shown-sentences 1 or more"):
        cli.main([*given.words, "--shown-sentences", "0"])


@pytest.mark.parametrize("width", [1280, 390])
def test_tokens_move_through_the_layers(browser, given, made, width):
    expected = states(given, "decoder")[2]
    with opened(browser, made.tokens, width) as page:
        page.wait_for_selector("#plot[data-step='0']")
        page.locator("#choice").select_option(index=4 + 4 + 4 + 2)
        page.wait_for_function(
            "document.getElementById('which').textContent.includes('noisy, dec')"
        )
        names = [f"{i}. {x}" for i, x in enumerate(["</s>", "est", "the", "is", "a"], 1)]
        assert shown_names(page) == [x.replace("<", "<\u200b") for x in names]
        page.locator("#step").focus()
        page.keyboard.press("End")
        page.wait_for_selector("#plot[data-step='8']")
        assert page.locator("#now").inner_text() == "layer 2: ffn 1/2 (8 of 8)"
        spoken = page.locator("#step").get_attribute("aria-valuetext")
        assert spoken == "layer 2: ffn 1/2 (8 of 8)"
        # Lengths and angles in three of the components are at most those in all dimensions; where
        # three explain all, they are the same. The nearest token is that of the states.
        cosines = expected[-1] @ expected[-1].T - 2 * np.eye(len(names))
        for i, text in enumerate(page.evaluate("plot.data.at(-1).hovertext")):
            assert f"nearest token, number: {cosines[i].argmax() + 1}<br>" in text
            value = float(text.split("nearest token: ")[1].split("<")[0].replace("\u2212", "-"))
            assert value == pytest.approx(cosines[i].max(), abs=0.006)
        assert overflow(page) == [0, []]


def shown_names(page):
    return page.evaluate("plot.data.at(-1).text")


def test_positions_are_components_of_the_states(given):
    """Of all states of a side, also between its sub-layers: here of those between its layers."""
    found = [
        path
        for s in given.sample.sentences
        for path in token_page.paths(given.loaded[1], s, given.sample)
    ]
    paths = [path for side, path in found if side == "decoder"]
    scenes, shares = token_page.side_scenes("decoder", paths)
    directions = [x.states / np.linalg.norm(x.states, axis=2, keepdims=True) for x in paths]
    known = PCA(3).fit(np.concatenate([x.reshape(-1, x.shape[2]) for x in directions]))
    assert shares == pytest.approx(known.explained_variance_ratio_)
    for scene, every, x in zip(scenes, directions, states(given, "decoder"), strict=True):
        assert every[::4] == pytest.approx(x, abs=1e-5)
        components = known.transform(x.reshape(-1, x.shape[2])).reshape(*x.shape[:2], 3)
        assert np.abs(scene.positions[::4]) == pytest.approx(np.abs(components), abs=1e-4)
