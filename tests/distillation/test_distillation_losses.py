"""The losses of MTA, SRA and ULD: cases worked out by hand, and what may not change them."""

import math

import pytest
import torch
from fairseq.data import Dictionary
from torch import nn

from macaron_fairseq.distillation import spans
from macaron_fairseq.distillation.cross_vocabulary import losses as cross_vocabulary
from macaron_fairseq.distillation.trajectory import losses as trajectory
from macaron_fairseq.distillation.trajectory.losses import LayerPair, align

B, L, D = 3, 6, 4
LENGTHS = torch.tensor([6, 1, 4])
IDENTITY = nn.Identity()
MASK = torch.arange(L) < LENGTHS[:, None]


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def pieces():
    """Spans of one and of several tokens; the second sentence has one span, of its only token."""
    ranges = [[(0, 2), (2, 3), (3, 6)], [(0, 1)], [(0, 1), (1, 4)]]
    return spans.members_of_ranges(ranges, L)


def pair(student, teacher, to_teacher=IDENTITY, members=None, mask=MASK):
    weights = (trajectory.token_weights(x, mask) for x in (student, teacher))
    members = pieces() if members is None else members
    return LayerPair(student, teacher, *weights, members, to_teacher)


def same_elsewhere(states, seed=9):
    """Other numbers at padding, large ones too."""
    return torch.where(MASK.unsqueeze(2), states, 100 * random(*states.shape, seed=seed))


# --- spans ---------------------------------------------------------------------------------------


def test_members_are_the_tokens_inside():
    starts = torch.tensor([[0, 2, 5, 0]])
    ends = torch.tensor([[2, 5, 9, 0]])
    asked = torch.tensor([[[0, 5], [2, 9], [3, 9], [-1, -1]]])
    found = spans.members_within(asked, starts, ends, torch.tensor([[1, 1, 1, 0]]))
    assert found.int().tolist() == [[[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]


def test_weights_of_members_sum_to_1_in_each_sentence():
    overlapping = pieces().clone()
    overlapping[0, 0, 2] = True
    found = spans.member_weights(overlapping, random(B, L).abs())
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(B).double())
    nothing = spans.member_weights(torch.zeros(B, 2, L, dtype=torch.bool), random(B, L).abs())
    assert not nothing.any()


# --- MTA -----------------------------------------------------------------------------------------


def test_three_spans_worked_out_by_hand():
    """Unit vectors at right angles on one side, two of three the same on the other."""
    student = torch.eye(3).double()[None]
    teacher = torch.tensor([[[1.0, 0], [1, 0], [0, 1]]]).double()
    members = torch.eye(3, dtype=torch.bool)[None]
    mask = torch.ones(1, 3, dtype=torch.bool)
    importance = torch.tensor([[0.5, 0.3, 0.2]]).double()
    to_teacher = nn.Linear(3, 2, bias=False).double()
    to_teacher.weight.data = torch.tensor([[1.0, 0, 0], [0, 1, -1]]).double()
    found = align(pair(student, teacher, to_teacher, members, mask), importance)
    # Only spans 1 and 2 differ, by 1: 2 (.5 .3) of 2 (.5 .3 + .5 .2 + .3 .2).
    assert float(found.structure) == pytest.approx(0.15 / 0.31)
    # Token 1 is met, token 2 at a right angle, token 3 opposite.
    assert float(found.hidden) == pytest.approx(0.5 * 0 + 0.3 * 1 + 0.2 * 2)
    total = trajectory.trajectory_loss([found, found])
    assert float(total) == pytest.approx(0.15 / 0.31 + 0.07)


def test_the_weights_of_tokens_are_the_formula():
    states = random(B, L, D)
    found = trajectory.token_weights(states, MASK)
    for b, n in enumerate(LENGTHS.tolist()):
        x = states[b, :n] / (states[b, :n].std(1, keepdim=True) + 1e-5)
        mean = torch.zeros(n).double()
        for i in range(n):
            others = [j for j in range(n) if j != i]
            if others:
                attention = (x[others] @ x[i] / math.sqrt(D)).softmax(0)
                for j, share in zip(others, attention, strict=True):
                    mean[j] += share / n
        expected = mean / mean.sum() if n > 1 else torch.ones(1).double()
        torch.testing.assert_close(found[b, :n], expected)
        assert not found[b, n:].any()


def test_equal_trajectories_are_0_apart():
    states = random(B, L, D)
    found = align(pair(states, states))
    assert float(found.structure) == pytest.approx(0, abs=1e-14)
    assert float(found.hidden) == pytest.approx(0, abs=1e-14)


def test_structure_is_unchanged_by_rotation_and_scale():
    student, teacher = random(B, 3, D), random(B, 3, D + 1, seed=2)
    rotation, _ = torch.linalg.qr(random(D, D, seed=3))
    expected = spans.squared_differences(student, teacher)
    assert expected.max() > 0.1
    torch.testing.assert_close(spans.squared_differences(student @ rotation, teacher), expected)
    torch.testing.assert_close(spans.squared_differences(7 * student, 0.1 * teacher), expected)
    shifted = spans.squared_differences(student + 1, teacher)
    assert (shifted - expected).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["no spans", "empty spans", "one span in each sentence"])
