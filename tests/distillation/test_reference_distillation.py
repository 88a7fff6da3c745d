"""What the authors' code computed of MTA and SRA, in folders that `MACARON_REFERENCE` names.

Of its subfolders those are read whose name begins with `mta` or `sra`. By default it is
tests/fixtures/reference, which holds inputs made from random numbers.
"""

import math
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.paths import FIXTURES
from torch.nn.functional import linear

from macaron_fairseq.distillation import spans
from macaron_fairseq.distillation.cross_vocabulary import losses as cross_vocabulary
from macaron_fairseq.distillation.trajectory import losses as trajectory

pytestmark = pytest.mark.reference

ROOT = Path(os.environ.get("MACARON_REFERENCE") or FIXTURES / "reference")
MTA, SRA = (sorted(ROOT.glob(f"{name}*/*.pt")) for name in ("mta", "sra"))
NAMES = {"ids": lambda path: f"{path.parent.name}/{path.name}"}


def assert_near(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance


def test_mta_and_sra_have_references():
    assert MTA and SRA, f"{ROOT} has no mta*/*.pt or no sra*/*.pt"


# --- MTA -----------------------------------------------------------------------------------------


def weights_of_authors(states, mask):
    """`token_weights` in which padded positions ask, too, as the authors' code has it.

    `tests/distillation/test_distillation_losses.py` has the package's where there is padding.
    """
    with torch.no_grad():
        x = states / (states.std(2, keepdim=True) + trajectory.EPSILON)
        scores = x @ x.transpose(1, 2) / x.shape[2] ** 0.5
        hidden = ~mask.unsqueeze(1) | torch.eye(mask.shape[1], dtype=torch.bool)
        weights = scores.masked_fill(hidden, torch.finfo(x.dtype).min).softmax(2).sum(1) * mask
        return weights / weights.sum(1, keepdim=True)


class Mta:
    """The inputs of one file."""

    def __init__(self, path):
        self.data = torch.load(path, weights_only=True)
        self.mask = self.data["attention_mask"].bool()
        self.numbers = range(len(self.data["student_layers"]))
        split = self.data["split"]
        starts, ends = self.data["offsets"].unbind(2)
        self.members = []
        for i in self.numbers:
            kind = "word_spans" if split[0] <= i < split[1] else "phrase_spans"
            within = self.data[kind], starts + 1, ends, self.mask  # a space belongs to its token
            self.members.append(spans.members_within(*within))
        self.student, self.teacher = (
            [self.data[f"{side}_hidden"][i] for i in self.data[f"{side}_layers"]]
            for side in ("student", "teacher")
        )

    def pairs(self, states, weight, bias):
        return [
            trajectory.LayerPair(
                states[i],
                self.teacher[i],
                *(weights_of_authors(x, self.mask) for x in (states[i], self.teacher[i])),
                self.members[i],
                partial(linear, weight=weight[i], bias=bias[i]),
            )
            for i in self.numbers
        ]


@pytest.fixture(params=MTA, **NAMES)
def mta(request):
    return Mta(request.param)


def test_mta_members_of_spans(mta):
    for i in mta.numbers:
        members = mta.members[i]
        sentence, span, token = members.nonzero().unbind(1)
        has_token = members.any(2)
        number = has_token.flatten().cumsum(0).view(has_token.shape) - 1
        found = {
            (int(number[b, s]), int(b * members.shape[2] + t))
            for b, s, t in zip(sentence, span, token, strict=True)
        }
        given = mta.data[f"layer{i}.member_span_id"], mta.data[f"layer{i}.member_flat_index"]
        assert found == set(zip(*(x.tolist() for x in given), strict=True))
        assert torch.equal(has_token.nonzero()[:, 0], mta.data[f"layer{i}.span_sentence"])


def test_mta_weights_and_vectors_of_spans(mta):
    for i in mta.numbers:
        members, has_token = mta.members[i], mta.members[i].any(2)
        for side, states in (("student", mta.student[i]), ("teacher", mta.teacher[i])):
            weights = weights_of_authors(states, mta.mask)
            expected = mta.data[f"token_weight_{side}"][i]
            expected = expected / expected.sum(1, keepdim=True)
            assert_near(weights, expected, 1e-6)
            whole = mta.mask.all(1)  # without padding both are the same
            assert_near(trajectory.token_weights(states, mta.mask)[whole], expected[whole], 1e-6)
            of_members = spans.member_weights(members, weights)
            assert_near(of_members[members], mta.data[f"layer{i}.member_weight_{side}"], 1e-6)
            vectors = spans.centres(states, of_members)[has_token]
            assert_near(vectors, mta.data[f"layer{i}.span_vector_{side}"], 1e-6)
        expected = mta.data[f"layer{i}.span_pair_weight_1d"]
        assert_near(of_members.sum(2)[has_token], expected, 1e-6)


def certainty(logits):
    """1 - H(softmax(logits)) / log(types): other weights of tokens, by what a teacher predicts."""
    p = logits.softmax(2)
    return 1 + (p * (p + 1e-8).log()).sum(2) / math.log(logits.shape[2])


@pytest.mark.parametrize("prefix", ["", "entropy."])
def test_mta_losses_and_gradients(mta, prefix):
    data = mta.data
    states = torch.stack(mta.student).requires_grad_()
    weight, bias = (data[f"projection_{x}"].clone().requires_grad_() for x in ("weight", "bias"))
    importance = certainty(data["teacher_logits"]) * mta.mask if prefix else None
    found = [trajectory.align(pair, importance) for pair in mta.pairs(states, weight, bias)]
    assert_near(torch.stack([x.structure for x in found]), data[f"{prefix}dsa"])
    assert_near(torch.stack([x.hidden for x in found]), data[f"{prefix}hid"])
    total = trajectory.trajectory_loss(found)
    assert_near(total, data[f"{prefix}total"])
    total.backward()
    assert_near(states.grad, data[f"{prefix}grad_student"])
    if not prefix:
        assert_near(weight.grad, data["grad_projection_weight"])
        assert_near(bias.grad, data["grad_projection_bias"])


# --- SRA -----------------------------------------------------------------------------------------


class Sra:
    """The inputs of one file, with spans and centres as we compute them."""

    def __init__(self, path):
        self.data = data = torch.load(path, weights_only=True)
        self.members = {}
        ranges = [
            cross_vocabulary.common_spans(*(self.ends(side, b) for side in ("student", "teacher")))
            for b in range(len(data["prompts"]))
        ]
        for i, side in enumerate(("student", "teacher")):
            prompts = data[f"{side}_prompt_tokens"].tolist()
            after = [
                [(begin + prompt, end + prompt) for begin, end in of_sentence[i]]
                for of_sentence, prompt in zip(ranges, prompts, strict=True)
            ]
            length = data[f"{side}_attention_mask"].shape[1]
            self.members[side] = spans.members_of_ranges(after, length)
        self.layers = range(len(data["student_layers"]))

    def ends(self, side, b):
        """After which character the tokens of a sentence end that follow its prompt."""
        prompt = int(self.data[f"{side}_prompt_tokens"][b])
        length = int(self.data[f"{side}_attention_mask"][b].sum())
        return self.data[f"{side}_offsets"][b, prompt:length, 1].tolist()

    def weights(self, side, layer):
        """Of tokens, by the attention of the last position, which the authors' code takes."""
        last = self.data[f"{side}_attention"][layer - 1].sum(1)[:, -1]
        return last / last.sum(1, keepdim=True)


@pytest.fixture(params=SRA, **NAMES)
def sra(request):
    return Sra(request.param)


def test_sra_spans(sra):
    for side in ("student", "teacher"):
        index, mask = (sra.data[f"{side}_span_token_{x}"] for x in ("index", "mask"))
        expected = torch.zeros(*index.shape[:2], sra.members[side].shape[2], dtype=torch.long)
        expected.scatter_add_(2, index.clamp_min(0), mask.long())
        assert torch.equal(sra.members[side].long(), expected)


def test_sra_common_types(sra):
    found = cross_vocabulary.common_types(sra.data["student_vocab"], sra.data["teacher_vocab"])
    for side, ids in zip(("student", "teacher"), found, strict=True):
        assert torch.equal(torch.tensor(ids), sra.data[f"{side}_common_ids"])


def test_sra_losses_and_gradients(sra):
    data = sra.data
    hidden = torch.stack([data["student_hidden"][x] for x in data["student_layers"]])
    hidden = hidden.requires_grad_()
    projection, head = (data[x].clone().requires_grad_() for x in ("projection", "student_lm_head"))
    cosine = []
    for i in sra.layers:
        centres = {}
        for side, states in (
            ("student", hidden[i]),
            ("teacher", data["teacher_hidden"][data["teacher_layers"][i]]),
        ):
            tokens = sra.weights(side, data[f"{side}_layers"][i])
            in_spans = sra.members[side] * tokens.unsqueeze(1)
            assert_near(in_spans.sum(2), data[f"span_weight_{side}"][i], 1e-6)
            centres[side] = spans.centres(states, in_spans)
            assert_near(centres[side], data[f"centre_{side}"][i], 1e-6)
        weights = spans.member_weights(sra.members["teacher"], tokens).sum(2)
        assert_near(weights, data["span_weight_teacher_normalised"][i], 1e-6)
        projected = centres["student"] @ projection[i]
        cosine.append(cross_vocabulary.centre_loss(projected, centres["teacher"], weights))
    assert_near(torch.stack(cosine), data["cos_layer"])
    shares = torch.tensor(data["layer_weights_given"])
    cos_total = (shares / shares.sum() * torch.stack(cosine)).sum()
    assert_near(cos_total, data["cos_total"])
    geo = cross_vocabulary.geometry_loss(centres["student"], centres["teacher"], weights)
    assert_near(geo, data["geo"])
    of_student = centres["student"] @ head[data["student_common_ids"]].t()
    of_teacher = centres["teacher"] @ data["teacher_lm_head"][data["teacher_common_ids"]].t()
    has_members = sra.members["teacher"].any(2)
    kd = cross_vocabulary.divergence(
        of_student[has_members], of_teacher[has_members], data["temperature"]
    ) / len(has_members)
    assert_near(kd, data["kd"])
    total = cos_total + data["geo_coefficient"] * geo + kd
    assert_near(total, data["total"])
    total.backward()
    assert_near(hidden.grad, data["grad_student_hidden"])
    assert_near(projection.grad, data["grad_projection"])
    assert_near(head.grad, data["grad_student_lm_head"])
