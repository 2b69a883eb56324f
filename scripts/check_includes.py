#!/usr/bin/env python3
"""Checks that no folder includes what its floor does not allow.

Usage: check_includes.py [--rules FILE] [ROOT]

Reads the table of include_rules.txt and every #include of every source below ROOT (default: the project), and names
each line that includes
  * a folder that its own may not include,
  * a folder of the project with <> instead of quotes, or a path that is not "folder/file.h",
  * a foreign header (caf/, infiniband/) that only other folders may see, also through other headers where a file
    hides it,
and cycles between folders. The exit status is 1 when there is any.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c"}


class Rules:
    """The table: folder -> folders it may include; foreign prefix -> folders that may; file -> prefixes it hides."""

    def __init__(self, path):
        self.allowed, self.foreign, self.hidden = {}, {}, {}
        for line in path.read_text().splitlines():
            subject, *words = line.split("#")[0].split() or [None]
            prefixes = [word[1:] for word in words if word.startswith("<")]
            if subject is None:
                continue
            if words[:1] == ["hides"]:
                self.hidden[subject] = prefixes
                continue
            self.allowed[subject] = {word for word in words if not word.startswith("<")}
            for prefix in prefixes:
                self.foreign.setdefault(prefix, set()).add(subject)

    def may_include(self, folder, other):
        return other == folder or other in self.allowed[folder] or "*" in self.allowed[folder]


def includes_of(path):
    """Returns (line number, bracket, what) for every #include of a file."""
    matches = enumerate(map(INCLUDE.match, path.read_text(errors="replace").splitlines()), 1)
    return [(number, match.group(1), match.group(2)) for number, match in matches if match]


def check_file(name, includes, rules):
    """Returns what is wrong with the includes of one file, whose name begins with its folder."""
    folder = name.split("/")[0]
    faults = []
    for number, bracket, what in includes:
        where = f"{name}:{number}: "
        first = what.split("/")[0]
        owners = [folders for prefix, folders in rules.foreign.items() if what.startswith(prefix)]
        for folders in owners:
            if folder not in folders:
                faults.append(f"{where}{folder}/ may not include <{what}>; only {', '.join(sorted(folders))} may")
        if first in rules.allowed:
            if bracket == "<":
                faults.append(f'{where}write "{what}", not <{what}>')
            if not rules.may_include(folder, first):
                may = ", ".join(sorted(rules.allowed[folder])) or "nothing of the project"
                faults.append(f'{where}{folder}/ may not include "{what}"; it may include {may}')
        elif bracket == '"' and not owners:
            faults.append(f'{where}"{what}" does not begin with a folder of the project')
    return faults


def find_cycles(files):
    """Returns cycles between folders as text with the includes that make them: at least one if there is any."""
    edges = {}
    for name, includes in files.items():
        for number, _, what in includes:
            edges.setdefault(name.split("/")[0], {}).setdefault(what.split("/")[0], f'{name}:{number}: "{what}"')
    found, finished = [], set()

    def visit(folder, trail):
        if folder in trail:
            cycle = trail[trail.index(folder):]
            steps = zip(cycle, cycle[1:] + cycle[:1])
            found.append("folders include each other in a circle:\n" +
                         "\n".join("    " + edges[a][b] for a, b in steps))
        elif folder not in finished:
            for other in sorted(edges.get(folder, {})):
                if other != folder:
                    visit(other, trail + [folder])
            finished.add(folder)

    for start in sorted(edges):
        visit(start, [])
    return found


def find_leaks(start, prefixes, files):
    """Returns how `start` comes to include what it hides, through whatever other headers."""
    faults, seen, waiting = [], {start}, [(start, start)]
    while waiting:
        name, trail = waiting.pop()
        for number, _, what in files.get(name, []):
            if any(what.startswith(prefix) for prefix in prefixes):
                faults.append(f"{name}:{number}: {start} must not show <{what}>; the way there: {trail}")
            if what not in seen:
                seen.add(what)
                waiting.append((what, f"{trail} -> {what}"))
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=pathlib.Path, default=ROOT / "scripts" / "include_rules.txt")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=ROOT)
    args = parser.parse_args()

    root = args.root.resolve()
    rules = Rules(args.rules)
    faults, files = [], {}
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        sources = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
        if folder.name.startswith((".", "build")) or not sources:
            continue
        if folder.name not in rules.allowed:
            faults.append(f"{folder.name}/ has sources but no line in {args.rules.name}")
            continue
        for path in sources:
            name = path.relative_to(root).as_posix()
            files[name] = includes_of(path)
            faults += check_file(name, files[name], rules)
    faults += find_cycles(files)
    for start, prefixes in rules.hidden.items():
        faults += find_leaks(start, prefixes, files)
    if faults:
        print("\n".join(faults))
        sys.exit(f"{len(faults)} includes that the floors do not allow (scripts/include_rules.txt)")
    print(f"The includes of {len(files)} files keep to their floors.")


if __name__ == "__main__":
    main()
