#!/usr/bin/env python3
"""soak.py PROGRAM MINUTES: runs PROGRAM's soak, and looks at what it says of itself.

Fails on any violation, and when it did nothing. Ends with 77, which ctest shows as skipped, when it found nothing wrong
and left something out that this machine does not allow (no root, no Redis, no module of the kernel)."""

import json
import subprocess
import sys

SKIPPED = 77


def verdict(code, text):
    """The exit code, and why."""
    try:
        said = json.loads(text)
    except ValueError:
        return 1, f"it said no JSON, and ended with {code}: {text[:1000]!r}"
    if code != 0 or not said["ok"] or said["violations"]:
        return 1, f"it ended with {code}; violations: {said['violations']}"
    if said["wrong"] or said["hung"] or not said["completed"] or not said["faults"]:
        return 1, "{wrong} wrong and {hung} hung operations, {completed} completed, {faults} faults".format(**said)
    if said["left_out"]:
        return SKIPPED, "left out: " + "; ".join(f"{name}: {why}" for name, why in said["left_out"].items())
    return 0, "nothing was left out"


def main():
    program, minutes = sys.argv[1:]
    ended = subprocess.run([program, "soak", "--json", "--minutes", minutes], stdout=subprocess.PIPE, text=True)
    code, why = verdict(ended.returncode, ended.stdout)
    print(ended.stdout)
    print(why)
    return code


if __name__ == "__main__":
    sys.exit(main())
