#!/usr/bin/env python3
"""What the harness must tell apart: a command's status and output, a panic, a hang, a boot without devices."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import kernel
import vm as harness

VM = pathlib.Path(__file__).resolve().parent / "vm.py"
# Seconds for what takes one of a machine that is not busy.
PATIENCE = 60


def vm(*arguments):
    return subprocess.run([sys.executable, VM, *arguments], capture_output=True, text=True)


def ended(pid):
    """Also when nobody takes note of its end, as where the first process of a container does not."""
    try:
        # After the name, which may have any characters: the state.
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


class Harness(unittest.TestCase):
    def test_a_command_sees_the_devices_and_its_status_and_files_come_back(self):
        with tempfile.TemporaryDirectory() as out:
            script = "ibv_devices; cat; echo kept >$OUT/file; touch /root/x 2>&1; exit 7"
            ran = vm("--rails", "2", "--out", out, "--", "bash", "-c", script)
            self.assertEqual(ran.returncode, 7, ran.stdout + ran.stderr)
            for device in ["rxe_0a", "rxe_0b", "rxe_1a", "rxe_1b"]:
                self.assertIn(device, ran.stdout)
            self.assertIn("Read-only file system", ran.stdout)
            self.assertEqual((pathlib.Path(out) / "file").read_text(), "kept\n")

    @unittest.skipUnless(os.access("/mnt", os.W_OK), "/mnt may not be written")
    def test_a_tree_below_mnt_is_seen_in_the_guest(self):
        with tempfile.TemporaryDirectory(dir="/mnt", prefix="troupe-vm-test-") as tree:
            shutil.copytree(VM.parent, f"{tree}/tests/rdma_vm")
            # The kernel is taken from where it lies already.
            script = f"import kernel, pathlib; kernel.UNPACKED = pathlib.Path({str(kernel.UNPACKED)!r}); "
            script += "kernel.find.__defaults__ = (('/', kernel.UNPACKED),); import vm, sys; sys.exit(vm.main())"
            ran = subprocess.run([sys.executable, "-c", script, "--out", f"{tree}/out", "--", "bash", "-c",
                                  f"ls {tree}/tests/rdma_vm && echo kept >$OUT/file"], text=True, capture_output=True,
                                 cwd=f"{tree}/tests/rdma_vm")
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            self.assertIn("guest.sh", ran.stdout)
            self.assertEqual(pathlib.Path(f"{tree}/out/file").read_text(), "kept\n")

    def test_a_panic_is_a_failure_that_shows_the_console(self):
        ran = vm("--", "bash", "-c", "echo before; sleep 1; echo c >/proc/sysrq-trigger; sleep 60")
        self.assertEqual(ran.returncode, 70)
        self.assertIn("before", ran.stdout)
        self.assertIn("panicked", ran.stderr)
        self.assertIn("sysrq", ran.stderr)

    def test_a_panic_is_found_above_however_long_a_trace(self):
        why, shown = harness.ending(["booted", "Kernel panic - not syncing: why"] + ["called from here"] * 500)
        self.assertIn("panicked", why)
        self.assertIn("Kernel panic - not syncing: why", shown)
        self.assertEqual(harness.ending(["last words"]), ("the guest ended without a status", ["last words"]))

    def test_a_command_that_never_ends_is_a_failure(self):
        ran = vm("--timeout", "30", "--", "sleep", "1000")
        self.assertEqual(ran.returncode, 70)
        self.assertIn("did not end within 30", ran.stderr)

    def test_a_boot_that_hangs_is_a_failure(self):
        ran = vm("--boot-timeout", "0.5", "--", "true")
        self.assertEqual(ran.returncode, 70)
        self.assertIn("did not boot", ran.stderr)

    def test_however_busy_the_machine_is_there_is_an_end(self):
        ran = vm("--give-up", "1", "--", "sleep", "1000")
        self.assertEqual(ran.returncode, 70)
        self.assertIn("gave up after 1 s", ran.stderr)

    def test_the_vm_ends_with_the_harness_however_that_ends(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            harness_process = subprocess.Popen([sys.executable, VM, "--", "sleep", "1000"], stdout=subprocess.DEVNULL)
            self.addCleanup(harness_process.wait)
            self.addCleanup(harness_process.kill)
            children = pathlib.Path(f"/proc/{harness_process.pid}/task/{harness_process.pid}/children")
            until = time.monotonic() + PATIENCE
            qemu = None
            while qemu is None and time.monotonic() < until:
                time.sleep(0.05)
                self.assertIsNone(harness_process.poll(), "the harness ended before it had started a VM")
                # What it runs before qemu, like cpio, is gone again by the time it is looked at.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    for child in children.read_text().split():
                        if "qemu" in pathlib.Path(f"/proc/{child}/comm").read_text():
                            qemu = child
            self.assertIsNotNone(qemu, "no VM was started")
            harness_process.send_signal(number)
            harness_process.wait()
            until = time.monotonic() + PATIENCE
            while not ended(qemu) and time.monotonic() < until:
                time.sleep(0.05)
            self.assertTrue(ended(qemu), f"qemu goes on after signal {number}")

    def test_it_says_how_far_it_is_and_not_on_the_output_of_the_command(self):
        ran = vm("--", "echo", "{}")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stdout, "{}\n")
        self.assertIn("vm: booting Linux ", ran.stderr)
        self.assertRegex(ran.stderr, r"vm: booted after \d+ s; running: echo '\{\}'")

    def test_ctrl_c_ends_it_and_the_vm_without_a_traceback(self):
        # ctest, and a shell for what it starts in the background, may have it ignored.
        harness_process = subprocess.Popen([sys.executable, VM, "--", "sleep", "1000"], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE, text=True,
                                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.addCleanup(harness_process.stderr.close)
        self.addCleanup(harness_process.kill)
        self.assertIn("vm: booting", harness_process.stderr.readline())
        harness_process.send_signal(signal.SIGINT)
        said = harness_process.stderr.read()
        self.assertEqual(harness_process.wait(), 128 + signal.SIGINT)
        self.assertIn("vm: interrupted", said)
        self.assertNotIn("Traceback", said)

    def test_its_help_is_of_the_command_that_users_type(self):
        ran = vm("--help")
        self.assertIn("usage: ./dev vm ", ran.stdout)
        self.assertNotIn("vm.py", ran.stdout)

    def test_a_process_that_nobody_reaps_has_ended(self):
        child = subprocess.Popen(["sleep", "1000"])
        self.assertFalse(ended(child.pid))
        child.kill()
        until = time.monotonic() + PATIENCE
        while not ended(child.pid) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertTrue(pathlib.Path(f"/proc/{child.pid}").exists(), "it was reaped already")
        self.assertTrue(ended(child.pid))
        child.wait()
        self.assertTrue(ended(child.pid))

    def test_a_missing_program_and_its_package_are_named(self):
        environment = dict(os.environ, PATH="/nowhere")
        ran = subprocess.run([sys.executable, VM, "--", "true"], capture_output=True, text=True, env=environment)
        self.assertEqual(ran.returncode, 69)
        self.assertIn("not installed: qemu-system-x86_64", ran.stderr)
        self.assertRegex(ran.stderr, r"apt-get install .*\bqemu-system-x86\b")

    def test_a_kernel_is_looked_for_where_it_was_unpacked_too(self):
        with tempfile.TemporaryDirectory() as root:
            nothing = pathlib.Path(root) / "nothing"
            (pathlib.Path(root) / "boot").mkdir()
            (pathlib.Path(root) / "boot/vmlinuz-9.9").touch()
            self.assertIsNone(kernel.find([nothing, root]), "it has no Soft-RoCE")
            modules = pathlib.Path(root) / "lib/modules/9.9/kernel/drivers/infiniband/sw/rxe"
            modules.mkdir(parents=True)
            (modules / "rdma_rxe.ko.xz").touch()
            self.assertEqual(kernel.find([nothing, root]), (f"{root}/boot/vmlinuz-9.9", "9.9", root))

    def test_the_kernel_of_the_day_is_known_in_every_language(self):
        with tempfile.TemporaryDirectory() as folder:
            apt = pathlib.Path(folder) / "apt-cache"
            apt.write_text("#!/bin/sh\ncase $LC_ALL in C) word=Depends ;; *) word='D\u00e9pend' ;; esac\n"
                           "echo linux-image-amd64\necho \"  $word: linux-image-6.1.0-9-amd64\"\n")
            apt.chmod(0o755)
            environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", LC_ALL="fr_FR.UTF-8")
            ran = subprocess.run([sys.executable, "-c", "import kernel; print(kernel.kernel_package())"], text=True,
                                 capture_output=True, env=environment, cwd=VM.parent)
            self.assertEqual(ran.stdout, "linux-image-6.1.0-9-amd64\n", ran.stderr)

    def test_a_kernel_that_cannot_be_fetched_is_a_failure_with_its_reason(self):
        environment = dict(os.environ, PATH="/nowhere")
        script = "import kernel; kernel.find = lambda *roots: None; exit(kernel.main())"
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment,
                             cwd=VM.parent)
        self.assertEqual(ran.returncode, 69)
        self.assertIn("vm: no kernel for the VM: ", ran.stderr)


if __name__ == "__main__":
    unittest.main()
