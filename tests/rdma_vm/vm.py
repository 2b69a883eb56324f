#!/usr/bin/env python3
"""Boots Debian's kernel under QEMU with Soft-RoCE devices, runs a command inside and ends as it ended.

The guest sees this machine's file system read-only over 9p, at the same paths, with its own /tmp, /run and /dev/shm;
what the command writes under $OUT comes back (--out). Its output is shown as it comes. Exit status: the command's;
70 when the guest hung, panicked or did not boot; 69 when a package is missing here.

Time-outs count the guest's own time: what it spent waiting for one of this machine's processors is not held against it,
so that a busy machine is not taken for a hang. --give-up bounds the whole in plain seconds.

    ./dev vm [--rails N] [--timeout SECONDS] [--numa] -- COMMAND...
"""
import argparse
import ctypes
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import kernel

HERE = pathlib.Path(__file__).resolve().parent
# sysexits.h: EX_UNAVAILABLE and EX_SOFTWARE, which tests do not use.
MISSING, BROKEN = 69, 70
# Seconds of its own time. Emulated, a boot takes 4 to 15 s; a cold disk may double that.
BOOT_SECONDS = 150
# Modules that /init needs before it sees the host's file system; later ones are loaded from there.
BOOT_MODULES = ["virtio_pci", "9pnet_virtio", "9p"]
# What is called here or in the guest, and the Debian package that brings it.
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "modprobe": "kmod",
            "ip": "iproute2", "rdma": "iproute2", "ibv_devinfo": "ibverbs-utils"}
# Nested in a VM, KVM may refuse the one capability MSR that -cpu max brings (QEMU 7.2 then aborts).
CPU = {"kvm": "max,-arch-capabilities", "tcg": "max"}
# On a busy machine the guest stands still for long: the kernel's check that the timer ticks then ends in a panic
# ("IO-APIC + timer doesn't work"), and its watchdogs bark.
KERNEL_ARGUMENTS = ("console=ttyS0 quiet panic=-1 oops=panic no_timer_check nowatchdog "
                    "rcupdate.rcu_cpu_stall_suppress=1")
# Emulated, the processors' TSCs are the host's and agree, which the kernel does not believe by itself. What it would
# take instead, the HPET, is a device: each look at the clock then stops for QEMU's lock, and holds up both processors.
ACCEL_ARGUMENTS = {"kvm": "", "tcg": " tsc=reliable clocksource=tsc"}
# Of this machine's, between two words on standard error that it is still booting.
WORD_SECONDS = 10
# As much of the console as a failure shows.
SHOWN_LINES = 40
# Each guest NIC of --numa sits behind a root port of a bridge that belongs to one of two NUMA nodes.
NUMA_ARGUMENTS = """
    -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
    -device pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=32,numa_node=0 -device pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=64,numa_node=1
    -device pcie-root-port,id=rp0,bus=pxb0,chassis=1,slot=1 -device pcie-root-port,id=rp1,bus=pxb1,chassis=2,slot=2
    -netdev hubport,id=n0,hubid=0 -netdev hubport,id=n1,hubid=0
    -device virtio-net-pci,netdev=n0,bus=rp0,mac=52:54:00:00:00:01
    -device virtio-net-pci,netdev=n1,bus=rp1,mac=52:54:00:00:00:02
""".split()


def say(text):
    """Not on standard output, which is the command's."""
    print(f"vm: {text}", file=sys.stderr, flush=True)


def in_one_line(command):
    """So much of it as a reader needs to tell it from others."""
    text = " ".join(shlex.join(command).split())
    return text if len(text) <= 100 else text[:97] + "..."


def fail(status, text):
    say(text)
    sys.exit(status)


def find_kernel():
    found = kernel.find()
    if found is None:
        fail(MISSING, f"no kernel with Soft-RoCE; there is none under /boot and /lib/modules, nor under {kernel.UNPACKED}; "
                      f"{HERE}/kernel.py downloads one, as ./dev test and ./dev vm do")
    return found


def module_files(version, root):
    files = []
    for module in BOOT_MODULES:
        shown = subprocess.run([kernel.which("modprobe"), "-d", root, "-S", version, "--show-depends", module],
                               capture_output=True, text=True)
        if shown.returncode != 0:
            fail(MISSING, f"kernel {version} has no module {module}: {shown.stderr.strip()}")
        for line in shown.stdout.splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod" and path.strip() not in files:
                files.append(path.strip())
    return files


