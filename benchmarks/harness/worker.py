"""Translate the batches whose numbers come on stdin, and write the seconds of each to a descriptor.

  worker.py DATA-BIN MODEL.pt TASK BEAM BATCH-SIZE THREADS DESCRIPTOR

Imports nothing of the benchmarks and, of this package, the name alone: it is to run with any
version. The first line that it writes is how many batches there are.
"""

import ast
import os
import sys
import time
import warnings
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from macaron_fairseq import plugin as plugin  # registers what it has


class Translator:
    """A model, and the set `test` in batches, in this process on the CPU."""

    def __init__(
        self, data: str, model: str, task: str, beam: int, batch_size: int, *flags: str
    ) -> None:
        """Load them as fairseq-generate does with these flags."""
        words = [data, "--path", model, "--task", task, "--beam", str(beam), "--cpu", *flags]
        parser = options.get_generation_parser()
        args = options.parse_args_and_arch(parser, [*words, "--batch-size", str(batch_size)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hydra, about itself
            self.cfg = convert_namespace_to_omegaconf(args)
        self.task = tasks.setup_task(self.cfg.task)
        overrides = ast.literal_eval(args.model_overrides)
        self.models, _ = checkpoint_utils.load_model_ensemble([model], overrides, task=self.task)
        for part in self.models:
            part.prepare_for_inference_(self.cfg)
        self.task.load_dataset("test")
        warnings.filterwarnings("ignore", ".*pin_memory")  # which fairseq asks for without a GPU
        # Read now: none is translated before it is asked for.
        self.samples = list(self.batches())
        self.generator = self.task.build_generator(self.models, self.cfg.generation)

    def batches(self) -> Any:
        """All batches, once."""
        size = self.cfg.dataset.batch_size
        iterator = self.task.get_batch_iterator(
            self.task.dataset("test"), max_sentences=size, max_positions=(1024, 1024)
        )
        return iterator.next_epoch_itr(shuffle=False)

    def translate(self, batch: int) -> Any:
        """The hypotheses of a batch."""
        return self.task.inference_step(self.generator, self.models, self.samples[batch])


def main() -> None:
    """Load, then translate what is asked for."""
    data, path, task, beam, batch_size, threads, descriptor = sys.argv[1:]
    torch.set_num_threads(int(threads))
    translator = Translator(data, path, task, int(beam), int(batch_size))
    with os.fdopen(int(descriptor), "w") as results:  # a library may print to stdout
        print(len(translator.samples), file=results, flush=True)
        for line in sys.stdin:
            begin = time.perf_counter()
            translator.translate(int(line))
            print(time.perf_counter() - begin, file=results, flush=True)


if __name__ == "__main__":
    main()
