"""`macaron-fairseq average`: the mean, what has none, which checkpoints, and the command's manners.

The checkpoints are small and made here; test_commands.py averages trained ones.
"""

import subprocess
from argparse import ArgumentParser, Namespace
from fractions import Fraction

import pytest
import torch
from helpers import served
from helpers.paths import ROOT
from helpers.small import SMALL_ENCODER, build, masked_task, texts

from macaron_fairseq import UserError, cli, plugin
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import averaging, same_network

ARGUMENTS = {
    "arch": "macaron_transformer",
    "macaron_scheme": "strang-marchuk",
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}


def write(path, model=None, updates=1, val_loss=None, maximize=False, **arguments):
    """A checkpoint with fairseq's entries, as far as they matter here."""
    state = {
        "args": None,
        "cfg": {
            "model": Namespace(**{**ARGUMENTS, **arguments}),
            "checkpoint": {"maximize_best_checkpoint_metric": maximize},
        },
        "model": model or {"weight": torch.full((2,), float(updates))},
        "optimizer_history": [{"num_updates": updates, "optimizer_name": "FairseqAdam"}],
        "extra_state": {"val_loss": val_loss, "epoch": updates},
        "last_optimizer_state": {"exp_avg": torch.zeros(3)},
    }
    torch.save(state, path)
    return path


def write_all(folder, *models):
    return [write(folder / f"checkpoint{i}.pt", m, updates=i) for i, m in enumerate(models, 1)]


def mean(folder, *tensors):
    paths = write_all(folder, *({"weight": tensor} for tensor in tensors))
    return averaging.average(paths)["model"]["weight"]


def main(*words):
    cli.main([str(word) for word in words])


def refusal(*words):
    """The sentence with which the command refuses."""
    with pytest.raises(UserError) as refused:
        main(*words)
    sentence = str(refused.value)
    assert refused.value.code == sentence  # what Python prints, with status 1
    assert "\n" not in sentence
    return sentence


# --- the mean ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_each_element_is_the_mean_correctly_rounded(tmp_path, dtype, n):
    """Against rational numbers: off by no more than half a unit in the last place."""
    generator = torch.Generator().manual_seed(n)
    tensors = [torch.randn(3, 5, generator=generator).to(dtype) for _ in range(n)]
    result = mean(tmp_path, *tensors)
    assert result.dtype == dtype and result.shape == (3, 5)
    rows = [tensor.double().flatten().tolist() for tensor in tensors]
    for got, *values in zip(result.double().flatten().tolist(), *rows, strict=True):
        exact = sum(map(Fraction, values)) / n
        half_unit = Fraction(torch.finfo(dtype).eps) / 2 * abs(exact)
        assert abs(Fraction(got) - exact) <= half_unit * Fraction(1001, 1000)


def test_bf16_is_not_summed_in_bf16(tmp_path):
    """256 + 1 is 256 in bf16: summed there, this mean of 16 would be 15.0625."""
    values = [256.0] + [1.0] * 16
    in_bf16 = torch.zeros(1, dtype=torch.bfloat16)
    for value in values:
        in_bf16 += value
    assert in_bf16.item() == 256
    result = mean(tmp_path, *(torch.tensor([value], dtype=torch.bfloat16) for value in values))
    assert result.item() == 16


def test_fp16_is_not_summed_in_fp16(tmp_path):
    """The sum is above the largest fp16 number, 65504."""
    tensors = [torch.tensor([60000.0, 1.0], dtype=torch.float16)] * 3
    assert mean(tmp_path, *tensors).tolist() == [60000, 1]


def test_fp32_is_not_summed_in_fp32(tmp_path):
    """2^24 + 1 is 2^24 in fp32."""
    values = [2.0**24, 1.0, 1.0, 2.0]
    assert mean(tmp_path, *map(torch.tensor, values)).item() == 2**22 + 1


def test_each_parameter_keeps_its_own_dtype(tmp_path):
    dtypes = {"a": torch.float16, "b": torch.bfloat16, "c": torch.float32, "d": torch.float64}
    models = [{k: torch.full((2,), x, dtype=t) for k, t in dtypes.items()} for x in (1.0, 2.0)]
    result = averaging.average(write_all(tmp_path, *models))["model"]
    assert {name: tensor.dtype for name, tensor in result.items()} == dtypes
    assert all(tensor.tolist() == [1.5, 1.5] for tensor in result.values())


