"""Students that follow their teacher's layers: which meet, on which spans, and training so."""

import copy
import hashlib
import logging
import math
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.dataclass import configs
from fairseq.distributed import ModuleProxyWrapper
from fairseq.logging import metrics
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from helpers.criteria import PAD, Spy, make, outcome, sample
from helpers.paths import ROOT
from helpers.small import SMALL_DECODER, arguments, build, dictionary, language_task, symbols
from helpers.students import FLAGS, LARGER, STUDENT, save, translation
from helpers.toy_corpus import train
from omegaconf import OmegaConf
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation import layer_plan, layers, text_spans
from macaron_fairseq.distillation.criterion import (
    DistilledLabelSmoothedCrossEntropyCriterion as Ours,
)
from macaron_fairseq.distillation.student_criterion import student_like, takes_parameters_alone
from macaron_fairseq.distillation.trajectory.following import Following, Plan
from macaron_fairseq.fast import chunked_loss
from macaron_fairseq.fast.criterion import ChunkedLabelSmoothedCrossEntropyCriterion
from macaron_fairseq.schemes import splitting

CHECKPOINT = {**vars(configs.CheckpointConfig())}  # fairseq's options, as they are by default

# --- layers --------------------------------------------------------------------------------------


def of_scheme(name, number, side="encoder"):
    return [SimpleNamespace(steps=getattr(splitting.get(name), side))] * number


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("scheme", splitting.SCHEMES)
def test_layers_of_one_scheme_divide_the_time_evenly(scheme, side):
    found = layer_plan.times(of_scheme(scheme, 4, side))
    assert found == pytest.approx([0.25, 0.5, 0.75, 1])
    assert layer_plan.times([SimpleNamespace()] * 4) == pytest.approx(found)


def test_a_layer_of_longer_steps_takes_longer():
    long = splitting.step(2, splitting.SELF), splitting.step(2, splitting.WHOLE)
    mixed = [*of_scheme("lie-trotter", 1), SimpleNamespace(steps=long)]
    assert layer_plan.times(mixed) == pytest.approx([1 / 3, 1])
    at_once = [*of_scheme("parallel", 1), *of_scheme("strang-marchuk", 1)]  # F and G, each a time 1
    assert layer_plan.times(at_once) == pytest.approx([1 / 2, 1])


@pytest.mark.parametrize(
    ("student", "teacher", "pairs"),
    [
        (3, 6, [(1, 2), (2, 4), (3, 6)]),
        (1, 6, [(1, 6)]),
        (2, 2, [(1, 1), (2, 2)]),
        (2, 3, [(1, 2), (2, 3)]),  # 1/2 is as near to 1/3 as to 2/3
        (4, 2, [(1, 1), (2, 1), (3, 2), (4, 2)]),
    ],
)
def test_layers_meet_at_the_same_times(student, teacher, pairs):
    sides = of_scheme("yoshida4", student), of_scheme("strang-marchuk", teacher)
    assert layer_plan.match_in_time(*map(layer_plan.times, sides)) == pairs


def test_named_layers_are_read():
    for text in ("1:2, 3:6", "3:6,1:2", "1:2,3:6,1:2"):
        assert layer_plan.read_pairs(text, "--flag", "encoder", 3, 6) == [(1, 2), (3, 6)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "--flag 1 is not a list of layers: write STUDENT:TEACHER,..., as 3:6,6:12"),
        ("1:2;2:3", "is not a list of layers"),
        ("1:7", "--flag 1:7 names layer 7 of the teacher's encoder, which has layers 1 to 6"),
        (
            "4:1",
            "names layer 4 of the student's encoder, which has layers 1 to 3: name others",
        ),
        ("0:1", "names layer 0 of the student"),
    ],
)
def test_layers_that_do_not_exist_are_refused(text, message):
    with pytest.raises(UserError) as refused:
        layer_plan.read_pairs(text, "--flag", "encoder", 3, 6)
    assert message in str(refused.value)


def after_norm(model, side, state):
    """A side's last state after its final LayerNorm; post-norm models have none."""
    norm = getattr(model, side).layer_norm
    return state if norm is None else norm(state)


EVERY_LAYER = [*(("encoder", i) for i in (1, 2, 3)), ("decoder", 1), ("decoder", 2)]


@pytest.mark.parametrize("arch", [STUDENT, "transformer_tiny_pre_norm", "transformer"])
def test_recorded_states_are_those_that_fairseq_returns(arch):
    model = build(arch, *FLAGS, "--encoder-layers", "3")
    data = sample()["net_input"]
    with layers.recorded(model, EVERY_LAYER) as states:
        _, extra = model(**data, return_all_hiddens=True)
    encoder = model.encoder(data["src_tokens"], data["src_lengths"], return_all_hiddens=True)
    for side, known in (("encoder", encoder["encoder_states"]), ("decoder", extra["inner_states"])):
        assert len([x for x in states if x[0] == side]) == len(known) - 1
        for number, state in enumerate(known[1:-1], 1):
            torch.testing.assert_close(states[side, number], state.transpose(0, 1))
        last = after_norm(model, side, known[-1]).transpose(0, 1)
        torch.testing.assert_close(states[side, len(known) - 1], last)
        if side == "encoder":  # of which fairseq returns it, too
            torch.testing.assert_close(last, encoder["encoder_out"][0].transpose(0, 1))
    assert not any(x._forward_hooks for x in model.modules())


def test_a_layer_that_did_not_run_has_no_state():
    """Nor another one's in its place, which would hide the fault."""
    model = build(STUDENT, *FLAGS, "--encoder-layerdrop", "0.9").train()
    torch.manual_seed(1)
    with layers.recorded(model, [("encoder", 1), ("encoder", 2)]) as states:
        model(**sample()["net_input"])
    assert {*states} < {("encoder", 1), ("encoder", 2)}


