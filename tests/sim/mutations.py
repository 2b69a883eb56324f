#!/usr/bin/env python3
"""Does the simulator find defects? Puts deliberate ones into a copy of the sources, builds it once, and runs seeds with
one of them awake at a time until a rule is broken. Every one must be found within --seeds, by a seed that breaks no rule
without it.

    tests/sim/mutations.py [--seeds 500] [--first 1] [--only NAME]... [--jobs N] [--json] [--list]

Says on stderr how far it is, and prints a table at the end. Works in build/mutations; the tree itself is not touched.
Exit code 1: one was not found, or its text is not in the sources any more."""

import argparse
import concurrent.futures
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORK = os.path.join(ROOT, "build", "mutations")
TREE = os.path.join(WORK, "tree")

# Seeds of one process, after each of which it says how far it is, and how long they may take, in seconds.
CHUNK = 50
CHUNK_BOUND = 600

TRACKER = "actors/tracker_logic.cpp"
REPORTS = "actors/tracker_reports.cpp"
LADDER = "actors/path_ladder.cpp"
WORKER = "actors/worker_logic.cpp"

# Name, what it means, file, text, what it becomes. MUTANT is true in the run that is for this one.
MUTATIONS = [
    ("early_failure", "a doomed task ends while its flights are out", TRACKER,
     "if (const Task& task = batch->task(index); task.in_flight == 0)",
     "if (const Task& task = batch->task(index); task.in_flight == 0 || MUTANT)"),
    ("no_incarnation_check", "a worker sends a train to whoever lives at the peer's address", WORKER,
     "} else if (entry.peer->desc->incarnation != train.incarnation) {",
     "} else if (entry.peer->desc->incarnation != train.incarnation && !MUTANT) {"),
    ("predecessors_tasks_live", "a restarted peer gets the tasks that were meant for its predecessor", TRACKER,
     "if (state.peer && state.segment == use.segment && !same)",
     "if (state.peer && state.segment == use.segment && !same && !MUTANT)"),
    ("forgotten_credit", "a flight that failed keeps its place in the path's window", LADDER,
     "if (flights > 0) --flights;", "if (flights > 0 && (arrived || !MUTANT)) --flights;"),
    ("retry_before_quiescence", "a part is sent again while the Nic may still write its buffer", REPORTS,
     "failed.quiesced && failed.retryable &&", "(failed.quiesced || MUTANT) && failed.retryable &&"),
    ("retry_over_another_path", "a lost WRITE is sent again by a Nic that does not fence the first attempt off",
     REPORTS, "const bool anywhere = failed.part.opcode == Opcode::Read ||",
     "const bool anywhere = MUTANT || failed.part.opcode == Opcode::Read ||"),
    ("dropped_peer_down", "nobody tells the data plane that a peer is down", "actors/segment_directory.cpp",
     "tellDataPlane(DropPeer{\n            event.index,",
     "if (!MUTANT) tellDataPlane(DropPeer{\n            event.index,"),
    ("double_completion", "a completed task is counted twice", REPORTS,
     "end(batch, i, TransferStatusEnum::COMPLETED);\n        }\n    }",
     "end(batch, i, TransferStatusEnum::COMPLETED);\n            if (MUTANT) tally(batch);\n        }\n    }"),
    ("lost_backlog", "what waits in a worker is dropped when its path is reset", WORKER,
     "failBacklog(entry, reset.cause, true);",
     "if (MUTANT) entry.backlog.clear();\n    failBacklog(entry, reset.cause, true);"),
    ("no_reset", "a deadline or cancel does not reset the path that carries the task", TRACKER,
     "resetPathsOf(batch.task(index), cause);",
     "if (!MUTANT) resetPathsOf(batch.task(index), cause);"),
    ("unregister_ignores_peers", "unregister does not wait for work of peers", "actors/supervisor.cpp",
     "quiescePeers(request);\n", "MUTANT ? request.reply(gather->users) : quiescePeers(request);\n"),
    ("unregister_ignores_tasks", "unregister does not wait for own tasks", "actors/source_waits.cpp",
     "if (wait.ranges.overlaps(source)) ++added.users;",
     "if (wait.ranges.overlaps(source) && !MUTANT) ++added.users;"),
    ("no_keepalive", "silence of a peer is not noticed", "actors/peer_monitor.cpp",
     "silentAt() const { return channel_", "silentAt() const { return MUTANT ? kForever : channel_"),
    ("lost_for_good", "a path that came back is not used again", REPORTS,
     "path->usable = change.usable;", "path->usable = change.usable && !MUTANT;"),
    ("no_takeover", "a restarted engine leaves its name to its dead predecessor", "actors/local_publisher.cpp",
     "if (status.code() == Code::AlreadyExists && !was_published_ && challenges_++ < kMaxChallenges)",
     "if (status.code() == Code::AlreadyExists && !was_published_ && !MUTANT && challenges_++ < kMaxChallenges)"),
    ("forgotten_quarantine", "what a Nic could not prove is not in quarantine", WORKER,
     "if (!failure.quiesced)\n", "if (!failure.quiesced && !MUTANT)\n"),
    ("released_without_proof", "a proof of something lets everything of that Nic out of quarantine", WORKER,
     "for (const std::uint64_t doubt : sweep_.proven) quarantine_.prove(index_, doubt);",
     "for (const std::uint64_t doubt : sweep_.proven) MUTANT ? quarantine_.proveAll(index_) : "
     "quarantine_.prove(index_, doubt);"),
    ("no_window", "a path takes all there is, whatever its Nic's window", LADDER,
     "return path.bytes == 0 || (path.bytes", "return MUTANT || path.bytes == 0 || (path.bytes"),
    ("kept_connection", "the control connection of a peer that is gone stays", "actors/control_server.cpp",
     "if (silence_timer_ == 0 && !clients_.empty()) dropSilent();",
     "if (silence_timer_ == 0 && !clients_.empty() && !MUTANT) dropSilent();"),
    ("unregister_ignores_quarantine", "unregister does not ask the quarantine", "actors/supervisor.cpp",
     "!quarantined)\n                    return request.reply(quarantined);",
     "!quarantined && !MUTANT)\n                    return request.reply(quarantined);"),
    ("kept_path", "a Nic keeps its path to a segment that is closed, if nothing is under way there", WORKER,
     "if (entry.path) nic_->closePath(*entry.path, drop.cause);",
     "if (entry.path && !(MUTANT && idle())) nic_->closePath(*entry.path, drop.cause);"),
    ("fenced_without_an_answer", "a Nic says of a WRITE that nothing of it is left, and has not heard so from the peer",
     "apps/sim/sim_nic.cpp", "failure.fenced = fenced;\n", "failure.fenced = fenced || MUTANT;\n"),
]