def test_the_files_are_left_as_they_were(tmp_path):
    paths = write_all(tmp_path, {"weight": torch.ones(3)}, {"weight": torch.zeros(3)})
    before = [path.read_bytes() for path in paths]
    main("average", *paths, "-o", tmp_path / "mean.pt")
    assert [path.read_bytes() for path in paths] == before


def test_the_rest_of_the_state_is_the_last_files_without_its_optimizer(tmp_path):
    paths = [write(tmp_path / f"{i}.pt", updates=i, val_loss=i / 2) for i in (3, 8)]
    state = averaging.average(paths)
    assert state["optimizer_history"][-1]["num_updates"] == 8
    assert state["extra_state"] == {"val_loss": 4.0, "epoch": 8}
    assert vars(state["cfg"]["model"]) == ARGUMENTS
    assert state["last_optimizer_state"] is None


# --- what is tied, and what has no mean ----------------------------------------------------------


def tied_model(value):
    table = torch.full((256, 64), float(value))
    bias = torch.full((64,), float(value))
    return {"encoder.embed": table, "bias": bias, "decoder.embed": table, "decoder.output": table}


def test_tied_parameters_stay_tied_in_the_file(tmp_path):
    paths = write_all(tmp_path, tied_model(1), tied_model(2))
    main("average", *paths, "-o", tmp_path / "mean.pt")
    model = torch.load(tmp_path / "mean.pt", weights_only=True)["model"]
    assert list(model) == list(tied_model(0))
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in model.items()}
    assert places["encoder.embed"] == places["decoder.embed"] == places["decoder.output"]
    assert places["bias"] != places["encoder.embed"]
    assert all(torch.equal(tensor, torch.full_like(tensor, 1.5)) for tensor in model.values())
    sizes = [path.stat().st_size for path in (*paths, tmp_path / "mean.pt")]
    assert sizes[2] <= max(sizes[:2])


def test_equal_parameters_that_are_not_tied_stay_apart(tmp_path):
    models = [{"a": torch.full((3,), x), "b": torch.full((3,), x)} for x in (1.0, 2.0)]
    model = averaging.average(write_all(tmp_path, *models))["model"]
    model["a"].add_(1)
    assert model["b"].tolist() == [1.5] * 3


@pytest.mark.parametrize("tied_first", [True, False])
def test_tied_and_untied_have_no_mean(tmp_path, tied_first):
    """Which parameters are one: names and shapes alone do not tell."""
    untied = {name: torch.full_like(t, i) for i, (name, t) in enumerate(tied_model(0).items())}
    models = [tied_model(1), untied] if tied_first else [untied, tied_model(1)]
    paths = write_all(tmp_path, *models)
    with pytest.raises(UserError) as refused:
        averaging.average(paths)
    assert all(str(path) in str(refused.value) for path in paths)


