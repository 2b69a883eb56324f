// Simulation: what befalls the engines.

#include <algorithm>

#include "apps/sim/simulation.h"

namespace troupe::sim {

const char* nameOf(Fault fault) {
    switch (fault) {
        case Fault::Loss: return "loss";
        case Fault::Duplicate: return "duplicate";
        case Fault::Reorder: return "reorder";
        case Fault::NicFlap: return "nic_flap";
        case Fault::Kill: return "kill";
        case Fault::PowerLoss: return "power_loss";
        case Fault::Restart: return "restart";
        case Fault::Pause: return "pause";
        case Fault::Partition: return "partition";
        case Fault::HalfPartition: return "half_partition";
        case Fault::SlowPeer: return "slow_peer";
        case Fault::ClockJump: return "clock_jump";
        case Fault::StoreOutage: return "store_outage";
        case Fault::StoreAmnesia: return "store_amnesia";
        case Fault::StoreSlow: return "store_slow";
        case Fault::RegistrationFails: return "registration_fails";
    }
    return "unknown";
}

void Simulation::scheduleFault() {
    if (faults_.empty()) return;
    world_.after(world_.span({}, 2 * between_faults_), [this] {
        if (calm_) return;
        if (!quiet_) strike(faults_[world_.random().below(faults_.size())]);
        scheduleFault();
    });
}

void Simulation::strike(Fault fault) {
    const int at = anyHost();
    Host& host = hosts_[static_cast<std::size_t>(at)];
    const Duration lasts = world_.span(kMillisecond, world_.chance(50) ? 40 * kMillisecond : 500 * kMillisecond);
    switch (fault) {
        case Fault::Partition:
        case Fault::HalfPartition: return strikePair(fault);
        case Fault::StoreOutage:
        case Fault::StoreAmnesia:
        case Fault::StoreSlow: return strikeStore(fault);
        case Fault::Loss: {
            network_.loss = static_cast<unsigned>(1 + world_.random().below(40));
            world_.after(lasts, [this] { network_.loss = 0; });
            break;
        }
        case Fault::Duplicate: {
            network_.duplicate = static_cast<unsigned>(1 + world_.random().below(40));
            world_.after(lasts, [this] { network_.duplicate = 0; });
            break;
        }
        case Fault::Reorder: {
            network_.latest = world_.span(kMillisecond, 50 * kMillisecond);
            world_.after(lasts, [this] { network_.latest = {}; });
            break;
        }
        default: {
            if (!host.process || !host.process->ready()) return;
            const unsigned start = host.starts;
            const auto later = [this, &host, start, lasts](auto undo) {
                world_.after(lasts, [&host, start, undo] {
                    if (host.process && host.starts == start) undo(*host.process);
                });
            };
            Process& process = *host.process;
            if (fault == Fault::NicFlap) {
                const std::size_t which = world_.random().below(process.nics.size());
                if (process.nics[which] == nullptr) return;
                process.nics[which]->setDown(true);
                later([which](Process& each) {
                    if (each.nics[which] != nullptr) each.nics[which]->setDown(false);
                });
            } else if (fault == Fault::Kill || fault == Fault::PowerLoss) {
                endProcess(at, fault == Fault::Kill);
                // Often so soon that its peers have not noticed.
                const Duration away = world_.chance(50) ? world_.span({}, 20 * kMillisecond) : lasts * 3;
                world_.after(away, [this, at] {
                    if (!calm_) startProcess(at);
                });
            } else if (fault == Fault::Restart) {
                restart(at);
            } else if (fault == Fault::Pause) {
                process.stopFor(lasts);
            } else if (fault == Fault::SlowPeer) {
                process.seat.slowness = static_cast<unsigned>(2 + world_.random().below(20));
                later([](Process& each) { each.seat.slowness = 1; });
            } else if (fault == Fault::ClockJump) {
                process.seat.ahead += lasts * 4;
            } else if (fault == Fault::RegistrationFails) {
                const auto refuse = [](Process& each, unsigned percent) {
                    if (each.transports.front()) each.transports.front()->refusals = percent;
                };
                refuse(process, 70);
                later([refuse](Process& each) { refuse(each, 0); });
            }
        }
    }
    world_.count(std::string("fault_") + nameOf(fault));
    world_.say("{} at {}, {} us", nameOf(fault), static_cast<char>('A' + at),
               std::chrono::duration_cast<std::chrono::microseconds>(lasts).count());
}

/// The links go first and come back last: so peers have windows full of work that was meant for the predecessor, and
/// more that waits, when they find the successor by their control connections.
void Simulation::restart(int at) {
    static constexpr auto kLongestLinkless = 20 * kMillisecond;
    static constexpr auto kLongestAway = 500 * kMicrosecond;
    const auto setLinks = [this, at](unsigned start, bool down) {
        const Host& host = hosts_[static_cast<std::size_t>(at)];
        if (!host.process || host.starts != start) return false;
        for (SimNic* nic : host.process->nics)
            if (nic != nullptr) nic->setDown(down);
        return true;
    };
    const unsigned start = hosts_[static_cast<std::size_t>(at)].starts;
    setLinks(start, true);
    world_.after(world_.span({}, kLongestLinkless), [this, at, start, setLinks] {
        if (calm_ || !setLinks(start, true)) return;
        endProcess(at, world_.chance(50));
        world_.after(world_.span({}, kLongestAway), [this, at, start, setLinks] {
            if (calm_ || hosts_[static_cast<std::size_t>(at)].process) return;
            startProcess(at);
            setLinks(start + 1, true);
            world_.after(world_.span({}, kLongestLinkless), [start, setLinks] { setLinks(start + 1, false); });
        });
    });
}

void Simulation::strikePair(Fault fault) {
    const int from = anyHost();
    const int to = anyHost();
    if (from == to) return;
    const bool both = fault == Fault::Partition;
    const Duration lasts = world_.span(kMillisecond, world_.chance(50) ? 40 * kMillisecond : 800 * kMillisecond);
    network_.block(from, to, true);
    if (both) network_.block(to, from, true);
    world_.after(lasts, [this, from, to, both] {
        network_.block(from, to, false);
        if (both) network_.block(to, from, false);
    });
    world_.count(std::string("fault_") + nameOf(fault));
    world_.say("{} from {} to {}, {} us", nameOf(fault), static_cast<char>('A' + from), static_cast<char>('A' + to),
               std::chrono::duration_cast<std::chrono::microseconds>(lasts).count());
}

void Simulation::strikeStore(Fault fault) {
    if (!site_.store) return;
    const Duration lasts = world_.span(kMillisecond, 600 * kMillisecond);
    if (fault == Fault::StoreSlow) {
        site_.store->setDelay(world_.span(kMillisecond, 700 * kMillisecond));
        world_.after(lasts, [this] { site_.store->setDelay({}); });
    } else {
        site_.store->setOutage(true);
        if (fault == Fault::StoreAmnesia) site_.store->loseRecords();
        world_.after(lasts, [this] { site_.store->setOutage(false); });
    }
    world_.count(std::string("fault_") + nameOf(fault));
    world_.say("{}, {} us", nameOf(fault), std::chrono::duration_cast<std::chrono::microseconds>(lasts).count());
}

}  // namespace troupe::sim
