#!/usr/bin/env bash
# Measures again what benchmarks/results and the shipped choices say, step by step; a step that fails stops no other.
#
#     benchmarks/refresh.sh FOLDER [STEP ...]
#
# All steps take half an hour on an H200, and PyTorch.  FOLDER gets the results, tuning.sqlite and a log of each step.
set -uo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd) && shift || exit 2
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
python3 benchmarks/at_hand.py torch || exit
suites=alexnet,zfnet,vgg16,googlenet,resnet50,densenet121,yolov2,strided,lenet,depthwise,mobilenet_v2,convnext,grouped

both() { local n; for n in 8 64; do "$1" $n || return; done; }
bench() { python3 -m convgen bench --suite "$suites" -D n="$1" --chain --fused --out "$folder/bench_n$1_h200.json"; }
documents() {
  local found=0
  document() { python3 benchmarks/documents.py "$1" --batch $2 --json "$folder/$3_h200.json" || found=1; }
  document networks 8 whole_networks_n8
  document explicit 64 explicit
  document stride "8 64" strides
  document reuse 64 reuse
  document multi-tile 8 multi_tile
  document naive 32 naive
  document forms 128 forms
  document lenet "32 64 128 256" lenet
  return $found
}
step() {
  case $1 in
    tests) python3 -m pytest -q tests/gpu ;;
    sanitize) python3 benchmarks/sanitize.py --out "$folder/sanitize_h200.json" ;;
    retune) benchmarks/retune.sh 500 "$folder/retune.sqlite" && cp convgen/planner/tuning.sqlite "$folder" ;;
    bench) both bench ;;
    epilogues) python3 benchmarks/epilogues.py --out "$folder/epilogues_h200.json" ;;
    unseen) python3 benchmarks/unseen.py --seed 2026 --out "$folder/unseen_h200.json" ;;
    documents) documents ;;
    nchw)
      python3 benchmarks/nchw.py --batch 8 64 --json "$folder/nchw_h200.json"
      python3 benchmarks/nchw.py --batch 8 64 --type f32 --json "$folder/nchw_float32_h200.json"
      ;;
    winograd) python3 benchmarks/winograd.py --batch 8 64 --json "$folder/winograd_h200.json" ;;
    dynamic) python3 benchmarks/dynamic.py --json "$folder/dynamic_h200.json" ;;
    floor) python3 benchmarks/floor.py --json "$folder/floor_h200.json" ;;
    ampere) python3 benchmarks/implicit_gemm.py --suite aligned --json "$folder/implicit_gemm_aligned_h200.json" ;;
    *) echo "no step $1"; return 2 ;;
  esac
}

failed=()
[ $# -gt 0 ] || set -- tests sanitize retune bench epilogues unseen documents nchw winograd dynamic floor ampere
for name in "$@"; do
  SECONDS=0
  step "$name" >"$folder/$name.log" 2>&1 && said=done || { said="failed ($?)"; failed+=("$name"); }
  echo "$name: $said after $SECONDS s"
done
[ ${#failed[@]} -eq 0 ]