def test_equal_integers_are_kept(tmp_path):
    step, mask = torch.tensor([3]), torch.tensor([True, False])
    models = [{"weight": torch.tensor([x]), "step": step, "mask": mask} for x in (1.0, 2.0)]
    model = averaging.average(write_all(tmp_path, *models))["model"]
    assert torch.equal(model["step"], step) and torch.equal(model["mask"], mask)
    assert model["weight"].item() == 1.5


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_different_integers_are_refused(tmp_path, dtype):
    models = [{"weight": torch.ones(1), "step": torch.tensor([x], dtype=dtype)} for x in (0, 1)]
    paths = write_all(tmp_path, *models)
    sentence = refusal("average", *paths, "-o", tmp_path / "mean.pt")
    assert sentence == f"{paths[0]} and {paths[1]} differ in 'step', which has no mean"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"weight": torch.ones(3, 2)}, "'weight' is [2, 3] in {0} and [3, 2] in {1}"),
        ({"weight": torch.ones(2, 4)}, "'weight' is [2, 3] in {0} and [2, 4] in {1}"),
        ({"bias": torch.ones(2, 3)}, "'weight' is [2, 3] in {0} and not in {1}"),
        (
            {"weight": torch.ones(2, 3), "bias": torch.ones(2)},
            "'bias' is not in {0} and [2] in {1}",
        ),
    ],
)
def test_other_parameters_are_refused(tmp_path, other, reason):
    paths = write_all(tmp_path, {"weight": torch.ones(2, 3)}, other)
    sentence = refusal("average", *paths, "-o", tmp_path / "mean.pt")
    assert sentence.endswith(reason.format(*paths))
    assert not (tmp_path / "mean.pt").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("macaron_scheme", "lie-trotter"),
        ("macaron_encoder_scheme", "lie-trotter"),
        ("macaron_decoder_scheme", "parallel"),
        ("encoder_attention_heads", 8),
        ("decoder_attention_heads", 2),
        ("encoder_normalize_before", True),
        ("decoder_normalize_before", True),
        ("activation_fn", "gelu"),
        ("pooler_activation_fn", "relu"),
        ("no_scale_embedding", True),
        ("decoder_learned_pos", True),
    ],
)
def test_models_that_compute_otherwise_are_refused(tmp_path, name, value):
    """Names and shapes are those of the first two; the third file's arguments are not."""
    paths = [write(tmp_path / f"{i}.pt") for i in range(2)]
    paths.append(write(tmp_path / "2.pt", **{name: value}))
    sentence = refusal("average", *paths, "-o", tmp_path / "mean.pt")
    own = ARGUMENTS["macaron_scheme"] if name.endswith("scheme") else ARGUMENTS.get(name)
    assert sentence.endswith(f"{name} is {own} in {paths[0]} and {value} in {paths[2]}")
    assert not (tmp_path / "mean.pt").exists()


# Model flags that parameters tell: by their names, their shapes, or which of them are tied.
TOLD_BY_PARAMETERS = """
    adaptive_input adaptive_input_cutoff adaptive_input_factor adaptive_softmax_cutoff
    adaptive_softmax_factor base_layers base_sublayers char_embedder_highway_layers char_inputs
    character_embedding_dim character_embeddings character_filters decoder_embed_dim
    decoder_ffn_embed_dim decoder_first_ffn_embed_dim decoder_input_dim decoder_layers
    decoder_layers_to_keep decoder_output_dim encoder_embed_dim encoder_ffn_embed_dim
    encoder_first_ffn_embed_dim encoder_layers encoder_layers_to_keep ffn_blocks_to_remove
    layernorm_embedding merge_src_tgt_embed mha_heads_to_keep no_cross_attention
    no_decoder_final_norm scale_attn scale_fc scale_heads scale_resids share_all_embeddings
    share_decoder_input_output_embed spectral_norm_classification_head tie_adaptive_proj
    tie_adaptive_weights untie_weights_roberta
"""
# Those that change nothing in evaluation. Longer positions only let longer text in.
ONLY_FOR_TRAINING = """
    activation_dropout adaptive_softmax_dropout attention_dropout base_shuffle
    checkpoint_activations decoder_embed_path decoder_layerdrop dropout encoder_embed_path
    encoder_layerdrop export ffn_reg_scale_factor load_checkpoint_heads macaron_init
    macaron_kernels macaron_matmul max_positions max_source_positions max_target_positions
    mha_reg_scale_factor min_params_to_wrap offload_activations pooler_dropout quant_noise_pq
    quant_noise_pq_block_size relu_dropout
"""


def test_each_flag_of_a_model_is_decided_on():
    """A new one of fairseq's must be compared, if parameters do not tell it and it changes any."""
    parser = ArgumentParser(argument_default=None, allow_abbrev=False, conflict_handler="resolve")
    for model in plugin.MODELS.values():
        model.add_args(parser)
    flags = {action.dest for action in parser._actions} - {"help"}
    normalizes = {"macaron_post_norm"}  # which sets ..._normalize_before
    others = {*TOLD_BY_PARAMETERS.split(), *ONLY_FOR_TRAINING.split()}
    assert flags <= {*same_network.IN_NO_SHAPE, *others, *normalizes}
    assert others <= flags and not others & {*same_network.IN_NO_SHAPE}


def test_a_poolers_activation_changes_the_function_and_no_parameter():
    """So it is compared."""
    flags = "roberta_tiny_pre_norm", *SMALL_ENCODER
    models = [
        build(*flags, "--pooler-activation-fn", name, for_task=masked_task())
        for name in ("tanh", "relu")
    ]
    for model in models:
        model.register_classification_head("some", num_classes=3)
    models[1].load_state_dict(models[0].state_dict())
    with torch.no_grad():
        one, other = (x.eval()(texts(), classification_head_name="some")[0] for x in models)
    assert not torch.allclose(one, other, atol=1e-3)
    assert "pooler_activation_fn" in same_network.IN_NO_SHAPE


