#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a compile_commands.json, several at a time, and says how far it is.

Usage: run_tidy.py [--jobs N] BUILD_DIR [FILE...]

Without files: every source of the project in it. What passed is remembered in BUILD_DIR/tidy-passed.json under a hash
of the source, of the project's headers that it reaches, of its compile command and of the checks, and is not looked at
again. The exit status is 1 when clang-tidy found something.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


class Fingerprints:
    """What a source's findings depend on, but for the system's headers, which come with the compiler's version."""

    def __init__(self, folders):
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
        self.checks = version + (ROOT / ".clang-tidy").read_text()
        self.folders = folders
        self.seen = {}

    def read(self, path):
        if path not in self.seen:
            text = path.read_text(errors="replace")
            found = [next((folder / name for folder in [path.parent, *self.folders] if (folder / name).is_file()), None)
                     for name in INCLUDE.findall(text)]
            self.seen[path] = hashlib.sha256(text.encode()).hexdigest(), [each.resolve() for each in found if each]
        return self.seen[path]

    def of(self, source, command):
        reached, left = set(), [source]
        while left:
            path = left.pop()
            if path not in reached:
                reached.add(path)
                left += self.read(path)[1]
        whole = hashlib.sha256((self.checks + command).encode())
        for path in sorted(reached):
            whole.update(f"{path.relative_to(ROOT)} {self.read(path)[0]}\n".encode())
        return whole.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()

    commands = json.loads((args.build_dir / "compile_commands.json").read_text())
    known = {(pathlib.Path(entry["directory"]) / entry["file"]).resolve(): entry["command"] for entry in commands}
    files = sorted(path.resolve() for path in args.files) or sorted(known)
    unknown = [str(path) for path in files if path not in known]
    if unknown:
        sys.exit("not in compile_commands.json: " + ", ".join(unknown))

    remembered = args.build_dir / "tidy-passed.json"
    passed = json.loads(remembered.read_text()) if remembered.exists() else {}
    fingerprints = Fingerprints([ROOT])
    wanted = {path: fingerprints.of(path, known[path]) for path in files}
    new = [path for path in files if passed.get(str(path.relative_to(ROOT))) != wanted[path]]
    if len(new) < len(files):
        print(f"{len(files) - len(new)} of {len(files)} files passed before and did not change", flush=True)

    def tidy(path):
        return subprocess.run(["clang-tidy", "--quiet", "-p", str(args.build_dir), str(path)],
                              cwd=ROOT, capture_output=True, text=True)

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(tidy, path): path for path in new}
        for done, future in enumerate(concurrent.futures.as_completed(running), 1):
            result, path = future.result(), running[future]
            print(f"[{done}/{len(new)}] {path.relative_to(ROOT)}", flush=True)
            if result.returncode == 0:
                passed[str(path.relative_to(ROOT))] = wanted[path]
                remembered.write_text(json.dumps(passed, indent=1, sort_keys=True))
            else:
                bad += 1
                # Standard error only counts what was found in the system's headers, unless clang-tidy itself failed.
                print(result.stdout or result.stderr, flush=True)
    if bad:
        sys.exit(f"clang-tidy found something in {bad} of {len(files)} files")
    print(f"clang-tidy found nothing in {len(files)} files")


if __name__ == "__main__":
    main()