# At the top of every file that has one; the guard is for builds of several files as one.
CHOOSER = """#ifndef TROUPE_MUTANT
#define TROUPE_MUTANT
#include <cstdlib>
#include <string_view>
static bool troupeMutant(const char* name) {
    static const char* const chosen = std::getenv("TROUPE_MUTANT");
    return chosen != nullptr && std::string_view(chosen) == name;
}
#endif
"""


def put_in(read, write):
    """Rewrites every file that has a mutation; returns the names of those whose text is not there once."""
    texts, missing = {}, []
    for name, _, file, text, becomes in MUTATIONS:
        source = texts.get(file) or CHOOSER + read(file)
        if source.count(text) != 1:
            missing.append(f"{name}: its text is {source.count(text)} times in {file}")
        texts[file] = source.replace(text, becomes.replace("MUTANT", f'troupeMutant("{name}")'))
    for file, text in texts.items():
        write(file, text)
    return missing


def run(command, **options):
    return subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def read_original(file):
    with open(os.path.join(ROOT, file)) as source:
        return source.read()


def put(file, text):
    """What is the same stays as it is, so that it is not compiled again."""
    target = os.path.join(TREE, file)
    if os.path.exists(target):
        with open(target) as old:
            if old.read() == text:
                return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w") as out:
        out.write(text)


def copy_tree():
    mutated = {file for _, _, file, _, _ in MUTATIONS}
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True, check=True,
                            stdout=subprocess.PIPE).stdout.split()
    for name in listed:
        source, target = os.path.join(ROOT, name), os.path.join(TREE, name)
        if name in mutated or not os.path.isfile(source):
            continue
        if os.path.exists(target) and filecmp.cmp(source, target, shallow=False):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def build():
    steps = [["cmake", "--preset", "release"]] if not os.path.exists(f"{TREE}/build/release/build.ninja") else []
    steps.append(["cmake", "--build", "--preset", "release", "--target", "sim_test"])
    for step in steps:
        done = run(step)
        if done.returncode != 0:
            sys.exit(done.stdout[-4000:])