def test_a_batch_without_pairs_of_spans_is_0(kind):
    counts = {"no spans": 0, "empty spans": 2}
    members = torch.zeros(B, counts.get(kind, 1), L, dtype=torch.bool)
    if kind not in counts:
        members = MASK[:, None].clone()
    student = random(B, L, D).float().requires_grad_()
    found = align(pair(student, random(B, L, D, seed=2).float(), members=members))
    assert float(found.structure) == 0
    assert (float(found.hidden) == 0) == (kind in counts)
    (1000 * trajectory.trajectory_loss([found])).backward()  # as many times as there are tokens
    assert student.grad.isfinite().all() and bool(student.grad.any()) != (kind in counts)


def test_the_centre_of_a_span_without_weight_is_0_with_finite_gradients():
    states = random(B, L, D).float().requires_grad_()
    found = spans.centres(states, torch.zeros(B, 2, L))
    assert not found.any()
    (1000 * found.sum()).backward()
    assert states.grad.isfinite().all()


def test_padding_does_not_matter_to_mta():
    student, teacher = random(B, L, D), random(B, L, D, seed=2)
    expected = align(pair(student, teacher))
    found = align(pair(same_elsewhere(student), same_elsewhere(teacher)))
    torch.testing.assert_close(found, expected)
    longer = [nn.functional.pad(x, (0, 0, 0, 3), value=5.0) for x in (student, teacher)]
    members = nn.functional.pad(pieces(), (0, 3))
    found = align(pair(*longer, members=members, mask=nn.functional.pad(MASK, (0, 3))))
    torch.testing.assert_close(found, expected)


def test_gradients_of_mta_go_to_student_and_map_alone():
    student, teacher = random(B, L, D).requires_grad_(), random(B, L, 3, seed=2).requires_grad_()
    to_teacher = nn.Linear(D, 3).double()
    found = align(pair(student, teacher, to_teacher))
    trajectory.trajectory_loss([found]).backward()
    assert teacher.grad is None and student.grad.any() and to_teacher.weight.grad.any()
    assert not student.grad[~MASK].any()


def test_half_precision_is_summed_in_full():
    student, teacher = random(B, L, D).half(), random(B, L, D, seed=2).half()
    found = align(pair(student, teacher))
    expected = align(pair(student.double(), teacher.double()))
    assert found.structure.dtype == found.hidden.dtype == torch.float32
    assert float(found.structure) == pytest.approx(float(expected.structure), rel=1e-5)


# --- SRA -----------------------------------------------------------------------------------------


