# Asks FindCAF.cmake, MODULES being its folder, for the range of versions that Troupe needs, where other versions of CAF
# are there: packages and headers made up here. None is compiled or linked.
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/CMakeLists.txt "cmake_minimum_required(VERSION 3.22)
project(asks LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH ${MODULES})
find_package(CAF ${RANGE} REQUIRED)
get_target_property(of CAF::core TROUPE_TEST)
message(STATUS \"took [\${CAF_VERSION}] \${of}\")
")

# A package as CAF's own install has it, whose version file compares as `policy` says.
function(make_package version policy)
    set(at ${WORK}/${version}/lib/cmake/CAF)
    file(WRITE ${at}/CAFConfig.cmake
         "add_library(CAF::core INTERFACE IMPORTED)\nset_target_properties(CAF::core PROPERTIES TROUPE_TEST package)\n")
    if(policy STREQUAL "blind")
        file(WRITE ${at}/CAFConfigVersion.cmake
             "set(PACKAGE_VERSION ${version})\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
    else()
        include(CMakePackageConfigHelpers)
        write_basic_package_version_file(${at}/CAFConfigVersion.cmake VERSION ${version} COMPATIBILITY ${policy}
                                         ARCH_INDEPENDENT)
    endif()
endfunction()

# Headers and library of a version, as Debian installs them.
function(make_headers name header number)
    file(WRITE ${WORK}/${name}/include/caf/config.hpp "// config\n")
    file(APPEND ${WORK}/${name}/include/caf/${header} "#define CAF_VERSION ${number}\n")
    file(WRITE ${WORK}/${name}/lib/libcaf_core.so "")
endfunction()

# ask(EXPECTED ARGS...): FATAL_ERROR unless CMake, told ARGS, says what matches EXPECTED.
function(ask expected)
    file(REMOVE_RECURSE ${WORK}/build)
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK} -B ${WORK}/build ${ARGN} OUTPUT_VARIABLE said
                    ERROR_VARIABLE said)
    # A message may be broken into lines anywhere.
    string(REGEX REPLACE "[ \n]+" " " said "${said}")
    if(NOT said MATCHES "${expected}")
        message(FATAL_ERROR "with ${ARGN}: expected '${expected}'. CMake said: ${said}")
    endif()
endfunction()

make_package(0.17.7 SameMajorVersion)
make_package(0.18.0 SameMajorVersion)
make_package(1.0.2 SameMajorVersion)
make_package(0.19.1 blind)
make_headers(old config.hpp 1705)
make_headers(good config.hpp 1706)
make_headers(new detail/build_config.hpp 10002)

function(headers_of name)
    set(here -DCAF_INCLUDE_DIR=${WORK}/${name}/include -DCAF_CORE_LIBRARY=${WORK}/${name}/lib/libcaf_core.so
        PARENT_SCOPE)
endfunction()

ask("took .0.17.7. package" -DCMAKE_PREFIX_PATH=${WORK}/0.17.7)
headers_of(good)
ask("took .0.17.6. of-NOTFOUND" ${here})
# A package of another version is no reason to pass over the right headers.
ask("took .0.17.6. of-NOTFOUND" ${here} -DCMAKE_PREFIX_PATH=${WORK}/1.0.2)
ask("took .0.17.6. of-NOTFOUND" ${here} -DCMAKE_PREFIX_PATH=${WORK}/0.18.0)
headers_of(old)
ask("are written for CAF 0.17, from 0.17.6 on" ${here})
headers_of(new)
ask("are written for CAF 0.17, from 0.17.6 on" ${here})
ask("are written for CAF 0.17, from 0.17.6 on" ${here} -DCMAKE_PREFIX_PATH=${WORK}/1.0.2)
# Not even where the package itself says that it is what was asked for.
ask("are written for CAF 0.17, from 0.17.6 on" -DCMAKE_PREFIX_PATH=${WORK}/0.19.1)
