"""fairseq divides gradients by the loss scale twice with `--amp`.

Its `AMPOptimizer` unscales the gradients of PyTorch's optimizer before they are clipped. Then it
steps with fairseq's own optimizer around that, which PyTorch's scaler takes for another one. So it
divides again. Adam hides that until its epsilon counts, and SGD learns at a fraction of its rate.
This can go when `test_fairseq_divides_by_the_loss_scale_twice` fails.
"""

from fairseq.optim.amp_optimizer import AMPOptimizer


def step(self: AMPOptimizer) -> None:
    """Step with the optimizer whose gradients were unscaled."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


def mend() -> None:
    """Let fairseq's optimizer step so."""
    AMPOptimizer.step = step