def test_whole_numbers_and_others_of_one_name_are_refused(tmp_path):
    paths = write(tmp_path / "1.pt"), write(tmp_path / "2.pt")
    state = torch.load(paths[0], weights_only=False)
    state["model"]["weight"] = state["model"]["weight"].long()
    torch.save(state, paths[0])
    for order in (paths, paths[::-1]):
        with pytest.raises(UserError, match=r"'weight' is \[2\]( of whole numbers)? in "):
            averaging.average(order)
    with pytest.raises(UserError, match="there is no checkpoint to average: name one"):
        averaging.average([])


def test_the_same_network_may_be_said_otherwise(tmp_path):
    """By the name of its architecture, a scheme for each side, False where others say nothing."""
    sides = dict.fromkeys(("macaron_encoder_scheme", "macaron_decoder_scheme"), "strang-marchuk")
    assert ARGUMENTS["macaron_scheme"] == "strang-marchuk"
    one, other = write(tmp_path / "1.pt"), tmp_path / "2.pt"
    write(other, arch="macaron_transformer_tiny", cross_self_attention=False, **sides)
    assert averaging.average([one, other])["model"]["weight"].tolist() == [1, 1]


def test_checkpoints_of_before_took_euler_steps(tmp_path):
    """They do not say so; nor do they name a scheme of each side, which is said as None now."""
    sides = {"macaron_encoder_scheme": None, "macaron_decoder_scheme": None}
    before, after = write(tmp_path / "1.pt"), tmp_path / "2.pt"
    write(after, macaron_substep="euler", **sides)
    assert averaging.average([before, after])["model"]["weight"].tolist() == [1, 1]
    write(after, quant_noise_scalar=0, **sides)
    assert averaging.average([before, after])["model"]["weight"].tolist() == [1, 1]
    write(after, quant_noise_scalar=0.1, **sides)
    sentence = refusal("average", before, after, "-o", tmp_path / "mean.pt")
    assert sentence.endswith(f"quant_noise_scalar is 0 in {before} and 0.1 in {after}")
    write(after, macaron_substep="rk4", **sides)
    sentence = refusal("average", before, after, "-o", tmp_path / "mean.pt")
    assert sentence.endswith(f"macaron_substep is euler in {before} and rk4 in {after}")


def test_arguments_that_do_not_change_the_model_may_differ(tmp_path):
    paths = [write(tmp_path / f"{i}.pt", dropout=i / 10, save_dir=f"run{i}") for i in range(2)]
    assert averaging.average(paths)["model"]["weight"].tolist() == [1, 1]


@pytest.mark.parametrize("container", [dict, Namespace])
def test_fairseq_hydra_trains_arguments_are_compared_too(tmp_path, container):
    """They are a dict in its checkpoints; and the released code's are under "args"."""
    paths = []
    for heads in (4, 8):
        path = write(tmp_path / f"{heads}.pt")
        state = torch.load(path, weights_only=True)
        arguments = {**ARGUMENTS, "encoder_attention_heads": heads}
        if container is dict:
            state["cfg"]["model"] = arguments
        else:
            state.update(args=Namespace(**arguments), cfg=None)
        torch.save(state, path)
        paths.append(path)
    with pytest.raises(UserError, match=r"encoder_attention_heads is 4 in .* and 8 in"):
        averaging.average(paths)


# --- which checkpoints ---------------------------------------------------------------------------


def names(paths):
    return [path.name for path in paths]


def test_last_goes_by_updates_not_by_name_or_age(tmp_path):
    saved = {"checkpoint10.pt": 100, "checkpoint9.pt": 90, "checkpoint_9_95.pt": 95}
    saved |= {"checkpoint1.pt": 1000, "checkpoint2.pt": 20}  # a second training in the folder
    for name, updates in saved.items():
        write(tmp_path / name, updates=updates)
    assert names(averaging.last(tmp_path, 1)) == ["checkpoint1.pt"]
    expected = ["checkpoint_9_95.pt", "checkpoint10.pt", "checkpoint1.pt"]  # the oldest first
    assert names(averaging.last(tmp_path, 3)) == expected
    assert len(averaging.last(tmp_path, 5)) == 5