def test_a_student_whose_layers_may_all_be_left_out_is_refused(teacher):
    model = build(STUDENT, *FLAGS, "--decoder-layerdrop", "0.5")
    with pytest.raises(UserError, match="give --decoder-layerdrop 0"):
        Following(Plan(), model, teacher.model, translation())
    Following(Plan(decoder_layers="none"), model, teacher.model, translation())


def test_a_loss_of_another_package_sees_both_trajectories(teacher):
    """The documentation's, whose last line adds the squared distance of mean lengths."""
    page = (ROOT / "docs/howto/use-the-parts.md").read_text("utf-8")
    code = re.search(r"```python\n(from fairseq.criterions.*?)```", page, re.S).group(1)
    names = {}
    try:
        exec(code, names)
    finally:
        CRITERION_REGISTRY.pop("with_lengths", None)
        CRITERION_DATACLASS_REGISTRY.pop("with_lengths", None)
    model, data = build(STUDENT, *FLAGS).train(), sample()
    found = []
    for cls in (Ours, names["WithLengthsCriterion"]):
        ours = following(model, cls, teacher=teacher.path, trajectory_weight=2.0)
        found.append(ours(model, data)[2]["trajectory_loss"] / data["ntokens"])
    met = {"encoder": [(1, 2), (2, 4)], "decoder": [(1, 1), (2, 2)]}
    found_by = [[(side, x[i]) for side, pairs in met.items() for x in pairs] for i in (0, 1)]
    with (
        layers.recorded(model, found_by[0]) as states,
        layers.recorded(teacher.model, found_by[1]) as taught,
    ):
        model(**data["net_input"])
        teacher.model(**data["net_input"])
    distances = [
        (states[side, i].norm(dim=-1).mean() - taught[side, j].norm(dim=-1).mean()) ** 2
        for side, pairs in met.items()
        for i, j in pairs
    ]
    assert float(found[1] - found[0]) == pytest.approx(float(sum(distances)), rel=1e-4)


def test_words_need_sentencepieces_marks_before_them(teacher):
    """With its option for the other side, words end where others begin."""
    marks = SimpleNamespace(source_dictionary=symbols("The▁", "c", "at▁"))
    marks.target_dictionary = marks.source_dictionary
    model = build(STUDENT, *FLAGS)
    with pytest.raises(UserError, match="are behind the words, by its option"):
        Following(Plan(), model, teacher.model, marks)
    Following(Plan(spans="tokens"), model, teacher.model, marks)


def test_a_recurrent_model_has_no_layers_to_follow():
    model = build("lstm", "--encoder-embed-dim", "8", "--decoder-embed-dim", "8")
    assert layers.layers_of(model) == {}
    with pytest.raises(UserError, match="has no layers to follow"):
        layers.recorded(model, [("encoder", 1)]).__enter__()


def test_a_model_without_layers_is_refused():
    with pytest.raises(UserError, match="a Linear has no layers to follow"):
        layers.recorded(nn.Linear(2, 2), [("encoder", 1)]).__enter__()


# --- spans of text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "sentence", "said"),
    [
        (
            *(symbols("lo@@", "w", "er@@", "est"), "w lo@@ er@@ est w lo@@"),
            "a word goes on after @@",
        ),
        (symbols("▁lo", "▁w", "er", "est"), "▁w ▁lo er est ▁w ▁lo", "a word begins with ▁"),
    ],
)
def test_bpe_is_joined_to_words(d, sentence, said):
    words = text_spans.Words(d)
    assert words.describe() == said
    numbers = [0, 1, 1, 1, 2, 3]
    tokens = [d.index(x) for x in sentence.split()]
    eos, pad = d.eos(), d.pad()
    batch = torch.tensor(
        [[pad, pad, *tokens, eos], [eos, *tokens, pad, pad], [*tokens, *[eos] * 3]]
    )
    expected = [[-1, -1, *numbers, -1], [-1, *numbers, -1, -1], [*numbers, *[-1] * 3]]
    assert words.numbers(batch).tolist() == expected
    members = text_spans.members("words", batch, words, pad)
    assert members.shape == (3, 9, 9)
    assert members.sum((1, 2)).tolist() == [6, 6, 6]
    assert members[0, 1].nonzero().flatten().tolist() == [3, 4, 5]
    assert members[1, 2].nonzero().flatten().tolist() == [5]


def test_without_marks_each_token_is_a_word():
    d = symbols("a", "b")
    batch = torch.tensor([[d.index("a"), d.index("b"), d.unk(), d.eos()]])
    words = text_spans.Words(d)
    assert words.numbers(batch).tolist() == [[0, 1, 2, -1]]
    assert words.describe() == "each token is a word"


@pytest.mark.parametrize(
    ("d", "sentence", "kept"),
    [
        # It may be a word, or the first half of that before "is".
        (symbols("the", "lin", "is"), "the <unk> lin is", [0, 1, 2, 3]),
        (symbols("the", "kohl@@", "lin", "is"), "the <unk> lin is", [0]),
        (symbols("the", "kohl@@", "lin", "is"), "the lin kohl@@ <unk>", [0, 1, 2]),
        # It may belong to the word before.
        (symbols("▁the", "lin", "▁is"), "▁the ▁is <unk> ▁is", [0]),
        (symbols("▁the", "lin", "▁is"), "<unk> lin ▁the", [0, 1]),
    ],
)
def test_phrases_that_an_unknown_token_may_have_moved_are_left_out(d, sentence, kept):
    tokens = [d.eos(), *map(d.index, sentence.split()), d.pad()]
    phrases = torch.tensor([[[i, i] for i in range(4)]])
    found = text_spans.members(
        "phrases", torch.tensor([tokens]), text_spans.Words(d), d.pad(), phrases
    )
    assert found[0].any(1).nonzero().flatten().tolist() == kept


