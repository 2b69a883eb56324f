# Configures a project that has Troupe as a subdirectory, and compiles the consumer's source there: what is asked is
# whether the headers are there and in nobody's way. Linking would build all of Troupe once more.
function(run)
    execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER} -DTROUPE=${TROUPE}
    -DCONSUMER=${CONSUMER})
run(${CMAKE_COMMAND} --build ${WORK} --target CMakeFiles/embedder.dir/main.cpp.o)
