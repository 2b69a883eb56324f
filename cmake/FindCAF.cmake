# Finds the C++ Actor Framework's core library: a CMake package of a version that was asked for first (CAF's own install
# has one), then headers and library (Debian's libcaf-dev has neither a CMake package nor a .pc file). Pass the range of
# versions: find_package(CAF 0.17.6...<0.18).
#
# Defines CAF_FOUND, CAF_VERSION and the target CAF::core.

include(FindPackageHandleStandardArgs)
set(caf_needed "Troupe's messages are written for CAF 0.17, from 0.17.6 on (Debian 12: libcaf-dev): later releases \
removed what they are made with (caf::atom and the like). Where several are installed, CMAKE_PREFIX_PATH or \
CAF_INCLUDE_DIR and CAF_CORE_LIBRARY say which one.")

# A package of another version is passed over before any target of it is made.
set(caf_asked "")
if(CAF_FIND_VERSION_RANGE)
    set(caf_asked ${CAF_FIND_VERSION_RANGE})
elseif(CAF_FIND_VERSION)
    set(caf_asked ${CAF_FIND_VERSION})
endif()
find_package(CAF ${caf_asked} CONFIG QUIET COMPONENTS core)
if(TARGET CAF::core)
    # Version files of old packages know nothing of ranges, so it is compared once more.
    find_package_handle_standard_args(CAF REQUIRED_VARS CAF_DIR VERSION_VAR CAF_VERSION HANDLE_VERSION_RANGE
                                      REASON_FAILURE_MESSAGE "${caf_needed}")
    return()
endif()

find_path(CAF_INCLUDE_DIR caf/config.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
if(CAF_INCLUDE_DIR)
    # CAF_VERSION is major * 10000 + minor * 100 + patch; build_config.hpp has it in later releases.
    foreach(header config.hpp detail/build_config.hpp)
        if(EXISTS ${CAF_INCLUDE_DIR}/caf/${header})
            file(STRINGS ${CAF_INCLUDE_DIR}/caf/${header} line REGEX "^#define CAF_VERSION [0-9]+")
            if(line MATCHES "CAF_VERSION ([0-9]+)")
                math(EXPR caf_major "${CMAKE_MATCH_1} / 10000")
                math(EXPR caf_minor "(${CMAKE_MATCH_1} / 100) % 100")
                math(EXPR caf_patch "${CMAKE_MATCH_1} % 100")
                set(CAF_VERSION ${caf_major}.${caf_minor}.${caf_patch})
            endif()
        endif()
    endforeach()
endif()

find_package_handle_standard_args(CAF REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION
                                  HANDLE_VERSION_RANGE REASON_FAILURE_MESSAGE "${caf_needed}")
if(CAF_FOUND AND NOT TARGET CAF::core)
    add_library(CAF::core UNKNOWN IMPORTED)
    set_target_properties(CAF::core PROPERTIES IMPORTED_LOCATION ${CAF_CORE_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE_DIR})
endif()
mark_as_advanced(CAF_INCLUDE_DIR CAF_CORE_LIBRARY)
