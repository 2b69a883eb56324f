#!/usr/bin/env python3
"""Measures what docs/reliability.md promises, and writes that page.

Plays every scenario of `troupe faults`, those of RDMA and of lost packets in the VM of tests/rdma_vm, a Redis that is
away, a soak and the simulator, one after the other, and compares what came out with the targets. Exit code 1: something
was violated (a wrong byte, an operation that hung, a scenario that broke, a rule of the simulator), or did not run; a
machine that cannot have the VM is no failure, a VM that does not end as it should is one. A target that is missed is said
in the page and, with --strict, also by the exit code: times are those of the machine, and of what else runs on it.

Ctrl-C or SIGTERM ends it in order; a second one at once. What was measured by then, or in spite of a step that failed,
is written as well, marked as not whole; in the place of docs/reliability.md to build/reliability-incomplete.md.
"""

import argparse
import ctypes
import datetime
import json
import math
import os
import pathlib
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reliability.md"
# In its place, where not all of it was measured.
INCOMPLETE_PAGE = ROOT / "build/reliability-incomplete.md"
SIMULATOR_PAGE = ROOT / "docs/simulator.md"

# What a short run plays: the scenarios that have a row of their own, but for the one with 17 processes.
SHORT = ["target-kill", "target-restart", "target-stop", "open-stopped", "one-path-lost", "silent-partition"]

# What is played in the VM, one `troupe faults` after the other: the name that the page gives it, and the arguments. The
# emulated processors answer late, so packets have half a second where they are not what is lost. write_page says so.
VM_BLOCK, VM_PATIENCE = "64KiB", "rdma.ack_timeout=17"
IN_VM = {
    "rdma": ["--transport", "rdma", "--block_size", VM_BLOCK, "--set", VM_PATIENCE, "--scenario", "target-kill",
             "target-restart", "target-stop", "initiator-kill", "rail-lost", "device-deleted"],
    "rdma, loss": ["--transport", "rdma", "--block_size", VM_BLOCK, "--scenario", "light-loss", "loss"],
    "tcp, loss": ["--transport", "tcp", "--block_size", VM_BLOCK, "--scenario", "light-loss", "loss"],
}
# Guest's own seconds for a round of all of them.
VM_ROUND_BOUND = 240
# Of tests/rdma_vm/vm.py: what it needs is not on this machine.
NO_VM = 69


class Failed(Exception):
    """A step that gave no answer."""


def end_in_order_with_parent():
    """In the child: without us nobody would end it."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process with a pipe for its output, that is never left behind: what troupe and the VM make (network namespaces,
    links, folders, processes) they take away themselves when they are told to end, so they are, once, and waited for."""

    def __init__(self, command, **options):
        # In a session of its own: troupe would take Ctrl-C at the terminal and our word for two, and end at once.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True,
                                        preexec_fn=end_in_order_with_parent, **options)

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            # What it has to say yet must be taken, or it would wait for that.
            self.process.stdout.read()
            self.process.wait()
        except Interrupted:
            # A second one: whoever cannot wait.
            self.process.kill()
            self.process.wait()
            raise


def run(program, arguments, log):
    """The JSON that `troupe` answers with, whatever its exit code. Its progress is shown, as is why it failed."""
    command = [str(program), *map(str, arguments), "--json"]
    print("  troupe " + " ".join(map(str, arguments)), file=log, flush=True)
    with Child(command) as troupe:
        said, _ = troupe.communicate()
    try:
        return parse_answer(said)
    except ValueError as why:
        raise Failed(f"`troupe {arguments[0]}` {why} (exit code {troupe.returncode})") from why


def parse_answer(text):
    """ValueError: it is none."""
    try:
        answer = json.loads(text)
    except ValueError as why:
        raise ValueError("gave no answer") from why
    if "error" in answer and "code" in (answer["error"] or {}):
        raise ValueError(f"failed: {answer['error']}")
    return answer


def disagreement(what, answer, rows):
    """Of an answer that says that something is wrong, where none of its rows does: that, in a list."""
    if answer["ok"] or any(not row.get("ok", True) for row in rows):
        return []
    return [f"{what} says that something is wrong, and not what"]


def gist(said):
    """Of what the VM's harness said: why, for a page; not what to do about it, and no paths of this machine."""
    lines = said.strip().splitlines() or ["it said nothing"]
    why = next((line.removeprefix("vm: ") for line in lines if line.startswith("vm: ")), lines[0])
    return re.sub(r"(?<![\w.])/[^\s,;:]+", "...", why.split("; ")[0])