def test_each_token_is_a_span_and_padding_is_none():
    d = symbols("a", "b")
    batch = torch.tensor([[4, 5, 2], [4, 2, 1]])
    members = text_spans.members("tokens", batch, text_spans.Words(d), d.pad())
    assert members.sum((1, 2)).tolist() == [3, 2]
    assert torch.equal(members[0], torch.eye(3, dtype=torch.bool))


def test_phrases_are_words_from_first_to_last(tmp_path):
    (tmp_path / "phrases").write_text("0-0\n\n 0-1 1-3\n")
    phrases = text_spans.Phrases(tmp_path / "phrases")
    assert phrases.of(torch.tensor([2, 0, 1])).tolist() == [
        [[0, 1], [1, 3]],
        [[0, 0], [-1, -1]],
        [[-1, -1], [-1, -1]],
    ]
    d = symbols("lo@@", "w", "er@@", "est")
    low, w = d.index("lo@@"), d.index("w")
    batch = torch.tensor([[2, low, w, w, low, w]])
    members = text_spans.members(
        "phrases", batch, text_spans.Words(d), d.pad(), phrases.of(torch.tensor([2]))
    )
    assert members[0].int().tolist() == [[0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert phrases.of(torch.tensor([1])).shape == (1, 0, 2)


def test_files_of_phrases_that_are_wrong_are_refused(tmp_path):
    path = tmp_path / "phrases"
    with pytest.raises(UserError, match=r"cannot read the phrases in .*: No such file"):
        text_spans.Phrases(path)
    path.write_text("0-1\n0-1,3-4\n")
    with pytest.raises(UserError, match="phrases, line 2, is not as expected: each line has"):
        text_spans.Phrases(path)
    for line in ("7-3", f"0-{10**20}"):
        path.write_text(f"{line}\n")
        with pytest.raises(UserError, match="phrases, line 1, is not as expected: each line has"):
            text_spans.Phrases(path)
    path.write_text("0-1\n")
    with pytest.raises(UserError, match="has 1 lines, but the training data 7 sentences"):
        text_spans.Phrases(path).check(7)


# --- the criterion -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Four layers in the encoder and two in the decoder, wider than the student."""
    path = tmp_path_factory.mktemp("teacher") / "teacher.pt"
    model = save(path, *LARGER, "--encoder-layers", "4")
    return SimpleNamespace(path=str(path), model=model)


def following(model, cls=Ours, **options):
    """The criterion, with maps for that student."""
    torch.manual_seed(3)
    ours = make(cls, for_task=translation(), **options)
    ours.follow(model)
    return ours


def token_weights(states):
    """How much the tokens of a sentence attend to each, (length, dim) -> (length,)."""
    x = states / (states.std(1, keepdim=True) + 1e-5)
    scores = (x @ x.T / x.shape[1] ** 0.5).fill_diagonal_(-math.inf)
    return scores.softmax(1).mean(0)


def plain_mta(pairs, linear):
    """DSA + Hid / 10 of one pair of layers, by loops over sentences and spans.

    Args:
        pairs: of each sentence the states of both, (length, dim), and the places of its spans.
        linear: the map between them.
    """
    structure = hidden = pair_weight = token_weight = 0.0
    for student, teacher, spans in pairs:
        places = [place for span in spans for place in span]
        own, others = (token_weights(x) for x in (student, teacher))
        others = others / others[places].sum()
        for i, span in enumerate(spans):
            for j in spans[:i] + spans[i + 1 :]:
                weight = others[span].sum() * others[j].sum()
                apart = [
                    torch.cosine_similarity(*(w[k] @ x[k] / w[k].sum() for k in (span, j)), dim=0)
                    for x, w in ((student, own), (teacher, others))
                ]
                structure += weight * (apart[0] - apart[1]) ** 2
                pair_weight += weight
        for place in places:
            there = linear.weight @ student[place] + linear.bias
            cosine = torch.cosine_similarity(there, teacher[place], dim=0)
            hidden += others[place] * (1 - cosine)
            token_weight += others[place]
    return (structure / pair_weight + hidden / token_weight / 10).item()


KEYS = {"encoder": "src_tokens", "decoder": "prev_output_tokens"}


def plain_distance(ours, models, data, met, spans_of):
    """The mean of `plain_mta` over sides and pairs of layers.

    Args:
        ours: the criterion.
        models: student and teacher.
        data: the batch.
        met: pairs of layers by side.
        spans_of: places of the spans of a sentence, of its side, its row and its tokens.
    """
    inputs, states, found = data["net_input"], [], []
    for one in models:
        _, extra = one(**inputs)
        encoder = one.encoder(inputs["src_tokens"], inputs["src_lengths"], return_all_hiddens=True)
        states.append({"encoder": encoder["encoder_states"], "decoder": extra["inner_states"]})
        for side, of_side in states[-1].items():
            of_side[-1] = after_norm(one, side, of_side[-1])
    for side, pairs in met.items():
        for (i, j), linear in zip(pairs, ours.following.maps[side], strict=True):
            sentences = []
            for row, tokens in enumerate(inputs[KEYS[side]]):
                kept = tokens.ne(PAD)
                both = (
                    of[side][n][:, row][kept].detach() for of, n in zip(states, (i, j), strict=True)
                )
                sentences.append((*both, spans_of(side, row, tokens[kept].tolist())))
            found.append(plain_mta(sentences, linear))
    return sum(found) / len(found)


ALL_LAYERS = {"encoder": [(1, 2), (2, 4)], "decoder": [(1, 1), (2, 2)]}


@pytest.mark.parametrize("by_sentence", [False, True])
@pytest.mark.parametrize("w", [0.0, 0.5])
@pytest.mark.parametrize("spans", ["tokens", "words"])
def test_the_loss_is_the_sum_of_its_parts(w, spans, by_sentence, teacher):
    model, data = build(STUDENT, *FLAGS).train(), sample()
    options = {"teacher": teacher.path, "distill_weight": w, "sentence_avg": by_sentence}
    ours = following(model, trajectory_weight=2.0, trajectory_spans=spans, **options)
    loss, size, log = ours(model, data)
    assert size == (4 if by_sentence else 23)
    plain = outcome(Ours, model, data, for_task=translation(), **options)

    def spans_of(side, row, tokens):  # the dictionary has no BPE
        return [[i] for i, x in enumerate(tokens) if spans == "tokens" or x != 2]

    distance = plain_distance(ours, (model, teacher.model), data, ALL_LAYERS, spans_of)
    assert float(log["trajectory_loss"]) == pytest.approx(size * distance, rel=1e-5)
    assert float(loss) == pytest.approx(float(plain.loss) + 2 * size * distance, rel=1e-5)
    assert float(log["loss"]) == float(loss)
    assert ("kd_loss" in log) == bool(w)

    loss.backward()
    assert all(p.grad is not None for p in (*ours.parameters(), *model.parameters()))
    assert ours.following.maps["encoder"][0].weight.grad.any()


def test_of_several_teachers_the_first_is_followed(teacher, tmp_path):
    save(tmp_path / "other.pt", *LARGER, seed=5)
    model, data = build(STUDENT, *FLAGS).train(), sample()
    maps, found = None, []
    for paths in ([teacher.path], [teacher.path, "other.pt"], ["other.pt", teacher.path]):
        names = ":".join(str(tmp_path / path) for path in paths)
        ours = following(model, teacher=names, trajectory_weight=2.0)
        maps = maps or ours.following.maps.state_dict()  # which another teacher may draw otherwise
        ours.following.maps.load_state_dict(maps)
        found.append(float(ours(model, data)[2]["trajectory_loss"]))
    alone, followed, other = found
    assert followed == alone and other != pytest.approx(alone, rel=0.01)


def test_phrases_are_those_of_the_sentence_and_its_side(tmp_path, teacher):
    """A batch has its sentences in another order than the file."""
    lines = {
        "encoder": ["0-0 2-3", "0-0 1-1", "0-2 4-6", "1-2 4-5"],
        "decoder": ["0-0 1-1", "0-1 2-2", "1-1 3-6", "0-1 3-5"],
    }
    for side, of_side in lines.items():
        (tmp_path / side).write_text("".join(f"{x}\n" for x in of_side))
    model, data = build(STUDENT, *FLAGS).train(), {**sample(), "id": torch.tensor([2, 0, 3, 1])}
    options = {"teacher": teacher.path, "trajectory_spans": "phrases"}
    options["trajectory_source_phrases"] = str(tmp_path / "encoder")
    options["trajectory_target_phrases"] = str(tmp_path / "decoder")
    ours = following(model, trajectory_weight=1.0, **options)

    def spans_of(side, row, tokens):
        places = [i for i, x in enumerate(tokens) if x != 2]
        found = []
        for phrase in lines[side][data["id"][row]].split():
            first, last = map(int, phrase.split("-"))
            found.append(places[first : last + 1])
        return found

    _, size, log = ours(model, data)
    distance = plain_distance(ours, (model, teacher.model), data, ALL_LAYERS, spans_of)
    assert float(log["trajectory_loss"]) == pytest.approx(size * distance, rel=1e-5)


def test_what_is_logged_is_a_mean_over_all_batches():
    """By sample size, which may be sentences, and KL by tokens."""
    logs = [
        {"loss": 9.0, "nll_loss": 6.0, "kd_loss": 3.0, "trajectory_loss": 2.0}
        | {"ntokens": 10, "sample_size": 2},
        {"loss": 9.0, "nll_loss": 6.0, "kd_loss": 5.0, "trajectory_loss": 3.0}
        | {"ntokens": 2, "sample_size": 1},
    ]
    with metrics.aggregate() as shown:
        Ours.reduce_metrics(logs)
    assert shown.get_smoothed_value("trajectory_loss") == pytest.approx(5 / 3, abs=1e-3)
    assert shown.get_smoothed_value("kd_loss") == pytest.approx(8 / 12 / math.log(2), abs=1e-3)


def test_a_student_that_is_its_teacher_has_no_distance(tmp_path):
    model = save(tmp_path / "same.pt", *FLAGS).train()
    options = {"teacher": str(tmp_path / "same.pt"), "trajectory_weight": 3.0}
    ours = following(model, distill_weight=1.0, **options)
    for to_teacher in ours.following.modules():
        if isinstance(to_teacher, nn.Linear):
            nn.init.eye_(to_teacher.weight)
            nn.init.zeros_(to_teacher.bias)
    loss, *_ = ours(model, sample())
    loss.backward()
    assert float(loss) == pytest.approx(0, abs=1e-4)
    assert all(p.grad.abs().max() < 1e-4 for p in model.parameters())


def test_padding_does_not_matter_to_the_trajectory(teacher):
    model = build(STUDENT, *FLAGS).train()
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0)
    data = sample()
    expected = ours(model, data)[2]["trajectory_loss"]
    inputs = data["net_input"]
    inputs["src_tokens"] = nn.functional.pad(inputs["src_tokens"], (3, 0), value=PAD)
    inputs["prev_output_tokens"] = nn.functional.pad(
        inputs["prev_output_tokens"], (0, 2), value=PAD
    )
    data["target"] = nn.functional.pad(data["target"], (0, 2), value=PAD)
    found = ours(model, data)[2]["trajectory_loss"]
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_the_maps_are_all_that_is_saved(teacher):
    model = build(STUDENT, *FLAGS)
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0)
    state = ours.state_dict()
    assert state.pop("following._extra_state") == {
        "layers": "1 to 2 of the encoder (16 to 24 wide), 2 to 4 of the encoder (16 to 24 wide), "
        "1 to 1 of the decoder (16 to 24 wide), 2 to 2 of the decoder (16 to 24 wide)",
        "spans": "words, words of the encoder; words, words of the decoder",
        "teacher": hashlib.sha256(Path(teacher.path).read_bytes()).hexdigest(),
    }
    assert {tuple(x.shape) for x in state.values()} == {(24, 16), (24,)} and len(state) == 8
    assert sum(p.numel() for p in ours.parameters()) == 4 * (24 * 16 + 24)


