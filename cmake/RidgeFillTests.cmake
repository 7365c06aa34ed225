# The C++ tests (overlay/tests/test-ridgefill*.cpp) and upstream's maker of tiny random models.

add_executable(test-llama-archs EXCLUDE_FROM_ALL "${engine_dir}/src/tests/test-llama-archs.cpp")
target_link_libraries(test-llama-archs PRIVATE llama llama-common)

add_custom_target(ridgefill-tests DEPENDS test-llama-archs)

file(GLOB test_sources "${engine_dir}/src/tests/test-ridgefill*.cpp")
foreach(source IN LISTS test_sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL "${source}")
    target_link_libraries(${name} PRIVATE llama llama-common)
    target_compile_options(${name} PRIVATE ${RIDGEFILL_WARNINGS})
    add_test(NAME ${name} COMMAND ${name})
    add_dependencies(ridgefill-tests ${name})
endforeach()