def run_in_vm(options, log):
    """Rows by "scenario, transport, VM"; why there are none, or not all; what failed that may not; and what of it is
    missing for that."""
    if options.vm_rounds == 0:
        return {}, "no VM: left out of " + ("a short run" if options.short else "this run"), [], []
    with tempfile.TemporaryDirectory(prefix="troupe-reliability-") as folder:
        lines = []
        for number, arguments in enumerate(IN_VM.values()):
            words = ["faults", *arguments, "--rounds", options.vm_rounds, "--seed", options.seed]
            print("  in the VM: troupe " + " ".join(map(str, words)), file=log, flush=True)
            command = shlex.join([str(pathlib.Path(options.program).resolve()), *map(str, words), "--json"])
            lines.append(f'{command} >"$OUT/{number}.json" 2>"$OUT/{number}.err"')
        bound = 120 + VM_ROUND_BOUND * options.vm_rounds
        said = ""
        with Child([sys.executable, str(options.vm), "--timeout", str(bound), "--give-up", str(3 * bound), "--out", folder,
                    "--", "bash", "-c", "\n".join([*lines, "true"])], stderr=subprocess.STDOUT) as ended:
            for line in ended.stdout:
                said += line
                if line.startswith("vm: "):
                    print(f"  {line}", end="", file=log, flush=True)
            ended.wait()
        if ended.returncode == NO_VM:
            return {}, f"no VM: {gist(said)}", [], []
        rows, why, failures, wrong = {}, "not played here", [], []
        if ended.returncode != 0:
            print(f"the VM ended with {ended.returncode}:\n{said[-4000:]}", file=log, flush=True)
            why = f"the VM ended: {gist(said)}"
            failures.append(why)
        # What had been played by then is there all the same.
        for number, name in enumerate(IN_VM):
            out, err = (pathlib.Path(folder) / f"{number}.{kind}" for kind in ("json", "err"))
            try:
                answer = parse_answer(out.read_text() if out.exists() else "")
            except ValueError as broken:
                errors = err.read_text()[-2000:] if err.exists() else ""
                print(f"`troupe faults` in the VM ({name}) {broken}:\n{errors}", file=log, flush=True)
                if ended.returncode == 0:
                    failures.append(f"in the VM, {name}: `troupe faults` {broken}")
                continue
            wrong += disagreement(f"in the VM, {name}: `troupe faults`", answer, answer["scenarios"])
            for row in answer["scenarios"]:
                row["scenario"] = f"{row['scenario']}, {name.split(',')[0]}, VM"
                rows[row["scenario"]] = row
        return rows, why, failures + wrong, failures


def figure(value, unit="ms"):
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}"


# Met by what was played, which is not all.
NOT_ALL = "met by these"


def at_most(value, bound):
    """Met, missed, or None where there is nothing to compare."""
    return None if value is None else value <= bound


class Page:
    """Rows of the table, what may never be, and why something that was to be measured was not."""

    def __init__(self):
        self.rows = []
        self.violations = []
        self.missing = []

    def add(self, what, target, measured, met):
        self.rows.append((what, target, measured, met))

    def scenario(self, row):
        """Notes what a scenario broke; None when it could not be played here."""
        if "skipped" in row:
            return None
        if not row["ok"]:
            self.violations.append(f"{row['scenario']}: {row['broken']}")
        return row


def time_of(row, which, quantile):
    times = row.get(which) if row else None
    return times[quantile] if times else None