def test_a_student_that_followed_nobody_may_begin_to(teacher):
    """fairseq saves None for a criterion without parameters, and hands that on."""
    ours = following(build(STUDENT, *FLAGS), teacher=teacher.path, trajectory_weight=1.0)
    before = {name: value.clone() for name, value in ours.named_parameters()}
    ours.load_state_dict(None, strict=True)
    assert all(torch.equal(value, before[name]) for name, value in ours.named_parameters())


def test_maps_of_other_layers_or_widths_are_refused_by_more_than_an_exception(teacher, tmp_path):
    """fairseq replaces exceptions that loading raises by another."""
    model = build(STUDENT, *FLAGS)
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0)
    save(tmp_path / "narrow.pt", *FLAGS)
    narrow = {"teacher": str(tmp_path / "narrow.pt"), "trajectory_layers": "2:2"}
    fewer = {"teacher": teacher.path, "trajectory_decoder_layers": "none"}
    others = {"teacher": teacher.path, "trajectory_encoder_layers": "1:1,2:4"}
    for options, changed in (
        (others, "1 to 2 of the encoder"),
        (fewer, "1 to 1 of the decoder"),
        (narrow, r"2 to 2 of the encoder \(16 to 16 wide\)"),
    ):
        other = following(model, trajectory_weight=1.0, **options)
        with pytest.raises(
            SystemExit, match=f"maps from its layers to .*{changed}.*as before,"
        ) as e:
            ours.load_state_dict(other.state_dict(), strict=True)
        assert not isinstance(e.value, Exception)
    before_they_told = {k: v for k, v in ours.state_dict().items() if "extra" not in k}
    assert ours.load_state_dict(before_they_told, strict=True)
    with pytest.raises(SystemExit, match="to a teacher's, others, and now they would be 1 to 2"):
        ours.load_state_dict(dict([*before_they_told.items()][1:]), strict=True)


