#pragma once

#include <cstddef>
#include <cstdint>

/// What Troupe uses of the CUDA driver API, declared by ourselves, so that a build needs no toolkit. Names are
/// NVIDIA's without the prefix; values, layouts and signatures are those of the CUDA Driver API reference manual, and
/// tests/cuda_backend/driver_api_check.cpp compares every one of them with cuda.h where the toolkit is installed.
namespace troupe::cuda::api {

struct ContextObject;
struct StreamObject;
struct EventObject;
struct ModuleObject;
struct FunctionObject;

using DeviceHandle = int;                     ///< CUdevice: an ordinal in practice, but only cuDeviceGet gives it.
using DevicePtr = unsigned long long;         ///< CUdeviceptr, version 2.
using AllocationHandle = unsigned long long;  ///< CUmemGenericAllocationHandle: physical memory.
using ContextHandle = ContextObject*;
using StreamHandle = StreamObject*;
using EventHandle = EventObject*;
using ModuleHandle = ModuleObject*;
using FunctionHandle = FunctionObject*;
using HostFunction = void (*)(void* argument);

/// CUresult. Those that Troupe tells apart; any other number may come.
enum class Result : unsigned {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    Deinitialized = 4,
    StubLibrary = 34,
    CallRequiresNewerDriver = 36,
    DeviceUnavailable = 46,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    MapFailed = 205,
    AlreadyMapped = 208,
    NoBinaryForGpu = 209,
    NotMapped = 211,
    EccUncorrectable = 214,
    PeerAccessUnsupported = 217,
    InvalidPtx = 218,
    NvlinkUncorrectable = 220,
    UnsupportedPtxVersion = 222,
    Contained = 226,
    OperatingSystem = 304,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    LaunchTimeout = 702,
    PeerAccessAlreadyEnabled = 704,
    PrimaryContextActive = 708,
    ContextIsDestroyed = 709,
    Assert = 710,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    HardwareStackError = 714,
    IllegalInstruction = 715,
    MisalignedAddress = 716,
    InvalidAddressSpace = 717,
    InvalidPc = 718,
    LaunchFailed = 719,
    TensorMemoryLeak = 721,
    NotPermitted = 800,
    NotSupported = 801,
    SystemNotReady = 802,
    SystemDriverMismatch = 803,
    CompatNotSupportedOnDevice = 804,
    MpsRpcFailure = 806,
    MpsClientTerminated = 810,
    StreamCaptureUnsupported = 900,
    StreamCaptureInvalidated = 901,
    StreamCaptureIsolation = 905,
    StreamCaptureImplicit = 906,
    CapturedEvent = 907,
    ExternalDevice = 911,
    Unknown = 999,
};

/// CUdevice_attribute.
enum class DeviceAttribute : unsigned {
    MultiprocessorCount = 16,
    AsyncEngineCount = 40,
    UnifiedAddressing = 41,
    ComputeCapabilityMajor = 75,
    ComputeCapabilityMinor = 76,
    CanUseHostPointerForRegisteredMem = 91,
    VirtualMemoryManagementSupported = 102,
    HandleTypePosixFileDescriptorSupported = 103,
    GpuDirectRdmaWithCudaVmmSupported = 110,
    GpuDirectRdmaSupported = 116,
    GpuDirectRdmaFlushWritesOptions = 117,  ///< Bits of FlushOptions.
    GpuDirectRdmaWritesOrdering = 118,      ///< WritesOrdering.
    DmaBufSupported = 124,
    HandleTypeFabricSupported = 128,
    HostNumaId = 134,
};

/// CUpointer_attribute. Each value's type is in the manual of cuPointerGetAttribute.
enum class PointerAttribute : unsigned {
    Context = 1,                  ///< Context
    MemoryType = 2,               ///< MemoryType
    DevicePointer = 3,            ///< DevicePtr
    HostPointer = 4,              ///< void*
    SyncMemops = 6,               ///< bool; unsigned int when it is set
    BufferId = 7,                 ///< unsigned long long, unique in the process
    IsManaged = 8,                ///< bool
    DeviceOrdinal = 9,            ///< int
    IsLegacyCudaIpcCapable = 10,  ///< bool
    AllowedHandleTypes = 14,      ///< unsigned long long, bits of HandleType
    IsGpuDirectRdmaCapable = 15,  ///< bool
};

/// CUstreamCaptureMode: of which graphs, that are captured at the time, a thread may not make calls that could spoil
/// them.
enum class CaptureMode : unsigned { Global = 0, ThreadLocal = 1, Relaxed = 2 };

/// CUstreamCaptureStatus.
enum class CaptureStatus : unsigned { None = 0, Active = 1, Invalidated = 2 };

/// CUmemorytype.
enum class MemoryType : unsigned { Host = 1, Device = 2, Array = 3, Unified = 4 };

/// CUmemAllocationHandleType: bits.
enum class HandleType : unsigned { None = 0, PosixFileDescriptor = 1, Fabric = 8 };

enum class LocationType : unsigned { Invalid = 0, Device = 1, Host = 2, HostNuma = 3 };  ///< CUmemLocationType.
enum class AllocationType : unsigned { Invalid = 0, Pinned = 1 };                        ///< CUmemAllocationType.
enum class AccessFlags : unsigned { None = 0, Read = 1, ReadWrite = 3 };                 ///< CUmemAccess_flags.
enum class Granularity : unsigned { Minimum = 0, Recommended = 1 };  ///< CUmemAllocationGranularity_flags.
enum class RangeHandleType : unsigned { DmaBufFd = 1 };              ///< CUmemRangeHandleType.
/// CUGPUDirectRDMAWritesOrdering: for whom what other devices wrote into the GPU's memory is in order by itself.
enum class WritesOrdering : unsigned { None = 0, Owner = 100, AllDevices = 200 };
enum class FlushOptions : unsigned { Host = 1, MemOps = 2 };         ///< CUflushGPUDirectRDMAWritesOptions: bits.
enum class FlushTarget : unsigned { CurrentContext = 0 };            ///< CUflushGPUDirectRDMAWritesTarget.
enum class FlushScope : unsigned { Owner = 100, AllDevices = 200 };  ///< CUflushGPUDirectRDMAWritesScope.
enum class ProcAddressQuery : unsigned { Success = 0, SymbolNotFound = 1, VersionNotSufficient = 2 };

struct Uuid {
    char bytes[16];
};

struct IpcMemHandle {
    char reserved[64];
};

struct FabricHandle {
    unsigned char data[64];
};

struct Location {
    LocationType type;
    int id;
};

/// CUmemAllocationProp.
struct AllocationProp {
    AllocationType type;
    HandleType requested_handle_types;
    Location location;
    void* win32_handle_meta_data;
    struct {
        unsigned char compression_type;
        unsigned char gpu_direct_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } alloc_flags;
};

struct AccessDesc {
    Location location;
    AccessFlags flags;
};

inline constexpr unsigned kStreamNonBlocking = 1;      ///< CU_STREAM_NON_BLOCKING: does not wait for stream 0.
inline constexpr std::uintptr_t kStreamLegacy = 1;     ///< CU_STREAM_LEGACY: the default stream that all threads share.
inline constexpr std::uintptr_t kStreamPerThread = 2;  ///< CU_STREAM_PER_THREAD: the calling thread's default stream.
inline constexpr unsigned kStreamWaitValueGeq = 0;     ///< CU_STREAM_WAIT_VALUE_GEQ: int32(word - value) >= 0.
inline constexpr unsigned kStreamWaitValueAnd = 2;     ///< CU_STREAM_WAIT_VALUE_AND: the highest that each GPU knows.
inline constexpr unsigned kEventBlockingSync = 1;      ///< CU_EVENT_BLOCKING_SYNC
inline constexpr unsigned kEventDisableTiming = 2;     ///< CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kMemHostAllocPortable = 1;   ///< CU_MEMHOSTALLOC_PORTABLE: pinned for every context.
inline constexpr unsigned kMemHostRegisterPortable = 1;   ///< CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned kMemHostRegisterDeviceMap = 2;  ///< CU_MEMHOSTREGISTER_DEVICEMAP: kernels reach it, too.
inline constexpr unsigned kMemAttachGlobal = 1;           ///< CU_MEM_ATTACH_GLOBAL
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;   ///< CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

}  // namespace troupe::cuda::api

