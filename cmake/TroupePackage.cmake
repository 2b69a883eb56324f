# What programs that use Troupe get: the target troupe::troupe, its headers, and what is installed.

# troupe_public_target(): the engine with the public headers alone, as <troupe/engine/transfer_engine.h>. Include
# directories of the tree do not come with it: names like base/status.h are the user's.
function(troupe_public_target)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    set(out ${PROJECT_BINARY_DIR}/include)
    set(script ${PROJECT_SOURCE_DIR}/scripts/public_headers.py)
    set(stamp ${PROJECT_BINARY_DIR}/public_headers.stamp)
    # Once now, so that editors and clang-tidy find them before anything is built.
    execute_process(COMMAND ${Python3_EXECUTABLE} ${script} ${out} --version ${PROJECT_VERSION}
                    COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB_RECURSE headers ${out}/troupe/*.h)
    add_custom_command(OUTPUT ${stamp} BYPRODUCTS ${headers} DEPENDS ${script} DEPFILE ${stamp}.d
                       COMMAND ${Python3_EXECUTABLE} ${script} ${out} --version ${PROJECT_VERSION}
                               --depfile ${stamp}.d --target ${stamp}
                       COMMENT "Writing the public headers")
    add_custom_target(troupe_headers DEPENDS ${stamp})

    add_library(troupe_public INTERFACE)
    add_library(troupe::troupe ALIAS troupe_public)
    set_target_properties(troupe_public PROPERTIES EXPORT_NAME troupe)
    add_dependencies(troupe_public troupe_headers)
    target_compile_features(troupe_public INTERFACE cxx_std_20)
    target_include_directories(troupe_public INTERFACE $<BUILD_INTERFACE:${out}>
                                                       $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    # What the headers include, and the rest for the linker only.
    target_link_libraries(troupe_public INTERFACE spdlog::spdlog fmt::fmt CAF::core $<LINK_ONLY:troupe_engine>)
endfunction()

# _troupe_pkg_config_libs(REQUIRES LIBS): what a static link needs besides our own libraries.
function(_troupe_pkg_config_libs requires_out libs_out)
    set(packages spdlog::spdlog spdlog fmt::fmt fmt OpenSSL::Crypto libcrypto)
    set(flags CAF::core -lcaf_core Threads::Threads -pthread nlohmann_json::nlohmann_json "")
    get_property(ours GLOBAL PROPERTY TROUPE_INSTALLED)
    # Those of the upper floors first, as a linker reads them.
    list(REVERSE ours)
    foreach(library IN LISTS ours)
        get_target_property(type ${library} TYPE)
        if(type STREQUAL "STATIC_LIBRARY")
            list(APPEND libs -l${library})
        endif()
        get_target_property(needed ${library} INTERFACE_LINK_LIBRARIES)
        foreach(name IN LISTS needed)
            # What a library links PRIVATE, whoever links the library statically needs, too.
            string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" name ${name})
            if(name MATCHES "^troupe_")
                continue()
            endif()
            list(FIND packages ${name} package)
            list(FIND flags ${name} flag)
            if(NOT package EQUAL -1)
                math(EXPR package "${package} + 1")
                list(GET packages ${package} value)
                list(APPEND requires ${value})
            elseif(NOT flag EQUAL -1)
                math(EXPR flag "${flag} + 1")
                list(GET flags ${flag} value)
                list(APPEND others ${value})
            elseif(name MATCHES "::")
                message(FATAL_ERROR "troupe.pc: TroupePackage.cmake does not know how to name ${name}")
            else()
                list(APPEND others -l${name})
            endif()
        endforeach()
    endforeach()
    list(REMOVE_DUPLICATES requires)
    list(REMOVE_DUPLICATES others)
    list(JOIN requires " " requires)
    list(JOIN libs " " libs)
    list(JOIN others " " others)
    set(${requires_out} "${requires}" PARENT_SCOPE)
    set(${libs_out} "${libs} ${others}" PARENT_SCOPE)
endfunction()

# troupe_install_package(): headers, pages and licence, and what find_package(troupe) and pkg-config read. Call after the
# folders.
# `troupe_installable` builds all that is installed, and nothing else.
function(troupe_install_package)
    include(CMakePackageConfigHelpers)
    set(directory ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
    write_basic_package_version_file(${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
    install(FILES cmake/troupeConfig.cmake cmake/FindCAF.cmake ${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake
            DESTINATION ${directory})
    install(TARGETS troupe_public EXPORT troupe)
    install(EXPORT troupe NAMESPACE troupe:: DESTINATION ${directory} FILE troupeTargets.cmake)
    install(DIRECTORY ${PROJECT_BINARY_DIR}/include/troupe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    # The headers' comments name pages as they lie here. Not CMAKE_INSTALL_DOCDIR: where Troupe is embedded, that is the
    # other project's.
    set(documents ${CMAKE_INSTALL_DATAROOTDIR}/doc/troupe)
    install(FILES LICENSE README.md DESTINATION ${documents})
    install(DIRECTORY docs DESTINATION ${documents} FILES_MATCHING PATTERN *.md)
    _troupe_pkg_config_libs(TROUPE_REQUIRES TROUPE_LIBS)
    file(RELATIVE_PATH TROUPE_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    configure_file(cmake/troupe.pc.in ${PROJECT_BINARY_DIR}/troupe.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/troupe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

    get_property(ours GLOBAL PROPERTY TROUPE_INSTALLED)
    add_custom_target(troupe_installable)
    add_dependencies(troupe_installable troupe_headers ${ours})
    if(TARGET troupe)
        add_dependencies(troupe_installable troupe)
    endif()
endfunction()
