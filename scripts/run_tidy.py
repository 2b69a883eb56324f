#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a compile_commands.json, in groups, several at a time, and says how far it is.

Usage: run_tidy.py [--jobs N] BUILD_DIR [FILE...]

Without files: every source of the project in it. Nearly all of clang-tidy's time goes into the system's headers, so it
is given sources of the same flags in groups, as one translation unit; a group that does not compile, for two sources
with a name of their own that is the same, say, is halved. What passed is remembered in BUILD_DIR/tidy-passed.json under a hash
of the source, of the project's headers that it reaches, of its compile command and of the checks, and is not looked at
again. The exit status is 1 when clang-tidy found something.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Sources looked at together: with more of them two have the same name for something more often.
GROUP = 12
CHECKS = [ROOT / "tests/.clang-tidy", ROOT / ".clang-tidy"]
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


class Fingerprints:
    """What a source's findings depend on, but for the system's headers, which come with the compiler's version."""

    def __init__(self, folders):
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
        self.checks = version + "".join(path.read_text() for path in CHECKS)
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

    def flags(path):
        """Of the compiler, but for what names the source and the object."""
        words = shlex.split(known[path])[1:]
        skipped = {i + d for i, word in enumerate(words) if word == "-o" for d in (0, 1)}
        return [word for i, word in enumerate(words)
                if i not in skipped and word != "-c" and pathlib.Path(args.build_dir, word).resolve() != path]

    def checks(path):
        """A folder for units with the checks of that source: clang-tidy takes those of the folders above it, too."""
        own = next(each for each in CHECKS if each.parent in path.parents)
        folder = args.build_dir / "tidy" / own.parent.relative_to(ROOT)
        folder.mkdir(parents=True, exist_ok=True)
        if own.parent != ROOT and not (folder / own.name).is_symlink():
            (folder / own.name).symlink_to(own)
        return folder

    def tidy(group):
        with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=checks(group[0])) as unit:
            for path in group:
                unit.write(f'#include "{path}"  // NOLINT(bugprone-suspicious-include)\n')
            unit.flush()
            source = str(group[0]) if len(group) == 1 else unit.name
            return subprocess.run(["clang-tidy", "--quiet", source, "--", *flags(group[0])],
                                  cwd=ROOT, capture_output=True, text=True)

    alike = {}
    for path in new:
        alike.setdefault((checks(path), *flags(path)), []).append(path)
    groups = [paths[i:i + GROUP] for paths in alike.values() for i in range(0, len(paths), GROUP)]

    bad = done = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(tidy, group): group for group in groups}
        while running:
            for future in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                result, group = future.result(), running.pop(future)
                if "[clang-diagnostic-error]" in result.stdout and len(group) > 1:
                    middle = len(group) // 2
                    running.update({pool.submit(tidy, half): half for half in (group[:middle], group[middle:])})
                    continue
                done += len(group)
                print(f"[{done}/{len(new)}] " + " ".join(str(path.relative_to(ROOT)) for path in group), flush=True)
                guilty = set()
                if result.returncode != 0:
                    found = {pathlib.Path(path) for path in re.findall(r"^(/[^:]+):\d+:\d+: error:", result.stdout, re.M)}
                    # A header's findings are all its group's.
                    guilty = found if found and found <= set(group) else set(group)
                    # Standard error only counts what was found in the system's headers, unless clang-tidy itself failed.
                    print(result.stdout or result.stderr, flush=True)
                bad += len(guilty)
                passed.update({str(path.relative_to(ROOT)): wanted[path] for path in group if path not in guilty})
                remembered.write_text(json.dumps(passed, indent=1, sort_keys=True))
    if bad:
        sys.exit(f"clang-tidy found something in {bad} of {len(files)} files")
    print(f"clang-tidy found nothing in {len(files)} files")


if __name__ == "__main__":
    main()
