#!/usr/bin/env python3
"""Checks that no folder includes what its floor does not allow.

Usage: check_includes.py [--rules FILE] [ROOT]

Reads the table of include_rules.txt and every #include of every source below ROOT (default: the project), and names
each line that includes
  * a folder that its own may not include,
  * a folder of the project with <> instead of quotes, or a path that is not "folder/file.h",
  * a foreign header (caf/, infiniband/) that only other folders may see,
and each cycle between folders. The exit status is 1 when there is any.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c"}


def read_rules(path):
    """Returns folder (or file) -> allowed folders, and foreign prefix -> folders that may include it."""
    allowed, foreign = {}, {}
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        folder, rest = words[0], words[1:]
        allowed[folder] = {word for word in rest if not word.startswith("<")}
        for word in rest:
            if word.startswith("<"):
                foreign.setdefault(word[1:], set()).add(folder)
    return allowed, foreign


def includes_of(path):
    """Yields (line number, bracket, what) for every #include of a file."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def check_file(root, path, allowed, foreign, edges):
    """Returns what is wrong with one file, and adds its folder's includes to `edges`."""
    folder = path.relative_to(root).parts[0]
    # A file with a line of its own is held to that line.
    name = path.relative_to(root).as_posix()
    subject, said = (name, name) if name in allowed else (folder, folder + "/")
    faults = []
    for number, bracket, what in includes_of(path):
        where = f"{path.relative_to(root)}:{number}: "
        first = what.split("/")[0]
        for prefix, folders in foreign.items():
            if what.startswith(prefix) and subject not in folders:
                faults.append(f"{where}{said} may not include <{what}>; only {', '.join(sorted(folders))} may")
        if first in allowed:
            edges.setdefault(folder, {}).setdefault(first, where + f'"{what}"')
            if bracket == "<":
                faults.append(f'{where}write "{what}", not <{what}>')
            if first != folder and first not in allowed[subject] and "*" not in allowed[subject]:
                may = ", ".join(sorted(allowed[subject])) or "nothing of the project"
                faults.append(f'{where}{said} may not include "{what}"; it may include {may}')
        elif bracket == '"' and not any(what.startswith(prefix) for prefix in foreign):
            faults.append(f'{where}"{what}" does not begin with a folder of the project')
    return faults


def find_cycles(edges):
    """Returns cycles between folders as text with the includes that make them: at least one if there is any."""
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=pathlib.Path, default=ROOT / "scripts" / "include_rules.txt")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=ROOT)
    args = parser.parse_args()

    root = args.root.resolve()
    allowed, foreign = read_rules(args.rules)
    faults, edges, files = [], {}, 0
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        sources = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
        if folder.name == "build" or folder.name.startswith(".") or not sources:
            continue
        if folder.name not in allowed:
            faults.append(f"{folder.name}/ has sources but no line in {args.rules.name}")
            continue
        for path in sources:
            files += 1
            faults += check_file(root, path, allowed, foreign, edges)
    faults += find_cycles(edges)
    if faults:
        print("\n".join(faults))
        sys.exit(f"{len(faults)} includes that the floors do not allow (scripts/include_rules.txt)")
    print(f"The includes of {files} files keep to their floors.")


if __name__ == "__main__":
    main()
