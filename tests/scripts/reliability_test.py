"""Runs scripts/reliability.py with stand-ins for `troupe` and for the VM, and looks at the page that it writes."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts/reliability.py"

# Every scenario took the same; `world.json` beside it says what a row has that is different.
TROUPE = """#!/usr/bin/env python3
import json, os, pathlib, signal, sys, time
words = sys.argv[1:]
here = pathlib.Path(__file__).parent
world = json.loads((here / "world.json").read_text())
print("progress of", words[0], file=sys.stderr)
if words[0] in world.get("silent", []):
    sys.exit(3)
if words[0] == world.get("endless"):
    # Takes away what it made when it is told to end, which takes its time, and is not told twice.
    told = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.append(1))
    (here / "begun").touch()
    while not told:
        time.sleep(0.01)
    time.sleep(0.5)
    (here / "ended").write_text(str(len(told)))
    sys.exit(0)
def value(name):
    rest = words[words.index(name) + 1:]
    end = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]
times = {"count": 3, "p50": 7.0, "p99": 9.0, "max": 9.0}
def row(name, transport):
    made = {"scenario": name, "rounds": 3, "ok": True, "broken": None, "detect_ms": times, "all_ended_ms": times,
            "recover_ms": times, "open_ms": times, "moved_ms": times if transport == "rdma" else None, "completed": 100,
            "failed": {}, "refused": 0, "wrong": 0, "hung": 0, "quarantined": 0, "throughput_lost": 0, "bystanders_lost": 0,
            "memory_grown": 3 << 20, "descriptors_grown": 2}
    change = world.get(f"{name} {transport}" + (" in the VM" if "OUT" in os.environ else ""), {})
    return {"scenario": name, **change} if "skipped" in change else {**made, **change}
if words[0] == "faults":
    names = ["redis-away"] if "--file" in words else value("--scenario")
    if names == ["all"]:
        names = ["target-kill", "target-stop", "open-stopped", "loss"]
    transport = value("--transport")[0] if "--transport" in words else "tcp"
    rows = [row(name, transport) for name in names]
    ok = all(row.get("ok", True) for row in rows) and "wrong" not in world
    print(json.dumps({"ok": ok, "scenarios": rows}))
elif words[0] == "soak":
    process = dict.fromkeys(["memory_bytes_before", "memory_bytes_after", "descriptors_before", "descriptors_after"], 8)
    print(json.dumps({"ok": True, "violations": [], "process": process, "left_out": {}, "faults": 1, "completed": 1,
                      "wrong": 0, "hung": 0, "seed": 1, "seconds": 1, "bytes_per_second": 1, "kinds": {}, "failed": {}}))
else:
    failures = world.get("sim", [])
    print(json.dumps({"ok": not failures, "seeds": 1, "virtual_hours": 0.1, "failures": failures}))
    sys.exit(1 if failures else 0)
