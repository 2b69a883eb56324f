# find_package(troupe): gives troupe::troupe, for <troupe/troupe.h>. Its other targets are what that consists of.
include(CMakeFindDependencyMacro)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
foreach(package Threads nlohmann_json fmt spdlog OpenSSL)
    find_dependency(${package})
endforeach()
# As it was built with: its headers are part of ours.
find_dependency(CAF 0.17.6...<0.18)
list(POP_BACK CMAKE_MODULE_PATH)
include(${CMAKE_CURRENT_LIST_DIR}/troupeTargets.cmake)
