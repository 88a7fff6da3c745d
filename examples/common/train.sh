# The stage train: one training for each architecture and seed, resumed where it was interrupted.
# shellcheck shell=bash disable=SC2154

stage_train() {
  local arch seed
  for seed in "${seeds[@]}"; do
    for arch in "${archs[@]}"; do train_one "$arch" "$seed"; done
  done
}

# Count the devices, hold the batch of an update to the recipe's, and choose the precision.
# Sets gpus, max_tokens, update_freq, device, launch.
plan_devices() {
  local nodes=${NNODES:-1} on_node devices least fewer=$max_tokens
  [[ $cpu || $gpus ]] || gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
  ((cpu)) && gpus=0
  on_node=$((gpus ? gpus : processes)) devices=$(((gpus ? gpus : processes) * nodes))
  if ((gpus == 0)); then
    ((nodes == 1 || cpu)) || die "several nodes, and no GPU on this one: give --cpu if you mean that"
    device=(--cpu)
    say "no GPU: training in fp32 on CPU cores: $(nproc), processes: $processes"
    python3 -c 'import sys, importlib.util as u; sys.exit(not u.find_spec("numba"))' \
      || say "it may be faster with Numba: pip install numba"
    [[ $cpu || -v CUDA_VISIBLE_DEVICES ]] || ! nvidia-smi > /dev/null 2>&1 \
      || say "there is a GPU that this PyTorch cannot use"
  else
    ((processes == 1)) || die "--processes is for a CPU: each GPU has its own process"
    [[ $precision == fp32 ]] || device=("--$precision")
  fi
  if [[ ! ${options[max-tokens]:-} ]]; then
    # More devices than batches: smaller ones, but not so small that fairseq would drop long sentences.
    least=$((tokens < 4096 ? 250 : 1024))
    while ((batch % (fewer * devices) && fewer >= 2 * least)); do fewer=$((fewer / 2)); done
    ((batch % (fewer * devices))) || max_tokens=$fewer
  fi
  ((batch % devices == 0)) || die "an update of $batch tokens cannot be made by $devices devices alike:" \
    "choose another --batch, or fewer devices by CUDA_VISIBLE_DEVICES or --processes"
  ((batch % (max_tokens * devices) == 0)) || die "an update of $batch tokens cannot be made of" \
    "$max_tokens tokens on each of $devices devices: choose --max-tokens N such that N x $devices" \
    "divides $batch, or fewer devices by CUDA_VISIBLE_DEVICES or --processes"
  update_freq=$((batch / (max_tokens * devices)))
  say "$devices x $max_tokens tokens x update-freq $update_freq = $batch tokens an update at most"
  if ((nodes > 1 || (gpus == 0 && processes > 1))); then
    plan_torchrun "$nodes" "$on_node" "$devices"
  elif ((gpus == 0)); then
    device+=(--distributed-world-size 1) # else as many as there are GPUs, --cpu or not
  else # or fairseq would wait for other tasks of a Slurm job, or take a launcher's word for one GPU
    unset SLURM_JOB_NODELIST SLURM_STEP_NODELIST MASTER_ADDR MASTER_PORT WORLD_SIZE RANK
  fi
}