@pytest.mark.parametrize(
    "saved, is_anew",
    [
        ({"reset_optimizer": True}, True),
        ({"finetune_from_model": "teacher.pt"}, True),
        ({"finetune_from_model": "teacher.pt", "save_dir": "begun"}, False),
        ({}, False),
    ],
)
def test_training_that_begins_anew_learns_other_maps(saved, is_anew, tmp_path, teacher, caplog):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "checkpoint_last.pt").touch()
    model, options = build(STUDENT, *FLAGS), {"teacher": teacher.path, "trajectory_weight": 1.0}
    before = following(model, trajectory_encoder_layers="1:1,2:4", **options).state_dict()
    ours = following(model, **options)
    saved = {**CHECKPOINT, "save_dir": "save", **saved}
    saved["save_dir"] = str(tmp_path / saved["save_dir"])
    ours.begins_anew = takes_parameters_alone(Namespace(**saved))
    own = {name: value.clone() for name, value in ours.named_parameters()}
    if is_anew:
        with caplog.at_level(logging.INFO):
            ours.load_state_dict(before, strict=True)
        assert "new ones are learnt" in caplog.text
        assert all(torch.equal(x, own[name]) for name, x in ours.named_parameters())
    else:
        with pytest.raises(SystemExit, match="begin anew with --reset-optimizer"):
            ours.load_state_dict(before, strict=True)


def test_other_spans_on_resuming_are_told(teacher, caplog):
    model, options = build(STUDENT, *FLAGS), {"teacher": teacher.path, "trajectory_weight": 1.0}
    ours = following(model, trajectory_spans="tokens", **options)
    with caplog.at_level(logging.WARNING):
        ours.load_state_dict(following(model, **options).state_dict(), strict=True)
    assert "spans: words, words of the encoder; " in caplog.text


def test_another_teacher_on_resuming_is_told(teacher, tmp_path, caplog):
    """Of the same sizes, so that its maps would load."""
    other = tmp_path / "other.pt"
    save(other, *LARGER, "--encoder-layers", "4", seed=5)
    model = build(STUDENT, *FLAGS)
    first, second = (
        following(model, teacher=str(x), trajectory_weight=1.0) for x in (teacher.path, other)
    )
    with caplog.at_level(logging.WARNING):
        first.load_state_dict(first.state_dict(), strict=True)
        assert "until now" not in caplog.text
        second.load_state_dict(first.state_dict(), strict=True)
    hashes = [hashlib.sha256(Path(x).read_bytes()).hexdigest() for x in (teacher.path, other)]
    assert f"teacher: {hashes[0]} until now, and {hashes[1]} from here on" in caplog.text


def test_half_precision_states_meet_a_full_teachers(teacher):
    model = build(STUDENT, *FLAGS).to(torch.bfloat16).train()
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0)
    expected = ours(copy.deepcopy(model).float(), sample())[2]["trajectory_loss"]
    loss, _, log = ours.to(torch.bfloat16)(model, sample())
    loss.backward()
    assert float(log["trajectory_loss"]) == pytest.approx(float(expected), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_a_trajectory_is_summed_in_full(dtype, teacher):
    model = build(STUDENT, *FLAGS).train()
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0)
    expected = ours(model, sample())[2]["trajectory_loss"]
    with torch.autocast("cpu", dtype):
        loss, _, log = ours(model, sample())
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert float(log["trajectory_loss"]) == pytest.approx(float(expected), rel=0.01)


