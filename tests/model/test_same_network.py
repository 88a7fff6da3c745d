"""Whether two models' arguments say the same network, where parameters may not tell.

test_averaging.py asks it of checkpoints to be averaged.
"""

import pytest

from macaron_fairseq.model import same_network


def test_what_a_checkpoint_has_as_none_is_off():
    given = {"encoder_learned_pos": False}
    assert not same_network.other_network({"encoder_learned_pos": None}, given)
    assert same_network.other_network({"encoder_learned_pos": True}, given)


@pytest.mark.parametrize(
    ("trained", "given", "said"),
    [
        # fairseq's own model, which has the names and shapes of both.
        ({"arch": "roberta_tiny_pre_norm"}, {"macaron_scheme": "lie-trotter"}, ""),
        (
            *({"arch": "roberta_tiny_pre_norm"}, {"macaron_scheme": "parallel"}),
            "--macaron-scheme lie-trotter, and the model would have parallel",
        ),
        # Those of before there were sub-steps.
        ({"arch": "macaron_roberta_tiny"}, {"macaron_substep": "euler"}, ""),
        (
            *({"arch": "macaron_roberta_tiny"}, {"macaron_substep": "midpoint"}),
            "--macaron-substep euler, and the model would have midpoint",
        ),
    ],
)
def test_what_a_checkpoint_does_not_say_is_what_it_was(trained, given, said):
    found = same_network.other_network(trained, {"arch": "macaron_roberta_tiny", **given})
    assert said in found and bool(said) == bool(found)


def test_an_encoders_own_scheme_may_be_that_of_both():
    trained = {"arch": "macaron_transformer", "macaron_scheme": "parallel"}
    given = {**trained, "macaron_encoder_scheme": "parallel"}
    assert not same_network.other_network(trained, given)
    given["macaron_decoder_scheme"] = "lie-trotter"
    assert "--macaron-decoder-scheme parallel" in same_network.other_network(trained, given)
