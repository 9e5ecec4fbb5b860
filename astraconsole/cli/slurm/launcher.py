"""What a worker of a Slurm job runs: plain sh, so that every image with a shell serves. Pure.

The files travel as the run's code, and so stand in the worker's working folder. `launch` sets what Slurm would set and
becomes the script: signals and the exit code are the script's own.
"""

FOLDER = ".astra-slurm"

LAUNCH = r"""# Becomes the batch script beside it.
set -u
home="$PWD/.astra-slurm"
export SLURM_SUBMIT_DIR="$PWD"

export SLURM_NNODES="${NNODES:-1}" SLURM_NODEID="${NODE_RANK:-0}" SLURMD_NODENAME="${ASTRA_WORKER:-worker}"
export SLURM_JOB_NUM_NODES="$SLURM_NNODES" SLURM_LOCALID=0 SLURM_GTIDS=0 SLURM_TASK_PID=$$
export SLURM_RESTART_COUNT=$(( ${ASTRA_ATTEMPT:-1} - 1 ))
head="${MASTER_ADDR:-127.0.0.1}"; list="$head"; node=1
while [ "$node" -lt "$SLURM_NNODES" ]; do list="$list,${ASTRA_RUN:-run}-$node"; node=$((node + 1)); done
[ "$SLURM_NODEID" -gt 0 ] || SLURMD_NODENAME="$head"
export SLURM_JOB_NODELIST="$list" SLURM_NODELIST="$list"
each=$((SLURM_NTASKS / SLURM_NNODES)); more=$((SLURM_NTASKS % SLURM_NNODES))
before="$SLURM_NODEID"; [ "$before" -lt "$more" ] || before="$more"
export SLURM_PROCID=$((SLURM_NODEID * each + before))
[ "$more" -gt 0 ] && each=$((each + 1))
export SLURM_TASKS_PER_NODE="$each"
[ "$SLURM_NNODES" -eq 1 ] || SLURM_TASKS_PER_NODE="$each(x$SLURM_NNODES)"

if [ -n "${ASTRA_SLURM_ARRAY:-}" ]; then
  left="${ASTRA_ARRAY_INDEX:-0}"; saved="${IFS- }"; IFS=,
  for range in $ASTRA_SLURM_ARRAY; do
    first="${range%-*}"; size=$((${range#*-} - first + 1))
    if [ "$left" -lt "$size" ]; then export SLURM_ARRAY_TASK_ID=$((first + left)); break; fi
    left=$((left - size))
  done
  IFS="$saved"
fi

export PATH="$home/bin:${PATH:-/usr/local/bin:/usr/bin:/bin}"
[ -z "${ASTRA_SLURM_CHDIR:-}" ] || cd "$ASTRA_SLURM_CHDIR" || exit 1
IFS= read -r line < "$home/script" || :
set +u
exec ${line#"#!"} "$home/script" "$@"
"""

