# What all recipes share: their options, their messages, and steps that know whether they are done.
# A recipe sets what it is about, sources this file and ends with: recipe "$@"
#
# It sets         pairs             the language pairs it offers, the default first; none: any
#                 steps             of `macaron-fairseq tokenize`, in the order that is asked for
#                 merges            of the joint BPE
#                 tests             names of the test sets: raw/NAME.LANGUAGE
#                 clean             flags of clean.py for the training pairs; unset: keep all
#                 valid_every       every so many-th training pair goes to valid; unset: raw has it
#                 sizes             pairs expected in train, valid and the test sets; unset: any
#                 archs             the baseline first; runs differ in --arch alone
#                 flags             of fairseq-train
#                 tokens batches    an update is BATCHES batches of at most TOKENS tokens
#                 max_update        where training ends at the latest
#                 average           how many of the last checkpoints are averaged; 0: the best alone
#                 decode            flags of fairseq-generate
#                 metrics           flags of `macaron-fairseq score`
# and defines     inputs            fetches the archives and prints a text that changes when they do
#                 raw FOLDER        writes train, valid and the test sets as NAME.LANGUAGE
# and may define  setting_NAME      for --setting NAME: sets some of the above otherwise
#                 for_pair          sets what depends on the languages
# A setting that others' scores do not belong to sets published="".
# shellcheck shell=bash disable=SC2034,SC2154

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "the recipes need bash 4.4 or newer, not $BASH_VERSION" >&2
  exit 1
fi
shopt -s inherit_errexit
unset CDPATH # with which cd prints, and may go elsewhere
pairs=() sizes=() clean="" valid_every=""
common=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
plugin=$(cd "$common/../../macaron_fairseq" && pwd)
# shellcheck source=prepare.sh
source "$common/prepare.sh"
# shellcheck source=train.sh
source "$common/train.sh"
# shellcheck source=evaluate.sh
source "$common/evaluate.sh"

say() { printf '%s: %s\n' "$name" "$*"; }

die() {
  printf '%s: %s\n' "$name" "$*" >&2
  exit 1
}

need() { # COMMAND...
  local command
  for command; do
    command -v "$command" > /dev/null \
      || die "$command is not on the PATH: install it, or activate the environment that has it"
  done
}

need_data() {
  [[ -f $data/preprocessing.json ]] || die "$data holds no data yet: run the stage prepare first"
}

# What the data is, wherever and from what it was prepared.
fingerprint() { sed -n 's/^ *"fingerprint": "\(.*\)".*/\1/p' "$data/preprocessing.json"; }

version() { # PACKAGE
  python3 -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1"
}

# Keep others from working on the same, until `release` or the end of this process and its children.
hold() { # LOCK
  command -v flock > /dev/null || return 0
  exec 9> "$1"
  # A killed run lets go once its last process is gone. 1 is flock's for having waited too long;
  # some network disks have no locks.
  flock -w 20 9 || (($? != 1)) || die "another run is at work there: it holds $1"
}

release() { exec 9>&-; }

# Run a command and keep what it says on standard error, which is shown on a terminal.
logged() { # LOG COMMAND...
  local log=$1 status=0
  shift
  if [[ -t 2 ]]; then
    "$@" 2> >(tee "$log" >&2) || status=$?
  else
    "$@" 2> "$log" || status=$?
  fi
  if ((status)); then
    [[ -t 2 ]] || tail -n 20 "$log" >&2
    die "$1 failed; see $log"
  fi
}

hash_of() { # TEXT...
  printf '%s\0' "$@" | sha256sum | cut -d ' ' -f 1
}

# Stands for code: what other code made is not taken for this one's.
code() { cat "$@" | sha256sum; } # FILE...

# step FOLDER INPUTS COMMAND...
# Let COMMAND fill FOLDER, whose name it gets as its last argument, unless the same COMMAND did so from
# the same INPUTS (a text that stands for them). A kill leaves FOLDER.part, which is not taken for done.
step() {
  local folder=$1 made_from
  made_from=$(hash_of "${@:2}")
  shift 2
  rm -rf "$folder.old"
  if [[ -f $folder/made-from && $(< "$folder/made-from") == "$made_from" ]]; then return; fi
  rm -rf "$folder.part"
  mkdir -p "$folder.part"
  "$@" "$folder.part"
  printf '%s\n' "$made_from" > "$folder.part/made-from"
  [[ ! -e $folder ]] || mv "$folder" "$folder.old" # half removed it would still pass for done
  mv "$folder.part" "$folder"
  rm -rf "$folder.old"
}

