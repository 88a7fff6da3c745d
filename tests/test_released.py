"""Checkpoints in the format of the authors' released code load as they are."""

import os
from pathlib import Path

import pytest
import torch
from conftest import FIXTURES, USER_DIR, run
from fairseq import checkpoint_utils


def load(folder):
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(folder / "checkpoint.pt")], arg_overrides={"data": str(folder)}
    )
    return models[0].eval()


def test_it_computes_what_the_formulas_say():
    folder = FIXTURES / "released"
    expected = torch.load(folder / "expected.pt")
    model = load(folder)
    source, previous = expected["source"], expected["previous"]
    with torch.no_grad():
        encoder_out = model.encoder(source, source.ne(1).sum(1))["encoder_out"][0]
        logits, _ = model(source, source.ne(1).sum(1), previous)
    real = source.ne(1)
    difference = encoder_out.transpose(0, 1) - expected["encoder_out"]
    assert difference[real].abs().max() <= 1e-5
    assert (logits - expected["logits"]).abs().max() <= 1e-5


def test_fairseq_generate_takes_it(tmp_path):
    folder = FIXTURES / "released"
    for language in ("de", "en"):
        (tmp_path / f"test.{language}").write_text("w3 w4 w5\nw6\n")
    run(
        "fairseq-preprocess",
        *("-s", "de", "-t", "en", "--srcdict", folder / "dict.de.txt", "--joined-dictionary"),
        *("--testpref", tmp_path / "test", "--destdir", tmp_path / "data"),
    )
    done = run(
        "fairseq-generate",
        *(tmp_path / "data", "--user-dir", USER_DIR, "--path", folder / "checkpoint.pt", "--cpu"),
        *("--max-len-b", "5", "--required-batch-size-multiple", "1"),
    )
    assert sorted(x[:4] for x in done.stdout.splitlines() if x[:2] == "H-") == ["H-0\t", "H-1\t"]


@pytest.mark.skipif("RELEASED_REFERENCE" not in os.environ, reason="needs RELEASED_REFERENCE")
def test_a_file_of_the_released_code_itself():
    """$RELEASED_REFERENCE: a folder with such a checkpoint.pt and that code's expected.pt."""
    folder = Path(os.environ["RELEASED_REFERENCE"])
    expected = torch.load(folder / "expected.pt")
    model = load(folder)
    assert sum(p.numel() for p in model.parameters()) == expected["num_parameters"]
    source, lengths = expected["src_tokens"], expected["src_lengths"]
    real = expected["target"].ne(1)
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        logits, _ = model(source, lengths, expected["prev_output_tokens"])
        keep = source.ne(1).T
        difference = encoder_out["encoder_out"][0] - expected["encoder_out"]
        assert difference[keep].abs().max() <= 1e-5
        assert (logits - expected["logits"])[real].abs().max() <= 1e-5
        nll = -logits.log_softmax(-1).gather(-1, expected["target"][..., None])[..., 0]
        assert (nll - expected["token_nll"])[real].abs().max() <= 1e-5
        greedy = expected["greedy_tokens_without_eos"]
        tokens, state = torch.full((len(source), 1), 2), {}
        for _ in range(greedy.shape[1]):
            scores, _ = model.decoder(tokens, encoder_out, incremental_state=state)
            scores[..., [1, 2]] = -torch.inf
            tokens = torch.cat((tokens, scores[:, -1:].argmax(-1)), 1)
    assert torch.equal(tokens[:, 1:], greedy)
