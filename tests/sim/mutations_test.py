"""Every deliberate defect of mutations.py has its place in the sources of today. Builds nothing."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/sim"))
sys.dont_write_bytecode = True
import mutations  # noqa: E402

NAMES = [name for name, *_ in mutations.MUTATIONS]


class Mutations(unittest.TestCase):
    def test_every_text_is_in_its_file_once(self):
        written = {}
        self.assertEqual(mutations.put_in(mutations.read_original, written.__setitem__), [])
        self.assertEqual(set(written), {file for _, _, file, _, _ in mutations.MUTATIONS})

    def test_every_defect_changes_its_file_and_sleeps_until_it_is_chosen(self):
        for name, _, file, text, becomes in mutations.MUTATIONS:
            with self.subTest(name):
                self.assertNotEqual(becomes, text)
                self.assertEqual(becomes.count("MUTANT"), 1)
        written = {}
        mutations.put_in(mutations.read_original, written.__setitem__)
        for name, _, file, text, _ in mutations.MUTATIONS:
            with self.subTest(name):
                self.assertEqual(written[file].count(f'troupeMutant("{name}")'), 1)
                self.assertTrue(written[file].startswith(mutations.CHOOSER))

    def test_a_text_that_is_gone_or_there_twice_is_named(self):
        name, _, file, text, _ = mutations.MUTATIONS[0]
        for times, source in enumerate(("", text, text + text)):
            read = {file: source}
            missing = mutations.put_in(lambda each: read.get(each, ""), lambda *_: None)
            said = f"{name}: its text is {times} times in {file}"
            (self.assertNotIn if times == 1 else self.assertIn)(said, missing)

    def test_names_are_given_once_and_the_page_has_them(self):
        page = (ROOT / "docs/simulator.md").read_text()
        table = page.split("| defect |")[1].split("\n\n")[0]
        self.assertEqual(re.findall(r"^\| (\w+) \|", table, re.MULTILINE), NAMES)
        self.assertEqual(len(set(NAMES)), len(NAMES))


if __name__ == "__main__":
    unittest.main()
