# The C++ tests (overlay/tests/test-ridgefill*.cpp) and upstream's maker of tiny random models.

# these take arguments: pytest runs them, not ctest
set(RIDGEFILL_DRIVEN_TESTS test-ridgefill-load test-ridgefill-reserve)

# these are built with AddressSanitizer, together with the overlay's part of libllama, which takes the place of the
# library's own; the rest of llama.cpp is compiled once, without
set(RIDGEFILL_ASAN_TESTS test-ridgefill-load)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

add_executable(test-llama-archs "${engine_dir}/src/tests/test-llama-archs.cpp")
target_link_libraries(test-llama-archs PRIVATE llama llama-common)

add_custom_target(ridgefill-tests DEPENDS test-llama-archs)

file(GLOB sources RELATIVE "${fork_dir}/overlay/tests" "${fork_dir}/overlay/tests/test-ridgefill*.cpp")
foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} "${engine_dir}/src/tests/${source}")
    target_include_directories(${name} PRIVATE "${engine_dir}/src/src")
    target_link_libraries(${name} PRIVATE llama llama-common)
    target_compile_options(${name} PRIVATE ${RIDGEFILL_WARNINGS})
    add_dependencies(ridgefill-tests ${name})

    if(name IN_LIST RIDGEFILL_ASAN_TESTS)
        target_sources(${name} PRIVATE ${ridgefill_llama_sources})
        target_compile_options(${name} PRIVATE -fsanitize=address -fno-omit-frame-pointer)
        target_link_options(${name} PRIVATE -fsanitize=address)
    endif()
    if(NOT name IN_LIST RIDGEFILL_DRIVEN_TESTS)
        add_test(NAME ${name} COMMAND ${name})
    endif()
endforeach()

# a device that computes late, which tests load at run time
add_library(ggml-ridgefill-delayed MODULE "${engine_dir}/src/tests/ggml-ridgefill-delayed.cpp")
target_include_directories(ggml-ridgefill-delayed PRIVATE "${engine_dir}/src/ggml/src")
target_link_libraries(ggml-ridgefill-delayed PRIVATE ggml)
target_compile_options(ggml-ridgefill-delayed PRIVATE ${RIDGEFILL_WARNINGS})
set_target_properties(ggml-ridgefill-delayed PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
add_dependencies(ridgefill-tests ggml-ridgefill-delayed)
