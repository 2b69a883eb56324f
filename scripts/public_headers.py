#!/usr/bin/env python3
"""Writes the public headers as others include them: <troupe/engine/transfer_engine.h>.

Usage: public_headers.py OUT --version MAJOR.MINOR.PATCH [--depfile FILE --target NAME]

Inside the tree an include is "folder/file.h". Bare names like base/status.h would collide with a user's own folders, so
the public headers are copied to OUT/troupe with "troupe/" before every include of the project. OUT/troupe/version.h says
which version they are of, and OUT/troupe/troupe.h includes it and those that need no CAF. Files that need no change are not touched, what does not belong there is removed.

PUBLIC is the whole list. A public header that includes any other of the project is an error: name a type with a
declaration instead, move what it needs to a small header, or add that one here.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What programs are meant to include by name; docs/api.md says what for.
ENTRIES = [
    "base/config.h",
    "base/fault_injector.h",
    "base/log.h",
    "base/status.h",
    "base/stream.h",
    "engine/actor_api.h",
    "engine/transfer_engine.h",
    "metadata/metadata_store.h",
]
# What those include.
PUBLIC = ENTRIES + [
    "base/byte_range.h",
    "base/clock.h",
    "base/endpoint.h",
    "base/incarnation.h",
    "base/reactor.h",
    "base/unique_fd.h",
    "messages/peer_event.h",
    "messages/transfer_types.h",
    "metadata/segment_desc.h",
    "security/auth_counts.h",
    "topology/topology.h",
    "transports/opcode.h",
]
NEEDS_CAF = {"engine/actor_api.h"}

INCLUDE = re.compile(r'^(\s*#\s*include\s*")([^"]+)"', re.MULTILINE)

UMBRELLA = """#pragma once

// Everything public of Troupe, but for <troupe/engine/actor_api.h>: that one needs the headers of CAF.

#if __cplusplus < 202002L
#error "Troupe's headers are C++20: compile with -std=c++20"
#endif

{includes}
"""


VERSION = """#pragma once

// Which Troupe these headers are of, for the preprocessor. docs/api.md, "Versions", says what a version promises.

#define TROUPE_VERSION_MAJOR {major}
#define TROUPE_VERSION_MINOR {minor}
#define TROUPE_VERSION_PATCH {patch}
#define TROUPE_VERSION_STRING "{major}.{minor}.{patch}"
"""


def public_texts(root=ROOT, public=tuple(PUBLIC)):
    """Returns name -> text as installed, and what is wrong with the closure."""
    texts, faults = {}, []
    for name in public:
        text = (root / name).read_text()
        faults += [f'{name} includes "{what}", which is not public'
                   for _, what in INCLUDE.findall(text) if what not in public]
        texts[name] = INCLUDE.sub(r'\1troupe/\2"', text)
    return texts, faults


def umbrella():
    names = [name for name in ENTRIES if name not in NEEDS_CAF] + ["version.h"]
    return UMBRELLA.format(includes="\n".join(f'#include "troupe/{name}"' for name in names))


def version_header(version):
    """The text of version.h; ValueError where that is no MAJOR.MINOR.PATCH."""
    major, minor, patch = (int(part) for part in version.split("."))
    return VERSION.format(major=major, minor=minor, patch=patch)


def write_all(texts, directory):
    """Writes what differs and removes what is no more."""
    for name, text in texts.items():
        path = directory / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(directory).as_posix() not in texts:
            path.unlink()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--version", required=True, help="MAJOR.MINOR.PATCH")
    parser.add_argument("--depfile", type=pathlib.Path)
    parser.add_argument("--target", help="what the depfile says depends on the headers; touched")
    args = parser.parse_args()

    texts, faults = public_texts()
    if faults:
        sys.exit("\n".join(faults) + "\n(scripts/public_headers.py says what can be done)")
    made = {"troupe.h": umbrella(), "version.h": version_header(args.version)}
    write_all({**texts, **made}, args.out / "troupe")
    if args.depfile:
        args.depfile.write_text(f"{args.target}: " + " ".join(str(ROOT / name) for name in texts) + "\n")
    if args.target:
        pathlib.Path(args.target).touch()


if __name__ == "__main__":
    main()
