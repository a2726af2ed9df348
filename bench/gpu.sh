#!/usr/bin/env bash
# Everything that needs a GPU, in stages that each end within eight minutes: the build, the tests that use the device, the
# memory and race checkers over a few of them, and benchmarks. A test or case that fails stops nothing after it, and a
# stage that is stopped keeps what it wrote.
#
#   bash bench/gpu.sh [--results DIRECTORY] [--device cpu] [build] [test] [memcheck] [bench]      all four; bench/results
#
# Runs in a virtual environment with torch for CUDA, nvcc of the same major version, setuptools, cmake, ninja, pybind11, the
# package's dependencies, pytest and hypothesis; needs no network. Test files that import more than that are reported and
# left out. `--device cpu` is a rehearsal on a machine without a GPU: tests are skipped, and benchmarks measure the CPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results=bench/results device=cuda stages=()
while (($#)); do
  case $1 in
    --results | --device) declare "${1#--}=${2:?"$1: expected a value"}"; shift ;;
    build | test | memcheck | bench) stages+=("$1") ;;
    *) echo "gpu.sh: expected build, test, memcheck, bench, --results DIRECTORY or --device cpu, got '$1'" >&2; exit 2 ;;
  esac
  shift
done
((${#stages[@]})) || stages=(build test memcheck bench)
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit
# The source folder serves as the package: the stages share one build, and nothing is installed.
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# limited SECONDS COMMAND...: pytest and run.py report what they have when they are interrupted.
limited() { timeout -s INT -k 15 "$@"; }

build() {
  python3 - <<'PY' || return
import importlib.util, sys
missing = [name for name in ("torch", "numpy", "scipy", "rich", "typer", "setuptools", "pybind11", "pytest", "hypothesis")
           if importlib.util.find_spec(name) is None]
sys.exit(f"packages: expected all of gpu.sh's, missing {', '.join(missing)}; install them into this environment" if missing else 0)
PY
  PYROBUST_CUDA=1 limited 420 python3 setup.py -q build_ext --inplace && limited 40 python3 - "$device" <<'PY'
import sys, torch
from pyrobust.ops import build_info
assert build_info()["cuda"] is not None, "built without CUDA"
assert sys.argv[1] == "cpu" or torch.cuda.is_available(), "torch finds no GPU"
print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", build_info())
PY
}

# tests SECONDS [PYTEST ARGUMENTS]: without paths, all tests that use a GPU, wherever they are.
tests() {
  local seconds=$1
  shift
  (cd tests && limited "$seconds" "${checker[@]}" python3 -m pytest -v --tb=short -p no:cacheprovider \
    --continue-on-collection-errors -m "gpu and not full" "$@")
}
checker=()

test_() { tests 450 --durations=20; }

# The checkers slow kernels down by one to two orders of magnitude and let no launch run beside the host.
memcheck() {
  local failed=0 small="not opcheck and not wait and not stream and not any_float and not more_rows and not long_runs"
  if [ "$device" = cuda ] && ! command -v compute-sanitizer >/dev/null; then
    echo "memcheck: compute-sanitizer is not on PATH; install the CUDA toolkit's" && return 1
  fi
  check() { # TOOL SECONDS [PYTEST ARGUMENTS]
    local tool=$1
    shift
    echo "== $tool"
    [ "$device" = cuda ] && checker=(compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 20)
    # Torch's cache would hand out parts of one block, whose ends no checker knows.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 tests "$@" || failed=1
    checker=()
  }
  check memcheck 200 ops/test_examples.py ops/test_logits.py ops/test_relax_rows.py ops/test_relax_coefficients.py \
    ops/test_devices.py ops/test_sample_grid_noise_calls.py ops/test_perturbation.py ops/test_project_calls.py \
    -k "$small and not (test_votes and (3-ties or special or 33 or 63 or 128 or 129)) and not uniform-64"
  # Kernels whose threads share memory or wait for each other.
  local blocks=(ops/test_examples.py ops/test_relax_rows.py ops/test_relax_coefficients.py ops/test_project_cuda.py)
  for tool in racecheck synccheck; do
    check "$tool" 120 "${blocks[@]}" -k "cuda_matches or agrees or relax or bad_rows or bad_steps or outside_the_box"
  done
  return "$failed"
}

bench() {
  limited 450 python3 bench/run.py --device "$device" --repeats 5 --json "$results/gpu.json" \
    --group sample_noise,sample_grid_noise,count_votes,project_l1,project_norm_balls,relax_coefficients,attack_step,certify,training_step,bounds
}

[ "$device" = cuda ] && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
code=0 summary=()
for stage in "${stages[@]}"; do
  begin=$SECONDS
  printf '\n== %s\n' "$stage"
  case $stage in test) run=test_ ;; *) run=$stage ;; esac
  "$run" > >(tee "$results/gpu-$stage.txt") 2>&1
  status=$?
  wait $!
  ((status)) && code=1
  case $status in 0) outcome=passed ;; 124 | 137) outcome="stopped at its limit" ;; *) outcome="failed ($status)" ;; esac
  summary+=("$stage: $outcome, $((SECONDS - begin)) s, $results/gpu-$stage.txt")
  [ "$stage$status" != build0 ] && [ "$stage" = build ] && break
done
printf '%s\n' "" "${summary[@]}"
exit "$code"