def test_updates_are_those_since_the_last_start(tmp_path):
    """fairseq adds an entry at each start; after --reset-optimizer it counts from 0 again."""
    for name, updates in (("checkpoint1.pt", 8), ("checkpoint2.pt", 9)):
        state = torch.load(write(tmp_path / name, updates=updates), weights_only=False)
        state["optimizer_history"].insert(0, {"num_updates": 20 - updates})
        torch.save(state, tmp_path / name)
    assert names(averaging.last(tmp_path, 2)) == ["checkpoint1.pt", "checkpoint2.pt"]


@pytest.mark.parametrize("maximize", [False, True])
def test_of_equal_metrics_the_later_update_is_the_better(tmp_path, maximize):
    """As in fairseq's choice of checkpoint_best.pt. The later one has the name that sorts first."""
    for name, updates in (("checkpoint10.pt", 10), ("checkpoint9.pt", 9)):
        write(tmp_path / name, updates=updates, val_loss=4.0, maximize=maximize)
    assert names(averaging.best(tmp_path, 1)) == ["checkpoint10.pt"]


@pytest.mark.parametrize("maximize", [False, True])
def test_best_goes_by_the_recorded_metric(tmp_path, maximize):
    recorded = {1: 3.0, 2: 10.5, 3: 9.25, 4: 2.0, 5: None}
    for epoch, metric in recorded.items():
        write(tmp_path / f"checkpoint{epoch}.pt", None, epoch, metric, maximize)
    lowest_first = ["checkpoint4.pt", "checkpoint1.pt", "checkpoint3.pt", "checkpoint2.pt"]
    best_first = lowest_first[::-1] if maximize else lowest_first
    for n in range(1, 5):
        assert names(averaging.best(tmp_path, n)) == best_first[:n][::-1]  # the best last
    with pytest.raises(UserError, match="holds 4 checkpoints to choose from, fewer than 5"):
        averaging.best(tmp_path, 5)  # one was saved without validation


def test_the_best_is_known_where_its_epoch_is_kept_no_more(tmp_path):
    """As `--keep-last-epochs 2` leaves a folder."""
    for epoch, metric in ((8, 3.4), (9, 3.5)):
        write(tmp_path / f"checkpoint{epoch}.pt", None, epoch, metric)
    write(tmp_path / "checkpoint_best.pt", None, 5, 3.0)
    write(tmp_path / "checkpoint_last.pt", None, 9, 3.5)
    assert names(averaging.best(tmp_path, 2)) == ["checkpoint8.pt", "checkpoint_best.pt"]
    assert names(averaging.last(tmp_path, 2)) == ["checkpoint8.pt", "checkpoint9.pt"]
    write(tmp_path / "checkpoint_best.pt", None, 8, 3.4)  # whose epoch is kept
    assert names(averaging.best(tmp_path, 2)) == ["checkpoint9.pt", "checkpoint8.pt"]


@pytest.mark.parametrize("maximize", [True, False])
def test_best_of_checkpoints_of_old(tmp_path, maximize):
    for epoch, metric in {1: 30.5, 2: 28.0}.items():
        path = write(tmp_path / f"checkpoint{epoch}.pt", None, epoch, metric)
        state = torch.load(path, weights_only=True)
        state["args"] = Namespace(**ARGUMENTS, maximize_best_checkpoint_metric=maximize)
        torch.save({**state, "cfg": None}, path)
    assert names(averaging.best(tmp_path, 1)) == [f"checkpoint{1 if maximize else 2}.pt"]


@pytest.mark.parametrize("diverged", [float("nan"), float("inf")])
def test_a_diverged_checkpoint_is_not_the_best(tmp_path, diverged):
    for epoch, metric in [(1, 5.0), (2, diverged), (3, 4.0)]:
        write(tmp_path / f"checkpoint{epoch}.pt", updates=epoch, val_loss=metric)
    assert names(averaging.best(tmp_path, 2)) == ["checkpoint1.pt", "checkpoint3.pt"]


