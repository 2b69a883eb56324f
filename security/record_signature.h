#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "security/cluster_auth.h"

namespace troupe {

/// How the signature of a record in a metadata store stands.
enum class RecordSignature {
    None,       ///< There is none.
    Unchecked,  ///< There is one, and no key here to check it with.
    Good,       ///< Made with a key of this cluster.
    Wrong,      ///< Made with another key, or the record was changed.
};

/// "none", "unchecked", "good", "wrong".
std::string_view signatureName(RecordSignature signature);

/// `json`, an object as text, with a last member "signature" that signs every byte before it; as it is without a key.
/// Who does not know the member ignores it.
std::string signRecord(std::string json, const std::shared_ptr<const ClusterAuth>& auth);

/// Looks at the text as the store had it, before anything of it is read.
RecordSignature checkRecord(std::string_view json, const std::shared_ptr<const ClusterAuth>& auth);

/// Ok when a record with that signature may be used: AccessDenied where there is a key and the signature is not Good;
/// counted.
Status judgeRecord(RecordSignature signature, const std::shared_ptr<const ClusterAuth>& auth);

}  // namespace troupe