"""
VM = """
import os, subprocess, sys
out = sys.argv[sys.argv.index("--out") + 1]
sys.exit(subprocess.run(sys.argv[sys.argv.index("--") + 1:], env={**os.environ, "OUT": out}).returncode)
"""
NO_VM = """
import sys
print("vm: no kernel below /somebody/tree; /somebody/tree/kernel.py downloads one\\nand more", file=sys.stderr)
sys.exit(69)
"""


class PageOfReliability(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def command(self, vm, world, *options, script=SCRIPT):
        (self.root / "world.json").write_text(json.dumps(world or {}))
        (self.root / "vm.py").write_text(vm)
        program = self.root / "troupe"
        program.write_text(TROUPE)
        program.chmod(0o755)
        return [sys.executable, str(script), "--program", str(program), "--vm", str(self.root / "vm.py"), *options]

    def measured(self, vm, world=None, *options, code=0):
        """The rows of the first table: what, target, measured, and whether it was met."""
        ended = subprocess.run(self.command(vm, world, "--out", str(self.root / "page.md"), *options), text=True,
                               capture_output=True)
        self.said = ended.stdout + ended.stderr
        self.assertEqual(ended.returncode, code, self.said)
        self.page = (self.root / "page.md").read_text()
        return self.rows()

    def rows(self):
        table = self.page.split("|---|---|---|---|\n")[1].split("\n\n")[0]
        return {row.split("|")[1].strip(): [word.strip() for word in row.split("|")[2:5]] for row in table.splitlines()}

    def test_rows_of_the_vm_stand_beside_the_others(self):
        rows = self.measured(VM, {"loss tcp": {"skipped": "no netem"}})
        self.assertEqual(rows["the same by rdma, in the VM"], ["p99 < 1 s in the VM", "p50 7.00 ms, p99 9.00 ms", "met"])
        moved = next(row for what, row in rows.items() if what.startswith("one of two links lost"))
        self.assertEqual(moved[2], "met")
        self.assertIn("p50 7.00 ms, p99 9.00 ms of each round's quickest operation (3 of 3 rounds), 0 failed", moved[1])
        self.assertIn("rdma.ack_timeout=17", self.page)
        self.assertIn("64KiB", self.page)
        for transport in ("tcp", "rdma"):
            self.assertEqual(rows[f"1 % and 5 % of the packets lost, by {transport} in the VM"][1:],
                             ["200 operations: 0 wrong, 0 hung", "met"])
        # What was skipped here and played there is no scenario that was not played.
        self.assertNotIn("not played", rows["faults survived: every scenario"][1])
        self.assertEqual(rows["faults survived: every scenario"][2], "met")
        self.assertIn("grew by 3.0 MiB and 2 descriptors in a round at most", rows["faults survived: every scenario"][1])
        self.assertIn("| rail-lost, rdma, VM | 7.0 (9.0) |", self.page)

    def test_without_a_vm_it_says_so(self):
        rows = self.measured(NO_VM, {"loss tcp": {"skipped": "no netem"}})
        self.assertEqual(rows["the same by rdma, in the VM"][1:], ["no VM: no kernel below ...", "not measured"])
        self.assertNotIn("somebody", self.page)
        self.assertIn("not played here: loss", rows["faults survived: every scenario"][1])
        self.assertEqual(rows["faults survived: every scenario"][2], "met by these")

    def test_a_short_run_boots_none(self):
        rows = self.measured("import sys; sys.exit('booted')", {}, "--short")
        self.assertEqual(rows["the same by rdma, in the VM"][1:], ["no VM: left out of a short run", "not measured"])
        rows = self.measured("import sys; sys.exit('booted')", {}, "--vm-rounds", "0")
        self.assertEqual(rows["the same by rdma, in the VM"][1:], ["no VM: left out of this run", "not measured"])

    def test_what_is_wrong_in_the_vm_is_a_violation(self):
        world = {"rail-lost rdma in the VM": {"failed": {"ConnectionLost": 2}, "ok": False, "broken": "2 operations failed"},
                 "loss rdma in the VM": {"wrong": 1, "ok": False, "broken": "a byte"}}
        rows = self.measured(VM, world, code=1)
        moved = next(row for what, row in rows.items() if what.startswith("one of two links lost"))
        self.assertEqual(moved[2], "**missed**")
        self.assertEqual(rows["1 % and 5 % of the packets lost, by rdma in the VM"][2], "**missed**")
        self.assertIn("* rail-lost, rdma, VM: 2 operations failed", self.page)

    def test_each_time_has_its_own_bound(self):
        def times(p50, p99):
            return {"count": 3, "p50": p50, "p99": p99, "max": p99}
        for world, what, met in (
                ({"rail-lost rdma in the VM": {"moved_ms": times(7.0, 201.0)}}, "one of two links lost", "**missed**"),
                ({"rail-lost rdma in the VM": {"moved_ms": times(7.0, 199.0)}}, "one of two links lost", "met"),
                ({"open-stopped tcp": {"open_ms": times(2000.0, 5001.0)}}, "opening a stopped peer", "**missed**"),
                ({"target-stop tcp": {"all_ended_ms": times(2000.0, 2101.0)}}, "target stopped", "**missed**")):
            rows = self.measured(VM, world)
            self.assertEqual(next(row[2] for name, row in rows.items() if name.startswith(what)), met, what)

    def test_what_failed_on_a_lost_link_and_moved_nowhere_is_missed(self):
        for failed, met in (({"ConnectionLost": 2}, "**missed**"), ({}, "not measured")):
            rows = self.measured(VM, {"rail-lost rdma in the VM": {"failed": failed, "moved_ms": None}})
            self.assertEqual(next(row for what, row in rows.items() if what.startswith("one of two links lost"))[2], met)

    def test_rounds_whose_tasks_did_not_all_end_are_missed(self):
        for ends in (None, {"count": 2, "p50": 7.0, "p99": 9.0, "max": 9.0}):
            rows = self.measured(VM, {"target-kill tcp": {"all_ended_ms": ends}})
            row = rows["target killed, to all its tasks ended (tcp)"]
            self.assertEqual(row[1:], [f"in {1 if ends else 3} of 3 rounds it is not known when they had", "**missed**"])

    def test_a_rule_that_the_simulator_sees_broken_is_in_the_page(self):
        broken = {"sim": [{"seed": 42, "setting": "2 engines", "violation": "a byte is wrong"}]}
        rows = self.measured(VM, broken, code=1)
        self.assertEqual(rows["simulator"][2], "**missed**")
        self.assertRegex(rows["simulator"][1], r"1 failures; recorded: [1-9]\d* defects of the engine found, (\d+) of \1 ")
        self.assertIn("* simulator, seed 42: a byte is wrong", self.page)

    def test_a_vm_that_fails_is_a_failure_and_what_was_measured_stands(self):
        why = "the VM ended: the guest's kernel panicked"
        hung = "import sys; print(\"vm: the guest's kernel panicked; qemu ended with 0; the console:\\nlast\"); sys.exit(70)"
        rows = self.measured(hung, code=1)
        self.assertEqual(rows["the same by rdma, in the VM"][1:], [why, "not measured"])
        self.assertEqual(rows["target killed, to all its tasks ended (tcp)"][2], "met")
        self.assertIn(f"* {why}", self.page)
        # What it had played by then stands, too.
        rows = self.measured(VM.replace("sys.exit(", "print('it hung'); sys.exit(70 + "), code=1)
        self.assertEqual(rows["the same by rdma, in the VM"][2], "met")
        self.assertIn("* the VM ended: it hung", self.page)

    def test_no_answer_in_the_vm_is_a_failure_and_the_others_stand(self):
        silent = VM.replace("sys.exit(", 'code = (').replace("returncode)", 'returncode)\nopen(out + "/0.json", "w")')
        rows = self.measured(silent, code=1)
        self.assertEqual(rows["the same by rdma, in the VM"][1:], ["not played here", "not measured"])
        self.assertEqual(rows["1 % and 5 % of the packets lost, by rdma in the VM"][2], "met")
        self.assertIn("* in the VM, rdma: `troupe faults` gave no answer", self.page)

    def test_what_the_answer_alone_calls_wrong_is_a_violation(self):
        self.measured(NO_VM, {"wrong": True}, code=1)
        self.assertIn("* `troupe faults` says that something is wrong, and not what", self.page)
        self.assertIn("* redis-away: `troupe faults` says that", self.page)
        # Where a row says what, that is enough.
        self.measured(NO_VM, {"loss tcp": {"ok": False, "broken": "a byte"}}, code=1)
        self.assertIn("* loss: a byte", self.page)
        self.assertNotIn("says that", self.page)

    def test_a_step_that_fails_leaves_what_the_others_brought(self):
        for silent in ("soak", "sim", "faults"):
            rows = self.measured(VM, {"silent": [silent]}, code=1)
            self.assertIn("**This page is not whole**: ", self.page)
            self.assertIn(f"`troupe {silent}` gave no answer (exit code 3)", self.page)
            if silent != "faults":
                self.assertEqual(rows["target killed, to all its tasks ended (tcp)"][2], "met")
            if silent != "sim":
                self.assertIn("simulator", rows)

    def test_the_progress_of_troupe_is_shown(self):
        self.measured(NO_VM)
        for command in ("faults", "soak", "sim"):
            self.assertIn(f"progress of {command}\n", self.said)

    def test_a_signal_ends_it_in_order_and_what_was_measured_stands(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for name in ("begun", "ended"):
                (self.root / name).unlink(missing_ok=True)
            command = self.command(VM, {"endless": "soak"}, "--out", str(self.root / "page.md"))
            # ctest, and a shell for what it starts in the background, may have it ignored.
            script = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
            self.addCleanup(script.kill)
            while not (self.root / "begun").exists():
                self.assertIsNone(script.poll())
                time.sleep(0.01)
            script.send_signal(number)
            self.assertEqual(script.wait(), 128 + number)
            # Once, and it was waited for.
            self.assertEqual((self.root / "ended").read_text(), "1")
            self.page = (self.root / "page.md").read_text()
            self.assertIn("not whole**: it was interrupted during the soak.", self.page)
            self.assertEqual(self.rows()["target killed, to all its tasks ended (tcp)"][2], "met")

    def test_a_page_that_is_not_whole_replaces_none(self):
        script = self.root / "tree/scripts/reliability.py"
        for folder in ("scripts", "docs"):
            (self.root / "tree" / folder).mkdir(parents=True)
        shutil.copy(SCRIPT, script)
        shutil.copy(REPOSITORY / "docs/simulator.md", self.root / "tree/docs")
        kept = self.root / "tree/docs/reliability.md"
        kept.write_text("kept")
        ended = subprocess.run(self.command(NO_VM, {"silent": ["sim"]}, script=script), text=True, capture_output=True)
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        self.assertEqual(kept.read_text(), "kept")
        self.assertIn("not whole", (self.root / "tree/build/reliability-incomplete.md").read_text())
        ended = subprocess.run(self.command(NO_VM, {}, script=script), text=True, capture_output=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("# Reliability, measured", kept.read_text())


if __name__ == "__main__":
    unittest.main()