@pytest.mark.parametrize("line", ["0-0", "7-9"])  # one phrase in each sentence, none
def test_batches_without_pairs_of_phrases_have_finite_gradients(line, tmp_path, teacher):
    (tmp_path / "phrases").write_text(f"{line}\n" * 4)
    model, data = build(STUDENT, *FLAGS).train(), {**sample(), "id": torch.arange(4)}
    options = {"trajectory_spans": "phrases", "trajectory_decoder_layers": "none"}
    options["trajectory_source_phrases"] = str(tmp_path / "phrases")
    ours = following(model, teacher=teacher.path, trajectory_weight=1000.0, **options)
    loss, *_ = ours(model, data)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    of_map = ours.following.maps["encoder"][0].weight.grad
    if line == "0-0":  # without pairs, but with tokens
        assert of_map.any()
    else:
        assert not of_map.any()
        plain = outcome(Ours, model, data, for_task=translation(), teacher=teacher.path)
        assert float(loss) == float(plain.loss)


def test_evaluation_follows_nobody(teacher):
    model = build(STUDENT, *FLAGS)
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0).eval()
    found = ours(model, sample())
    assert found == make(ChunkedLabelSmoothedCrossEntropyCriterion)(model, sample())


def test_fairseq_builds_it_for_the_student_of_its_configuration(teacher, caplog):
    args = Namespace(**vars(arguments(STUDENT, *FLAGS, "--encoder-layers", "1")))
    settings = {
        **{"_name": "distilled_label_smoothed_cross_entropy", "label_smoothing": 0.1},
        **{"teacher": teacher.path, "trajectory_weight": 1.0, "sentence_avg": False},
    }
    whole = {"model": args, "criterion": settings, "dataset": {"train_subset": "train1"}}
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    ours = translation().build_criterion(cfg.criterion)
    assert ours.following.subset == "train1"
    assert ours.following.pairs == {"encoder": [(1, 4)], "decoder": [(1, 1), (2, 2)]}
    whole["checkpoint"] = {**CHECKPOINT, "reset_optimizer": True}
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    assert translation().build_criterion(cfg.criterion).begins_anew
    whole["distributed_training"] = {"ddp_backend": "fully_sharded"}
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    with pytest.raises(UserError, match="does not go with --ddp-backend fully_sharded"):
        translation().build_criterion(cfg.criterion)
    del whole["distributed_training"]
    settings["teacher_memory"] = 1.0
    whole["dataset"]["update_epoch_batch_itr"] = True
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    assert translation().build_criterion(cfg.criterion).teachers.memory is not None
    assert any(x.endswith("give --update-epoch-batch-itr False") for x in caplog.messages)
    whole["dataset"]["update_epoch_batch_itr"] = False
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    task = translation()
    caplog.clear()
    task.build_criterion(cfg.criterion)
    assert not any("no effect" in said for said in caplog.messages)
    whole["distributed_training"] = {"distributed_world_size": 2}
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    task.build_criterion(cfg.criterion)
    assert any("of 2 processes each gets batches of the others" in x for x in caplog.messages)
    task.cfg.data = "a:b"
    task.build_criterion(cfg.criterion)
    assert any("other batches where the training data is in" in x for x in caplog.messages)
    caplog.clear()
    settings.update(trajectory_weight=0.0, distill_weight=0.0, teacher="")  # as in validation
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    task.build_criterion(cfg.criterion)
    assert not any("no effect" in said for said in caplog.messages)
    args.adaptive_softmax_cutoff = [10]
    cfg = OmegaConf.create(whole, flags={"allow_objects": True})
    with pytest.raises(UserError, match="cutoff needs fairseq's --criterion adaptive_loss"):
        task.build_criterion(cfg.criterion)


def test_asking_for_the_students_sizes_draws_no_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = student_like(translation(), arguments(STUDENT, *FLAGS, "--decoder-layers", "1"))
    assert len(model.decoder.layers) == 1 and torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("plan", "pairs"),
    [
        (Plan(), {"encoder": [(1, 2), (2, 4)], "decoder": [(1, 1), (2, 2)]}),
        (Plan("2:2"), {"encoder": [(2, 2)], "decoder": [(2, 2)]}),
        (Plan("1:1", encoder_layers="1:3,2:4"), {"encoder": [(1, 3), (2, 4)], "decoder": [(1, 1)]}),
        (Plan(decoder_layers="none"), {"encoder": [(1, 2), (2, 4)]}),
    ],
)
def test_a_user_can_name_the_layers(plan, pairs, teacher):
    assert plan.pairs(build(STUDENT, *FLAGS), teacher.model) == pairs


def test_kinds_of_spans_are_shared_out_from_below():
    assert Plan(spans="words").kinds(2) == ["words", "words"]
    assert Plan(spans="words,phrases").kinds(3) == ["words", "words", "phrases"]
    assert Plan(spans="tokens,words").kinds(4) == ["tokens", "tokens", "words", "words"]


def test_a_kind_of_spans_that_no_layer_has_is_refused():
    plan = Plan(spans="tokens,words")
    plan.refuse_unused([plan.kinds(2), plan.kinds(1)])  # the decoder has one pair, and no words
    with pytest.raises(UserError, match="more kinds than there are pairs of layers, so words"):
        plan.refuse_unused([plan.kinds(1), plan.kinds(1)])


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan("3:1"), "--trajectory-layers 3:1 names layer 3 of the student"),
        (Plan(decoder_layers="1:9"), "--trajectory-decoder-layers 1:9 names layer 9 of the teach"),
        (Plan("none"), "no layers of student and teacher meet"),
        (Plan(spans="phrase"), "unknown kind of spans 'phrase'.*Did you mean phrases"),
        (
            Plan(source_phrases="gone"),
            "--trajectory-source-phrases gone has no effect, since no layers of the encoder meet",
        ),
        (
            Plan(decoder_layers="none", target_phrases="gone", spans="phrases"),
            "needs --trajectory-source-phrases",
        ),
        (Plan(spans="phrases"), "needs --trajectory-source-phrases FILE, or --trajectory-encoder-"),
    ],
)
def test_plans_that_cannot_be_followed_are_refused(plan, message, teacher):
    with pytest.raises(UserError, match=message):
        Following(plan, build(STUDENT, *FLAGS), teacher.model, translation())


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(UserError, match=f"--trajectory-weight is {weight}: give a number"):
        make(Ours, for_task=translation(), trajectory_weight=weight)