# The processes of several nodes, and several on a CPU.
plan_torchrun() { # NODES ON_NODE DEVICES
  local variable cores
  need torchrun
  launch=(torchrun --nproc_per_node "$2")
  if (($1 == 1)); then
    launch+=(--standalone --local_addr 127.0.0.1)
  else
    [[ ${stages[*]} == train ]] || die "several nodes are for the stage train: run the others once, on one"
    for variable in NODE_RANK MASTER_ADDR MASTER_PORT; do
      [[ ${!variable:-} ]] || die "NNODES is $1 but $variable is not set"
    done
    launch+=(--nnodes "$1" --node_rank "$NODE_RANK"
      --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT")
  fi
  # fairseq counts the GPUs of one node only, and would train a model on each.
  device+=(--distributed-world-size "$3")
  if ((gpus)); then
    launch+=("$(command -v fairseq-train)")
    return
  fi
  # Without GPUs fairseq does not heed torchrun by itself.
  device+=(--distributed-init-method env:// --distributed-no-spawn
    --distributed-backend gloo --ddp-backend legacy_ddp)
  cores=$(env -u OMP_NUM_THREADS nproc)
  # shellcheck disable=SC2016  # RANK is each process's own
  launch=(env "OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(((cores + $2 - 1) / $2))}" "${launch[@]}"
    --no-python bash -c 'exec fairseq-train "$@" --distributed-rank "$RANK"' fairseq-train)
}

# Sets tensorboard: whether it is there to log to.
plan_log() {
  tensorboard=1
  if ! python3 -c 'import tensorboard' 2> /dev/null; then
    tensorboard=""
    say "no TensorBoard log: pip install tensorboard" >&2
  fi
}

# Architectures and flags that fairseq does not know would else be noticed only once their turn has come.
check_command() {
  local arch seed new=""
  [[ ${stages[0]} == prepare ]] || ((${#archs[@]} > 1)) || return 0 # it comes at once
  for arch in "${archs[@]}"; do
    for seed in "${seeds[@]}"; do [[ -f $work/$arch/seed$seed/manifest.json ]] || new=1; done
  done
  [[ ! $new ]] || python3 "$common/check_flags.py" "${archs[@]}" -- "$data/data-bin" --user-dir "$plugin" \
    "${flags[@]}" "${device[@]}" "${extra[@]}" || exit 1
}

train_one() { # ARCH SEED
  local run=$work/$1/seed$2 asked command keep=() had otherwise
  ((average <= $(flag --keep-last-epochs "$average"))) || keep=(--keep-last-epochs "$average")
  command=("$data/data-bin" --user-dir "$plugin" --save-dir "$run" --arch "$1"
    --seed "$2" "${flags[@]}" "${keep[@]}" --max-tokens "$max_tokens" --update-freq "$update_freq"
    --max-update "$max_update" "${device[@]}" --log-format json --log-interval 10 "${extra[@]}")
  [[ ! $tensorboard ]] || command+=(--tensorboard-logdir "$run/tensorboard")
  if [[ $dry_run ]]; then
    printf '%q ' "${launch[@]}" "${command[@]}" && echo
    return
  fi
  # What is trained, wherever: elsewhere, on other devices or saved more often it is finished all the same.
  trains_otherwise
  asked=$(hash_of "$(fingerprint)" "$1" "$2" "${flags[@]}" "$max_update" "${otherwise[@]}" \
    "${precision/fp16/}")
  if [[ -f $run/trained && $(< "$run/trained") == "$asked" ]]; then return; fi
  mkdir -p "$run"
  if ((${NNODES:-1} > 1 && NODE_RANK)); then # the first node keeps the log; fairseq is silent on others
    ! had=$(updates "$run" 2> /dev/null) || ((had < max_update)) || return 0
    "${launch[@]}" "${command[@]}" >> "$run/train-$NODE_RANK.log" 2>&1 \
      || die "training failed on this node; see $run/train-$NODE_RANK.log"
    return
  fi
  hold "$run/training.lock"
  python3 "$common/mend.py" "$run"
  had=$(updates "$run")
  check_batch "$run" "$had"
  ((had <= max_update)) \
    || die "$run has had $had updates already: give --max-update $had or more, or another --work"
  macaron-fairseq manifest "$run" --data "$data" -- "${command[@]}"
  if ((had < max_update)); then # else fairseq would make one update more
    rm -f "$run/trained"
    "${launch[@]}" "${command[@]}" 2>&1 \
      | python3 "$common/progress.py" "$1, seed $2" "$run/train.log"
  fi
  echo "$asked" > "$run/trained"
  release
}

# The value that a flag of the recipe has, the later one where it is given twice.
flag() { # NAME DEFAULT
  local i value=$2
  for ((i = 0; i < ${#flags[@]}; i++)); do
    [[ ${flags[i]} != "$1" ]] || value=${flags[i + 1]}
  done
  echo "$value"
}

# How many updates the run goes on from.
updates() { # RUN
  if [[ ! -f $1/checkpoint_last.pt || " ${extra[*]} " == *" --restore-file"* ]]; then
    echo 0
  else
    python3 "$common/updates.py" "$1"
  fi
}

# Sets otherwise: what the options say of the model, over the recipe; not how often it is saved and logged
# (SAVING in evaluation/training_flags.py, as far as it is given here).
trains_otherwise() {
  local i
  otherwise=()
  for ((i = 0; i < ${#extra[@]}; i++)); do
    case ${extra[i]} in
      --save-interval-updates | --keep-interval-updates | --log-interval | --num-workers) i=$((i + 1)) ;;
      *) otherwise+=("${extra[i]}") ;;
    esac
  done
  if ((batch != usual_batch)); then otherwise+=("--batch $batch"); fi
}

# The manifest's flags say how the batch is divided, which may change, and not what it is.
check_batch() { # RUN UPDATES
  local before=$usual_batch # of runs that do not say it
  if [[ -f $1/batch ]]; then before=$(< "$1/batch"); fi
  (($2 == 0 || before == batch)) \
    || die "$1 was trained with $before tokens an update: give --batch $before, or another --work"
  echo "$batch" > "$1/batch.part"
  mv "$1/batch.part" "$1/batch"
}
