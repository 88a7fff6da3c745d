"""`--optimizer fused_adam` against fairseq's Adam and the formula, and what checkpoints keep."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import adam
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from helpers.toy_corpus import logged, train
from torch import nn

from macaron_fairseq import UserError
from macaron_fairseq.fast import optimizer
from macaron_fairseq.model import bf16

FLAGS = {"lr": [0.02], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-3, "weight_decay": 0.1}


def config(**flags):
    """What the trainer gives an optimizer."""
    fields = {**FLAGS, "tpu": False, "use_old_adam": False, "fp16_adam_stats": False}
    return SimpleNamespace(**{**fields, "fp16": False, "bf16": False, **flags})


def parameters(dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in [(3, 4), (5,), ()]]


def set_gradients(params, seed):
    torch.manual_seed(seed)
    for x in params:
        x.grad = torch.randn(x.shape).to(x.dtype)


def test_updates_are_those_of_fairseqs_adam():
    """With an eps that counts, and a decay."""
    theirs, ours = parameters(), parameters()
    optimizers = adam.FairseqAdam(config(), theirs), optimizer.FairseqAdam(config(), ours)
    for update in range(20):
        for params, chosen in zip((theirs, ours), optimizers, strict=True):
            set_gradients(params, update)
            if update == 10:
                params[1].grad = None  # it is left out, and counts its own updates
            chosen.multiply_grads(0.5)
            norm = chosen.clip_grad_norm(0.7)
            assert norm == pytest.approx(torch.cat([x.flatten() for x in norms(update)]).norm() / 2)
            chosen.step()
        for x, y in zip(theirs, ours, strict=True):
            torch.testing.assert_close(y, x, rtol=2e-6, atol=2e-7)


def test_experts_are_left_out_of_the_norm_as_by_fairseq():
    """Of which each process has others; they are scaled all the same."""
    theirs, ours = parameters(), parameters()
    found = []
    for params, kind in ((theirs, adam), (ours, optimizer)):
        params[0].expert = True
        set_gradients(params, 1)
        chosen = kind.FairseqAdam(config(), params)
        found.append((float(chosen.clip_grad_norm(0.1)), params[0].grad, params[1].grad))
    torch.testing.assert_close(found[0], found[1])


def test_sharded_gradients_are_clipped_by_the_norm_of_all_processes():
    """Which fairseq asks of the others; here they have as much again, squared."""
    theirs, ours = parameters(), parameters()
    found = []
    for params, kind in ((theirs, adam), (ours, optimizer)):
        set_gradients(params, 1)
        chosen = kind.FairseqAdam(config(), params)
        norm = chosen.clip_grad_norm(0.1, aggregate_norm_fn=lambda x: 2**0.5 * x)
        found.append((float(norm), *(x.grad for x in params)))
    torch.testing.assert_close(found[0], found[1])


def norms(update):
    """The gradients of an update."""
    params = parameters()
    set_gradients(params, update)
    return [x.grad for i, x in enumerate(params) if not (update == 10 and i == 1)]


def test_the_formula():
    """Kingma and Ba's algorithm with fairseq's eps, in fp64."""
    (x,) = [nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))]
    chosen = optimizer.FusedAdam([x], lr=0.1, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.05)
    w, m, v = x.detach().clone(), torch.zeros(2).double(), torch.zeros(2).double()
    for t in range(1, 6):
        g = torch.tensor([0.3 * t, -0.5])
        x.grad = 4 * g.double()
        chosen.step(scale=4.0)
        g = g.double()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        rate = 0.1 * (1 - 0.9**t) ** 0.5 / (1 - 0.8**t)
        w = w - 0.1 * 0.05 * w - rate * m / (v.sqrt() + 1e-2)
        torch.testing.assert_close(x.detach(), w, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("way", ["ours from theirs", "theirs from ours"])
def test_either_goes_on_from_the_others_checkpoint(way):
    classes = [optimizer.FairseqAdam, adam.FairseqAdam]
    later, first = classes if way == "ours from theirs" else classes[::-1]
    assert later.__name__ == first.__name__  # which the trainer compares
    start, whole = parameters(), parameters()
    begun, reference = first(config(), start), adam.FairseqAdam(config(), whole)
    resumed = None
    for update in range(6):
        if update == 3:
            params = [nn.Parameter(x.detach().clone()) for x in start]
            resumed = later(config(), params)
            resumed.load_state_dict(copy.deepcopy(begun.state_dict()))
        for p, chosen in ((params, resumed) if resumed else (start, begun), (whole, reference)):
            set_gradients(p, update)
            chosen.step()
    for x, y in zip(whole, params, strict=True):
        torch.testing.assert_close(y, x, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_state_of_apex_counts_in_the_group_and_scales_moments(dtype):
    """As fairseq's FusedAdamV2 leaves the first, and its FusedAdamV1 with --fp16-adam-stats both.

    A moment is what is kept times its scale.
    """
    start = parameters(dtype)
    begun = optimizer.FairseqAdam(config(), start)
    for update in range(3):
        set_gradients(start, update)
        begun.step()
    saved = copy.deepcopy(begun.state_dict())
    for state in saved["state"].values():
        saved["param_groups"][0]["step"] = state.pop("step")
        for name in optimizer.MOMENTS:
            scale = 1e-8 + state[name].abs().max() / 65504
            state[name], state[f"{name}_scale"] = (state[name] / scale).half(), scale
    params = [nn.Parameter(x.detach().clone()) for x in start]
    resumed = optimizer.FairseqAdam(config(), params)
    resumed.load_state_dict(saved)
    for p, chosen in ((start, begun), (params, resumed)):
        set_gradients(p, 3)
        chosen.step()
    for x, y in zip(start, params, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-5)
    assert "exp_avg_scale" not in resumed.state_dict()["state"][0]


def test_a_closure_computes_gradients():
    """As PyTorch's optimizers let it."""
    x = nn.Parameter(torch.tensor(2.0))
    chosen = optimizer.FusedAdam([x], lr=0.1)

    def closure():
        x.square().backward()
        return 3

    assert chosen.step(closure) == 3
    assert x.item() == pytest.approx(1.9) and x.grad == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_after_fairseqs_adam_the_weights_are_those_that_it_left(dtype):
    """It keeps the fp32 weights in the state that it knows nothing of, as they were."""
    begun = parameters(torch.float16)
    ours = optimizer.FairseqAdam(config(fp16=True), begun)
    set_gradients(begun, 0)
    ours.step()
    between = [nn.Parameter(x.detach().to(dtype)) for x in begun]
    theirs = adam.FairseqAdam(config(), between)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    for update in (1, 2):
        set_gradients(between, update)
        theirs.step()
    last = [nn.Parameter(x.detach().clone()) for x in between]
    again = optimizer.FairseqAdam(config(fp16=True), last)
    again.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert all(map(torch.equal, last, between))
    set_gradients(last, 3)
    again.step()
    for x, y in zip(last, between, strict=True):  # one update further, not back at the first
        assert not torch.equal(x, y)
        torch.testing.assert_close(x, y, rtol=0, atol=2 * config().lr[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_up_in_fp32(dtype):
    """Updates too small for the parameter's precision add up, and fairseq's Adam loses them."""
    found = []
    for module in (optimizer, adam):
        (x,) = [nn.Parameter(torch.ones(4, dtype=dtype))]
        chosen = module.FairseqAdam(config(lr=[1e-4], weight_decay=0.0, adam_eps=1e-8), [x])
        for _ in range(100):
            x.grad = torch.ones_like(x)
            chosen.step(scale=1.0)
        found.append(x[0].item())
    assert found[0] == pytest.approx(0.99, abs=4e-3)
    assert found[1] == 1


def test_gradients_are_unscaled_in_fp32():
    """1e-7 is 0 in fp16 where fairseq's Adam unscales: there is no update, or one of noise."""
    x = nn.Parameter(torch.ones(4, dtype=torch.float16))
    chosen = optimizer.FairseqAdam(config(lr=[0.1], weight_decay=0.0, adam_eps=1e-12), [x])
    wrapper = SimpleNamespace(bf16=False, fp16_scale_window=1, fp16_init_scale=2**20)
    wrapper.__dict__.update(fp16_scale_tolerance=0, threshold_loss_scale=None, min_loss_scale=1e-4)
    trained = MemoryEfficientFP16Optimizer(
        SimpleNamespace(common=wrapper, optimizer=None), [x], chosen
    )
    trained.zero_grad()
    x.grad = torch.full_like(x, 2**20 * 1e-9)
    assert trained.clip_grad_norm(0.0).item() == pytest.approx(2e-9, rel=1e-2)
    trained.step()
    assert x.tolist() == pytest.approx([0.9] * 4, rel=1e-3)


def test_in_bf16_each_update_is_scaled_by_itself():
    """fairseq's wrapper keeps its factor for the next update, unless it scales gradients itself."""
    found = []
    for module in (adam, optimizer):
        weights = parameters(torch.bfloat16)
        exact = FP16Optimizer.build_fp32_params(None, weights, flatten=False)
        chosen = module.FairseqAdam(config(bf16=True), exact)
        common = SimpleNamespace(bf16=True, fp16_scale_window=1)
        cfg = SimpleNamespace(common=common, optimizer=None)
        trained = FP16Optimizer(cfg, weights, chosen, exact)
        for update in range(4):
            trained.zero_grad()
            trained.backward(sum(((update - x) ** 2).sum() for x in weights))
            trained.multiply_grads(0.1)  # as for the number of tokens
            trained.step()
        found.append([x.detach() for x in exact])
    torch.testing.assert_close(found[1], found[0], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_checkpoint_keeps_the_fp32_weights(dtype):
    """Of half precision parameters: resuming is exact to the last bit."""
    whole, half = parameters(dtype), None
    chosen = optimizer.FairseqAdam(config(), whole)
    for update in range(6):
        set_gradients(whole, update)
        chosen.step()
        if update == 2:
            half = [nn.Parameter(x.detach().clone()) for x in whole]
            state = copy.deepcopy(chosen.state_dict())
    assert all(x[optimizer.MASTER].dtype == torch.float32 for x in state["state"].values())
    resumed = optimizer.FairseqAdam(config(), half)
    resumed.load_state_dict(state)
    for update in range(3, 6):
        set_gradients(half, update)
        resumed.step()
    assert all(map(torch.equal, whole, half))
    for name in (*optimizer.MOMENTS, optimizer.MASTER):
        states = [[s[name] for s in x.optimizer.state.values()] for x in (chosen, resumed)]
        assert all(map(torch.equal, *states))
    del state["state"][0][optimizer.MASTER]  # as of fairseq's Adam
    resumed.load_state_dict(state)
    first = resumed.optimizer.state[half[0]]
    assert torch.equal(first[optimizer.MASTER], half[0].detach().float())


def test_what_it_refuses():
    for flag in ("fp16_adam_stats", "use_old_adam"):
        with pytest.raises(UserError, match=f"--{flag.replace('_', '-')} is for --optimizer adam"):
            optimizer.FairseqAdam(config(**{flag: True}), parameters())


ADAM = ["--optimizer", "fused_adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0.5"]


@pytest.mark.slow
@pytest.mark.skipif(not bf16.is_fast_here(), reason="this CPU has no bf16")
@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_resuming_in_bf16_is_exact(flag, data_bin, tmp_path):
    """And is not with fairseq's Adam, as `--optimizer adam` shows."""
    runs = [("fused", [])]
    if flag == "--bf16":  # memory-efficient, fairseq sums up in bf16, which is saved
        runs.append(("fairseq", ["--optimizer", "adam"]))
    for name, own in runs:
        flags = [*ADAM, *own, flag, "--lr", "0.003", "--save-interval-updates", "3"]
        whole = logged(train(data_bin, tmp_path / name, *flags, "--max-update", "6").stdout)
        middle = next((tmp_path / name).glob("checkpoint_*_3.pt"))
        again = tmp_path / f"{name}-again"
        resume = [*flags, "--max-update", "6", "--restore-file", middle]
        resumed = logged(train(data_bin, again, *resume).stdout)
        assert resumed.keys() == {4, 5, 6}
        ends = [torch.load(x / "checkpoint_last.pt") for x in (tmp_path / name, again)]
        weights = [end["model"].values() for end in ends]
        if name == "fused":
            assert resumed == {update: whole[update] for update in (4, 5, 6)}
            assert all(map(torch.equal, *weights))
        else:
            moments = [end["last_optimizer_state"]["state"][0]["exp_avg"] for end in ends]
            assert not all(map(torch.equal, *weights)) or not torch.equal(*moments)
