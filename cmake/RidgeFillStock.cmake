# The stock twin: libllama and llama-server as upstream wrote them, with the flags of the patched ones, on the same ggml.

get_target_property(sources llama SOURCES)
get_target_property(includes llama INCLUDE_DIRECTORIES)
get_target_property(options llama COMPILE_OPTIONS)
get_target_property(definitions llama COMPILE_DEFINITIONS)

set(stock_dir "${engine_dir}/stock/src")

set(stock_sources)
set(stock_core)
foreach(source IN LISTS sources)
    get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${engine_dir}/src/src")
    file(RELATIVE_PATH path "${engine_dir}/src" "${path}")
    if(EXISTS "${engine_dir}/stock/${path}")
        list(APPEND stock_sources "${engine_dir}/stock/${path}")
        # the same division into unity batches as upstream's
        if(NOT path MATCHES "^src/models/")
            list(APPEND stock_core "${engine_dir}/stock/${path}")
        endif()
    endif()
endforeach()

string(REPLACE "${engine_dir}/src/" "${engine_dir}/stock/" includes "${includes}")

add_library(llama-stock SHARED ${stock_sources})
set_source_files_properties(${stock_core} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(llama-stock PROPERTIES
    OUTPUT_NAME llama
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/stock"
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/stock"
    UNITY_BUILD ON
    UNITY_BUILD_BATCH_SIZE 16)
target_include_directories(llama-stock PRIVATE ${includes} "${stock_dir}" "${engine_dir}/stock/include")
target_compile_options(llama-stock PRIVATE ${options})
target_compile_definitions(llama-stock PRIVATE ${definitions})
target_compile_features(llama-stock PRIVATE cxx_std_17)
target_link_libraries(llama-stock PRIVATE ggml)

#
# server
#

# one program with all of its sources: a patch of common.h reaches nearly every one of them
set(server_sources)
set(server_parsers)
foreach(target llama-common server-context llama-server-impl llama-server)
    get_target_property(dir ${target} SOURCE_DIR)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
        get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${dir}")
        file(RELATIVE_PATH path "${engine_dir}/src" "${path}")
        if(path MATCHES "\\.cpp$" AND EXISTS "${engine_dir}/stock/${path}")
            list(APPEND server_sources "${engine_dir}/stock/${path}")
            if(path MATCHES "/parsers/")
                list(APPEND server_parsers "${engine_dir}/stock/${path}")
            endif()
        endif()
    endforeach()
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS)
        get_target_property(values ${target} ${property})
        if(values)
            list(APPEND server_${property} ${values})
        endif()
    endforeach()
endforeach()
list(REMOVE_DUPLICATES server_COMPILE_OPTIONS)
list(REMOVE_DUPLICATES server_COMPILE_DEFINITIONS)

find_package(Threads REQUIRED)

add_executable(llama-server-stock ${server_sources})
set_source_files_properties(${server_parsers} PROPERTIES UNITY_GROUP parsers)
set_target_properties(llama-server-stock PROPERTIES
    OUTPUT_NAME llama-server
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/stock"
    UNITY_BUILD ON
    UNITY_BUILD_MODE GROUP)
target_include_directories(llama-server-stock PRIVATE
    "${engine_dir}/stock/include" "${engine_dir}/stock/common" "${engine_dir}/stock/tools/server" "${engine_dir}/src/tools/mtmd")
target_compile_options(llama-server-stock PRIVATE ${server_COMPILE_OPTIONS})
target_compile_definitions(llama-server-stock PRIVATE ${server_COMPILE_DEFINITIONS})
target_compile_features(llama-server-stock PRIVATE cxx_std_17)
# by their files, where the target brings the patched libllama or common along; no patch touches what these hold
target_link_libraries(llama-server-stock PRIVATE llama-stock ggml
    "$<TARGET_FILE:mtmd>" "$<TARGET_FILE:llama-common-base>"
    cpp-httplib llama-ui vendor::nlohmann vendor::sheredom Threads::Threads)
add_dependencies(llama-server-stock mtmd llama-common-base llama-ui-assets)

add_custom_target(ridgefill-stock DEPENDS llama-stock llama-server-stock)
