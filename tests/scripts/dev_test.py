"""Runs ./dev on a machine that has nothing yet: apt, dpkg, sudo and the programs that build are stand-ins which write
down what they are asked. What is looked at is when ./dev asks for root, and what it installs then."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

# A package is installed when it stands in the file `installed`.
STAND_INS = {
    "apt-get": """
        echo "apt-get $*" >>"$WORLD/log"
        update= install=
        for word in "$@"; do
            case $word in
                update) update=yes ;;
                install) install=yes ;;
                -*) ;;
                *) [ -z "$install" ] || echo "$word" >>"$WORLD/installed" ;;
            esac
        done
        [ -z "$update" ] || touch "$WORLD/refreshed"
    """,
    "apt-cache": '[ -e "$WORLD/refreshed" ] || [ ! -e "$WORLD/knows_nothing" ]',
    "dpkg-query": """
        for package in "$@"; do :; done
        if grep -qx -- "$package" "$WORLD/installed"; then printf installed; else exit 1; fi
    """,
    "sudo": 'echo sudo >>"$WORLD/log"; exec "$@"',
    "cmake": "exit 1",
    "ctest": "exit 1",
    "setarch": "exit 1",
}
# The kernel comes once apt's lists are fresh.
KERNEL = """
import os, pathlib, sys
world = pathlib.Path(os.environ["WORLD"])
if not (world / "refreshed").exists():
    sys.exit(69)
