# Adds the overlay's sources to upstream's targets, and builds and installs the product.

# where an overlay source goes: folder -> target
set(RIDGEFILL_OVERLAY_TARGETS
    "src=llama"
    "common=llama-common"
    "tools/server=server-context")

set(RIDGEFILL_PROGRAMS llama-server llama-completion llama-bench llama-perplexity)

if(MSVC)
    set(RIDGEFILL_WARNINGS /W4 /WX)
else()
    set(RIDGEFILL_WARNINGS -Wall -Wextra -Werror)
endif()

#
# overlay
#

file(GLOB_RECURSE sources RELATIVE "${fork_dir}/overlay" "${fork_dir}/overlay/*.cpp")
list(FILTER sources EXCLUDE REGEX "^tests/")
foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    set(target "${RIDGEFILL_OVERLAY_TARGETS}")
    list(FILTER target INCLUDE REGEX "^${folder}=")
    if(NOT target)
        message(FATAL_ERROR "  RidgeFill: no target compiles overlay/${source}\n"
            "  Move it, or add its folder to RIDGEFILL_OVERLAY_TARGETS in cmake/RidgeFillTargets.cmake.")
    endif()
    string(REGEX REPLACE "^.*=" "" target "${target}")

    set(path "${engine_dir}/src/${source}")
    target_sources(${target} PRIVATE "${path}")
    if(target STREQUAL "llama")
        list(APPEND ridgefill_llama_sources "${path}")
    endif()
    # out of the unity build: its file-local names and warning flags are its own
    set_source_files_properties("${path}" TARGET_DIRECTORY ${target} PROPERTIES
        COMPILE_OPTIONS "${RIDGEFILL_WARNINGS}"
        SKIP_UNITY_BUILD_INCLUSION ON)
endforeach()

#
# libraries
#

# every library target at or below a folder
function(ridgefill_libraries folder out)
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    get_property(subfolders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    set(libraries)
    foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if(type STREQUAL "SHARED_LIBRARY")
            list(APPEND libraries ${target})
        endif()
    endforeach()
    foreach(subfolder IN LISTS subfolders)
        ridgefill_libraries("${subfolder}" more)
        list(APPEND libraries ${more})
    endforeach()
    set(${out} "${libraries}" PARENT_SCOPE)
endfunction()

ridgefill_libraries("${engine_dir}/src/ggml" ridgefill_libs)
list(APPEND ridgefill_libs llama llama-common mtmd)
foreach(program IN LISTS RIDGEFILL_PROGRAMS)
    list(APPEND ridgefill_libs ${program}-impl)
endforeach()

if(APPLE)
    set(origin "@loader_path")
else()
    set(origin "$ORIGIN")
endif()

# a wheel holds no symbolic links, so a library has one name, which is also its soname;
# headers are installed by name below
foreach(lib IN LISTS ridgefill_libs)
    foreach(property VERSION SOVERSION PUBLIC_HEADER PRIVATE_HEADER)
        set_property(TARGET ${lib} PROPERTY ${property})
    endforeach()
    set_property(TARGET ${lib} PROPERTY INSTALL_RPATH "${origin}")
endforeach()
set_target_properties(${RIDGEFILL_PROGRAMS} PROPERTIES INSTALL_RPATH "${origin}/../lib")

#
# product
#

add_custom_target(ridgefill ALL)
add_dependencies(ridgefill ${ridgefill_libs} ${RIDGEFILL_PROGRAMS})

install(TARGETS ${ridgefill_libs} ${RIDGEFILL_PROGRAMS}
    RUNTIME DESTINATION bin COMPONENT ridgefill
    LIBRARY DESTINATION lib COMPONENT ridgefill
    ARCHIVE DESTINATION lib COMPONENT ridgefill)

file(GLOB headers "${engine_dir}/src/ggml/include/*.h" "${engine_dir}/src/include/*.h")
install(FILES ${headers}
    DESTINATION include COMPONENT ridgefill)
install(FILES "${engine_dir}/src/LICENSE" DESTINATION licenses/llama.cpp COMPONENT ridgefill)
install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/gguf_maps" DESTINATION . COMPONENT ridgefill)
