"""Padding where it is rare: left of targets, and a source that is nothing else."""

import torch

from gpu.checks import Outcome
from gpu.gradients import device_free
from gpu.setups import CHUNKED, MACARON, NO_DROPOUT, TINY, Device, on

MOST = {"fp32": 1e-4, "fp16": 3e-2, "bf16": 2e-1}  # of logits whose size is about 1


def look(device: Device, spoil: bool) -> Outcome:
    """Logits of left-padded targets as on the CPU, and finite gradients; spoiled: one is infinite.

    The sources of two sentences are padding only, which hides all keys from their queries.
    """
    flags = [*MACARON, *TINY, *NO_DROPOUT, *CHUNKED, "--no-token-positional-embeddings"]
    batch = device.batch(left_pad_target=True)
    batch["net_input"]["src_tokens"][:2] = device.dictionary.pad()
    trusted = device_free(device).trainer([*flags, "--macaron-kernels", "fairseq"]).get_model()
    trusted.train()
    weights = {x: y.bfloat16().float() for x, y in trusted.state_dict().items()}
    trusted.load_state_dict(weights)
    words = batch["net_input"]["prev_output_tokens"].ne(device.dictionary.pad())
    words[:2] = False  # what attends to nothing may be anything that is finite
    wanted = trusted(**batch["net_input"])[0].detach()
    passes, said, figures = True, [], {}
    for precision in device.precisions:
        trainer = device.trainer(flags, precision)
        model = trainer.get_model()
        model.load_state_dict({x: weights[x].to(y.dtype) for x, y in model.state_dict().items()})
        if spoil:
            with torch.no_grad():
                next(model.parameters()).view(-1)[-1] = torch.inf
        model.train()
        moved = on(device.name, batch)
        logits = model(**moved["net_input"])[0].detach().cpu().float()
        loss, size, _ = trainer.get_criterion()(model, moved)
        (loss / size).backward()
        is_finite = bool(torch.isfinite(logits).all()) and all(
            bool(torch.isfinite(x.grad).all()) for x in model.parameters()
        )
        error = float((logits - wanted)[words].abs().max()) if is_finite else None
        figures[precision] = {"finite": is_finite, "error": error}
        passes &= error is not None and error < MOST[precision]
        said.append(f"{precision} {'not finite' if error is None else f'{error:.0e}'}")
    return Outcome(passes, "finite; logits differ by " + ", ".join(said), figures)
