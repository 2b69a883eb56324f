# Configures this project with each value of TROUPE_CUDA, where the toolkit is not to be found and, with KERNELS, where it
# is; and compiles what differs without it. Building all of it would say no more.
file(REMOVE_RECURSE ${WORK})

# configure(NAME ARGS...): sets NAME_failed, NAME_said and NAME_builds_kernels.
function(configure name)
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${TROUPE} -B ${WORK} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER} ${ARGN}
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    set(rules "")
    if(NOT failed)
        file(READ ${WORK}/build.ninja rules)
    endif()
    string(FIND "${rules}" "troupe_pack_image.inc" at)
    set(builds ON)
    if(at EQUAL -1)
        set(builds OFF)
    endif()
    # A message may be broken into lines anywhere.
    string(REGEX REPLACE "[ \n]+" " " said "${said}")
    set(${name}_failed ${failed} PARENT_SCOPE)
    set(${name}_said "${said}" PARENT_SCOPE)
    set(${name}_builds_kernels ${builds} PARENT_SCOPE)
endfunction()
function(wrong name what)
    message(FATAL_ERROR "${name}: ${what}. CMake said: ${${name}_said}")
endfunction()

# As where there is none: by paths it could not be hidden, for /usr/local/cuda is looked at whatever they are.
set(hidden -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)

configure(other ${hidden} -DTROUPE_CUDA=perhaps)
if(NOT other_failed OR NOT other_said MATCHES "'perhaps': AUTO, ON or OFF")
    wrong(other "it should be refused")
endif()

configure(required ${hidden} -DTROUPE_CUDA=ON)
if(NOT required_failed OR NOT required_said MATCHES "CUDAToolkit")
    wrong(required "without a toolkit it should be refused, and name it")
endif()

configure(automatic ${hidden} -DTROUPE_CUDA=AUTO)
if(automatic_failed OR automatic_builds_kernels)
    wrong(automatic "without a toolkit nothing of one should be built")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} --target
                        cuda_backend/CMakeFiles/troupe_cuda_backend.dir/pack_image.cpp.o COMMAND_ERROR_IS_FATAL ANY)

configure(off -UCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit -DTROUPE_CUDA=OFF)
if(off_failed OR off_builds_kernels)
    wrong(off "nothing of a toolkit should be built")
endif()

if(KERNELS)
    configure(on -DTROUPE_CUDA=ON)
    if(on_failed OR NOT on_builds_kernels)
        wrong(on "the kernels should be built")
    endif()
    configure(off_again -DTROUPE_CUDA=OFF)
    if(off_again_failed OR off_again_builds_kernels)
        wrong(off_again "nothing of a toolkit should be built any more")
    endif()
endif()
