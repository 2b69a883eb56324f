#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a compile_commands.json, several at a time, and says how far it is.

Usage: run_tidy.py [--jobs N] BUILD_DIR [FILE...]

Without files: every source of the project in it. The exit status is 1 when clang-tidy found something.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()

    commands = json.loads((args.build_dir / "compile_commands.json").read_text())
    known = {(pathlib.Path(entry["directory"]) / entry["file"]).resolve() for entry in commands}
    files = sorted(path.resolve() for path in args.files) or sorted(known)
    unknown = [str(path) for path in files if path not in known]
    if unknown:
        sys.exit("not in compile_commands.json: " + ", ".join(unknown))

    def tidy(path):
        return subprocess.run(["clang-tidy", "--quiet", "-p", str(args.build_dir), str(path)],
                              cwd=ROOT, capture_output=True, text=True)

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(tidy, path): path for path in files}
        for done, future in enumerate(concurrent.futures.as_completed(running), 1):
            result = future.result()
            print(f"[{done}/{len(files)}] {running[future].relative_to(ROOT)}", flush=True)
            if result.returncode != 0:
                bad += 1
                # Standard error only counts what was found in the system's headers, unless clang-tidy itself failed.
                print(result.stdout or result.stderr, flush=True)
    if bad:
        sys.exit(f"clang-tidy found something in {bad} of {len(files)} files")
    print(f"clang-tidy found nothing in {len(files)} files")


if __name__ == "__main__":
    main()
