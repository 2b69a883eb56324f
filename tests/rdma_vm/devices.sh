#!/bin/bash
# Soft-RoCE devices of the guest. Rail R (from 0) is a veth pair rR.a - rR.b with the addresses 10.(R+1).0.1 and
# 10.(R+1).0.2 and the devices rxe_Ra and rxe_Rb. Tests take links down and bring them back with this, too.
#
# With VM_NUMA (vm.py --numa) also rxe_n0 and rxe_n1 on the netdevs n0 and n1, virtio NICs of NUMA nodes 0 and 1.
#
#   devices.sh up                 all of it, VM_RAILS rails
#   devices.sh link DEVICE down   takes the netdev of a device down
#   devices.sh link DEVICE up     and up again, with the routes that went with it; returns when its port is active
set -e

netdev() { local name=${1#rxe_}; echo "r${name%?}.${name: -1}"; }
address() { local name=${1#rxe_}; echo "10.$((${name%?} + 1)).0.$([[ ${name: -1} == a ]] && echo 1 || echo 2)"; }
other() { local name=${1#rxe_}; echo "rxe_${name%?}$([[ ${name: -1} == a ]] && echo b || echo a)"; }
# A routing table for each end.
table() { local name=${1#rxe_}; echo $((100 + 2 * ${name%?} + $([[ ${name: -1} == a ]] && echo 0 || echo 1))); }

# What the kernel forgets when a link goes down. Both ends are addresses of this one host, so that the way over the
# wire must be said: otherwise the kernel sends to a local address over lo, and rxe cannot.
routes() {
    local device=$1 peer
    peer=$(other "$device")
    ip route replace "$(address "$peer")" dev "$(netdev "$device")" table "$(table "$device")"
    ip neigh replace "$(address "$peer")" lladdr "$(<"/sys/class/net/$(netdev "$peer")/address")" \
        dev "$(netdev "$device")" nud permanent
}

# Waits until a device's port is active.
active() {
    local tries
    for ((tries = 0; tries < 300; ++tries)); do
        [[ $(<"/sys/class/infiniband/$1/ports/1/state") != *ACTIVE ]] || return 0
        sleep 0.1
    done
    echo "devices.sh: $1 did not become active again" >&2
    return 1
}

up() {
    local rail end device peer
    # Without crc32, adding a link fails with ENOENT (kernel 6.1).
    # The kernel cannot load what it misses by itself: its modprobe would run in the initramfs.
    modprobe -d "$VM_MODULES" -a veth sch_netem crc32_generic rdma_rxe ib_uverbs rdma_ucm
    ip link set lo up
    # 11..: what arrives from the wire is ours; 20..: what goes to the other end takes the wire; 100: the rest as ever.
    ip rule add pref 100 lookup local
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    sysctl -qw net.ipv4.conf.all.accept_local=1 net.ipv4.conf.default.accept_local=1
    # Of 1,000 waiting packets (4 MiB) a veth drops what follows, and a READ whose answer lost one goes on after the
    # timeout of its queue pair. A fabric for RDMA holds the sender up instead; what is to be lost is for netem to say.
    sysctl -qw net.core.netdev_max_backlog=100000
    for ((rail = 0; rail < VM_RAILS; ++rail)); do
        ip link add "r$rail.a" mtu 4200 type veth peer name "r$rail.b" mtu 4200
        for end in a b; do
            device=rxe_$rail$end
            peer=$(other "$device")
            sysctl -qw "net/ipv4/conf/r$rail.$end/rp_filter=0" "net/ipv4/conf/r$rail.$end/accept_local=1"
            sysctl -qw "net/ipv6/conf/r$rail.$end/disable_ipv6=1"
            # What arrives over a rail is received by one processor: a NIC keeps a flow's packets in order, a veth has
            # them received wherever they were sent, so that those of two processors overtake each other, and
            # Soft-RoCE sends READs again.
            echo $((1 << rail % 2)) >"/sys/class/net/r$rail.$end/queues/rx-0/rps_cpus"
            ip address add "$(address "$device")/24" dev "$(netdev "$device")"
            ip link set "$(netdev "$device")" up
            ip rule add pref $((11 + rail)) iif "$(netdev "$device")" lookup local
            ip rule add pref $((20 + rail)) from "$(address "$device")" to "$(address "$peer")" \
                lookup "$(table "$device")"
            ip route add unreachable "10.$((rail + 1)).0.0/24" metric 9999 table "$(table "$device")"
        done
        routes "rxe_${rail}a"
        routes "rxe_${rail}b"
    done
    ip rule del pref 0
    for ((rail = 0; rail < VM_RAILS; ++rail)); do
        for end in a b; do rdma link add "rxe_$rail$end" type rxe netdev "r$rail.$end"; done
    done
    [[ -z $VM_NUMA ]] || numa
    rdma link show
}

numa() {
    local node file
    modprobe -d "$VM_MODULES" virtio_net
    for node in 0 1; do
        # vm.py gives the NIC of each node its address.
        file=$(grep -l "^52:54:00:00:00:0$((node + 1))$" /sys/class/net/*/address)
        ip link set "$(basename "$(dirname "$file")")" name "n$node"
        ip address add "10.20.$node.1/24" dev "n$node"
        ip link set "n$node" up
        rdma link add "rxe_n$node" type rxe netdev "n$node"
    done
}

case $1 in
    up) up ;;
    link)
        ip link set "$(netdev "$2")" "$3"
        if [[ $3 == up ]]; then
            routes "$2"
            routes "$(other "$2")"
            # The two ends of a veth pair are one link: both ports come back, when the kernel gets to it.
            active "$2"
            active "$(other "$2")"
        fi
        ;;
    *)
        echo "devices.sh: no '$1'" >&2
        exit 64
        ;;
esac
