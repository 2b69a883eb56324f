#!/usr/bin/env bash
# Checks cuda_backend on a machine with a GPU, and measures it beside the driver's own copies; a table at the end of each
# section, JSON in gpu_check.json. docs/gpu.md says what it checks.
#
#   scripts/gpu_check.sh [ARGS]                builds, then runs
#   scripts/gpu_check.sh --bundle DIR          builds, and puts into DIR what runs without anything installed: for a machine
#                                              without a network that has only the driver
#   scripts/gpu_check.sh --from DIR [ARGS]     runs such a bundle
#
# ARGS are those of troupe_gpu_check: --bytes N (of each buffer, 256 MiB), --json FILE, --device N.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=build/release/bin/troupe_gpu_check
libraries=
mode=${1:-}
if [[ $mode == --from ]]; then
    program=$2/troupe_gpu_check libraries=$2
    shift 2
else
    ./dev build release --target troupe_gpu_check
fi

if [[ $mode == --bundle ]]; then
    mkdir -p "$2"
    cp "$program" "$2/"
    # Everything but the C library and its loader, which are the other machine's.
    ldd "$program" | awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt)\.so/ {print $3}' | xargs -r cp -L -t "$2"
    echo "The bundle is in $2: carry it, and run scripts/gpu_check.sh --from $2"
    exit
fi

run() { LD_LIBRARY_PATH="$libraries${libraries:+:}${LD_LIBRARY_PATH:-}" "$@"; }
status=0
run "$program" --json "${GPU_CHECK_JSON:-gpu_check.json}" "$@" || status=$?
# The kernel's every access, where the tool works.
if command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer"
    run timeout 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$program" --bytes 4194304 | tail -n 5 || status=$?
fi
exit $status