(pathlib.Path("build") / "vm-kernel").mkdir(parents=True, exist_ok=True)
"""


class Machine:
    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        self.tree = self.root / "tree"
        self.program, self.folder = "./dev", self.tree
        (self.tree / "scripts").mkdir(parents=True)
        (self.tree / "tests/rdma_vm").mkdir(parents=True)
        (self.root / "bin").mkdir()
        (self.root / "installed").touch()
        shutil.copy(REPOSITORY / "dev", self.tree / "dev")
        shutil.copy(REPOSITORY / "scripts/packages.txt", self.tree / "scripts/packages.txt")
        (self.tree / "tests/rdma_vm/kernel.py").write_text(KERNEL)
        (self.tree / "tests/rdma_vm/vm.py").write_text("")
        shutil.copy(REPOSITORY / "CMakePresets.json", self.tree / "CMakePresets.json")
        (self.tree / "base").mkdir()
        (self.tree / "base/CMakeLists.txt").touch()
        for name, script in STAND_INS.items():
            program = self.root / "bin" / name
            program.write_text("#!/bin/sh\n" + script + "\n")
            program.chmod(0o755)

    def dev(self, *arguments):
        """Runs ./dev, which may fail for lack of a compiler, and returns the calls of apt-get that it made as root."""
        (self.root / "log").write_text("")
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "WORLD": str(self.root), "DEV_STAGES": "checks release"}
        ended = subprocess.run([self.program, *arguments], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said, self.code = ended.stdout, ended.returncode
        lines = (self.root / "log").read_text().splitlines()
        if os.geteuid() != 0:
            self.asked = lines.count("sudo")
        else:
            # Root is not asked for; what would have been is each step that says so.
            self.asked = sum(line.startswith(("[0:", "[1:")) and ("installing:" in line or "refreshing" in line)
                             for line in self.said.splitlines())
        return [line for line in lines if line.startswith("apt-get")]


class Packages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.machine = Machine(folder.name)

    def installed_by(self, *arguments):
        """What ./dev installs, in one go and with one question."""
        calls = self.machine.dev(*arguments)
        self.assertEqual(self.machine.asked, 1, self.machine.said)
        installs = [call.split() for call in calls if " install " in call]
        self.assertEqual(len(installs), 1, calls)
        return installs[0]

    def test_the_suite_asks_once_for_all_that_it_needs(self):
        packages = self.installed_by("test")
        for package in ("g++", "clang-format", "qemu-system-x86", "kmod"):
            self.assertIn(package, packages)
        self.assertNotIn("iperf3", packages)
        self.assertTrue((self.machine.tree / "build/vm-kernel").exists(), self.machine.said)

    def test_a_second_run_asks_for_nothing(self):
        self.machine.dev("test")
        self.assertEqual(self.machine.dev("test"), [])
        self.assertEqual(self.machine.asked, 0, self.machine.said)

    def test_what_needs_no_vm_installs_none(self):
        for words, vm in ((("test", "--quick"), False), (("reliability", "--short"), False),
                          (("reliability", "--vm-rounds", "0"), False), (("reliability", "--full", "--vm-rounds=0"), False),
                          (("reliability",), True), (("reliability", "--short", "--vm-rounds", "2"), True)):
            with self.subTest(words=words), tempfile.TemporaryDirectory() as folder:
                self.machine = Machine(folder)
                packages = self.installed_by(*words)
                self.assertIn("g++", packages)
                self.assertEqual("qemu-system-x86" in packages, vm)
                self.assertEqual((self.machine.tree / "build/vm-kernel").exists(), vm)

    def test_where_no_kernel_can_be_had_it_says_how_to_go_on(self):
        (self.machine.tree / "tests/rdma_vm/kernel.py").write_text("exit(69)")
        for words, otherwise in ((("test", "--preset", "release"), "without the VM: ./dev test -LE rdma"),
                                 (("reliability",), "without the VM: ./dev reliability --vm-rounds 0")):
            self.machine.dev(*words)
            self.assertIn(otherwise, self.machine.said)
        self.assertIn("going on without the VM", self.machine.said)

    def test_the_other_commands_ask_once_too(self):
        for arguments, package in ((("bench",), "iperf3"), (("bench", "--rdma"), "perftest"), (("vm", "--", "true"), "kmod"),
                                   (("setup",), "libclang-rt-dev"), (("lint",), "clang-tidy"), (("demo",), "g++")):
            with self.subTest(arguments=arguments), tempfile.TemporaryDirectory() as folder:
                self.machine = Machine(folder)
                self.assertIn(package, self.installed_by(*arguments))

    def test_lists_that_know_no_package_are_refreshed_in_the_same_go(self):
        (self.machine.root / "knows_nothing").touch()
        self.assertIn("g++", self.installed_by("test", "--quick"))
        self.assertTrue((self.machine.root / "refreshed").exists())


class Words(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.machine = Machine(folder.name)

    def refused(self, *arguments):
        """What ./dev says of arguments that it refuses before it does anything."""
        self.assertEqual(self.machine.dev(*arguments), [])
        self.assertEqual(self.machine.code, 1, self.machine.said)
        self.assertFalse((self.machine.tree / "build").exists(), arguments)
        return self.machine.said

    def test_a_preset_that_is_none_leaves_nothing_behind(self):
        self.assertIn("there are release debug asan tsan clang fuzz", self.refused("build", "nosuch"))
        self.assertIn("there are release", self.refused("build", "base"))

    def test_a_word_that_is_nothing_is_refused(self):
        self.assertIn("'nonsense' is no option", self.refused("build", "release", "nonsense"))
        self.assertIn("'nonsense' is no option", self.refused("build", "release", "--clean-first", "nonsense"))
        self.assertIn("no option '-x'", self.refused("build", "-x"))
        self.assertIn("no option '--target'", self.refused("build", "--target", "troupe"))

    def test_targets_and_options_are_taken(self):
        self.machine.dev("build", "release", "--target", "one", "two", "--clean-first", "--", "-k", "0")
        self.assertIn("installing", self.machine.said)

    def test_help_is_no_error(self):
        for arguments in (("help",), ("--help",), ("build", "--help"), ("build", "-h"), ("test", "--help")):
            self.machine.dev(*arguments)
            self.assertEqual(self.machine.code, 0, arguments)
            self.assertIn("Usage: ./dev COMMAND", self.machine.said)

    def test_what_was_skipped_is_said_after_the_summary(self):
        (self.machine.root / "bin/cmake").write_text("#!/bin/sh\nexit 0\n")
        (self.machine.root / "bin/ctest").write_text("""#!/bin/sh
cat <<'TEXT'
100% tests passed, 0 tests failed out of 3

The following tests did not run:
\t  2 - Faults.loss (Skipped)
\t 10 - Host.Socket (Skipped)