def test_phrases_of_other_data_are_refused_before_the_first_update(tmp_path, teacher):
    (tmp_path / "phrases").write_text("0-1\n" * 5)
    model = build(STUDENT, *FLAGS).train()
    options = {"trajectory_spans": "phrases", "trajectory_decoder_layers": "none"}
    options["trajectory_source_phrases"] = str(tmp_path / "phrases")
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0, **options)
    data = {**sample(), "id": torch.tensor([3, 0, 4, 1])}
    assert ours(model, data)[0].isfinite()
    ours.task.datasets["train"] = range(5)
    assert ours(model, data)[0].isfinite()
    ours.task.datasets["train"] = range(6)  # fairseq loads it anew in each epoch
    with pytest.raises(SystemExit, match="has 5 lines, but the training data 6 sentences") as end:
        ours(model, data)
    assert not isinstance(end.value, Exception)  # after which fairseq would save crash.pt
    assert "--sample-break-mode" not in str(end.value)
    ours.following.task = LanguageModelingTask(LanguageModelingConfig(), dictionary(), dictionary())
    ours.following.task.datasets["train"] = range(2)
    with pytest.raises(SystemExit, match=r"; with --sample-break-mode eos a line of text is one$"):
        ours.following.check_phrases()


def test_phrases_of_data_in_several_folders_are_refused(tmp_path, teacher):
    """In each, fairseq numbers sentences anew."""
    (tmp_path / "phrases").write_text("0-1\n")
    task = translation()
    task.cfg.data = "a:b"
    plan = Plan(spans="phrases", decoder_layers="none", source_phrases=str(tmp_path / "phrases"))
    with pytest.raises(UserError, match="needs the training data in one folder"):
        Following(plan, build(STUDENT, *FLAGS), teacher.model, task)


def test_a_language_model_is_told_of_its_own_phrases(tmp_path):
    """It has no source, and its decoder cannot be left out."""
    books, flags = language_task(), ["--decoder-layers", "2", *SMALL_DECODER]
    model = build("transformer_lm", *flags, for_task=books)
    for options, said in (
        ({}, "needs --trajectory-target-phrases FILE$"),
        (
            {"target_phrases": str(tmp_path / "p"), "source_phrases": "s"},
            "--trajectory-source-phrases s has no effect, since no layers of the encoder meet: "
            "leave it out$",
        ),
    ):
        with pytest.raises(UserError, match=said):
            Following(Plan(spans="phrases", **options), model, model, books)


def test_models_without_layers_are_named():
    lstm = build("lstm", for_task=translation())
    student = build(STUDENT, *FLAGS)
    for plan in (Plan(), Plan("1:1")):
        with pytest.raises(UserError, match="a LSTMModel has no layers that could meet others"):
            Following(plan, student, lstm, translation())


def test_phrases_of_books_in_several_folders_are_refused(tmp_path):
    """fairseq keeps the options of this task elsewhere."""
    (tmp_path / "phrases").write_text("0-1\n")
    books = language_task(data="a:b")
    flags = "--decoder-layers", "2", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2"
    models = [build("transformer_lm", *flags, for_task=books) for _ in range(2)]
    plan = Plan(spans="phrases", target_phrases=str(tmp_path / "phrases"))
    with pytest.raises(UserError, match="needs the training data in one folder"):
        Following(plan, *models, books)
    for method in ("none", "truncate"):
        Following(plan, *models, language_task(data="a", shorten_method=method))
    with pytest.raises(UserError, match="random_crop begins samples anywhere"):
        Following(plan, *models, language_task(data="a", shorten_method="random_crop"))


@pytest.mark.parametrize(
    "options",
    [
        {"trajectory_layers": "9:9"},
        {"trajectory_spans": "phrases"},
        {"trajectory_source_phrases": "gone"},
    ],
)
def test_options_of_a_trajectory_that_is_not_followed_are_refused(options, teacher):
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(UserError, match=f"{flag} has no effect without --trajectory-weight"):
        make(Ours, for_task=translation(), teacher=teacher.path, **options)
    make(Ours, for_task=translation(), distill_weight=0.0, **options)  # as fairseq-validate may


def test_nan_in_a_teachers_states_is_refused(tmp_path):
    save(tmp_path / "t.pt", *FLAGS, change=lambda x: x.encoder.layers[0].fc2.bias.fill_(3e38))
    model = build(STUDENT, *FLAGS).train()
    options = {"teacher": str(tmp_path / "t.pt"), "trajectory_weight": 1.0, "distill_weight": 0.0}
    ours = following(model, **options)
    with pytest.raises(SystemExit, match="the teacher's output holds NaN"):
        ours(model, sample())


@pytest.mark.usefixtures("one_process")
def test_in_distributed_data_parallel_the_gradients_are_the_same(teacher):
    model = build(STUDENT, *FLAGS).train()
    ours = following(model, teacher=teacher.path, trajectory_weight=1.0)

    def gradients(criterion, model):
        ours.zero_grad()
        model.zero_grad()
        criterion(model, sample())[0].backward()
        return [p.grad.clone() for x in (ours, model) for p in x.parameters()]

    expected = gradients(ours, model)
    wrapped = [ModuleProxyWrapper(DistributedDataParallel(x)) for x in (ours, model)]
    for _ in range(2):  # an unfinished reduction is an error in the next forward pass
        found = gradients(*wrapped)
    torch.testing.assert_close(found, expected)


