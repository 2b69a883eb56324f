#include "cuda_backend/packer.h"

#ifdef TROUPE_PACK_IMAGE
// Made by bin2c of what nvcc makes of pack.cu: an array `troupe_pack_image`.
#include <troupe_pack_image.inc>
#endif

namespace troupe::cuda {

std::span<const std::byte> packImage() {
#ifdef TROUPE_PACK_IMAGE
    return std::as_bytes(std::span(troupe_pack_image));
#else
    return {};
#endif
}

}  // namespace troupe::cuda
