#!/bin/bash
# Runs every program named, one after the other; fails when one of them does.
status=0
for program in "$@"; do
    "$program" || status=1
done
exit $status
