#!/usr/bin/env python3
"""scripts/gpu_check.sh: with the real program on the fake driver, by a bundle, and with a compute-sanitizer of any kind.

usage: gpu_check_test.py PROGRAM FAKE_DRIVER
"""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.sh"
PROGRAM, DRIVER = sys.argv[1], sys.argv[2]


class GpuCheckScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def tool(self, name, text):
        """A program of that name, before all others."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def check(self, *arguments):
        environment = dict(os.environ, TROUPE_GPU_DRIVER=DRIVER, PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}")
        # Elsewhere than in the repository: names of files are of where the caller is.
        return subprocess.run([SCRIPT, *arguments], env=environment, cwd=self.folder, text=True, timeout=280,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def test_a_bundle_runs_to_its_end_and_the_table_is_last(self):
        made = self.check("--program", PROGRAM, "--bundle", "there")
        self.assertEqual(made.returncode, 0, made.stdout)
        self.assertTrue((self.folder / "there" / "troupe_gpu_check").exists())
        ran = self.check("--from", "there", "--bytes", "1048576", "--json", "figures.json")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        report = json.loads((self.folder / "figures.json").read_text())
        self.assertTrue(report["passed"])
        rows = [row for section in report.values() if isinstance(section, list) for row in section if "gbps" in row]
        aims = {row["name"]: row["target"] for row in rows if row["target"] is not None}
        for name, target in (("engine, same process", 0.95), ("engine, other process", 0.9),
                             ("engine, TCP on loopback", 0.9)):
            self.assertIn(target, [aims[each] for each in aims if each.startswith(name)], name)
        table = ran.stdout.rstrip().splitlines()[-len(rows):]
        for row in rows:
            lines = [line for line in table if line.startswith(row["name"] + " ")]
            self.assertEqual(len(lines), 1, row["name"])
            if row["met"] is not None:
                self.assertEqual(lines[0].split()[-1], "yes" if row["met"] else "NO")

    def test_a_sanitizer_that_does_not_work_fails_nothing_and_one_that_finds_something_does(self):
        program = self.tool("program", "echo ran $*\n")
        for status, outcome in ((0, 0), (1, 0), (127, 0), (9, 9)):
            self.tool("compute-sanitizer", f"exit {status}\n")
            ran = self.check("--program", program)
            self.assertEqual(ran.returncode, outcome, ran.stdout)
            self.assertIn("ran ", ran.stdout.splitlines()[-1])

    def test_help_builds_and_measures_nothing(self):
        for words in (["--help"], ["--program", self.tool("program", "echo ran\n"), "-h"]):
            ran = self.check(*words)
            self.assertEqual(ran.returncode, 0, ran.stdout)
            self.assertIn("--bundle DIR", ran.stdout)
            self.assertNotIn("ran\n", ran.stdout)
            self.assertNotIn("ninja", ran.stdout)

    def test_a_failed_check_is_a_failure(self):
        ran = self.check("--program", self.tool("program", "exit 1\n"))
        self.assertEqual(ran.returncode, 1, ran.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