@pytest.mark.parametrize("choose", [averaging.last, averaging.best])
def test_an_update_saved_under_several_names_counts_once(tmp_path, choose):
    write(tmp_path / "checkpoint1.pt", updates=10, val_loss=5.0)
    for name in ["2", "_2_20", ".best_loss_4.0000", "_best", "_last"]:
        write(tmp_path / f"checkpoint{name}.pt", updates=20, val_loss=4.0)
    paths = choose(tmp_path, 2)
    weights = [checkpoints.load(path)["model"]["weight"][0].item() for path in paths]
    assert weights == [10, 20]
    with pytest.raises(UserError, match="holds 2 checkpoints"):
        choose(tmp_path, 3)


def test_other_files_of_the_folder_are_not_read(tmp_path):
    for epoch in (1, 2):
        write(tmp_path / f"checkpoint{epoch}.pt", updates=epoch)
    for name in ["averaged.pt", "checkpoint3.pt.tmp", "checkpoint_last.pt", "train.log"]:
        (tmp_path / name).write_bytes(b"no checkpoint")
    assert names(averaging.last(tmp_path, 2)) == ["checkpoint1.pt", "checkpoint2.pt"]


def test_a_broken_checkpoint_of_the_folder_is_named(tmp_path):
    write(tmp_path / "checkpoint1.pt")
    broken = tmp_path / "checkpoint2.pt"
    broken.write_bytes((tmp_path / "checkpoint1.pt").read_bytes()[:500])
    sentence = refusal("average", tmp_path, "--last", 1, "-o", tmp_path / "mean.pt")
    assert sentence.startswith(f"{broken} is truncated")


def test_a_checkpoint_counts_once_in_a_mean(tmp_path):
    path = write(tmp_path / "checkpoint1.pt")
    sentence = refusal("average", path, path, "-o", tmp_path / "mean.pt")
    assert sentence == "a checkpoint is named twice: each counts once in a mean"


def test_too_few_checkpoints_are_one_sentence(tmp_path):
    write(tmp_path / "checkpoint1.pt", updates=1, val_loss=1.0)
    for which in ("--last", "--best"):
        sentence = refusal("average", tmp_path, which, 2, "-o", tmp_path / "mean.pt")
        assert sentence.startswith(f"{tmp_path} holds 1 checkpoint to choose from, fewer than 2: ")
        assert "--save-interval" in sentence
    assert not (tmp_path / "mean.pt").exists()


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A save folder with epochs 1, 2 and 3, of weights 1, 2 and 3, the second the best."""
    folder = tmp_path / "save folder"
    folder.mkdir()
    for epoch, metric in [(1, 5.0), (2, 4.0), (3, 4.5)]:
        write(folder / f"checkpoint{epoch}.pt", updates=epoch, val_loss=metric)
    return folder


def averaged_weight(path):
    return torch.load(path, weights_only=True)["model"]["weight"].tolist()


def test_last_best_and_named_files(folder, tmp_path, capsys):
    for words, expected in [
        ((folder, "--last", 2), 2.5),
        ((folder, "--best", 1), 2),
        ((folder, "--last", 3), 2),
        ((folder / "checkpoint1.pt", folder / "checkpoint2.pt"), 1.5),
        ((folder / "checkpoint3.pt",), 3),
    ]:
        main("average", *words, "-o", tmp_path / "mean.pt")
        assert averaged_weight(tmp_path / "mean.pt") == [expected, expected]
    main("average", folder, "--best", 2, "-o", tmp_path / "new" / "sub" / "mean.pt")
    assert averaged_weight(tmp_path / "new" / "sub" / "mean.pt") == [2.5, 2.5]
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        f"wrote {tmp_path / 'new' / 'sub' / 'mean.pt'}, the mean of "
        f"{folder / 'checkpoint3.pt'} {folder / 'checkpoint2.pt'}"
    )


def test_what_training_goes_on_from_is_not_replaced(folder):
    """It holds the optimizer's state, which a mean has not."""
    last = folder / "checkpoint_last.pt"
    last.write_bytes(b"with the optimizer's state")
    with pytest.raises(UserError, match=r"checkpoint_last\.pt is what training would go on from"):
        cli.main(["average", str(folder), "--last", "2", "-o", str(last)])
    assert last.read_bytes() == b"with the optimizer's state"
    last.unlink()