def add_rows(page, rows, options, no_vm):
    """The table, as far as scenarios fill it."""
    played = [row for row in (page.scenario(row) for row in rows.values()) if row]

    def known(name):
        row = rows.get(name)
        return row if row and "skipped" not in row else None

    skipped = [name for name, row in rows.items() if "skipped" in row and not known(f"{name}, tcp, VM")]
    in_vm = sum(row["scenario"].endswith(", VM") for row in played)
    wrong, hung = sum(row["wrong"] for row in played), sum(row["hung"] for row in played)
    completed = sum(row["completed"] for row in played)
    broken = sum(not row["ok"] for row in played)
    text = f"{len(played) - in_vm} scenarios, {options.rounds} rounds each, "
    text += f"and {in_vm} in the VM, {options.vm_rounds} each, " if in_vm else ""
    text += f"{completed} operations: {wrong} wrong, {hung} hung, {broken} broken"
    if played:
        text += (f"; the process with the traffic grew by {max(row['memory_grown'] for row in played) / (1 << 20):.1f} MiB and "
                 f"{max(row['descriptors_grown'] for row in played)} descriptors in a round at most (32 and 8 are allowed)")
    if skipped:
        text += f"; not played here: {', '.join(skipped)}"
    page.add("faults survived: every scenario", "0 wrong bytes, 0 hangs, 0 leaks; each task ended within its deadline + drain",
             text, (NOT_ALL if skipped else True) if played and wrong == hung == broken == 0 else False if played else None)

    def spread(name, which):
        row = known(name)
        p50, p99 = time_of(row, which, "p50"), time_of(row, which, "p99")
        return p99, (absent(name) if row is None else f"p50 {figure(p50)}, p99 {figure(p99)}")

    def absent(name):
        return no_vm if name.endswith(", VM") else "not played here"

    def ended(name):
        """Until nothing is left: what was under way at the fault, and what failed first of that which came with it (a
        signal or a packet filter takes a moment to work)."""
        row = known(name)
        if row is None:
            return None, absent(name)
        known_ends = (row["all_ended_ms"] or {"count": 0})["count"]
        if known_ends < row["rounds"]:
            return math.inf, f"in {row['rounds'] - known_ends} of {row['rounds']} rounds it is not known when they had"
        latest = {q: max(filter(None, (time_of(row, which, q) for which in ("detect_ms", "all_ended_ms"))), default=None)
                  for q in ("p50", "p99")}
        return latest["p99"], f"p50 {figure(latest['p50'])}, p99 {figure(latest['p99'])}"

    p99, text = ended("target-kill")
    page.add("target killed, to all its tasks ended (tcp)", "p99 < 100 ms", text, at_most(p99, 100))
    p99, text = ended("target-kill, rdma, VM")
    page.add("the same by rdma, in the VM", "p99 < 1 s in the VM", text, at_most(p99, 1000))
    p99, text = ended("target-stop")
    page.add("target stopped (SIGSTOP), to all its tasks ended", "deadline 1 s + drain 1 s (+ 100 ms)", text, at_most(p99, 2100))
    p99, text = spread("open-stopped", "open_ms")
    page.add("opening a stopped peer", "an error within 5 s", text, at_most(p99, 5000))
    p99, text = spread("target-restart", "recover_ms")
    page.add("target restarted under the same name, initiator untouched", "the next transfer right within 1 s", text,
             at_most(p99, 1000))
    p99, text = ended("silent-partition")
    page.add("silent partition, keepalive bound 200 ms, to all tasks ended", "<= bound + 100 ms", text, at_most(p99, 300))
    row = known("one-path-lost")
    p99, text = spread("one-path-lost", "all_ended_ms")
    failed = sum(row["failed"].values()) if row else None
    page.add("one of two paths lost (fault API, tcp), to all that was under way completed",
             "p50 < 50 ms, p99 < 200 ms, no task failed",
             text if row is None else f"{text}, {failed} failed",
             None if p99 is None else time_of(row, "all_ended_ms", "p50") < 50 and p99 < 200 and failed == 0)
    add_vm_rows(page, known, absent)
    row = known("one-of-16-dead")
    lost = row["bystanders_lost"] * 100 if row else None
    page.add("one dead peer among 16: throughput that the others lose, compared with the same time with nothing for that one", "< 5 %",
             "not played here" if row is None else figure(lost, "%"), at_most(lost, 5))


