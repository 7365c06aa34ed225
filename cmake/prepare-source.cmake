# The source step alone, without a build:
#
#   cmake -DROOT=llama.cpp -DDIR=build/engine [-DDOWNLOAD_ONLY=ON] -P cmake/prepare-source.cmake

include("${CMAKE_CURRENT_LIST_DIR}/RidgeFillSource.cmake")

foreach(name ROOT DIR)
    if(NOT ${name})
        ridgefill_fail("prepare-source.cmake needs -D${name}=..." "See the head of that file.")
    endif()
    get_filename_component(${name} "${${name}}" ABSOLUTE)
endforeach()

if(DOWNLOAD_ONLY)
    ridgefill_read_pin("${ROOT}/PIN" PIN)
    if(NOT RIDGEFILL_ARCHIVE AND DEFINED ENV{RIDGEFILL_ARCHIVE})
        set(RIDGEFILL_ARCHIVE "$ENV{RIDGEFILL_ARCHIVE}")
    endif()
    ridgefill_fetch_archive("${DIR}" archive)
    message("${archive}")
else()
    ridgefill_prepare_source("${ROOT}" "${DIR}")
endif()
