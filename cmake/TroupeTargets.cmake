# Compiler settings and the functions every folder uses.

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Relative paths, so that another checkout finds the same objects; the two others let ccache see through
    # precompiled headers (ccache's manual, "Precompiled headers").
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
        CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()
# mold links a sanitized test faster than GNU ld.
find_program(MOLD mold)
if(MOLD)
    add_link_options(-fuse-ld=mold)
endif()

include(GNUInstallDirs)

add_library(troupe_options INTERFACE)
target_include_directories(troupe_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_compile_features(troupe_options INTERFACE cxx_std_20)
install(TARGETS troupe_options EXPORT troupe)
# Our warnings are for our code: a project that embeds Troupe has its own.
if(PROJECT_IS_TOP_LEVEL)
    foreach(flag -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
                 -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
        target_compile_options(troupe_options INTERFACE $<BUILD_INTERFACE:${flag}>)
    endforeach()
endif()
if(TROUPE_SANITIZE)
    target_compile_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
    target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
    if(TROUPE_SANITIZE MATCHES "undefined")
        # CAF 0.17 binds a reference to null in its own headers.
        target_compile_options(troupe_options INTERFACE -fno-sanitize=null)
    endif()
endif()

# troupe_library(NAME [LOCAL] SOURCES a.cpp ... DEPS other ...): a static library of one folder. An empty SOURCES makes
# an interface library. DEPS are the folders it may include. It is installed unless LOCAL; its headers are not, see
# TroupePackage.cmake.
function(troupe_library name)
    cmake_parse_arguments(arg "LOCAL" "" "SOURCES;DEPS" ${ARGN})
    if(arg_SOURCES)
        add_library(troupe_${name} STATIC ${arg_SOURCES})
        set_target_properties(troupe_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
        target_link_libraries(troupe_${name} PUBLIC troupe_options ${arg_DEPS})
    else()
        add_library(troupe_${name} INTERFACE)
        target_link_libraries(troupe_${name} INTERFACE troupe_options ${arg_DEPS})
    endif()
    if(NOT arg_LOCAL)
        install(TARGETS troupe_${name} EXPORT troupe)
        set_property(GLOBAL APPEND PROPERTY TROUPE_INSTALLED troupe_${name})
    endif()
endfunction()

# troupe_pch(target <caf/all.hpp> ...): compiles these headers once for the target. For folders whose files all include
# the same heavy headers; every file still includes what it uses.
function(troupe_pch target)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    _troupe_pch_options(${target})
endfunction()

function(_troupe_pch_options target)
    # Without these, ccache cannot tell whether a precompiled header changed.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        target_compile_options(${target} PRIVATE -fpch-preprocess)
    else()
        target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
    endif()
endfunction()

# troupe_program(NAME SOURCES ... DEPS ...): a program in build/.../bin.
function(troupe_program name)
    cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
    add_executable(${name} ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE troupe_options ${arg_DEPS})
endfunction()

# troupe_test(NAME LABEL unit SOURCES ... DEPS ...): a GoogleTest program whose cases ctest lists one by one.
function(troupe_test name)
    cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    add_executable(${name} ${arg_SOURCES})
    # What is tested is optimised; the tests themselves need not be.
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
    target_precompile_headers(${name} REUSE_FROM troupe_test_headers)
    _troupe_pch_options(${name})
    target_link_libraries(${name} PRIVATE troupe_options GTest::gtest GTest::gmock GTest::gtest_main ${arg_DEPS})
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT})
endfunction()