def test_text_is_cut_at_common_ends():
    #        the cat|s| sat         the| cats| s|at
    student, teacher = [3, 7, 8, 12], [3, 8, 10, 12]
    assert cross_vocabulary.common_spans(student, teacher) == (
        [(0, 1), (1, 3), (3, 4)],
        [(0, 1), (1, 2), (2, 4)],
    )
    # What follows the last common end is left out.
    assert cross_vocabulary.common_spans([3, 9], [3, 8]) == ([(0, 1)], [(0, 1)])
    # Parts of one letter end together.
    assert cross_vocabulary.common_spans([1, 1, 1, 2], [1, 2]) == (
        [(0, 3), (3, 4)],
        [(0, 1), (1, 2)],
    )
    assert cross_vocabulary.common_spans([2, 4], [1, 3]) == ([], [])
    assert cross_vocabulary.common_spans([], []) == ([], [])


def test_models_that_coincide_have_no_sra_loss():
    centres, weights = random(B, 3, D), random(B, 3).abs()
    logits = random(B, 7)
    losses = [
        cross_vocabulary.centre_loss(centres, centres, weights),
        cross_vocabulary.geometry_loss(centres, centres, weights),
        cross_vocabulary.divergence(logits, logits, 2.0),
        cross_vocabulary.uld_loss(logits, logits),
    ]
    assert all(float(x) == pytest.approx(0, abs=1e-14) for x in losses)


def test_shared_types_are_kl_where_all_are_shared():
    student, teacher = random(4, 7), random(4, 7, seed=2)
    p, q = (torch.distributions.Categorical(logits=x / 2) for x in (student, teacher))
    kl = torch.distributions.kl_divergence(q, p)
    expected = kl.sum()
    found = cross_vocabulary.divergence(student, teacher, 2.0)
    torch.testing.assert_close(found, expected)


def test_a_sentence_of_one_span_has_no_geometry():
    student, teacher = random(2, 2, D), random(2, 2, D, seed=2)
    weights = torch.tensor([[0.4, 0.6], [1.0, 0.0]]).double()
    found = cross_vocabulary.geometry_loss(student, teacher, weights)
    cos = [nn.functional.cosine_similarity(x[0, 0], x[0, 1], dim=0) for x in (student, teacher)]
    assert float(found) == pytest.approx(float((cos[0] - cos[1]) ** 2) / 2)


def test_common_types_are_equal_strings():
    found = cross_vocabulary.common_types(["a", "b", "c"], ["c", "x", "a"])
    assert found == ([0, 2], [2, 0])
    assert cross_vocabulary.common_types(["a"], ["b"]) == ([], [])


def test_what_fairseq_fills_dictionaries_up_with_is_no_common_type():
    one, other = Dictionary(), Dictionary()
    for word in ("a", "b"):
        one.add_symbol(word)
    for dictionary in (one, other):
        dictionary.finalize(padding_factor=8)
    assert {*one.symbols} & {*other.symbols} > {*other.symbols[:4]}  # there are some
    found = cross_vocabulary.common_types(one.symbols, other.symbols)
    assert found == ([0, 1, 2, 3], [0, 1, 2, 3])  # the special symbols


def test_uld_is_unchanged_by_another_order_of_types():
    student, teacher = random(L, 7), random(L, 9, seed=2)
    expected = cross_vocabulary.uld_loss(student, teacher)
    found = cross_vocabulary.uld_loss(student[:, torch.randperm(7)], teacher)
    torch.testing.assert_close(found, expected)


def test_the_gradient_of_uld():
    student, teacher = random(3, 7).double().requires_grad_(), random(3, 9, seed=2).double()
    assert torch.autograd.gradcheck(lambda x: cross_vocabulary.uld_loss(x, teacher), student)


def test_uld_worked_out_by_hand():
    """|.75 - .5| + |.25 - .4| + |0 - .1|."""
    student = torch.tensor([[0.25, 0.75]]).log()
    teacher = torch.tensor([[0.5, 0.1, 0.4]]).log()
    found = cross_vocabulary.uld_loss(student, teacher)
    assert float(found) == pytest.approx(0.25 + 0.15 + 0.1)