def build_initramfs(folder, version, modules):
    root = folder / "root"
    for name in ["bin", "modules", "proc", "sys", "dev", "new"]:
        (root / name).mkdir(parents=True)
    shutil.copy(kernel.which("busybox"), root / "bin/busybox")
    # Numbered: they are loaded in this order.
    for number, path in enumerate(module_files(version, modules)):
        shutil.copy(path, root / "modules" / f"{number:02}-{os.path.basename(path)}")
    shutil.copy(HERE / "init.sh", root / "init")
    os.chmod(root / "init", 0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    image = folder / "initramfs"
    with open(image, "wb") as out:
        packed = subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], input=names.encode(), cwd=root, stdout=out)
    if packed.returncode != 0:
        fail(BROKEN, "cpio failed")
    return image


def kvm_works():
    """/dev/kvm may be there and not open. Inside of a VM it may open and then never run the first instruction, which
    only a boot would tell: there it is not tried."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or " hypervisor" in pathlib.Path("/proc/cpuinfo").read_text():
        return False
    try:
        tried = subprocess.run(["qemu-system-x86_64", "-accel", "kvm", "-machine", "q35", "-cpu", CPU["kvm"],
                                "-display", "none", "-nodefaults", "-S", "-monitor", "stdio"],
                               input=b"quit\n", capture_output=True, timeout=10)
        return tried.returncode == 0
    except subprocess.TimeoutExpired:
        return False


class Tail:
    """Copies what a growing file has more than last time to standard output."""

    def __init__(self, path):
        self.path = path
        self.offset = 0

    def copy(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return
        self.offset += len(data)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def command_line(arguments, accel, folder, share, image, initramfs):
    line = ["qemu-system-x86_64", "-accel", "tcg,thread=multi" if accel == "tcg" else "kvm",
            "-machine", "q35", "-cpu", CPU[accel], "-smp", "2,sockets=2,cores=1" if arguments.numa else "2",
            "-m", "2G" if arguments.numa else arguments.memory, "-display", "none", "-no-reboot",
            "-serial", f"file:{folder / 'console'}", "-kernel", image, "-initrd", str(initramfs),
            "-append", KERNEL_ARGUMENTS + ACCEL_ARGUMENTS[accel],
            "-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
            "-virtfs", f"local,path={share},mount_tag=out,security_model=none", "-nic", "none"]
    return line + (NUMA_ARGUMENTS if arguments.numa else [])


class OwnTime:
    """Seconds that passed in which a process did not wait for a processor; where the kernel does not say, all."""

    def __init__(self, pid):
        self.tasks = pathlib.Path(f"/proc/{pid}/task")
        self.started = time.monotonic()
        self.before = self.delays()

    def delays(self):
        """Of each thread, the seconds it was ready to run and did not."""
        delays = {}
        for file in self.tasks.glob("*/schedstat"):
            try:
                # Nanoseconds on a processor, nanoseconds waiting for one, times it got one.
                delays[file.parent.name] = int(file.read_text().split()[1]) / 1e9
            except (OSError, IndexError, ValueError):
                pass
        return delays

    def passed(self):
        return time.monotonic() - self.started

    def seconds(self):
        # The thread that waited most: the processors of a guest wait for each other.
        waited = max((delay - self.before.get(thread, 0) for thread, delay in self.delays().items()), default=0)
        return self.passed() - waited


def console(folder):
    try:
        return (folder / "console").read_text(errors="replace").replace("\r", "").splitlines()
    except FileNotFoundError:
        return ["(the console is empty)"]


def ending(lines):
    """What a console without a status shows of the guest's end: the reason and the lines that belong to it."""
    panicked = next((number for number, line in enumerate(lines) if "Kernel panic" in line), None)
    if panicked is None:
        return "the guest ended without a status", lines[-SHOWN_LINES:]
    # The trace that follows may be longer than what is shown.
    return "the guest's kernel panicked", lines[max(0, panicked - 5):][:SHOWN_LINES]


