#!/bin/bash
# Runs in the guest, as its root: makes the Soft-RoCE devices, then the command, and leaves its status on the share.
# VM_* come from vm.py.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp OUT=/run/troupe-vm
exec >$OUT/output 2>&1 </dev/null
date -s "@$VM_NOW" >/dev/null
touch $OUT/booted
ulimit -l unlimited
ulimit -c 0
if ! setup=$(bash "$VM_SETUP/devices.sh" up 2>&1); then
    echo "vm: the Soft-RoCE devices could not be made:"
    echo "$setup"
    dmesg | tail -n 30
    echo 70 >$OUT/status
    exit
fi
[[ $VM_VERBOSE == 0 ]] || echo "$setup"
cd "$VM_CWD" || cd /
eval "$(<"$OUT/command")"
echo $? >$OUT/status
