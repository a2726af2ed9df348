#!/usr/bin/env bash
# The reference pages, from the docstrings: bash docs/reference.sh [DIRECTORY], default docs/reference. Needs the extra `docs`.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/reference}")
cd /  # documents the installed package, not a folder that happens to be here
pdoc -d google -o "$out" pyrobust pyrobust.errors pyrobust.ops pyrobust.reference pyrobust.stats pyrobust.runner \
  pyrobust.metrics pyrobust.metrics.torchmetrics pyrobust.zoo pyrobust.smoothing pyrobust.attacks pyrobust.bounds pyrobust.training pyrobust.text pyrobust.threats pyrobust.threats.judges pyrobust.threats.models \
  pyrobust.threats.adapters pyrobust.evaluation pyrobust.report pyrobust.compat.smoothing \
  pyrobust.compat.autoattack pyrobust.compat.deel_lip pyrobust.compat.torchattacks pyrobust.compat.robustbench
