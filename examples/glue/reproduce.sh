#!/usr/bin/env bash
# GLUE: masked language models, Macaron Net next to a Transformer of equal size, from text to the table.
#
#   needs   text to pre-train on, and GLUE's own files; pip install -e '.[glue]'; for the
#           default models GPUs and weeks, for the tiny ones a CPU and a day, without QQP, MNLI and QNLI
#   prints  GLUE's metrics on the dev sets, mean and standard deviation over the seeds of fine-tuning;
#           the averages with and without WNLI; paired tests; the published rows, which are of the test sets
#   leaves  in --work: report/ with the table and a zip of predictions for GLUE's server for each system
#   stages  prepare, pretrain, finetune, report
#
#   reproduce.sh --text books.txt.xz --glue glue_data -- --layernorm-embedding
#   reproduce.sh --text books.txt.xz --glue glue_data --tasks "CoLA RTE" --seeds "1 2 3" --cpu --jobs 2 \
#     --archs "roberta_tiny_pre_norm macaron_roberta_tiny" --merges 10000 --tokens-per-sample 128 \
#     --batch 8192 --max-tokens 8192 --max-update 5000 --short-samples 32:4000 \
#     --learning-rates "1e-4 3e-4" -- --lr 0.001 --warmup-updates 300 --layernorm-embedding
#   reproduce.sh finetune report --from-scratch ...     the control: the same without pre-training
#
# FOLDER of --glue is what GLUE's download script makes: CoLA/train.tsv and so on, or train.tsv.gz. MRPC
# may hold Microsoft's own files instead: msr_paraphrase_train.txt, msr_paraphrase_test.txt, dev_ids.tsv.
# The settings: benchmark.yaml (pre-training), finetuning.yaml.
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../start.py" "$here/glue.py" "$@"
