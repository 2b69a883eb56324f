"""Runs what scripts/public_headers.py is made of on small trees."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True
import public_headers  # noqa: E402


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


class PublicHeaders(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)

    def test_includes_of_the_project_get_the_prefix_and_others_do_not(self):
        write(self.root, {"a/one.h": '#include <a/two.h>\n  #  include "a/two.h"\n// see "a/two.h"\n', "a/two.h": ""})
        texts, faults = public_headers.public_texts(self.root, ("a/one.h", "a/two.h"))
        self.assertEqual(faults, [])
        self.assertEqual(texts["a/one.h"], '#include <a/two.h>\n  #  include "troupe/a/two.h"\n// see "a/two.h"\n')

    def test_a_private_header_in_a_public_one_is_named(self):
        write(self.root, {"a/one.h": '#include "b/private.h"\n', "b/private.h": ""})
        _, faults = public_headers.public_texts(self.root, ("a/one.h",))
        self.assertEqual(faults, ['a/one.h includes "b/private.h", which is not public'])

    def test_what_is_the_same_is_not_touched_and_what_is_no_more_is_removed(self):
        write(self.root, {"a/one.h": "1", "b/old.h": "2"})
        before = (self.root / "a/one.h").stat().st_mtime_ns
        public_headers.write_all({"a/one.h": "1", "c/new.h": "3"}, self.root)
        self.assertEqual((self.root / "a/one.h").stat().st_mtime_ns, before)
        self.assertEqual(sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*.h")),
                         ["a/one.h", "c/new.h"])
        self.assertFalse((self.root / "b").exists())

    def test_the_version_is_there_for_the_preprocessor(self):
        text = public_headers.version_header("12.3.0")
        for line in ("#define TROUPE_VERSION_MAJOR 12", "#define TROUPE_VERSION_MINOR 3",
                     "#define TROUPE_VERSION_PATCH 0", '#define TROUPE_VERSION_STRING "12.3.0"'):
            self.assertIn(line, text.splitlines())
        self.assertIn('#include "troupe/version.h"', public_headers.umbrella())
        for wrong in ("1.2", "1.2.3.4", "1.2.x", ""):
            with self.assertRaises(ValueError):
                public_headers.version_header(wrong)

    def test_the_tree_is_closed(self):
        texts, faults = public_headers.public_texts()
        self.assertEqual(faults, [])
        # CAF comes only with the header that says so.
        with_caf = {name for name, text in texts.items() if "#include <caf/" in text}
        self.assertEqual(with_caf, {"engine/actor_api.h", "messages/peer_event.h"})
        self.assertNotIn('#include "troupe/engine/actor_api.h"', public_headers.umbrella())


if __name__ == "__main__":
    unittest.main()