def end_with_parent():
    """In the child: without us nobody would end the VM."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(arguments, folder):
    share = folder / "share"
    share.mkdir()
    image, version, modules = find_kernel()
    initramfs = build_initramfs(folder, version, modules)
    (share / "command").write_text(" ".join(shlex.quote(word) for word in arguments.command) + "\n")
    (share / "environment").write_text(
        f"VM_MODULES={shlex.quote(modules)}\nVM_CWD={shlex.quote(os.getcwd())}\nVM_RAILS={arguments.rails}\nVM_SETUP={shlex.quote(str(HERE))}\n"
        f"VM_TREE={shlex.quote(str(HERE.parent.parent))}\n"
        f"VM_NOW={int(time.time())}\nVM_VERBOSE={int(arguments.verbose)}\nVM_LONG={'1' if arguments.long else ''}\n"
        f"VM_NUMA={'1' if arguments.numa else ''}\n")
    console_file = open(folder / "qemu", "wb")
    accel = arguments.accel or ("kvm" if kvm_works() else "tcg")
    say(f"booting Linux {version} under QEMU, " +
        ("by KVM" if accel == "kvm" else "emulated, which takes some 10 seconds on an idle machine"))
    # In a session of its own: Ctrl-C at the terminal is for us, who end it in order.
    qemu = subprocess.Popen(command_line(arguments, accel, folder, share, image, initramfs), stdin=subprocess.DEVNULL,
                            stdout=console_file, stderr=subprocess.STDOUT, start_new_session=True,
                            preexec_fn=end_with_parent)
    tail = Tail(share / "output")
    started = OwnTime(qemu.pid)
    booted = None
    hung = None
    next_word = WORD_SECONDS
    try:
        while qemu.poll() is None:
            time.sleep(0.1)
            if booted is None and (share / "booted").exists():
                booted = OwnTime(qemu.pid)
                say(f"booted after {started.passed():.0f} s; running: {in_one_line(arguments.command)}")
            elif booted is None and started.passed() > next_word:
                say(f"still booting after {started.passed():.0f} s")
                next_word += WORD_SECONDS
            tail.copy()
            if booted is None and started.seconds() > arguments.boot_timeout:
                hung = f"the guest did not boot within {arguments.boot_timeout:g} s of its own"
            elif booted is not None and booted.seconds() > arguments.timeout:
                hung = f"the command did not end within {arguments.timeout:g} s of its own"
            elif started.passed() > arguments.give_up:
                hung = (f"gave up after {arguments.give_up:g} s, in which the guest waited for a processor for "
                        f"{started.passed() - started.seconds():.0f} s")
            if hung:
                break
    finally:
        if qemu.poll() is None:
            qemu.kill()
        qemu.wait()
    tail.copy()
    if arguments.out:
        shutil.copytree(share, arguments.out, dirs_exist_ok=True)
    try:
        status = int((share / "status").read_text())
    except (FileNotFoundError, ValueError):
        status = None
    if status is not None and not hung:
        return status
    why, shown = ending(console(folder))
    said = (folder / "qemu").read_text(errors="replace").strip()
    fail(BROKEN, f"{hung or why}; qemu ended with {qemu.returncode}{': ' + said if said else ''}; the console:\n"
         + "\n".join(shown))


def main():
    # So that what was made is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="./dev vm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rails", type=int, default=2, help="pairs of Soft-RoCE devices (default: 2)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the command (default: 300)")
    parser.add_argument("--give-up", type=float, default=900, help="seconds for all, however busy (default: 900)")
    parser.add_argument("--boot-timeout", type=float, default=BOOT_SECONDS, help=f"seconds (default: {BOOT_SECONDS})")
    parser.add_argument("--long", action="store_true", help="VM_LONG=1 for the command: tests run their long form")
    parser.add_argument("--memory", default="3G")
    parser.add_argument("--accel", choices=["kvm", "tcg"], help="default: kvm where it works")
    parser.add_argument("--numa", action="store_true", help="two NUMA nodes with a virtio NIC each, n0 and n1, and Soft-RoCE on them; 2 GiB")
    parser.add_argument("--out", help="folder for what the command wrote under $OUT")
    parser.add_argument("--verbose", action="store_true", help="show the set-up of the devices")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    missing = [program for program in PROGRAMS if kernel.which(program) is None]
    if missing:
        packages = " ".join(sorted({PROGRAMS[program] for program in missing}))
        fail(MISSING, f"not installed: {', '.join(missing)}; apt-get install {packages}, or ./dev setup")
    with tempfile.TemporaryDirectory(prefix="troupe-vm-") as folder:
        return run(arguments, pathlib.Path(folder))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        # What was made is removed and QEMU has ended: that is in the way of the exception.
        fail(128 + signal.SIGINT, "interrupted; the VM has ended")