/// Every call: X(member, name, exported symbol, version of CUDA that gave it this signature, Need, parameters...).
/// Where a driver lacks one that is `Optional`, what needs it answers Unsupported; without a `Required` one nothing
/// works. Those of the last block are called by tests and checks only, which play the application.
#define TROUPE_CUDA_CALLS(X)                                                                                           \
    X(init, cuInit, cuInit, 2000, Required, unsigned flags)                                                            \
    X(driverGetVersion, cuDriverGetVersion, cuDriverGetVersion, 2020, Required, int* version)                          \
    X(getErrorName, cuGetErrorName, cuGetErrorName, 6000, Required, Result error, const char** name)                   \
    X(getErrorString, cuGetErrorString, cuGetErrorString, 6000, Required, Result error, const char** text)             \
    X(deviceGetCount, cuDeviceGetCount, cuDeviceGetCount, 2000, Required, int* count)                                  \
    X(deviceGet, cuDeviceGet, cuDeviceGet, 2000, Required, DeviceHandle* device, int ordinal)                          \
    X(deviceGetName, cuDeviceGetName, cuDeviceGetName, 2000, Required, char* name, int length, DeviceHandle device)    \
    X(deviceGetUuid, cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, Required, Uuid* uuid, DeviceHandle device)            \
    X(deviceGetAttribute, cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, Required, int* value,                      \
      DeviceAttribute attribute, DeviceHandle device)                                                                  \
    X(deviceTotalMem, cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, Required, std::size_t* bytes, DeviceHandle device)  \
    X(deviceGetPciBusId, cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, Required, char* id, int length,               \
      DeviceHandle device)                                                                                             \
    X(deviceCanAccessPeer, cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, Required, int* can,                     \
      DeviceHandle device, DeviceHandle peer)                                                                          \
    X(devicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, Required,                      \
      ContextHandle* context, DeviceHandle device)                                                                     \
    X(devicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, Required,               \
      DeviceHandle device)                                                                                             \
    X(devicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, Required,                \
      DeviceHandle device, unsigned* flags, int* active)                                                               \
    X(ctxPushCurrent, cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, Required, ContextHandle context)                    \
    X(ctxPopCurrent, cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, Required, ContextHandle* context)                      \
    X(ctxGetCurrent, cuCtxGetCurrent, cuCtxGetCurrent, 4000, Required, ContextHandle* context)                         \
    X(ctxGetDevice, cuCtxGetDevice, cuCtxGetDevice, 2000, Required, DeviceHandle* device)                              \
    X(threadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010,    \
      Required, CaptureMode* mode)                                                                                     \
    X(ctxEnablePeerAccess, cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, Required, ContextHandle peer,           \
      unsigned flags)                                                                                                  \
    X(memAlloc, cuMemAlloc, cuMemAlloc_v2, 3020, Required, DevicePtr* memory, std::size_t bytes)                       \
    X(memFree, cuMemFree, cuMemFree_v2, 3020, Required, DevicePtr memory)                                              \
    X(memHostAlloc, cuMemHostAlloc, cuMemHostAlloc, 2020, Required, void** memory, std::size_t bytes, unsigned flags)  \
    X(memFreeHost, cuMemFreeHost, cuMemFreeHost, 2000, Required, void* memory)                                         \
    X(memHostRegister, cuMemHostRegister, cuMemHostRegister_v2, 6050, Required, void* memory, std::size_t bytes,       \
      unsigned flags)                                                                                                  \
    X(memHostGetDevicePointer, cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, Required,                \
      DevicePtr* device, void* memory, unsigned flags)                                                                 \
    X(memHostUnregister, cuMemHostUnregister, cuMemHostUnregister, 4000, Required, void* memory)                       \
    X(pointerGetAttributes, cuPointerGetAttributes, cuPointerGetAttributes, 7000, Required, unsigned count,            \
      PointerAttribute* attributes, void** values, DevicePtr pointer)                                                  \
    X(pointerSetAttribute, cuPointerSetAttribute, cuPointerSetAttribute, 6000, Required, const void* value,            \
      PointerAttribute attribute, DevicePtr pointer)                                                                   \
    X(memGetAddressRange, cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, Required, DevicePtr* base,              \
      std::size_t* bytes, DevicePtr pointer)                                                                           \
    X(memcpyAsync, cuMemcpyAsync, cuMemcpyAsync, 4000, Required, DevicePtr to, DevicePtr from, std::size_t bytes,      \
      StreamHandle stream)                                                                                             \
    X(streamCreate, cuStreamCreate, cuStreamCreate, 2000, Required, StreamHandle* stream, unsigned flags)              \
    X(streamDestroy, cuStreamDestroy, cuStreamDestroy_v2, 4000, Required, StreamHandle stream)                         \
    X(streamQuery, cuStreamQuery, cuStreamQuery, 2000, Required, StreamHandle stream)                                  \
    X(streamSynchronize, cuStreamSynchronize, cuStreamSynchronize, 2000, Required, StreamHandle stream)                \
    X(streamWaitEvent, cuStreamWaitEvent, cuStreamWaitEvent, 3020, Required, StreamHandle stream, EventHandle event,   \
      unsigned flags)                                                                                                  \
    X(streamWaitValue32, cuStreamWaitValue32, cuStreamWaitValue32_v2, 11070, Optional, StreamHandle stream,            \
      DevicePtr address, std::uint32_t value, unsigned flags)                                                          \
    X(streamIsCapturing, cuStreamIsCapturing, cuStreamIsCapturing, 10000, Required, StreamHandle stream,               \
      CaptureStatus* status)                                                                                           \
    X(streamGetCtx, cuStreamGetCtx, cuStreamGetCtx, 9020, Required, StreamHandle stream, ContextHandle* context)       \
    X(launchHostFunc, cuLaunchHostFunc, cuLaunchHostFunc, 10000, Required, StreamHandle stream, HostFunction function, \
      void* argument)                                                                                                  \
    X(eventCreate, cuEventCreate, cuEventCreate, 2000, Required, EventHandle* event, unsigned flags)                   \
    X(eventRecord, cuEventRecord, cuEventRecord, 2000, Required, EventHandle event, StreamHandle stream)               \
    X(eventQuery, cuEventQuery, cuEventQuery, 2000, Required, EventHandle event)                                       \
    X(eventDestroy, cuEventDestroy, cuEventDestroy_v2, 4000, Required, EventHandle event)                              \
    X(ipcGetMemHandle, cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, Required, IpcMemHandle* handle, DevicePtr memory)   \
    X(ipcOpenMemHandle, cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, Required, DevicePtr* memory,                 \
      IpcMemHandle handle, unsigned flags)                                                                             \
    X(ipcCloseMemHandle, cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, Required, DevicePtr memory)                   \
    X(memAddressReserve, cuMemAddressReserve, cuMemAddressReserve, 10020, Required, DevicePtr* address,                \
      std::size_t bytes, std::size_t alignment, DevicePtr wanted, unsigned long long flags)                            \
    X(memAddressFree, cuMemAddressFree, cuMemAddressFree, 10020, Required, DevicePtr address, std::size_t bytes)       \
    X(memRelease, cuMemRelease, cuMemRelease, 10020, Required, AllocationHandle handle)                                \
    X(memMap, cuMemMap, cuMemMap, 10020, Required, DevicePtr address, std::size_t bytes, std::size_t offset,           \
      AllocationHandle handle, unsigned long long flags)                                                               \
    X(memUnmap, cuMemUnmap, cuMemUnmap, 10020, Required, DevicePtr address, std::size_t bytes)                         \
    X(memSetAccess, cuMemSetAccess, cuMemSetAccess, 10020, Required, DevicePtr address, std::size_t bytes,             \
      const AccessDesc* access, std::size_t count)                                                                     \
    X(memExportToShareableHandle, cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, Required,         \
      void* shareable, AllocationHandle handle, HandleType type, unsigned long long flags)                             \
    X(memImportFromShareableHandle, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, Required,   \
      AllocationHandle* handle, void* shareable, HandleType type)                                                      \
    X(memRetainAllocationHandle, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, Required,            \
      AllocationHandle* handle, void* address)                                                                         \
    X(flushGpuDirectRdmaWrites, cuFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites, 11030, Required,               \
      FlushTarget target, FlushScope scope)                                                                            \
    X(memGetHandleForAddressRange, cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, Optional,      \
      void* handle, DevicePtr address, std::size_t bytes, RangeHandleType type, unsigned long long flags)              \
    X(moduleLoadData, cuModuleLoadData, cuModuleLoadData, 2000, Required, ModuleHandle* module, const void* image)     \
    X(moduleUnload, cuModuleUnload, cuModuleUnload, 2000, Required, ModuleHandle module)                               \
    X(moduleGetFunction, cuModuleGetFunction, cuModuleGetFunction, 2000, Required, FunctionHandle* function,           \
      ModuleHandle module, const char* name)                                                                           \
    X(launchKernel, cuLaunchKernel, cuLaunchKernel, 4000, Required, FunctionHandle function, unsigned grid_x,          \
      unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,   \
      StreamHandle stream, void** parameters, void** extra)                                                            \
    /* The application's. */                                                                                           \
    X(ctxSetCurrent, cuCtxSetCurrent, cuCtxSetCurrent, 4000, Optional, ContextHandle context)                          \
    X(memAllocManaged, cuMemAllocManaged, cuMemAllocManaged, 6000, Optional, DevicePtr* memory, std::size_t bytes,     \
      unsigned flags)                                                                                                  \
    X(memsetD8Async, cuMemsetD8Async, cuMemsetD8Async, 3020, Optional, DevicePtr to, unsigned char value,              \
      std::size_t bytes, StreamHandle stream)                                                                          \
    X(memCreate, cuMemCreate, cuMemCreate, 10020, Optional, AllocationHandle* handle, std::size_t bytes,               \
      const AllocationProp* properties, unsigned long long flags)                                                      \
    X(memGetAllocationGranularity, cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, Optional,      \
      std::size_t* granularity, const AllocationProp* properties, Granularity option)