def add_vm_rows(page, known, absent):
    what, target = "one of two links lost, by rdma in the VM: from the error to the first byte by the other device", \
        "p50 < 50 ms, p99 < 200 ms, no task failed"
    row = known("rail-lost, rdma, VM")
    if row is None:
        page.add(what, target, absent("rail-lost, rdma, VM"), None)
    else:
        moved, failed = row["moved_ms"], sum(row["failed"].values())
        # A round may have had nothing on the link in the moment in which it went.
        text = "nothing was on it" if not failed else "nothing moved"
        if moved:
            text = f"p50 {figure(moved['p50'])}, p99 {figure(moved['p99'])} of each round's quickest operation " \
                   f"({moved['count']} of {row['rounds']} rounds)"
        page.add(what, target, f"{text}, {failed} failed; all that was under way completed after "
                 f"{figure(time_of(row, 'all_ended_ms', 'p50'))}, p99 {figure(time_of(row, 'all_ended_ms', 'p99'))}",
                 False if failed else moved["p50"] < 50 and moved["p99"] < 200 if moved else None)
    for transport in ("tcp", "rdma"):
        names = [f"{name}, {transport}, VM" for name in ("light-loss", "loss")]
        lossy = [row for row in map(known, names) if row]
        wrong, hung, completed = (sum(row[key] for row in lossy) for key in ("wrong", "hung", "completed"))
        page.add(f"1 % and 5 % of the packets lost, by {transport} in the VM", "0 wrong, 0 hung",
                 f"{completed} operations: {wrong} wrong, {hung} hung" if len(lossy) == len(names) else absent(names[0]),
                 wrong == 0 and hung == 0 if len(lossy) == len(names) else None)