usage() {
  sed -n '2,/^[^#]/ { /shellcheck/d; s/^# \{0,1\}//p; }' "$0"
  cat << 'END'

usage: STAGE... [OPTION...] [-- FLAG...]
  prepare train evaluate report    the stages, in this order; none named: all of them

  --pair S-T         languages, where the recipe offers several
  --setting NAME     a variant of the recipe, listed above
  --work FOLDER      where everything is written (default: runs/RECIPE, and pair and setting)
  --from FOLDER      take the archives from there and use no network
  --mirror ADDRESS   try ADDRESS/ARCHIVE first; may be repeated
  --archs "A B"      architectures, the baseline first
  --seeds "1 2 3"    train each architecture with each of these (default: 1)
  --merges N         BPE merges to learn from both languages (stage prepare)
  --max-update N     end training at N updates
  --batch N          tokens of an update, on all devices together (default: the recipe's)
  --max-tokens N     tokens on a device at once; the batch of an update stays the same
  --average N        score the mean of the last N checkpoints; 0: the best checkpoint
  --bf16, --fp32     precision on GPUs (default: fp16; on a CPU always fp32)
  --cpu              use no GPU
  --processes N      train in N processes on a CPU, which share its cores (default: 1)
  --gpus N           as if N GPUs were here (for --dry-run)
  --sizes any        accept archives of other sizes and checksums than the usual ones
  --workers N        processes for text work (default: all cores)
  --dry-run          print the training commands and do nothing
  -- FLAG...         further flags of fairseq-train, for all architectures

Run it again after an interruption: finished work is kept, training resumes. Each stage wants the same
options; the flags after -- matter to train, and those of the models' positions to prepare.
Several nodes: start it once on each with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set.
END
}

parse() { # ARGUMENT...
  while (($#)); do
    case $1 in
      prepare | train | evaluate | report) stages+=("$1") ;;
      --bf16 | --fp32) precision=${1#--} ;;
      --cpu) cpu=1 ;;
      --dry-run) dry_run=1 ;;
      -h | --help) usage && exit ;;
      --) shift && extra=("$@") && break ;;
      --pair | --setting | --work | --from | --mirror | --archs | --seeds | --merges | \
        --max-update | --batch | --max-tokens | --average | --gpus | --processes | --workers | --sizes)
        [[ ${2:-} && $2 != --* ]] || die "$1 needs a value; see --help"
        [[ ! -v options[${1#--}] || $1 != --@(pair|setting|archs|seeds) ]] || die "$1 is given twice; see --help"
        if [[ $1 == --mirror ]]; then mirrors+=("${2%/}"); else options[${1#--}]=$2; fi
        shift
        ;;
      *) die "$1 is no stage and no option; see --help" ;;
    esac
    shift
  done
}

# What the options say, over what the recipe says.
apply_options() {
  local setting=${options[setting]:-} pair=${options[pair]:-${pairs[0]:-}} number
  if [[ $setting ]]; then
    declare -F "setting_$setting" > /dev/null || die "there is no setting $setting; see --help"
    "setting_$setting"
  fi
  [[ $pair =~ ^[a-z]{2,3}-[a-z]{2,3}$ ]] || die "say which languages: --pair S-T, for example en-de"
  [[ ! ${pairs[*]} || " ${pairs[*]} " == *" $pair "* ]] || die "the pairs are ${pairs[*]}, not $pair"
  source=${pair%-*} target=${pair#*-}
  [[ $source != "$target" ]] || die "--pair names two languages, not $source twice"
  if declare -F for_pair > /dev/null; then for_pair "$source" "$target"; fi
  [[ ! ${options[archs]:-} ]] || read -r -a archs <<< "${options[archs]}"
  read -r -a seeds <<< "${options[seeds]:-1}"
  merges=${options[merges]:-$merges}
  max_update=${options[max-update]:-$max_update}
  usual_batch=$((tokens * batches))
  batch=${options[batch]:-$usual_batch}
  max_tokens=${options[max-tokens]:-$tokens}
  gpus=${options[gpus]:-}
  [[ ! $gpus || $dry_run ]] || die "--gpus is for --dry-run: hide GPUs with CUDA_VISIBLE_DEVICES"
  processes=${options[processes]:-1}
  workers=${options[workers]:-$(env -u OMP_NUM_THREADS nproc)} # nproc would heed it
  average=${options[average]:-$average}
  for number in "$merges" "$max_update" "$batch" "$max_tokens" "$processes" "$workers" "${seeds[@]}" ${gpus:+"$gpus"}; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || die "'$number' should be a whole number above 0; see --help"
  done
  if [[ ! ${options[max-tokens]:-} ]] && ((max_tokens > batch)); then max_tokens=$batch; fi
  [[ $average =~ ^(0|[1-9][0-9]*)$ ]] || die "--average takes a whole number, not '$average'; see --help"
  check_extra
  case ${options[sizes]:-} in
    "") ;;
    any) sizes=() ;;
    *) die "--sizes takes the word any" ;;
  esac
  from=${options[from]:-}
  [[ ! $from || -d $from ]] || die "$from, given by --from, is no folder"
  [[ ! $from ]] || from=$(cd "$from" && pwd)
  work=${options[work]:-${plugin%/*}/runs/$name${options[pair]:+-$pair}${setting:+-$setting}}
  [[ $work == /* ]] || work=$PWD/$work
  [[ $dry_run ]] || { mkdir -p "$work" && work=$(cd "$work" && pwd); }
  [[ $work != *[:,]* ]] || die "fairseq splits paths at ':' and ',': choose another --work than $work"
  data=$work/data
  if [[ $dry_run ]]; then stages=(train); fi
  ((${#stages[@]})) || stages=(prepare train evaluate report)
  [[ $pair == "${pairs[0]:-$pair}" ]] || published=""
}

# What the recipe counts with must not be said behind its back.
check_extra() {
  local i flag value
  for ((i = 0; i < ${#extra[@]}; i++)); do
    flag=${extra[i]%%=*} value=${extra[i]#*=}
    [[ ${extra[i]} == *=* ]] || value=${extra[i + 1]:-}
    case $flag in
      --max-update | --max-tokens | --cpu | --bf16) die "$flag is an option: name it before --" ;;
      --arch | -a | --seed | --save-dir | --update-freq | --fp16 | --distributed-world-size)
        die "$flag is set by the recipe: see --archs, --seeds, --work, --batch, --fp32 and --processes"
        ;;
      --batch-size | --max-sentences)
        die "$flag would make updates smaller than the recipe's: see --batch and --max-tokens"
        ;;
      --keep-last-epochs)
        [[ ! $value =~ ^[0-9]+$ ]] || ((value >= average)) \
          || die "the last $average epochs are to be averaged: keep as many, or give --average $value"
        ;;
      --no-epoch-checkpoints)
        ((average == 0)) || die "the last $average epochs are to be averaged: leave out $flag"
        ;;
    esac
  done
}

recipe() { # ARGUMENT...
  local stages=() mirrors=() extra=() precision=fp16 cpu="" dry_run="" stage
  local launch=(fairseq-train) device=() update_freq tensorboard # of the stage train
  local -A options=()
  name=$(basename "$(cd "$(dirname "$0")" && pwd)")
  published=$(dirname "$0")/published.json
  parse "$@"
  need python3 macaron-fairseq fairseq-preprocess fairseq-train fairseq-generate subword-nmt
  apply_options
  # Text is UTF-8 whatever the machine's language.
  export PYTHONUTF8=1
  # cuDNN's attention, PyTorch's first choice on some GPUs, plans anew for each shape of a batch.
  export TORCH_CUDNN_SDPA_DEPRIORITIZED=${TORCH_CUDNN_SDPA_DEPRIORITIZED:-1}
  if [[ " ${stages[*]} " == *" train "* ]]; then # what cannot be trained is refused before hours of text
    [[ $dry_run || ${stages[0]} == prepare ]] || need_data
    plan_devices
    plan_log
    [[ $dry_run ]] || check_command
  fi
  for stage in "${stages[@]}"; do "stage_$stage"; done
}

stage_report() {
  local runs=() arch seed beside=()
  need_data
  if [[ -f $published ]]; then beside=(--published "$published"); fi
  for arch in "${archs[@]}"; do
    for seed in "${seeds[@]}"; do
      check_data "$work/$arch/seed$seed"
      runs+=("$work/$arch/seed$seed")
    done
  done
  macaron-fairseq report "${runs[@]}" --baseline "${archs[0]}" --title "$name $source-$target" \
    "${beside[@]}" -o "$work/report"
}
