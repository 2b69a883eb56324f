#!/usr/bin/env python3
"""Where the VM's kernel is: an image with Soft-RoCE among its modules. Without arguments makes sure that there is one.

An installed one is taken; else Debian's is downloaded and unpacked under build/vm-kernel. It is never installed: that
would change what the machine boots. Exit status 0, or 69 with the reason on standard error.
"""
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
UNPACKED = REPOSITORY / "build/vm-kernel"
PACKAGE = "linux-image-amd64"  # Depends on the kernel of the day, whose name has its version.
MISSING = 69
# Where a plain user's PATH does not look.
SBIN = ":/usr/local/sbin:/usr/sbin:/sbin"


class NoKernel(Exception):
    pass


def which(program):
    return shutil.which(program) or shutil.which(program, path=os.environ.get("PATH", "") + SBIN)


def find(roots=("/", UNPACKED)):
    """(image, version, the folder that its lib/modules lies in) of the newest of the first root that has one, or None."""
    for root in map(pathlib.Path, roots):
        for image in sorted(glob.glob(f"{root}/boot/vmlinuz-*"), key=os.path.getmtime, reverse=True):
            version = image.split("vmlinuz-", 1)[1]
            if os.access(image, os.R_OK) and glob.glob(
                    f"{root}/lib/modules/{version}/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*"):
                return image, version, str(root)
    return None


def call(*command, **options):
    try:
        # Whatever the user speaks: what apt says is read.
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, **options)
    except OSError as error:
        raise NoKernel(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise NoKernel(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def kernel_package():
    found = re.search(r"^\s*Depends: (linux-image-\d\S*)$", call("apt-cache", "depends", PACKAGE), re.MULTILINE)
    if not found:
        raise NoKernel(f"apt does not know which kernel {PACKAGE} stands for; apt-get update")
    return found[1]


def fetch(into=UNPACKED):
    depmod = which("depmod")
    if depmod is None:
        raise NoKernel("not installed: depmod; apt-get install kmod")
    package = kernel_package()
    print(f"downloading {package} for the test VM into {into}; it is not installed", flush=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vm-kernel-", dir=into.parent) as folder:
        root = pathlib.Path(folder) / "root"
        call("apt-get", "-q", "download", package, cwd=folder)
        call("dpkg-deb", "-x", *glob.glob(f"{folder}/*.deb"), root)
        for version in os.listdir(root / "lib/modules"):
            call(depmod, "-b", root, version)
        if find([root]) is None:
            raise NoKernel(f"{package} has no Soft-RoCE")
        # In one step, so that what is there is whole.
        shutil.rmtree(into, ignore_errors=True)
        root.rename(into)


def main():
    try:
        if find() is None:
            fetch()
    except NoKernel as why:
        print(f"vm: no kernel for the VM: {why}", file=sys.stderr)
        return MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main())