def test_what_is_said_does_not_go_into_a_checkpoint_on_stdout(folder, tmp_path):
    words = [served.folder() / "macaron-fairseq", "average", folder, "--best", "2"]
    main("average", folder, "--best", 2, "-o", tmp_path / "mean.pt")
    done = subprocess.run([*words, "-o", "-"], cwd=ROOT, capture_output=True, check=True)
    assert done.stderr.startswith(b"wrote -, the mean of ")
    (tmp_path / "out.pt").write_bytes(done.stdout)
    assert averaged_weight(tmp_path / "out.pt") == averaged_weight(tmp_path / "mean.pt")
    assert b"wrote" not in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["average"],
        ["average", "a.pt"],  # no output
        ["average", "-o", "mean.pt"],
        ["average", "a", "--first", "3", "-o", "mean.pt"],
        ["average", "a", "--last", "-o", "mean.pt"],
        ["average", "a", "--last", "0", "-o", "mean.pt"],
        ["average", "a", "--last", "-2", "-o", "mean.pt"],
        ["average", "a", "--best", "two", "-o", "mean.pt"],
        ["average", "a", "--last", "2", "--best", "2", "-o", "mean.pt"],
        ["user-dir", "here"],
    ],
)
def test_wrong_flags_end_with_status_2_and_the_usage(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        main(*words)
    assert exited.value.code == 2
    assert "usage: macaron-fairseq" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_alone_is_refused(folder, tmp_path):
    output = tmp_path / "mean.pt"
    for words in ([folder], [folder, folder / "checkpoint1.pt"]):
        sentence = refusal("average", *words, "-o", output)
        assert "--last N or --best N" in sentence
    assert not output.exists()


@pytest.mark.parametrize("which", ["--last", "--best"])
def test_several_folders_are_refused(folder, tmp_path, which):
    sentence = refusal("average", folder, folder, which, 1, "-o", tmp_path / "mean.pt")
    assert "one folder" in sentence


def test_last_of_what_is_no_folder_is_refused(folder, tmp_path):
    for path in (tmp_path / "nowhere", folder / "checkpoint1.pt"):
        sentence = refusal("average", path, "--last", 1, "-o", tmp_path / "mean.pt")
        assert sentence == f"{path}: no such folder"


def test_a_missing_input_is_named(folder, tmp_path):
    missing = folder / "checkpoint7.pt"
    sentence = refusal("average", folder / "checkpoint1.pt", missing, "-o", tmp_path / "mean.pt")
    assert sentence == f"{missing}: no such checkpoint"


def test_an_output_that_is_an_input_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = (folder / "checkpoint3.pt").read_bytes()
    (folder / "link.pt").symlink_to("checkpoint3.pt")
    for words in [
        ["checkpoint3.pt", "-o", "checkpoint3.pt"],
        ["checkpoint1.pt", "checkpoint3.pt", "-o", folder / "checkpoint3.pt"],
        ["checkpoint1.pt", "checkpoint3.pt", "-o", "link.pt"],
        [".", "--last", 2, "-o", folder / ".." / folder.name / "checkpoint3.pt"],
    ]:
        assert "choose another name" in refusal("average", *words)
    assert (folder / "checkpoint3.pt").read_bytes() == before


def test_an_output_that_cannot_be_written_is_refused(folder, tmp_path):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "mean.pt"
    before = sorted(tmp_path.rglob("*"))
    said = refusal("average", folder, "--last", 1, "-o", output)
    assert said.startswith(f"cannot write {output}: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_output_has_its_name_only_when_it_is_complete(folder, tmp_path, monkeypatch):
    output = tmp_path / "mean.pt"
    write_state = torch.save
    seen = []

    def observed(state, file):
        seen.append(output.exists())
        write_state(state, file)
        seen.append(output.exists())

    monkeypatch.setattr(torch, "save", observed)
    main("average", folder, "--last", 2, "-o", output)
    assert seen == [False, False]
    assert averaged_weight(output) == [2.5, 2.5]


def test_an_interrupted_command_leaves_the_output_that_was_there(folder, tmp_path, monkeypatch):
    output = tmp_path / "mean.pt"
    main("average", folder, "--last", 2, "-o", output)

    def interrupted(state, file):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main("average", folder, "--last", 1, "-o", output)
    assert averaged_weight(output) == [2.5, 2.5]
