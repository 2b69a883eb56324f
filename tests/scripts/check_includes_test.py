"""Runs scripts/check_includes.py on small trees, each wrong in one way."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_includes.py"


class IncludeCheck(unittest.TestCase):
    def check(self, files, rules=None):
        """Writes path -> text, runs the check there, and returns its exit status and everything it said."""
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            command = [sys.executable, str(SCRIPT), str(root)]
            if rules is not None:
                (root / "rules.txt").write_text(rules)
                command += ["--rules", str(root / "rules.txt")]
            result = subprocess.run(command, capture_output=True, text=True)
            return result.returncode, result.stdout + result.stderr

    def assert_fault(self, files, *words, rules=None):
        status, said = self.check(files, rules)
        self.assertEqual(status, 1, said)
        for word in words:
            self.assertIn(word, said)

    def assert_right(self, files):
        status, said = self.check(files)
        self.assertEqual(status, 0, said)

    def test_what_the_floors_allow_is_right(self):
        self.assert_right({
            "base/status.h": '#include <string>\n#include "base/code.h"\n',
            "transports/nic.h": '#include "base/status.h"\n#include "metadata/segment_desc.h"\n',
            "actors/loop.cpp": '#include <caf/all.hpp>\n#include "messages/all.h"\n#include "control/frame.h"\n',
            "tests/actors/loop_test.cpp": '#include <caf/all.hpp>\n#include "engine/types.h"\n',
            "docs/example.txt": '#include "nowhere/at_all.h"\n',
        })

    def test_an_include_that_goes_up_names_the_line(self):
        self.assert_fault({"base/status.cpp": '#include "base/status.h"\n\n#include "engine/types.h"\n'},
                          'base/status.cpp:3: base/ may not include "engine/types.h"')

    def test_an_include_of_a_neighbour_is_a_fault(self):
        self.assert_fault({"tcp_backend/nic.cpp": '#include "host_backend/copy.h"\n'}, "tcp_backend/nic.cpp:1:")

    def test_a_backend_sees_no_actor(self):
        self.assert_fault({"tcp_backend/nic.cpp": '  #  include "actors/loop.h"\n'}, "tcp_backend/nic.cpp:1:")

    def test_caf_stays_above_the_backends(self):
        for path in ("base/a.h", "transports/a.h", "control/a.cpp", "tcp_backend/a.cpp", "host_backend/a.cpp"):
            self.assert_fault({path: "#include <caf/all.hpp>\n"}, f"{path}:1:", "caf/all.hpp")
            self.assert_fault({path: '#include "caf/all.hpp"\n'}, f"{path}:1:", "caf/all.hpp")

    def test_the_public_header_shows_no_caf_however_far_away(self):
        self.assert_fault({"engine/transfer_engine.h": "#include <caf/all.hpp>\n"}, "engine/transfer_engine.h:1:")
        self.assert_fault({"engine/transfer_engine.h": '#include "messages/batch.h"\n',
                           "messages/batch.h": '\n#include "messages/ids.h"\n',
                           "messages/ids.h": "#include <caf/type_id.hpp>\n"},
                          "messages/ids.h:1:", "engine/transfer_engine.h -> messages/batch.h -> messages/ids.h")
        self.assert_right({"engine/actor_api.h": "#include <caf/all.hpp>\n",
                           "engine/engine_core.cpp": '#include "engine/actor_api.h"\n#include <caf/all.hpp>\n',
                           "engine/transfer_engine.h": '#include "messages/types.h"\n',
                           "messages/types.h": "#include <string>\n"})

    def test_verbs_stay_in_their_backend(self):
        self.assert_fault({"actors/nic_worker.cpp": "#include <infiniband/verbs.h>\n"}, "infiniband/verbs.h")
        self.assert_fault({"tcp_backend/a.cpp": "#include <infiniband/verbs.h>\n"}, "infiniband/verbs.h")
        self.assert_right({"verbs_backend/nic.cpp": "#include <infiniband/verbs.h>\n"})

    def test_a_cycle_is_shown_with_the_includes_that_make_it(self):
        self.assert_fault({"a/x.h": '#include "b/x.h"\n', "b/x.h": '#include "c/x.h"\n', "c/x.h": '#include "a/x.h"\n'},
                          "circle", 'a/x.h:1: "b/x.h"', 'b/x.h:1: "c/x.h"', 'c/x.h:1: "a/x.h"',
                          rules="a b\nb c\nc a\n")

    def test_a_path_must_begin_with_its_folder(self):
        self.assert_fault({"base/status.cpp": '#include "status.h"\n'}, '"status.h" does not begin with a folder')
        self.assert_fault({"base/status.cpp": '#include "../base/status.h"\n'}, "does not begin with a folder")

    def test_the_projects_headers_stand_in_quotes(self):
        self.assert_fault({"base/status.cpp": "#include <base/status.h>\n"}, "base/status.cpp:1:")

    def test_a_folder_needs_a_line_in_the_table(self):
        self.assert_fault({"newcomer/x.h": "\n"}, "newcomer/ has sources but no line")


if __name__ == "__main__":
    unittest.main()
