#pragma once

/// The consumer's own; Troupe has a header of that name.
inline int ownStatus() { return 7; }