Total Test time (real) =   1.00 sec
TEXT
""")
        self.machine.dev("test", "--preset", "release", "--", "-R", "anything")
        self.assertEqual(self.machine.code, 0, self.machine.said)
        summary = self.machine.said[self.machine.said.index("all stages done"):].splitlines()
        self.assertEqual(summary[2:5], ["not run in release, which is no failure:", "\t  2 - Faults.loss (Skipped)",
                                        "\t 10 - Host.Socket (Skipped)"])
        self.assertEqual(summary[-1], "100% tests passed, 0 tests failed out of 3")

    def test_a_link_from_elsewhere_finds_its_tree(self):
        link = self.machine.root / "link"
        link.symlink_to(self.machine.tree / "dev")
        self.machine.program, self.machine.folder = str(link), "/"
        self.assertNotEqual(self.machine.dev("build"), [])
        self.assertTrue((self.machine.tree / "build/release").exists(), self.machine.said)

    def built(self, name):
        """A program that was built before, and says what it is asked."""
        program = self.machine.tree / "build/release/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} is asked $*"\n')
        program.chmod(0o755)

    def test_what_only_asks_boots_no_vm(self):
        self.built("troupe_bench")
        (self.machine.tree / "tests/rdma_vm/vm.py").write_text("print('booted')")
        for words in (("--rdma", "--help"), ("--rdma", "--list"), ("--list", "--rdma"), ("--help",)):
            self.assertEqual(self.machine.dev("bench", *words), [], self.machine.said)
            self.assertEqual(self.machine.code, 0, self.machine.said)
            self.assertEqual(self.machine.said.strip(), "troupe_bench is asked " + " ".join(words))

    def test_where_the_figures_of_the_vm_go_is_looked_at_before_the_boot(self):
        self.assertIn("--out needs a file", self.refused("bench", "--rdma", "--out"))
        self.assertIn("--keep needs a file", self.refused("bench", "--rdma", "--keep="))
        self.assertIn("there is no such folder", self.refused("bench", "--rdma", "--out", "no/such/file.json"))
        self.assertIn("is a folder", self.refused("bench", "--rdma", "--out", "scripts"))
        self.assertIn("there is no such file", self.refused("bench", "--rdma", "--keep", "mistyped.json"))

    def test_the_figures_of_the_vm_go_where_they_are_wanted(self):
        for name in ("cmake", "setarch"):
            (self.machine.root / "bin" / name).write_text("#!/bin/sh\nexit 0\n")
        (self.machine.tree / "tests/rdma_vm/vm.py").write_text("""
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
words = sys.argv[sys.argv.index("bash") + 4:]
kept = ""
if "--keep" in words:
    where = pathlib.Path(words.pop(words.index("--keep") + 1))
    words.remove("--keep")
    # The guest has a /tmp of its own, and no more than the tree is sure to be there.
    kept = " beside " + where.read_text() if where.parts[0] == "build" else " from elsewhere"
