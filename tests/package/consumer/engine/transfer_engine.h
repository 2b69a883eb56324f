#pragma once

/// The consumer's own; Troupe has a header of that name.
struct TransferEngine {
    int cylinders = 4;
};
