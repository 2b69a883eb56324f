// Threads of the fake's streams are created and end while a test ends, and LeakSanitizer of GCC 12 reads the
// descriptors of such threads when it looks through thread-local storage: "Tracer caught signal 11", in one of four
// runs beside others. Nothing here is reachable from thread-local storage alone.

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the name is the sanitizer's.
extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_options() { return "use_tls=0"; }

// But for what the C library keeps there: the words of the last dlopen that failed.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the name is the sanitizer's.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:_dlerror_run"; }
