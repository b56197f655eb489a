#!/usr/bin/env bash
# Tunes every suite at batch 64 and 8 on the GPU at hand, and puts the choices into the database that ships.
#
#     benchmarks/retune.sh [SECONDS [DATABASE]]
#
# SECONDS are for both batches together; DATABASE keeps every measurement, and a second run goes on where the first
# stopped.  What ships is among the candidates of each layer, and the best few of a layer are timed again in turn.
set -euo pipefail
seconds=${1:-400}
database=${2:-retune.sqlite}
packaged=$(dirname "$0")/../convgen/planner/tuning.sqlite
suites=alexnet,zfnet,vgg16,googlenet,resnet50,densenet121,yolov2,strided,lenet,depthwise,mobilenet_v2,convnext,grouped
own=tma_im2col,tma_halo,depthwise,implicit_gemm  # without im2col, which takes cuBLAS
for n in 64 8; do
  python3 -m convgen tune --suite "$suites" -D n=$n --strategies "$own" --db "$database" --budget $((seconds / 2))
done
python3 -m convgen tune --db "$database" --export "$packaged"
