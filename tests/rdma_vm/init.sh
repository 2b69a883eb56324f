#!/bin/busybox sh
# The guest's first process, from the initramfs: mounts the host's file system and goes on there with guest.sh.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do $bb insmod "$module"; done
$bb mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 root /new || $bb poweroff -f
$bb mkdir /out /tree
# cache=none: the host reads the output while it grows.
$bb mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=524288 out /out || $bb poweroff -f
# The tree may lie in a folder that is the guest's own.
tree=$(. /out/environment && echo "$VM_TREE")
$bb mount -o bind "/new$tree" /tree
for folder in tmp run mnt; do $bb mount -t tmpfs tmpfs "/new/$folder"; done
if [ ! -d "/new$tree" ]; then
    $bb mkdir -p "/new$tree"
    $bb mount -o move /tree "/new$tree"
fi
$bb mount -t proc proc /new/proc
$bb mount -t sysfs sysfs /new/sys
$bb mount -t devtmpfs devtmpfs /new/dev
$bb mkdir -p /new/dev/shm /new/dev/pts
$bb mount -t tmpfs tmpfs /new/dev/shm
# Nor may it lie over the tree.
$bb mkdir -p /new/run/troupe-vm
$bb mount -o move /out /new/run/troupe-vm
$bb chroot /new /bin/bash -c 'set -a; . /run/troupe-vm/environment; set +a; exec /bin/bash "$VM_SETUP/guest.sh"'
$bb sync
$bb poweroff -f
