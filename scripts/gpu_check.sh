#!/usr/bin/env bash
# Checks memory of GPUs on a machine with one, from the driver's calls to whole engines, and measures it beside the driver's
# own copies; a table of all figures with what each is to reach comes last, JSON goes to gpu_check.json. It ends within six
# minutes. docs/gpu.md says what it checks.
#
#   scripts/gpu_check.sh [ARGS]                builds, then runs
#   scripts/gpu_check.sh --bundle DIR          builds, and puts into DIR what runs without anything installed: for a machine
#                                              without a network that has only the driver
#   scripts/gpu_check.sh --from DIR [ARGS]     runs such a bundle
#
# --program FILE, first of all, takes that in place of what it would build. ARGS are those of troupe_gpu_check: --bytes N (of
# each buffer, 256 MiB), --json FILE, --device N, --seconds N. Exit status: not 0 where a check failed; a figure that misses
# its target is no failure.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# The longest that the program measures, that it may run after all (a driver may hang), and that compute-sanitizer may.
readonly measure_s=180 run_s=230 sanitize_s=110

for word in "$@"; do
    [[ $word != --help && $word != -h ]] || { usage; exit 0; }
done
program=$root/build/release/bin/troupe_gpu_check
libraries=
built=no
if [[ ${1:-} == --program ]]; then
    [[ $# -ge 2 ]] || { usage >&2; exit 2; }
    program=$(realpath "$2") built=yes
    shift 2
fi
mode=${1:-}
if [[ $mode == --from || $mode == --bundle ]]; then
    [[ $# -ge 2 ]] || { usage >&2; exit 2; }
fi
if [[ $mode == --from ]]; then
    libraries=$(realpath "$2") built=yes
    program=$libraries/troupe_gpu_check
    shift 2
fi
[[ $built == yes ]] || "$root/dev" build release --target troupe_gpu_check

if [[ $mode == --bundle ]]; then
    mkdir -p "$2"
    cp "$program" "$2/troupe_gpu_check"
    # Everything but the C library and its loader, which are the other machine's.
    ldd "$program" | awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt)\.so/ {print $3}' | xargs -r cp -L -t "$2"
    echo "The bundle is in $2: carry it, and run scripts/gpu_check.sh --from $2"
    exit
fi

run() { LD_LIBRARY_PATH="$libraries${libraries:+:}${LD_LIBRARY_PATH:-}" "$@"; }
status=0
sanitized="compute-sanitizer: not installed"
# The kernel's every access, where the tool works. Before the program, whose table is to be the last that is seen.
if command -v compute-sanitizer >/dev/null; then
    log=$(mktemp)
    sanitizer=0
    run timeout -k 5 "$sanitize_s" compute-sanitizer --tool memcheck --error-exitcode 9 "$program" --bytes 4194304 \
        --seconds "$sanitize_s" >"$log" 2>&1 || sanitizer=$?
    case $sanitizer in
        0) sanitized="compute-sanitizer: no bad access" ;;
        9)
            sanitized="compute-sanitizer: FAILED"
            status=9
            tail -n 40 "$log"
            ;;
        *)
            sanitized="compute-sanitizer: does not work here (exit status $sanitizer)"
            tail -n 5 "$log"
            ;;
    esac
    rm -f "$log"
fi
echo "$sanitized"
run timeout -k 5 "$run_s" "$program" --seconds "$measure_s" --json "${GPU_CHECK_JSON:-gpu_check.json}" "$@" || {
    failed=$?
    [[ $failed -ne 124 ]] || echo "gpu_check.sh: it did not end within $run_s s" >&2
    status=$failed
}
exit "$status"