def say(text):
    print(text, file=sys.stderr, flush=True)


def run_seeds(first, count, name):
    """One mutation awake, or none: whether a rule was broken, by which seed, and what was said."""
    done = run([f"{TREE}/build/release/bin/sim_test", "--gtest_filter=Shares/SimulatorSeeds.KeepsTheRules/0"],
               timeout=CHUNK_BOUND, env={**os.environ, "TROUPE_SIM_FIRST": str(first), "TROUPE_SIM_SEEDS": str(count),
                                         "TROUPE_MUTANT": name})
    said = re.search(r"^seed (\d+): (.*)$", done.stdout, re.MULTILINE)
    broken = done.returncode != 0
    # A crash does not say where.
    return broken, int(said.group(1)) if said else None, said.group(2) if said else ("it crashed" if broken else "")


def try_one(mutation, first, seeds):
    name, meaning = mutation[:2]
    started = time.monotonic()
    result = {"name": name, "meaning": meaning, "found": False, "seed": None, "says": "", "seeds": 0}
    try:
        while result["seeds"] < seeds and not result["found"]:
            count = min(CHUNK, seeds - result["seeds"])
            at = first + result["seeds"]
            broken, seed, says = run_seeds(at, count, name)
            result["seeds"] += seed - at + 1 if seed is not None else count
            if broken and run_seeds(seed if seed is not None else at, 1 if seed is not None else count, "")[0]:
                result["says"] = f"a rule is broken without it, too: {says}"
                break
            result.update(found=broken, seed=seed, says=says)
            if not broken:
                say(f"  {name}: not in {result['seeds']} of {seeds} seeds, {time.monotonic() - started:.0f} s")
    except subprocess.TimeoutExpired:
        result["says"] = f"{CHUNK} seeds took longer than {CHUNK_BOUND} s"
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def print_table(results):
    rows = [("defect", "seed", "seeds run", "seconds", "what was said")]
    for each in results:
        seed = str(each["seed"]) if each["found"] else "NOT FOUND"
        rows.append((each["name"], seed, str(each["seeds"]), str(each["seconds"]), each["says"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, seed, seeds, seconds, says in rows:
        print(f"{name:{widths[0]}}  {seed:>{widths[1]}}  {seeds:>{widths[2]}}  {seconds:>{widths[3]}}  {says}")


def chosen(only):
    known = {mutation[0] for mutation in MUTATIONS}
    wanted = {name for names in only for name in names.split(",") if name}
    if wanted - known:
        sys.exit(f"no such defect: {', '.join(sorted(wanted - known))}; --list names them")
    return [mutation for mutation in MUTATIONS if not wanted or mutation[0] in wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=500, help="within which each must be found")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one of --list; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tried at the same time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        for name, meaning, *_ in MUTATIONS:
            print(f"{name:30} {meaning}")
        return 0
    wanted = chosen(arguments.only)
    started = time.monotonic()
    copy_tree()
    missing = put_in(read_original, put)
    if missing:
        sys.exit("\n".join(missing))
    say(f"building {len(MUTATIONS)} defects into {TREE}")
    build()
    say(f"built in {time.monotonic() - started:.0f} s; looking for {len(wanted)}")
    results = []
    with concurrent.futures.ThreadPoolExecutor(max(arguments.jobs, 1)) as pool:
        tries = [pool.submit(try_one, mutation, arguments.first, arguments.seeds) for mutation in wanted]
        for done in concurrent.futures.as_completed(tries):
            last = done.result()
            results.append(last)
            where = f"seed {last['seed']}" if last["found"] else "NOT FOUND"
            say(f"{len(results)} of {len(wanted)}: {last['name']}: {where}, {last['seconds']} s: {last['says']}")
    order = {mutation[0]: place for place, mutation in enumerate(MUTATIONS)}
    results.sort(key=lambda each: order[each["name"]])
    missed = [each for each in results if not each["found"]]
    if arguments.json:
        print(json.dumps({"ok": not missed, "mutations": results}, indent=2))
    else:
        print_table(results)
        print(f"{len(results) - len(missed)} of {len(results)} found within {arguments.seeds} seeds, "
              f"{time.monotonic() - started:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
