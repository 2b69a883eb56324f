# find_package(troupe): gives troupe::troupe_engine, and each folder below it as troupe::troupe_FOLDER.
include(CMakeFindDependencyMacro)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
foreach(package Threads nlohmann_json fmt spdlog OpenSSL CAF)
    find_dependency(${package})
endforeach()
list(POP_BACK CMAKE_MODULE_PATH)
include(${CMAKE_CURRENT_LIST_DIR}/troupeTargets.cmake)
