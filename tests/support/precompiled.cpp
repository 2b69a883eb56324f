// Empty: the target troupe_test_headers exists for its precompiled headers, and needs a source.