SRUN = r"""#!/bin/sh
# Starts this node's tasks of a step. Steps are node-local: each worker runs the whole script.
say() { echo "srun: $*" >&2; }
tasks=; nodes=; per_node=; label=; kill_all=; where=; gpus_each="${SLURM_GPUS_PER_TASK:-}"; folder=
set_option() {
  case "$1" in
    ntasks) tasks="$2" ;; nodes) nodes="${2%%-*}" ;; ntasks-per-node) per_node="$2" ;;
    nodelist) where="$2" ;; chdir) folder="$2" ;; gpus-per-task) gpus_each="${2##*:}" ;;
    cpus-per-task) export SLURM_CPUS_PER_TASK="$2" ;;
    kill-on-bad-exit) [ "$2" = 0 ] && kill_all= || kill_all=1 ;;
    export) say "--export is ignored: the tasks have the script's environment" ;;
    multi-prog|pty|het-group|bcast) say "--$1 is not supported"; exit 2 ;;
    container-image|container-mounts|container) say "--$1 is ignored: the tasks run in the worker's image" ;;
  esac
}
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    --label) label=1 ;; --kill-on-bad-exit) kill_all=1 ;;
    --unbuffered|--exclusive|--exact|--overlap|--overcommit|--quiet|--verbose|--no-kill|--immediate|--external) ;;
    --no-container-*|--container-mount-home|--container-writable|--oversubscribe|--contiguous|--disable-status) ;;
    --multi-prog|--pty|--bcast) name="${1#--}"; set_option "$name" "" ;;
    --*=*) name="${1%%=*}"; set_option "${name#--}" "${1#*=}" ;;
    --*) name="${1#--}"; [ $# -gt 1 ] || { say "$1 needs a value"; exit 2; }; shift; set_option "$name" "$1" ;;
    -[!-]*)
      letters="${1#-}"
      while [ -n "$letters" ]; do
        rest="${letters#?}"; letter="${letters%"$rest"}"; letters="$rest"
        case "$letter" in
          l) label=1 ;;
          K) kill_all=1; case "$rest" in [01]) [ "$rest" = 1 ] || kill_all=; letters= ;; esac ;;
          u|k|Q|v|O|s|E|X|H|I|Z) ;;
          *)
            if [ -n "$rest" ]; then value="$rest"; letters=; else
              [ $# -gt 1 ] || { say "-$letter needs a value"; exit 2; }
              shift; value="$1"
            fi
            case "$letter" in
              n) set_option ntasks "$value" ;; N) set_option nodes "$value" ;; w) set_option nodelist "$value" ;;
              c) set_option cpus-per-task "$value" ;; D) set_option chdir "$value" ;;
            esac ;;
        esac
      done ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || { say "no command given"; exit 1; }
for number in "$tasks" "$nodes" "$per_node" "$gpus_each"; do
  case "$number" in *[!0-9]*|0) say "$number is not a number of at least 1"; exit 2 ;; esac
done

# Which nodes run the step, and which of its tasks this one has: in blocks, as Slurm deals them out.
: "${SLURM_NNODES:=1}" "${SLURM_NODEID:=0}" "${SLURM_NTASKS:=1}"
if [ -z "$nodes" ]; then
  nodes="$SLURM_NNODES"
  [ -z "$tasks" ] || [ "$tasks" -ge "$nodes" ] || nodes="$tasks"
fi
if [ -n "$where" ]; then
  position=0; mine=; saved="${IFS- }"; IFS=,
  for name in $where; do
    [ "$name" != "$SLURMD_NODENAME" ] || mine="$position"
    position=$((position + 1))
  done
  IFS="$saved"; nodes="$position"
  # The address of a node, which any node may ask for.
  [ "$1" != hostname ] || [ "$position" -ne 1 ] || { echo "$where"; exit 0; }
else
  mine="$SLURM_NODEID"
fi
if [ -z "$mine" ] || [ "$mine" -ge "$nodes" ]; then say "this step runs on other nodes"; exit 0; fi
if [ -z "$tasks" ]; then
  if [ -n "$per_node" ]; then tasks=$((per_node * nodes))
  elif [ "$nodes" -eq "$SLURM_NNODES" ]; then tasks="$SLURM_NTASKS"
  else tasks=$(( (SLURM_NTASKS + SLURM_NNODES - 1) / SLURM_NNODES * nodes )); fi
fi
here=$((tasks / nodes)); more=$((tasks % nodes))
if [ "$mine" -lt "$more" ]; then here=$((here + 1)); first=$((mine * here)); else first=$((mine * here + more)); fi
[ "$here" -gt 0 ] || exit 0
[ -z "$folder" ] || cd "$folder" || exit 1
export SLURM_NTASKS="$tasks" SLURM_NPROCS="$tasks" SLURM_STEP_NUM_TASKS="$tasks" SLURM_STEP_NUM_NODES="$nodes"
export SLURM_STEP_TASKS_PER_NODE="$here" SLURM_STEP_ID="${SLURM_STEP_ID:-0}"

take_gpus() { # the GPUs of the task with this local number, where each has its own
  [ -n "$gpus_each" ] || return 0
  visible="${CUDA_VISIBLE_DEVICES:-}"
  if [ -z "$visible" ]; then
    number=0
    while [ "$number" -lt "${ASTRA_GPU_COUNT:-0}" ]; do
      visible="${visible:+$visible,}$number"; number=$((number + 1))
    done
  fi
  chosen=; number=0; saved="${IFS- }"; IFS=,
  for gpu in $visible; do
    [ $((number / gpus_each)) -ne "$1" ] || chosen="${chosen:+$chosen,}$gpu"
    number=$((number + 1))
  done
  IFS="$saved"; export CUDA_VISIBLE_DEVICES="$chosen"
}
if [ "$here" -eq 1 ] && [ -z "$label" ]; then
  take_gpus 0
  export SLURM_PROCID="$first" SLURM_LOCALID=0
  exec "$@"
fi

# Traps stand before what they pass signals to: one that comes in between is passed on late, never lost.
signals="TERM INT HUP USR1 USR2 CONT"
pass_on() { pending="$1"; for child in $children; do kill "-$1" "$child" 2>/dev/null; done; }
trap_signals() { children=; pending=; for name in $signals; do trap "pass_on $name" "$name"; done; }
started() { children="$children $1"; [ -z "$pending" ] || kill "-$pending" "$1" 2>/dev/null; }
await() { while :; do wait "$1"; code=$?; kill -0 "$1" 2>/dev/null || return 0; done; }
# Again and again: a task that has only just been forked has its shell's traps still, and misses a signal.
end_step() { while kill -TERM "$main" 2>/dev/null; do sleep 1; done; }
task() { # in a subshell: one task, its signals and its exit code
  trap_signals
  export SLURM_PROCID=$((first + $1)) SLURM_LOCALID="$1"
  take_gpus "$1"; shift
  pipe="${TMPDIR:-/tmp}/astra-srun-$main-$SLURM_PROCID"
  if [ -n "$label" ] && mkfifo "$pipe" 2>/dev/null; then
    while IFS= read -r line || [ -n "$line" ]; do printf '%s: %s\n' "$SLURM_PROCID" "$line"; done < "$pipe" &
    printer=$!
    exec > "$pipe" 2>&1
    rm -f "$pipe"
  else printer=; fi
  "$@" < /dev/null &
  started $!
  await $!
  exec > /dev/null 2>&1
  [ -z "$printer" ] || wait "$printer"
  [ -z "$kill_all" ] || [ "$code" -eq 0 ] || end_step &
  exit "$code"
}
main=$$; number=0; worst=0
trap_signals
while [ "$number" -lt "$here" ]; do
  ( task "$number" "$@" ) &
  started $!; number=$((number + 1))
done
for one in $children; do
  await "$one"
  [ "$code" -le "$worst" ] || worst="$code"
done
exit "$worst"
"""

SCONTROL = r"""#!/bin/sh
case "$1 ${2:-}" in
  "show hostnames"|"show hostname")
    saved="${IFS- }"; IFS=,
    for name in ${3:-$SLURM_JOB_NODELIST}; do echo "$name"; done ;;
  *) echo "scontrol: only 'show hostnames' works in a worker" >&2; exit 1 ;;
esac
"""


def files(script: str) -> dict[str, bytes]:
    """What goes along with a run, by its place in the working folder."""
    texts = {"launch": LAUNCH, "bin/srun": SRUN, "bin/scontrol": SCONTROL, "script": script}
    return {f"{FOLDER}/{name}": text.encode() for name, text in texts.items()}


def command_of(arguments: list[str]) -> list[str]:
    """The command of every worker, as an argument list."""
    return ["sh", f"{FOLDER}/launch", *arguments]
