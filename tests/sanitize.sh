#!/usr/bin/env bash
# Run the CPU kernels under the address and undefined-behaviour sanitizers. Needs a build with PYROBUST_SANITIZE=1 in the source
# tree (PYROBUST_SANITIZE=1 python setup.py build_ext --inplace), which is imported ahead of an installed pyrobust.
set -euo pipefail
cd "$(dirname "$0")/.."
asan=$(gcc -print-file-name=libasan.so) ubsan=$(gcc -print-file-name=libubsan.so)
# Preload libstdc++ as well: the sanitizer looks up the C++ runtime's throw before torch has loaded it.
LD_PRELOAD="$asan $ubsan $(gcc -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  PYTHONPATH=$PWD PYTHONMALLOC=malloc OMP_NUM_THREADS=2 \
  python tests/sanitize.py