# --- language models -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_language_model_learns_from_another(tmp_path, monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS_CPU", 5 * 64 + 1)
    d = dictionary()
    for_task = LanguageModelingTask(LanguageModelingConfig(), d, d)
    sides = ["--decoder-attention-heads", "2"]
    sides += [x for name in ("embed", "input", "output") for x in (f"--decoder-{name}-dim", "16")]
    flags = [*sides, "--decoder-ffn-embed-dim", "32", "--dropout", "0", "--attention-dropout", "0"]
    models = [
        build("transformer_lm", *flags, "--decoder-layers", n, for_task=for_task, seed=seed)
        for n, seed in (("2", 1), ("4", 2))
    ]
    args = arguments("transformer_lm", *flags, "--decoder-layers", "4")
    history = [{"optimizer_name": "adam", "lr_scheduler_state": {}, "num_updates": 1}]
    torch.save(
        {
            "args": Namespace(**{**vars(args), "task": "language_modeling"}),
            "model": models[1].state_dict(),
            "optimizer_history": history,
            "extra_state": {"train_iterator": {"epoch": 1}},
        },
        tmp_path / "teacher.pt",
    )
    tokens = sample()["net_input"]["prev_output_tokens"]
    lengths = tokens.ne(PAD).sum(1)
    data = {
        "net_input": {"src_tokens": tokens, "src_lengths": lengths},
        "target": sample()["target"],
        "ntokens": int(lengths.sum()),
    }
    student = models[0].train()
    options = {"teacher": str(tmp_path / "teacher.pt"), "trajectory_weight": 1.0}
    ours = make(Ours, for_task=for_task, distill_weight=1.0, **options)
    ours.follow(student)
    assert ours.following.pairs == {"decoder": [(1, 2), (2, 4)]}
    with pytest.raises(UserError, match="--trajectory-encoder-layers 1:1 has no effect"):
        Plan(encoder_layers="1:1").pairs(student, models[1])
    with Spy() as spy:
        loss, size, log = ours(student, data)
    assert spy.rows < 24  # targets
    logits = [x(**data["net_input"])[0][tokens.ne(PAD)] for x in models]
    kl = torch.distributions.kl_divergence(
        *(torch.distributions.Categorical(logits=x) for x in reversed(logits))
    )
    assert float(log["kd_loss"]) == pytest.approx(float(kl.sum()), rel=1e-5)
    loss.backward()
    assert float(loss) == pytest.approx(float(log["kd_loss"] + log["trajectory_loss"]), rel=1e-5)

    states = [x(**data["net_input"])[1]["inner_states"] for x in models]
    for model, of_model in zip(models, states, strict=True):
        of_model[-1] = after_norm(model, "decoder", of_model[-1])
    distances = []
    for met, linear in zip([(1, 2), (2, 4)], ours.following.maps["decoder"], strict=True):
        rows = []
        for row, kept in enumerate(tokens.ne(PAD)):
            both = (of[n][:, row][kept].detach() for of, n in zip(states, met, strict=True))
            words = [[i] for i, x in enumerate(tokens[row][kept].tolist()) if x != d.eos()]
            rows.append((*both, words))
        distances.append(plain_mta(rows, linear))
    expected = size * sum(distances) / 2
    assert float(log["trajectory_loss"]) == pytest.approx(expected, rel=1e-5)


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_goes_on_with_its_maps(data_bin, trained, tmp_path):
    (tmp_path / "phrases").write_text("0-1 1-2\n" * 200)
    flags = ["--criterion", "distilled_label_smoothed_cross_entropy"]
    flags += ["--teacher", trained / "checkpoint_last.pt", "--encoder-layers", "1"]
    flags += ["--trajectory-weight", "2", "--trajectory-decoder-layers", "none"]
    flags += ["--trajectory-spans", "phrases", "--trajectory-source-phrases", tmp_path / "phrases"]
    out = train(data_bin, tmp_path / "student", *flags, "--max-update", "4").stdout
    assert "trajectory, with weight 2: encoder layers 1 to 2 on phrases" in out
    assert '"train_trajectory_loss"' in out and '"valid_trajectory_loss"' not in out
    path = tmp_path / "student/checkpoint_last.pt"
    before = torch.load(path, weights_only=True)
    train(data_bin, tmp_path / "student", *flags, "--max-update", "5")
    after = torch.load(path, weights_only=True)
    assert list(before["criterion"]) == list(after["criterion"]) and len(before["criterion"]) == 3
    for name, value in before["criterion"].items():
        if name.endswith("_extra_state"):
            assert after["criterion"][name] == value
            continue
        # One step of Adam; maps that start anew are within 0.25 of 0.
        torch.testing.assert_close(after["criterion"][name], value, rtol=0, atol=0.011)
    flags += ["--trajectory-encoder-layers", "1:1", "--max-update", "6"]
    done = train(data_bin, tmp_path / "student", *flags, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert "has maps from its layers to a teacher's, 1 to 2 of" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_trajectory_begins_and_ends_with_a_new_optimizer(data_bin, trained, tmp_path):
    plain = ["--criterion", "distilled_label_smoothed_cross_entropy"]
    plain += ["--teacher", trained / "checkpoint_last.pt"]
    ways = [*plain, "--trajectory-weight", "2"], plain
    train(data_bin, tmp_path / "run", *plain, "--max-update", "1")
    for number, (flags, said) in enumerate(
        zip(ways, ("begins to follow its teacher's", "no longer follows layers"), strict=True), 2
    ):
        flags = [*flags, "--max-update", str(number)]
        done = train(data_bin, tmp_path / "run", *flags, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stdout
        assert said in done.stdout and "add --reset-optimizer, or" in done.stdout.splitlines()[-1]
        train(data_bin, tmp_path / "run", *flags, "--reset-optimizer")
