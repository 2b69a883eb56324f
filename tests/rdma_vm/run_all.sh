#!/bin/bash
# Runs every GoogleTest program named, one after the other; fails when one of them does. Suites named *VmLong* are run
# only where VM_LONG says so (vm.py --long); those named *VmNuma* want another machine (vm.py --numa).
filter=-*VmNuma*
[[ -n $VM_LONG ]] || filter+=:*VmLong*
status=0
for program in "$@"; do
    "$program" --gtest_filter="$filter" || status=1
done
exit $status
