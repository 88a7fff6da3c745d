"""Translate the batches whose numbers come on stdin, and write the seconds of each to a descriptor.

  worker.py DATA-BIN MODEL.pt TASK BEAM BATCH-SIZE THREADS DESCRIPTOR

Imports nothing of the benchmarks and, of this package, the name alone: it is to run with any
version. The first line that it writes is how many batches there are.
"""

import os
import sys
import time

import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from macaron_fairseq import plugin as plugin  # registers what it has


def main() -> None:
    """Load, then translate what is asked for."""
    data, path, name, beam, batch_size, threads, descriptor = sys.argv[1:]
    torch.set_num_threads(int(threads))
    flags = [data, "--path", path, "--task", name, "--beam", beam, "--batch-size", batch_size]
    args = options.parse_args_and_arch(options.get_generation_parser(), [*flags, "--cpu"])
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    models, _ = checkpoint_utils.load_model_ensemble([path], task=task)
    for model in models:
        model.prepare_for_inference_(cfg)
    task.load_dataset("test")
    batches = task.get_batch_iterator(
        task.dataset("test"), max_sentences=int(batch_size), max_positions=(1024, 1024)
    ).next_epoch_itr(shuffle=False)
    samples = list(batches)  # read now, none is translated before it is asked for
    generator = task.build_generator(models, cfg.generation)
    with os.fdopen(int(descriptor), "w") as results:  # a library may print to stdout
        print(len(samples), file=results, flush=True)
        for line in sys.stdin:
            begin = time.perf_counter()
            task.inference_step(generator, models, samples[int(line)])
            print(time.perf_counter() - begin, file=results, flush=True)


if __name__ == "__main__":
    main()
