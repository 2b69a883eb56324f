#include "engine/device_memory.h"

#include <string>
#include <utility>

#include "cuda_backend/cuda_runtime.h"
#include "engine/memory_check.h"
#include "engine/memory_rights.h"

namespace troupe {

namespace {

/// A location that checkLocation has let pass: of a GPU, and not of the host.
bool namesGpu(const std::string& location) { return location.rfind("cuda:", 0) == 0; }

Status differs(const Region& region, const device::MemoryPlace& place) {
    const bool on_device = place.kind == device::MemoryKind::Device;
    const std::string what = on_device ? "memory of " + place.location : place.location + " memory";
    return {Code::InvalidArgument, region.range.toString() + " is " + what + ", and the location given is '" +
                                       region.location + "'; \"*\" finds out by itself"};
}

/// By a processor: all of it is mapped, and may be read or written.
bool mayBeTouched(const ByteRange& range) {
    MemoryRights rights;
    return checkMapped(range) && rights.areAllWritable(range);
}

}  // namespace

/// Of GPUs that were opened already: what is exported was located before.
class DeviceMemory::Exporter final : public MemoryExporter {
  public:
    bool holds(const std::string& location) const override { return namesGpu(location); }

    Result<ExportedMemory> exportRange(const ByteRange& range, const std::string& location) override {
        const auto runtime = this->runtime();
        if (!runtime) return Status(Code::Unsupported, "no driver of a GPU was needed so far");
        auto gpu = runtime->open(device::ordinalOf(location, runtime->vendor()));
        if (!gpu) return gpu.status();
        if (const Status ordered = (*gpu)->orderForNics(range); !ordered) return ordered;
        auto file = (*gpu)->exportDmabuf(range);
        if (!file) return file.status();
        return ExportedMemory{std::move(file->fd), file->offset};
    }

    void use(std::shared_ptr<device::DeviceRuntime> runtime) {
        const std::lock_guard lock(mutex_);
        runtime_ = std::move(runtime);
    }

  private:
    std::shared_ptr<device::DeviceRuntime> runtime() {
        const std::lock_guard lock(mutex_);
        return runtime_;
    }

    std::mutex mutex_;
    std::shared_ptr<device::DeviceRuntime> runtime_;
};

DeviceMemory::DeviceMemory(const Config& settings, Logger log)
    : settings_(settings), log_(std::move(log)), exporter_(std::make_shared<Exporter>()) {}

DeviceMemory::~DeviceMemory() = default;

std::shared_ptr<MemoryExporter> DeviceMemory::exporter() const { return exporter_; }

Result<std::shared_ptr<device::DeviceRuntime>> DeviceMemory::find(bool load) {
    const std::lock_guard lock(mutex_);
    if (runtime_) return runtime_;
    auto made = cuda::CudaRuntime::create({settings_.gpu_driver, !load});
    if (!made) return made.status();
    runtime_ = std::move(*made);
    exporter_->use(runtime_);
    return runtime_;
}

Status DeviceMemory::whyUnknown() {
    if (!cuda::CudaDriver::isLoaded({settings_.gpu_driver, true})) return {};
    return find(false).status();
}

Status DeviceMemory::locate(Region& region) {
    // What is no range is refused by who looks at ranges.
    if (region.range.length == 0 || region.range.wraps()) return {};
    const bool named = namesGpu(region.location);
    const auto runtime = find(named);
    if (!runtime) return named ? runtime.status().withContext("location '" + region.location + "'") : Status();
    auto place = (*runtime)->locate(region.range);
    if (!place) {
        const Code code = place.status().code();
        if (named || (code != Code::Internal && code != Code::DeviceLost)) return place.status();
        // A driver that answers nothing any more, or with the loss of what is current on this thread, must not keep
        // memory of the host out. That of a GPU cannot be touched.
        if (code == Code::DeviceLost && !mayBeTouched(region.range)) return place.status();
        log_->debug("{}: {}", region.range.toString(), place.status().toString());
        return {};
    }
    if (place->kind != device::MemoryKind::Device) {
        if (named) return differs(region, *place);
        region.pinned = place->kind != device::MemoryKind::Host;
        return {};
    }
    if (region.location != "*" && region.location != place->location) return differs(region, *place);
    auto opened = (*runtime)->open(place->device);
    if (!opened) return opened.status();
    region.location = place->location;
    region.matrix_location = matrixLocationOf(gpus_, (*opened)->info().pci);
    region.place =
        std::make_shared<const device::PlacedMemory>(device::PlacedMemory{std::move(*place), std::move(*opened)});
    return {};
}

Result<std::vector<device::DeviceInfo>> visibleGpus(const Config& settings) {
    const auto runtime = cuda::CudaRuntime::create({settings.gpu_driver, false});
    if (!runtime) return runtime.status();
    std::vector<device::DeviceInfo> gpus;
    for (int ordinal = 0; ordinal < (*runtime)->count(); ++ordinal) {
        auto info = (*runtime)->info(ordinal);
        if (!info) return info.status();
        gpus.push_back(std::move(*info));
    }
    return gpus;
}

std::shared_ptr<device::StagingPool> makeStagingPool(const Config& settings, unsigned loops, Logger log) {
    device::StagingOptions options;
    options.chunk_bytes = settings.gpu_staging_chunk_bytes;
    options.chunks = settings.gpu_staging_chunks;
    using device::PackMode;
    const PackMode pack = settings.gpu_pack == "on"    ? PackMode::On
                          : settings.gpu_pack == "off" ? PackMode::Off
                                                       : PackMode::Auto;
    const auto done_event =
        settings.gpu_done_event == "end" ? device::DoneEventMode::AtEnd : device::DoneEventMode::Auto;
    return std::make_shared<device::StagingPool>(loops, options, pack, std::move(log), device::PackTrial::Options{},
                                                 done_event);
}

}  // namespace troupe
