"""fairseq's Adam in a few kernels for all parameters together: `--optimizer fused_adam`.

The options, the updates and what a checkpoint holds are those of `--optimizer adam`. What differs:

- PyTorch's fused kernel updates all parameters at a time, and needs no apex.
- With `--memory-efficient-fp16` and `--memory-efficient-bf16` the weights that are summed up stay
  fp32, as with `--fp16` and `--bf16`. fairseq's own Adam rounds them at each update. Gradients and
  weights are copied many tensors at a time, which `--fp16` and `--bf16` do one by one.
- In half precision the fp32 weights are in the checkpoint's optimizer state. Other optimizers of
  fairseq's leave them out, and go on from rounded ones.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer, adam
from omegaconf import II
from torch import Tensor

from macaron_fairseq.common.errors import UserError

NAME = "fused_adam"
MASTER = "fp32_weight"  # in the state of a parameter, next to fairseq's moments
MOMENTS = "exp_avg", "exp_avg_sq"
HALF = torch.float16, torch.bfloat16


class FusedAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) with decoupled weight decay, as fairseq computes it.

    With m and v the means of gradients and of their squares, and t the update:

        w <- w - lr (decay w + sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps))

    PyTorch's eps stands under another root of 1 - b2^t; it gets the one that makes both the same.
    Parameters of half precision have their fp32 weights in the state.
    """

    # What fairseq asks an optimizer for.
    supports_memory_efficient_fp16 = True
    supports_flat_params = True
    supports_step_with_scale = True
    disable_mem_eff_fp16_loading_hack = True  # see `load_state_dict`

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, scale: float = 1.0) -> Any:
        """Update all parameters that have a gradient; gradients are first divided by `scale`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_kind: dict[Any, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    self.start(parameter, state)
                state["step"] += 1
                by_kind.setdefault((parameter.device, parameter.dtype, state["step"]), []).append(
                    parameter
                )
            for (_, _, update), parameters in by_kind.items():
                self.update(parameters, group, update, float(scale))
        return loss

    def start(self, parameter: Tensor, state: dict[str, Any]) -> None:
        """Begin with moments of 0; fp32 weights are those of the parameter."""
        state["step"] = 0
        for name in MOMENTS:
            state[name] = torch.zeros_like(parameter, dtype=exact_type(parameter))
        if parameter.dtype in HALF:
            state[MASTER] = parameter.float()

    def update(
        self, parameters: list[Tensor], group: dict[str, Any], update: int, scale: float
    ) -> None:
        """One update of parameters of one device and type, whose number, from 1, is given."""
        states = [self.state[x] for x in parameters]
        weights: list[Any] = parameters
        grads: list[Any] = [x.grad for x in parameters]
        is_half = parameters[0].dtype in HALF
        if is_half:
            weights = [state[MASTER] for state in states]
            rounded, grads = grads, [torch.empty_like(x) for x in weights]
            torch._foreach_copy_(grads, rounded)
        device = weights[0].device
        beta1, beta2 = group["betas"]
        # PyTorch's own class keeps the update's number for each parameter, and adds to all.
        torch._fused_adamw_(
            weights,
            grads,
            [state[MOMENTS[0]] for state in states],
            [state[MOMENTS[1]] for state in states],
            [],
            [torch.full((), float(update), device=device)] * len(weights),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"] / sqrt(1 - beta2**update),
            amsgrad=False,
            maximize=False,
            grad_scale=None if scale == 1 else torch.full((), scale, device=device),
            found_inf=None,
        )
        if is_half:
            torch._foreach_copy_(parameters, weights)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, of fairseq's Adam too; moments and fp32 weights keep their precision.

        One of fairseq's two uses of apex numbers the updates of a group, not of a parameter. With
        `--fp16-adam-stats` moments are in units of a scale.
        """
        super().load_state_dict(state_dict)
        groups = state_dict["param_groups"]
        saved = chain(*(group["params"] for group in groups))
        steps = {key: group.get("step") for group in groups for key in group["params"]}
        own = chain(*(group["params"] for group in self.param_groups))
        for key, parameter in zip(saved, own, strict=True):
            state = state_dict["state"].get(key)
            if not state:
                continue
            kept = self.state[parameter]
            kept["step"] = int(state.get("step", steps[key]))
            for name in (*MOMENTS, MASTER):
                if name in state:  # PyTorch has cast it to the parameter's precision
                    exactly = state[name].to(parameter.device, exact_type(parameter))
                    kept[name] = exactly * state.get(f"{name}_scale", 1)
                    kept.pop(f"{name}_scale", None)
            exact = kept.pop(MASTER, None)
            if exact is not None and not rounds_to(exact, parameter):
                exact = None  # another optimizer went on since, and left them as they were
            if parameter.dtype in HALF:
                kept[MASTER] = parameter.detach().float() if exact is None else exact
            elif exact is not None:  # of fairseq's FP16Optimizer, whose parameters they are
                with torch.no_grad():
                    parameter.copy_(exact)


def rounds_to(exact: Tensor, weights: Tensor) -> bool:
    """Whether fp32 weights round to others, which are in half precision, or have been."""
    dtypes = [weights.dtype] if weights.dtype in HALF else [*HALF, torch.float32]
    return any(torch.equal(exact.to(dtype).float(), weights.float()) for dtype in dtypes)


def exact_type(parameter: Tensor) -> torch.dtype:
    """In which precision a parameter is summed up."""
    return torch.float32 if parameter.dtype in HALF else parameter.dtype


@dataclass
class FusedAdamConfig(adam.FairseqAdamConfig):
    """fairseq's options of Adam, and what else of the command line counts."""

    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")


class FairseqAdam(adam.FairseqAdam):
    """Adam as fairseq's trainer uses it.

    It has the name of fairseq's class, since checkpoints hold that name: training can go on with
    either.
    """

    def __init__(self, cfg: FusedAdamConfig, params: Iterable[Tensor]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        if cfg.fp16_adam_stats or cfg.use_old_adam:
            flag = "--fp16-adam-stats" if cfg.fp16_adam_stats else "--use-old-adam"
            raise UserError(f"{flag} is for --optimizer adam: drop it, or take that")
        self._optimizer = FusedAdam(params, **self.optimizer_config)
        if cfg.bf16 and all(x.dtype not in HALF for x in self.params):
            # fairseq's FP16Optimizer hands on the scale and, in bf16, never begins again with 1.
            self._optimizer.supports_step_with_scale = False

    def clip_grad_norm(
        self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Scale the gradients so that their norm is at most `max_norm`, if that is above 0.

        Returns:
            Their norm before, on the CPU: fairseq asks several times for its value, and a GPU is
            waited for once.
        """
        trained = [x for x in self.params if x.grad is not None]
        grads = [x.grad.detach() for x in trained]
        # fairseq leaves experts out of the norm, of which each process has others.
        shared = [x.grad.detach() for x in trained if not hasattr(x, "expert")]
        if not shared:
            return torch.zeros(())
        norms = torch._foreach_norm(shared, 2, dtype=torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        norm = norm.cpu()
        if max_norm > 0 and (factor := float(max_norm) / (float(norm) + 1e-6)) < 1:
            torch._foreach_mul_(grads, factor)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """fairseq's state, and in half precision with the fp32 weights."""
        found = super().state_dict()
        if self.cfg.fp16 or self.cfg.bf16:
            for key, weight in zip(
                chain(*(group["params"] for group in found["param_groups"])),
                self.params,
                strict=True,
            ):
                if key in found["state"] and weight.dtype not in HALF:
                    found["state"][key] = {**found["state"][key], MASTER: weight.detach()}
        return found
