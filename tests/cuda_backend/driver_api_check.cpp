// Compares our declarations of the driver's API with NVIDIA's, at compile time. Compiled where the toolkit is; there is
// nothing to run.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "cuda_backend/driver_api.h"

namespace troupe::cuda::api {
namespace {

// --- types -------------------------------------------------------------------------------------------------------

/// NVIDIA's type for one of ours.
template <class T>
struct Theirs {
    using type = T;
};
template <class T>
struct Theirs<T*> {
    using type = typename Theirs<T>::type*;
};
template <class T>
struct Theirs<const T> {
    using type = const typename Theirs<T>::type;
};
template <class R, class... P>
struct Theirs<R(P...)> {
    using type = typename Theirs<R>::type(typename Theirs<P>::type...);
};

#define TROUPE_SAME(ours, theirs) \
    template <>                   \
    struct Theirs<ours> {         \
        using type = theirs;      \
    };                            \
    static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs));

TROUPE_SAME(Result, CUresult)
TROUPE_SAME(DeviceAttribute, CUdevice_attribute)
TROUPE_SAME(PointerAttribute, CUpointer_attribute)
TROUPE_SAME(CaptureMode, CUstreamCaptureMode)
TROUPE_SAME(CaptureStatus, CUstreamCaptureStatus)
TROUPE_SAME(MemoryType, CUmemorytype)
TROUPE_SAME(HandleType, CUmemAllocationHandleType)
TROUPE_SAME(LocationType, CUmemLocationType)
TROUPE_SAME(AllocationType, CUmemAllocationType)
TROUPE_SAME(AccessFlags, CUmemAccess_flags)
TROUPE_SAME(Granularity, CUmemAllocationGranularity_flags)
TROUPE_SAME(RangeHandleType, CUmemRangeHandleType)
TROUPE_SAME(WritesOrdering, CUGPUDirectRDMAWritesOrdering)
TROUPE_SAME(FlushOptions, CUflushGPUDirectRDMAWritesOptions)
TROUPE_SAME(FlushTarget, CUflushGPUDirectRDMAWritesTarget)
TROUPE_SAME(FlushScope, CUflushGPUDirectRDMAWritesScope)
TROUPE_SAME(ProcAddressQuery, CUdriverProcAddressQueryResult)
TROUPE_SAME(Uuid, CUuuid)
TROUPE_SAME(IpcMemHandle, CUipcMemHandle)
TROUPE_SAME(FabricHandle, CUmemFabricHandle)
TROUPE_SAME(Location, CUmemLocation)
TROUPE_SAME(AllocationProp, CUmemAllocationProp)
TROUPE_SAME(AccessDesc, CUmemAccessDesc)
#undef TROUPE_SAME

template <>
struct Theirs<ContextHandle> {
    using type = CUcontext;
};
template <>
struct Theirs<StreamHandle> {
    using type = CUstream;
};
template <>
struct Theirs<EventHandle> {
    using type = CUevent;
};
template <>
struct Theirs<ModuleHandle> {
    using type = CUmodule;
};
template <>
struct Theirs<FunctionHandle> {
    using type = CUfunction;
};

static_assert(std::is_same_v<DeviceHandle, CUdevice>);
static_assert(std::is_same_v<DevicePtr, CUdeviceptr>);
static_assert(std::is_same_v<AllocationHandle, CUmemGenericAllocationHandle>);
static_assert(std::is_same_v<HostFunction, CUhostFn>);

static_assert(offsetof(Location, id) == offsetof(CUmemLocation, id));
static_assert(offsetof(AllocationProp, requested_handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, win32_handle_meta_data) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(AllocationProp, alloc_flags.gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(AllocationProp, alloc_flags.usage) == offsetof(CUmemAllocationProp, allocFlags.usage));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));

// --- calls: the signature that the named version of CUDA gave them, and the symbol that has it ---------------------

