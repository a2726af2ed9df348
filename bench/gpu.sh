#!/usr/bin/env bash
# Run everything that needs a GPU: build for the installed torch, tests that use the device, benchmarks, and the memory checker
# over the kernels' tests. Needs torch with CUDA, nvcc of the same major version, cmake, ninja, pybind11
# and the packages of the test extra (python-flint apart); no network.
#
#   bash bench/gpu.sh [RESULTS_DIRECTORY]      default bench/results
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-bench/results}" && cd "${1:-bench/results}" && pwd)
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

PYROBUST_CUDA=1 python3 -m pip install -q --no-build-isolation --no-deps --no-index .
python3 - <<'PY'
import torch, pyrobust
from pyrobust.ops import build_info
assert torch.cuda.is_available(), "no GPU"
print(torch.__version__, torch.cuda.get_device_name(), build_info())
PY
(cd tests && python3 -m pytest -q ops reference test_runner.py test_determinism.py smoothing compat attacks evaluation/test_smoothed_accuracy.py evaluation/test_robustness_curve.py \
  bounds/engines/test_tensor_engine.py) \
  2>&1 | tee "$results/gpu-tests.txt"
if command -v compute-sanitizer >/dev/null; then
  (cd tests && compute-sanitizer --error-exitcode 1 python3 -m pytest -q ops -k "cuda") 2>&1 | tail -n 20 |
    tee "$results/gpu-memcheck.txt"
fi
python3 bench/run.py --device cuda --json "$results/gpu.json" | tee "$results/gpu.txt"
