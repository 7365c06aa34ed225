# The stock twin: libllama as upstream wrote it, with the flags of the patched one, on the same ggml.

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

add_custom_target(ridgefill-stock DEPENDS llama-stock)