(out / "bench.json").write_text(" ".join(words) + kept)
""")
        mine, old = self.machine.root / "mine.json", self.machine.root / "old.json"
        old.write_text("old")
        for words, file, passed in (((), "build/bench.json", "--rdma"),
                                    ((), "build/bench.json", "--rdma beside --rdma"),
                                    (("--out", mine, "rdma.read"), mine, "--rdma rdma.read"),
                                    (("--out", mine), mine, "--rdma beside --rdma rdma.read"),
                                    ((f"--out={mine}", "--keep", old), mine, "--rdma beside old")):
            self.machine.dev("bench", "--rdma", *words)
            self.assertEqual(self.machine.code, 0, self.machine.said)
            self.assertEqual((self.machine.tree / file).read_text(), passed)

    def test_files_are_of_where_the_caller_stands(self):
        for name in ("cmake", "setarch"):
            (self.machine.root / "bin" / name).write_text("#!/bin/sh\nexit 0\n")
        for name in ("troupe", "troupe_bench"):
            self.built(name)
            program = self.machine.tree / "build/release/bin" / name
            program.write_text(program.read_text() + "pwd\n")
        (self.machine.tree / "build/vm-kernel").mkdir()
        vm = "import os, sys; print('vm is asked', *sys.argv[1:]); print(os.getcwd())"
        (self.machine.tree / "tests/rdma_vm/kernel.py").write_text("")
        (self.machine.tree / "tests/rdma_vm/vm.py").write_text(vm)
        (self.machine.tree / "scripts/reliability.py").write_text(vm.replace("vm is", "reliability is"))
        elsewhere = self.machine.root / "elsewhere"
        elsewhere.mkdir()
        self.machine.program, self.machine.folder = str(self.machine.tree / "dev"), elsewhere
        kept = f"--out {self.machine.tree}/build/bench.json"
        for words, said in ((("bench", "row"), f"troupe_bench is asked {kept} row"),
                            (("bench", "--out", "mine.json"), "troupe_bench is asked --out mine.json"),
                            (("bench", "--out=mine.json"), "troupe_bench is asked --out=mine.json"),
                            (("demo", "--trace", "t"), "troupe is asked demo --trace t"),
                            (("demo", "--help"), "troupe is asked demo --help"),
                            (("sim", "--json"), "troupe is asked sim --json"),
                            (("reliability", "--short", "--out", "p"), "reliability is asked --short --out p"),
                            (("vm", "--", "./mine"), "vm is asked -- ./mine")):
            self.machine.dev(*words)
            self.assertEqual(self.machine.code, 0, self.machine.said)
            self.assertEqual(self.machine.said.splitlines()[-2:], [said, str(elsewhere)], words)
        # It is the tree that is built, and what is measured in the VM goes where the caller says.
        (elsewhere / "old.json").write_text("old")
        self.machine.dev("bench", "--rdma", "--out", "no/such/file.json")
        self.assertIn(f"{elsewhere}/no/such/file.json: there is no such folder", self.machine.said)
        self.machine.dev("bench", "--rdma", "--keep", "old.json")
        self.assertEqual((self.machine.tree / "build/bench-rdma-kept.json").read_text(), "old")
        self.machine.folder = self.machine.tree
        self.machine.dev("bench", "row")
        self.assertIn("troupe_bench is asked row", self.machine.said)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_tree_that_cannot_be_written_is_said(self):
        self.machine.tree.chmod(0o555)
        self.addCleanup(self.machine.tree.chmod, 0o755)
        for command in ("build", "test"):
            said = self.refused(command)
            self.assertEqual(len(said.splitlines()), 1, said)
            self.assertIn("build in a copy of your own", said)


# As far as a tree is configured, and what it compiles with.
CMAKE = """
echo "cmake $* with CCACHE_DIR=$CCACHE_DIR" >>"$WORLD/log"
[ "$1" = --preset ] || exit 0
cache=build/$2/CMakeCache.txt
mkdir -p "build/$2"
if [ -e "$cache" ] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    echo "the source does not match the one that the cache was made for"
    exit 1
fi
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" >"$cache"
touch "build/$2/build.ninja"
"""


class Trees(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.machine = Machine(folder.name)
        (self.machine.root / "bin/cmake").write_text("#!/bin/sh\n" + CMAKE)

    def build(self):
        """The calls of cmake."""
        self.machine.dev("build")
        self.assertEqual(self.machine.code, 0, self.machine.said)
        return [line for line in (self.machine.root / "log").read_text().splitlines() if line.startswith("cmake")]

    def test_a_tree_that_was_moved_or_copied_is_configured_anew(self):
        self.assertEqual(len(self.build()), 2)
        self.assertEqual(len(self.build()), 1, "nothing has changed")
        for change in (lambda old, new: old.rename(new), lambda old, new: shutil.copytree(old, new)):
            new = self.machine.tree.with_name(self.machine.tree.name + "-new")
            change(self.machine.tree, new)
            self.machine.tree = self.machine.folder = new
            self.assertEqual(len(self.build()), 2, self.machine.said)
            self.assertIn(f"={new}\n", (new / "build/release/CMakeCache.txt").read_text())
            self.assertEqual(len(self.build()), 1)

    def test_without_a_home_that_ccache_can_write_it_has_one_in_the_tree(self):
        ccache = self.machine.root / "bin/ccache"
        usable = self.machine.root / "home/cache"
        for folder, used in ((usable, ""), ("/proc/nothing/cache", f"{self.machine.tree}/build/ccache"),
                             ("", f"{self.machine.tree}/build/ccache")):
            ccache.write_text(f"#!/bin/sh\necho {folder}\n")
            ccache.chmod(0o755)
            for call in self.build():
                self.assertTrue(call.endswith(f" with CCACHE_DIR={used}"), call)


if __name__ == "__main__":
    unittest.main()
