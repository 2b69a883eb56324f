#pragma once

#include <cstddef>
#include <cstdint>

/// What a test asks of tests/fake_cuda beside the CUDA driver API: exported by the same library, found by dlsym (see
/// control.h). Results and devices are plain numbers, texts are put into buffers and cut to fit.
extern "C" {

/// As after cuInit was never called, with what the environment says. Only where nothing is alive.
void fakeCudaReset();

// --- faults --------------------------------------------------------------------------------------------------------

/// The next `count` calls of that name return `result`, after `skip` that do not. A sticky one loses the current
/// context.
void fakeCudaFail(const char* call, unsigned result, int count, int skip);
/// The context of the device is lost after `operations` more of its streams' operations: what is queued is never done,
/// and each call in it returns `result`.
void fakeCudaLose(int device, unsigned result, int operations);
/// Each operation of a stream takes so long, and so much more by its size; up to `jitter_us` are added at random.
void fakeCudaLatency(unsigned us, unsigned ns_per_kib, unsigned jitter_us);
/// While held, no stream begins an operation.
void fakeCudaHold(int held);
/// While held, calls of that name are counted, and wait before they do anything else.
void fakeCudaHoldCall(const char* call, int held);
/// While set, some stream of the application is captured into a graph, in the mode that holds for all threads: a call
/// that could spoil the graph, by a thread that did not ask for leave, is refused, and a violation.
void fakeCudaCaptureGraph(int capturing);
/// Begins to capture a stream of the application into a graph: what it is given from then on is not done. At the end:
/// whether the graph is whole, which it is not when somebody did what a driver refuses beside it. That the calls of a
/// thread may spoil it, whatever stream they are of, is fakeCudaCaptureGraph's.
int fakeCudaCaptureStream(void* stream, int capturing);
/// What is freed is given to the next allocation of the same size, so that addresses return with other memory.
void fakeCudaReuseAddresses(int reuse);
/// What is registered of the host's memory from now on has another address on the device: kernels do not reach it by
/// the host's.
void fakeCudaOwnAddresses(int own);

// --- an application -----------------------------------------------------------------------------------------------

/// Has the stream do nothing for a while: a kernel that takes its time.
unsigned fakeCudaDelay(void* stream, unsigned us);
/// Copies between memory of the device and a buffer at once, past all streams. False where that is no device memory.
int fakeCudaRead(unsigned long long from, void* to, std::size_t bytes);
int fakeCudaWrite(unsigned long long to, const void* from, std::size_t bytes);

// --- the kernel, for a device beside the GPU ---------------------------------------------------------------------

/// The memory behind a descriptor of cuMemGetHandleForAddressRange: a new descriptor of its file, in which the range
/// begins at `offset`, and the GPU that it is of. -1: it is no such descriptor, or its memory was freed. How long the
/// range is its own descriptor says (SEEK_END), as a dma-buf's does.
int fakeCudaOpenDmabuf(int fd, unsigned long long* offset, int* device);
/// The same for a range of addresses, as a peer memory driver (nvidia-peermem) has it. -1: that range is not in one
/// allocation of cuMemAlloc.
int fakeCudaOpenPeerMemory(unsigned long long addr, std::size_t bytes, unsigned long long* offset, int* device);
/// What the GPUs say from now on of writes by such devices: CUGPUDirectRDMAWritesOrdering, and bits of
/// CUflushGPUDirectRDMAWritesOptions. At first they order them.
void fakeCudaNicWrites(int ordering, int flush_options);
/// Called with each cuFlushGPUDirectRDMAWrites that has something to do, in which nothing else waits, before that
/// returns: makes what was written to memory of the GPU be there.
void fakeCudaOnFlush(void (*function)(void* argument, int device), void* argument);

// --- what happened ------------------------------------------------------------------------------------------------

/// How often a call was made; of "pageable copies" how many waited for the host because of memory that is not pinned;
/// "operations" of all streams that began, "copies" of them; "contexts" that are alive. Of copies from or to memory of
/// another GPU than their stream's: "copies by peer access", which was enabled, and "copies between GPUs through the
/// host".
unsigned fakeCudaCount(const char* what);
/// What a driver would have answered with undefined behaviour, one per line. Returns how many.
unsigned fakeCudaViolations(char* buffer, std::size_t bytes);
void fakeCudaForgetViolations();
/// "2 streams, 1 memory", or "" when nothing of any context is left.
unsigned fakeCudaLeftovers(char* buffer, std::size_t bytes);

}  // extern "C"