#define TROUPE_CHECK(member, name, symbol, version, need, ...)                                                    \
    static_assert(std::is_same_v<Theirs<Result(__VA_ARGS__)>::type*, PFN_##name##_v##version>, #name " differs"); \
    static_assert(std::is_same_v<Theirs<Result(__VA_ARGS__)>::type*, decltype(&::symbol)>, #symbol " differs");
TROUPE_CUDA_CALLS(TROUPE_CHECK)
#undef TROUPE_CHECK

// --- values ------------------------------------------------------------------------------------------------------

#define TROUPE_VALUE(ours, theirs) \
    static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs);

TROUPE_VALUE(Result::Success, CUDA_SUCCESS)
TROUPE_VALUE(Result::InvalidValue, CUDA_ERROR_INVALID_VALUE)
TROUPE_VALUE(Result::OutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
TROUPE_VALUE(Result::NotInitialized, CUDA_ERROR_NOT_INITIALIZED)
TROUPE_VALUE(Result::Deinitialized, CUDA_ERROR_DEINITIALIZED)
TROUPE_VALUE(Result::StubLibrary, CUDA_ERROR_STUB_LIBRARY)
TROUPE_VALUE(Result::CallRequiresNewerDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
TROUPE_VALUE(Result::DeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE)
TROUPE_VALUE(Result::NoDevice, CUDA_ERROR_NO_DEVICE)
TROUPE_VALUE(Result::InvalidDevice, CUDA_ERROR_INVALID_DEVICE)
TROUPE_VALUE(Result::InvalidImage, CUDA_ERROR_INVALID_IMAGE)
TROUPE_VALUE(Result::InvalidContext, CUDA_ERROR_INVALID_CONTEXT)
TROUPE_VALUE(Result::MapFailed, CUDA_ERROR_MAP_FAILED)
TROUPE_VALUE(Result::AlreadyMapped, CUDA_ERROR_ALREADY_MAPPED)
TROUPE_VALUE(Result::NoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU)
TROUPE_VALUE(Result::NotMapped, CUDA_ERROR_NOT_MAPPED)
TROUPE_VALUE(Result::EccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE)
TROUPE_VALUE(Result::PeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
TROUPE_VALUE(Result::InvalidPtx, CUDA_ERROR_INVALID_PTX)
TROUPE_VALUE(Result::NvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE)
TROUPE_VALUE(Result::UnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
TROUPE_VALUE(Result::Contained, CUDA_ERROR_CONTAINED)
TROUPE_VALUE(Result::OperatingSystem, CUDA_ERROR_OPERATING_SYSTEM)
TROUPE_VALUE(Result::InvalidHandle, CUDA_ERROR_INVALID_HANDLE)
TROUPE_VALUE(Result::NotFound, CUDA_ERROR_NOT_FOUND)
TROUPE_VALUE(Result::NotReady, CUDA_ERROR_NOT_READY)
TROUPE_VALUE(Result::IllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS)
TROUPE_VALUE(Result::LaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
TROUPE_VALUE(Result::LaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT)
TROUPE_VALUE(Result::PeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
TROUPE_VALUE(Result::PrimaryContextActive, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE)
TROUPE_VALUE(Result::ContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED)
TROUPE_VALUE(Result::Assert, CUDA_ERROR_ASSERT)
TROUPE_VALUE(Result::HostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
TROUPE_VALUE(Result::HostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
TROUPE_VALUE(Result::HardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR)
TROUPE_VALUE(Result::IllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION)
TROUPE_VALUE(Result::MisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS)
TROUPE_VALUE(Result::InvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE)
TROUPE_VALUE(Result::InvalidPc, CUDA_ERROR_INVALID_PC)
TROUPE_VALUE(Result::LaunchFailed, CUDA_ERROR_LAUNCH_FAILED)
TROUPE_VALUE(Result::TensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK)
TROUPE_VALUE(Result::NotPermitted, CUDA_ERROR_NOT_PERMITTED)
TROUPE_VALUE(Result::NotSupported, CUDA_ERROR_NOT_SUPPORTED)
TROUPE_VALUE(Result::SystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY)
TROUPE_VALUE(Result::SystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
TROUPE_VALUE(Result::CompatNotSupportedOnDevice, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)
TROUPE_VALUE(Result::ExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE)
TROUPE_VALUE(Result::MpsRpcFailure, CUDA_ERROR_MPS_RPC_FAILURE)
TROUPE_VALUE(Result::MpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED)
TROUPE_VALUE(Result::StreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
TROUPE_VALUE(Result::StreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
TROUPE_VALUE(Result::StreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
TROUPE_VALUE(Result::StreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
TROUPE_VALUE(Result::CapturedEvent, CUDA_ERROR_CAPTURED_EVENT)
TROUPE_VALUE(Result::Unknown, CUDA_ERROR_UNKNOWN)
TROUPE_VALUE(DeviceAttribute::MultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
TROUPE_VALUE(DeviceAttribute::AsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)
TROUPE_VALUE(DeviceAttribute::UnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)
TROUPE_VALUE(DeviceAttribute::ComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
TROUPE_VALUE(DeviceAttribute::ComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
TROUPE_VALUE(DeviceAttribute::CanUseHostPointerForRegisteredMem,
             CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
TROUPE_VALUE(DeviceAttribute::VirtualMemoryManagementSupported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
TROUPE_VALUE(DeviceAttribute::HandleTypePosixFileDescriptorSupported,
             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
TROUPE_VALUE(DeviceAttribute::GpuDirectRdmaWithCudaVmmSupported,
             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
TROUPE_VALUE(DeviceAttribute::GpuDirectRdmaSupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)
TROUPE_VALUE(DeviceAttribute::GpuDirectRdmaFlushWritesOptions, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)
TROUPE_VALUE(DeviceAttribute::GpuDirectRdmaWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)
TROUPE_VALUE(DeviceAttribute::DmaBufSupported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
TROUPE_VALUE(DeviceAttribute::HandleTypeFabricSupported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)
TROUPE_VALUE(DeviceAttribute::HostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
TROUPE_VALUE(PointerAttribute::Context, CU_POINTER_ATTRIBUTE_CONTEXT)
TROUPE_VALUE(PointerAttribute::MemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
TROUPE_VALUE(PointerAttribute::DevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
TROUPE_VALUE(PointerAttribute::HostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER)
TROUPE_VALUE(PointerAttribute::SyncMemops, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
TROUPE_VALUE(PointerAttribute::BufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID)
TROUPE_VALUE(PointerAttribute::IsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED)
TROUPE_VALUE(PointerAttribute::DeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
TROUPE_VALUE(PointerAttribute::IsLegacyCudaIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
TROUPE_VALUE(PointerAttribute::AllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
TROUPE_VALUE(PointerAttribute::IsGpuDirectRdmaCapable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE)
TROUPE_VALUE(CaptureMode::Global, CU_STREAM_CAPTURE_MODE_GLOBAL)
TROUPE_VALUE(CaptureMode::ThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
TROUPE_VALUE(CaptureMode::Relaxed, CU_STREAM_CAPTURE_MODE_RELAXED)

TROUPE_VALUE(CaptureStatus::None, CU_STREAM_CAPTURE_STATUS_NONE)
TROUPE_VALUE(CaptureStatus::Active, CU_STREAM_CAPTURE_STATUS_ACTIVE)
TROUPE_VALUE(CaptureStatus::Invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED)
TROUPE_VALUE(MemoryType::Host, CU_MEMORYTYPE_HOST)
TROUPE_VALUE(MemoryType::Device, CU_MEMORYTYPE_DEVICE)
TROUPE_VALUE(MemoryType::Array, CU_MEMORYTYPE_ARRAY)
TROUPE_VALUE(MemoryType::Unified, CU_MEMORYTYPE_UNIFIED)
TROUPE_VALUE(HandleType::None, CU_MEM_HANDLE_TYPE_NONE)
TROUPE_VALUE(HandleType::PosixFileDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
TROUPE_VALUE(HandleType::Fabric, CU_MEM_HANDLE_TYPE_FABRIC)
TROUPE_VALUE(LocationType::Invalid, CU_MEM_LOCATION_TYPE_INVALID)
TROUPE_VALUE(LocationType::Device, CU_MEM_LOCATION_TYPE_DEVICE)
TROUPE_VALUE(LocationType::Host, CU_MEM_LOCATION_TYPE_HOST)
TROUPE_VALUE(LocationType::HostNuma, CU_MEM_LOCATION_TYPE_HOST_NUMA)
TROUPE_VALUE(AllocationType::Invalid, CU_MEM_ALLOCATION_TYPE_INVALID)
TROUPE_VALUE(AllocationType::Pinned, CU_MEM_ALLOCATION_TYPE_PINNED)
TROUPE_VALUE(AccessFlags::None, CU_MEM_ACCESS_FLAGS_PROT_NONE)
TROUPE_VALUE(AccessFlags::Read, CU_MEM_ACCESS_FLAGS_PROT_READ)
TROUPE_VALUE(AccessFlags::ReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
TROUPE_VALUE(Granularity::Minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
TROUPE_VALUE(Granularity::Recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
TROUPE_VALUE(RangeHandleType::DmaBufFd, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
TROUPE_VALUE(WritesOrdering::None, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE)
TROUPE_VALUE(WritesOrdering::Owner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
TROUPE_VALUE(WritesOrdering::AllDevices, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES)
TROUPE_VALUE(FlushOptions::Host, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST)
TROUPE_VALUE(FlushOptions::MemOps, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS)
TROUPE_VALUE(FlushTarget::CurrentContext, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX)
TROUPE_VALUE(FlushScope::Owner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
TROUPE_VALUE(FlushScope::AllDevices, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)
TROUPE_VALUE(ProcAddressQuery::Success, CU_GET_PROC_ADDRESS_SUCCESS)
TROUPE_VALUE(ProcAddressQuery::SymbolNotFound, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
TROUPE_VALUE(ProcAddressQuery::VersionNotSufficient, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
TROUPE_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING)
// Handles by C casts, which are no constants: compared by what they are cast from.
#define TROUPE_TEXT_OF(text) #text
#define TROUPE_TEXT(name) TROUPE_TEXT_OF(name)
static_assert(kStreamLegacy == 0x1 && std::string_view(TROUPE_TEXT(CU_STREAM_LEGACY)) == "((CUstream)0x1)");
static_assert(kStreamPerThread == 0x2 && std::string_view(TROUPE_TEXT(CU_STREAM_PER_THREAD)) == "((CUstream)0x2)");
#undef TROUPE_TEXT
#undef TROUPE_TEXT_OF
TROUPE_VALUE(kStreamWaitValueGeq, CU_STREAM_WAIT_VALUE_GEQ)
TROUPE_VALUE(kStreamWaitValueAnd, CU_STREAM_WAIT_VALUE_AND)
TROUPE_VALUE(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC)
TROUPE_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING)
TROUPE_VALUE(kMemHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE)
TROUPE_VALUE(kMemHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE)
TROUPE_VALUE(kMemHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP)
TROUPE_VALUE(kMemAttachGlobal, CU_MEM_ATTACH_GLOBAL)
TROUPE_VALUE(kIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
#undef TROUPE_VALUE

}  // namespace
}  // namespace troupe::cuda::api
