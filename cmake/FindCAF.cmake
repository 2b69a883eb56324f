# Finds the C++ Actor Framework's core library: a CMake package first (1.x ships one), then headers and library
# (Debian's libcaf-dev ships neither a CMake package nor a .pc file).
#
# Defines CAF_FOUND, CAF_VERSION and the target CAF::core.

find_package(CAF CONFIG QUIET COMPONENTS core)
if(TARGET CAF::core)
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

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION)
if(CAF_FOUND AND NOT TARGET CAF::core)
    add_library(CAF::core UNKNOWN IMPORTED)
    set_target_properties(CAF::core PROPERTIES IMPORTED_LOCATION ${CAF_CORE_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE_DIR})
endif()
mark_as_advanced(CAF_INCLUDE_DIR CAF_CORE_LIBRARY)
