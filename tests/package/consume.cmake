# Installs BUILD under WORK, then configures, builds and runs the project SOURCE against it, by CMake and by pkg-config.
# EXAMPLE is the source of the service that users are told to copy.
function(run)
    execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)

# The public headers, all under one folder.
file(GLOB shown RELATIVE ${WORK}/prefix/include ${WORK}/prefix/include/*)
if(NOT shown STREQUAL "troupe")
    message(FATAL_ERROR "the folder of headers shows: ${shown}")
endif()
foreach(private actors/tracker_logic.h control/control_frame.h transports/nic.h engine/engine_core.h)
    if(EXISTS ${WORK}/prefix/include/troupe/${private})
        message(FATAL_ERROR "${private} is installed")
    endif()
endforeach()

# The licence, and the pages that the headers' comments name.
file(GLOB_RECURSE headers ${WORK}/prefix/include/*.h)
set(pages LICENSE README.md)
foreach(header IN LISTS headers)
    file(READ ${header} text)
    string(REGEX MATCHALL "docs/[a-z-]+\\.md" named "${text}")
    list(APPEND pages ${named})
endforeach()
list(REMOVE_DUPLICATES pages)
list(FIND pages docs/api.md at)
if(at EQUAL -1)
    message(FATAL_ERROR "no installed header names docs/api.md; are comments looked at at all?")
endif()
foreach(page IN LISTS pages)
    if(NOT EXISTS ${WORK}/prefix/share/doc/troupe/${page})
        message(FATAL_ERROR "${page} is not installed")
    endif()
endforeach()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER} -DEXAMPLE=${EXAMPLE}
    -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
run(${WORK}/build/service)

# A CAF that it was not built with is refused when it is found, not by errors of the compiler.
file(WRITE ${WORK}/other/include/caf/config.hpp "#define CAF_VERSION 1805\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/other/build -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER}
                        -DEXAMPLE=${EXAMPLE} -DCMAKE_PREFIX_PATH=${WORK}/prefix
                        -DCAF_INCLUDE_DIR=${WORK}/other/include
                RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
string(REGEX REPLACE "[ \n]+" " " said "${said}")
if(NOT failed OR NOT said MATCHES "are written for CAF 0.17")
    message(FATAL_ERROR "an installed Troupe takes CAF 0.18.5: ${said}")
endif()

file(GLOB_RECURSE description ${WORK}/prefix/*/troupe.pc)
cmake_path(GET description PARENT_PATH where)
execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${where} ${PKG_CONFIG} --cflags --libs troupe
                OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${COMPILER} -std=c++20 -I ${SOURCE} ${SOURCE}/main.cpp ${flags} -o ${WORK}/by_pkg_config)
run(${WORK}/by_pkg_config)
