#!/usr/bin/env bash
# WMT14 English-German with the paper's settings, baseline or Macaron: the two differ in ARCH alone.
#
#   train.sh DATA_BIN SAVE_DIR ARCH [FLAG...]
#
#   ARCH    macaron_transformer_wmt_en_de      beside  transformer_wmt_en_de_pre_norm
#           macaron_transformer_wmt_en_de_big  beside  transformer_wmt_en_de_big_pre_norm
#   needs   GPUs with fp16; as many as there are, with the paper's batch (4 GPUs) kept by update-freq
#   FLAG    further flags of fairseq-train, --max-update among them: the paper states none
set -euo pipefail

usage="usage: train.sh DATA_BIN SAVE_DIR ARCH [FLAG...]"
data=${1:?$usage} save=${2:?$usage} arch=${3:?$usage}
shift 3

case $arch in
  *_wmt_en_de_big | *_wmt_en_de_big_pre_norm) lr=0.003 dropout=0.3 tokens=4096 batches=64 ;;
  *_wmt_en_de | *_wmt_en_de_pre_norm) lr=0.0015 dropout=0.1 tokens=8192 batches=4 ;;
  *) echo "train.sh: $arch is no architecture for WMT14; see the list in this file" >&2; exit 2 ;;
esac
[[ -f $data/preprocess.log ]] || { echo "train.sh: $data was not made by fairseq-preprocess" >&2; exit 1; }
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
if ((gpus == 0 || batches % gpus)); then
  echo "train.sh: $gpus GPUs are visible, but $batches batches of $tokens tokens must be divided among" \
    "them: set CUDA_VISIBLE_DEVICES to a number of GPUs that divides $batches" >&2
  exit 1
fi
echo "train.sh: $gpus GPUs x $tokens tokens x update-freq $((batches / gpus)) = $((tokens * batches)) tokens an update"

exec fairseq-train "$data" --user-dir "$(macaron-fairseq user-dir)" --save-dir "$save" \
  --arch "$arch" --share-all-embeddings \
  --dropout "$dropout" --attention-dropout 0.1 --activation-dropout 0.1 \
  --optimizer adam --adam-betas '(0.9,0.98)' --lr "$lr" --clip-norm 0 \
  --lr-scheduler inverse_sqrt --warmup-updates 8000 --warmup-init-lr 1e-7 \
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
  --max-tokens "$tokens" --update-freq $((batches / gpus)) --fp16 \
  --keep-last-epochs 10 --log-format simple --log-interval 100 "$@"