def measure_redis(page, options, log):
    """A Redis that is away for long, in a scenario of its own."""
    scenario = {"name": "redis-away", "about": "Redis is away", "needs": ["redis"], "survives": True,
                "steps": ["run 300ms", "fault redis kill", f"run {options.redis_seconds}s", "heal redis start", "run 1s"]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([scenario], file)
        file.flush()
        answer = run(options.program, ["faults", "--file", file.name], log)
    row = answer["scenarios"][0]
    page.violations += disagreement(f"{row['scenario']}: `troupe faults`", answer, [row])
    target = "0 failed tasks on resolved segments; published again within 2 s of its return"
    what = f"Redis down for {options.redis_seconds} s under traffic"
    if page.scenario(row) is None:
        page.add(what, target, "not played here", None)
        return
    failed, recover = sum(row["failed"].values()), time_of(row, "recover_ms", "max")
    page.add(what, target, f"{failed} of {failed + row['completed']} failed; published after {figure(recover)}",
             None if recover is None else failed == 0 and recover <= 2000)


def measure_soak(page, options, log):
    report = run(options.program, ["soak", "--minutes", options.soak_minutes, "--seed", options.seed], log)
    page.violations += [f"soak: {violation}" for violation in report["violations"]]
    page.violations += disagreement("soak", report, [{"ok": not report["violations"]}])
    mib = 1 / (1 << 20)
    process = report["process"]
    left_out = f"; left out: {', '.join(report['left_out'])}" if report["left_out"] else ""
    page.add(f"soak, {options.soak_minutes:g} min of random faults", "0 wrong, 0 hung, memory and descriptors flat",
             f"{report['faults']} faults, {report['completed']} operations: {report['wrong']} wrong, {report['hung']} hung; "
             f"memory {process['memory_bytes_before'] * mib:.0f} -> {process['memory_bytes_after'] * mib:.0f} MiB, "
             f"descriptors {process['descriptors_before']} -> {process['descriptors_after']}{left_out}", report["ok"])
    return report


def measure_simulator(page, options, log):
    report = run(options.program, ["sim", "--first", options.seed, "--seeds", options.sim_seeds], log)
    page.violations += [f"simulator, seed {failure['seed']}: {failure['violation']}" for failure in report["failures"]]
    page.violations += disagreement("simulator", report, [{"ok": not report["failures"]}])
    recorded, all_found = recorded_of_simulator()
    page.add("simulator", "no rule broken; every deliberate defect found within 500 seeds",
             f"{report['seeds']} seeds, {report['virtual_hours']:.2f} virtual hours, {len(report['failures'])} failures; "
             f"{recorded}", report["ok"] and all_found)


def recorded_of_simulator():
    """What the simulator has found, as its page records it: neither is measured here."""
    text = SIMULATOR_PAGE.read_text()

    def rows(header):
        return [line.split("|")[1:3] for line in text.split(header)[1].split("\n\n")[0].splitlines()[2:]]

    defects = rows("| defect |")
    found = sum(seed.strip().isdigit() and int(seed) <= 500 for _, seed in defects)
    text = f"recorded: {len(rows('| seed |'))} defects of the engine found, {found} of {len(defects)} deliberate ones"
    return text, found == len(defects)


def machine():
    """What kind of machine this is; nothing that names it."""
    cpu, virtual = platform.machine(), False
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
            virtual = virtual or (line.startswith("flags") and " hypervisor" in line)
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        memory = f", {pages * size / (1 << 30):.0f} GiB of memory"
    except (OSError, ValueError):
        memory = ""
    kind = "a virtual machine" if virtual else "a machine"
    load = f"{os.getloadavg()[0]:.1f}"
    return f"{kind} with {os.cpu_count()} cores ({cpu}){memory}, {platform.system()} {platform.release()}, load {load} at the start"


def write_page(page, rows, soak, options, where, kind):
    words = {True: "met", NOT_ALL: NOT_ALL, False: "**missed**", None: "not measured"}
    lines = ["# Reliability, measured", ""]
    if page.missing:
        lines += ["**This page is not whole**: " + "; ".join(page.missing) + ".", ""]
    lines += ["Written by `./dev reliability` (scripts/reliability.py): run it to have the figures of your machine. Times are from",
             "real processes under real signals, dropped packets and verified traffic; [apps.md](apps.md#faults) says how each is",
             "taken. Over loopback and virtual links, so they say nothing of a network; in the VM ([rdma.md](rdma.md)) by Soft-RoCE",
             f"on emulated processors, many times as slow, in blocks of {VM_BLOCK} and, but for the scenarios of lost packets, with",
             f"`{VM_PATIENCE}` (0.5 s until a packet is sent again), as such processors answer late.", "",
             f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {kind}.", "",
             "| what | target | measured | |", "|---|---|---|---|"]
    lines += [f"| {what} | {target} | {measured} | {words[met]} |" for what, target, measured, met in page.rows]
    lines += ["", "The mutation check of the simulator (tests/sim/mutations.py) takes a build of its own, and is not a part of this:",
              "what is recorded of it and of what the simulator found is from [simulator.md](simulator.md). `short-lived-peers`",
              "has 50 of them in a round, one after the other: in 20 rounds (`--full`) 1,000.", "", "## Scenarios", "",
              "Medians of the rounds, the longest in brackets; milliseconds.", "",
              "| scenario | detect | all ended | moved | recover | completed | failed | wrong | hung | quarantined | |",
              "|---|---|---|---|---|---|---|---|---|---|---|"]

    def times(row, which):
        value = row.get(which)
        return "-" if not value else f"{value['p50']:.1f} ({value['max']:.1f})"

    for row in rows.values():
        if "skipped" in row:
            lines.append(f"| {row['scenario']} | | | | | | | | | | skipped: {row['skipped']} |")
            continue
        causes = ", ".join(f"{count} {cause}" for cause, count in row["failed"].items()) or "0"
        lines.append(f"| {row['scenario']} | {times(row, 'detect_ms')} | {times(row, 'all_ended_ms')} | "
                     f"{times(row, 'moved_ms')} | {times(row, 'recover_ms')} | {row['completed']} | {causes} | {row['wrong']} | {row['hung']} | "
                     f"{row['quarantined']} | {'ok' if row['ok'] else 'BROKEN'} |")
    lines += ["", "## Soak", ""]
    if soak is None:
        lines += ["Not measured."]
    else:
        lines += [f"Seed {soak['seed']}, {soak['seconds']:.0f} s, {soak['bytes_per_second'] / 1e6:.0f} MB/s of "
                  "verified traffic.", "", "| fault | times | recover, ms |", "|---|---|---|"]
        lines += [f"| {name} | {kind_of['times']} | {times(kind_of, 'recover_ms')} |" for name, kind_of in soak["kinds"].items()]
        causes = ", ".join(f"{count} {cause}" for cause, count in soak["failed"].items()) or "none"
        lines += ["", f"Operations that failed, each with its cause: {causes}."]
    lines += ["", "## Violations", ""]
    lines += [f"* {violation}" for violation in page.violations] or ["None."]
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text("\n".join(lines) + "\n")


def parse():
    # ./dev reads some of these too, and knows no abbreviations.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--program", default=ROOT / "build/release/bin/troupe", help="the troupe to measure")
    parser.add_argument("--rounds", type=int, help="rounds of each scenario (5; with --full 20)")
    parser.add_argument("--vm", default=ROOT / "tests/rdma_vm/vm.py", help="what boots the VM")
    parser.add_argument("--vm-rounds", type=int, help="rounds of each scenario in the VM (3; with --full 20; 0: no VM)")
    parser.add_argument("--redis-seconds", type=int, help="seconds that Redis is away (10; with --full 60)")
    parser.add_argument("--soak-minutes", type=float, help="of the soak (2; with --full 60)")
    parser.add_argument("--sim-seeds", type=int, help="of the simulator (2000; with --full 10000)")
    parser.add_argument("--seed", type=int, default=1, help="the first of all")
    parser.add_argument("--full", action="store_true", help="more of each: hours")
    parser.add_argument("--short", action="store_true", help="about a minute: whether all runs to its end")
    parser.add_argument("--strict", action="store_true", help="a target that is missed is a failure, too")
    parser.add_argument("--out", type=pathlib.Path, default=PAGE, help="the page")
    options = parser.parse_args()
    usual = dict(rounds=5, vm_rounds=3, redis_seconds=10, soak_minutes=2, sim_seeds=2000)
    if options.short:
        usual = dict(rounds=1, vm_rounds=0, redis_seconds=1, soak_minutes=0.1, sim_seeds=20)
    if options.full:
        usual = dict(rounds=20, vm_rounds=20, redis_seconds=60, soak_minutes=60, sim_seeds=10000)
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


class Interrupted(BaseException):
    """By a signal, whose number it has."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def raise_interrupted_on_signals():
    """What comes within a tenth of a second of the first is the same request: timeout(1) sends its signal to a process and
    then to its group."""
    first = None

    def interrupt(number, _):
        nonlocal first
        now = time.monotonic()
        if first is not None and now - first < 0.1:
            return
        first = first or now
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        # Ignored where a shell has started it in the background.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


class Measurement:
    """Step by step, so that one that fails does not cost what the others brought."""

    def __init__(self, options, log):
        self.options, self.log = options, log
        self.page = Page()
        self.rows, self.soak = {}, None
        self.no_vm = "not played here"

    def measure(self):
        """Interrupted: the page has what there was by then."""
        try:
            self.step("the scenarios", self.play_scenarios)
            self.step("the VM", self.play_in_vm)
        finally:
            add_rows(self.page, self.rows, self.options, self.no_vm)
        self.step("a Redis that is away", lambda: measure_redis(self.page, self.options, self.log))
        self.step("the soak", self.play_soak)
        self.step("the simulator", lambda: measure_simulator(self.page, self.options, self.log))

    def step(self, what, play):
        try:
            play()
        except Failed as why:
            print(why, file=self.log, flush=True)
            self.page.violations.append(f"{what}: {why}")
            self.page.missing.append(f"{what}: {why}")
        except Interrupted:
            self.page.missing.append(f"it was interrupted during {what}")
            raise

    def play_scenarios(self):
        options = self.options
        names = SHORT if options.short else ["all"]
        answer = run(options.program, ["faults", "--scenario", *names, "--rounds", options.rounds, "--seed", options.seed],
                     self.log)
        self.rows = {row["scenario"]: row for row in answer["scenarios"]}
        self.page.violations += disagreement("`troupe faults`", answer, answer["scenarios"])

    def play_in_vm(self):
        in_vm, self.no_vm, failures, missing = run_in_vm(self.options, self.log)
        self.rows.update(in_vm)
        self.page.violations += failures
        self.page.missing += missing

    def play_soak(self):
        self.soak = measure_soak(self.page, self.options, self.log)


def main():
    options = parse()
    kind = machine()
    raise_interrupted_on_signals()
    measurement = Measurement(options, sys.stderr)
    interrupted = None
    try:
        measurement.measure()
    except Interrupted as by:
        interrupted = by.number
    page = measurement.page
    # What is kept is replaced by what is whole alone.
    where = INCOMPLETE_PAGE if page.missing and options.out.resolve() == PAGE else options.out
    write_page(page, measurement.rows, measurement.soak, options, where, kind)
    for what, _, measured, met in page.rows:
        print(f"{ {True: 'met', NOT_ALL: 'met', False: 'MISSED', None: '-'}[met]:7} {what}: {measured}")
    for violation in page.violations:
        print(f"VIOLATION {violation}")
    if page.missing:
        print(f"NOT WHOLE, so written to {where}: {'; '.join(page.missing)}")
    if interrupted is not None:
        sys.exit(128 + interrupted)
    if page.violations or (options.strict and any(met is False for *_, met in page.rows)):
        sys.exit(1)


if __name__ == "__main__":
    main()
