# Makes the patched llama.cpp source tree: fetch or copy, check against the pin, patch, overlay.
#
# Everything lies under one folder:
#
#   download/   the source archive
#   stock/      src, include, common and tools/server as upstream wrote them, for the stock twin
#   src/        the patched tree that is built
#   next/       a tree in the making
#
# A file of src/ is written only when its content changes, so a build after a changed patch or overlay is incremental.

cmake_minimum_required(VERSION 3.21)

# what the build needs of upstream's tree
set(RIDGEFILL_UPSTREAM_ITEMS
    .clang-format CMakeLists.txt LICENSE cmake common ggml include licenses scripts src tests tools vendor)

# an error that says what happened and what to do next, one line each
function(ridgefill_fail what next)
    message(FATAL_ERROR "  RidgeFill: ${what}\n  ${next}")
endfunction()

# read key = value lines into <prefix>_<key>, and `file PATH = SHA256` lines into the list <prefix>_files (PATH=SHA256)
function(ridgefill_read_pin path prefix)
    if(NOT EXISTS "${path}")
        ridgefill_fail("there is no ${path}" "Restore it from version control.")
    endif()

    set(files)
    file(STRINGS "${path}" lines REGEX "^[^#].*=")
    foreach(line IN LISTS lines)
        string(REGEX MATCH "^([^=]*[^= ]) *= *(.*[^ ]) *$" _ "${line}")
        set(key "${CMAKE_MATCH_1}")
        set(value "${CMAKE_MATCH_2}")
        if(key MATCHES "^file +(.+)$")
            list(APPEND files "${CMAKE_MATCH_1}=${value}")
        else()
            set(${prefix}_${key} "${value}" PARENT_SCOPE)
        endif()
        list(APPEND keys "${key}")
    endforeach()
    set(${prefix}_files "${files}" PARENT_SCOPE)

    foreach(key commit package package_version archive sha256 subdir)
        if(NOT key IN_LIST keys)
            ridgefill_fail("${path} has no line '${key} = ...'" "Restore it from version control.")
        endif()
    endforeach()
endfunction()

# find or download the source archive, check it, give its path
function(ridgefill_fetch_archive dir out)
    set(archive "${dir}/download/${PIN_archive}")
    if(RIDGEFILL_ARCHIVE)
        get_filename_component(archive "${RIDGEFILL_ARCHIVE}" ABSOLUTE)
        if(NOT EXISTS "${archive}")
            ridgefill_fail("RIDGEFILL_ARCHIVE=${archive} does not exist"
                "Give the path of ${PIN_archive}, or unset RIDGEFILL_ARCHIVE to download it.")
        endif()
    elseif(NOT EXISTS "${archive}")
        ridgefill_find_python(python)
        message(STATUS "RidgeFill: downloading ${PIN_archive}")
        # an isolated build hides the interpreter's own pip behind PYTHONPATH, and
        # the sdist's metadata must not be prepared with the options of our build
        execute_process(
            COMMAND "${CMAKE_COMMAND}" -E env --unset=PYTHONPATH --unset=CMAKE_ARGS
                "${python}" -m pip download --disable-pip-version-check --no-deps
                --no-binary "${PIN_package}" --dest "${dir}/download" "${PIN_package}==${PIN_package_version}"
            RESULT_VARIABLE status)
        if(NOT status EQUAL 0 OR NOT EXISTS "${archive}")
            ridgefill_fail("'${python} -m pip download' did not bring ${PIN_archive}"
                "See pip's message above; or download it by other means and set RIDGEFILL_ARCHIVE to its path.")
        endif()
    endif()

    file(SHA256 "${archive}" found)
    if(NOT found STREQUAL PIN_sha256)
        ridgefill_fail("wrong checksum of ${archive}: expected ${PIN_sha256}, found ${found}"
            "Delete the file and run again; if it happens again, do not build from it: it is not the pinned archive.")
    endif()
    set(${out} "${archive}" PARENT_SCOPE)
endfunction()

function(ridgefill_find_python out)
    foreach(candidate RIDGEFILL_PYTHON Python_EXECUTABLE PYTHON_EXECUTABLE)
        if(${candidate})
            set(${out} "${${candidate}}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
    find_program(RIDGEFILL_PYTHON NAMES python3 python)
    if(NOT RIDGEFILL_PYTHON)
        ridgefill_fail("no Python found, which downloads ${PIN_archive}"
            "Install Python with pip, set RIDGEFILL_PYTHON to it, or set RIDGEFILL_ARCHIVE to the archive's path.")
    endif()
    set(${out} "${RIDGEFILL_PYTHON}" PARENT_SCOPE)
endfunction()

# refuse a checkout whose files are not those of the pin
function(ridgefill_check_checkout dir)
    if(NOT EXISTS "${dir}/CMakeLists.txt")
        ridgefill_fail("there is no llama.cpp checkout in RIDGEFILL_LLAMA_CPP_DIR=${dir}"
            "Give the root folder of one, or unset RIDGEFILL_LLAMA_CPP_DIR to download the pinned archive.")
    endif()
    foreach(entry IN LISTS PIN_files)
        string(REGEX MATCH "^(.+)=(.+)$" _ "${entry}")
        set(path "${CMAKE_MATCH_1}")
        set(expected "${CMAKE_MATCH_2}")
        set(found "no such file")
        if(EXISTS "${dir}/${path}")
            file(SHA256 "${dir}/${path}" found)
        endif()
        if(NOT found STREQUAL expected)
            if(RIDGEFILL_ALLOW_UNKNOWN_PIN)
                message(WARNING "RidgeFill: ${dir} is not llama.cpp ${PIN_commit} (${path} differs); "
                    "going on because of RIDGEFILL_ALLOW_UNKNOWN_PIN")
                return()
            endif()
            ridgefill_fail("unknown pin: ${dir} is not an unpatched llama.cpp ${PIN_commit}, ${path} differs"
                "Check out that commit, unset RIDGEFILL_LLAMA_CPP_DIR, or set RIDGEFILL_ALLOW_UNKNOWN_PIN=ON to try the patches on it.")
        endif()
    endforeach()
endfunction()

function(ridgefill_apply_patch patch dir)
    find_program(RIDGEFILL_GIT git)
    find_program(RIDGEFILL_PATCH patch)
    if(RIDGEFILL_GIT)
        # inside a repository `git apply` would silently skip what lies outside of the current folder
        get_filename_component(parent "${dir}" DIRECTORY)
        set(command "${CMAKE_COMMAND}" -E env --unset=GIT_DIR --unset=GIT_WORK_TREE --unset=GIT_INDEX_FILE
            "GIT_CEILING_DIRECTORIES=${parent}" "${RIDGEFILL_GIT}" apply --whitespace=nowarn "${patch}")
    elseif(RIDGEFILL_PATCH)
        set(command "${RIDGEFILL_PATCH}" --strip=1 --fuzz=0 --forward --batch --no-backup-if-mismatch "--input=${patch}")
    else()
        ridgefill_fail("neither git nor patch found, one of which applies the patches" "Install git.")
    endif()

    execute_process(COMMAND ${command} WORKING_DIRECTORY "${dir}"
        RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT status EQUAL 0)
        get_filename_component(name "${patch}" NAME)
        string(REGEX REPLACE "\n(.)" "\n  \\1" output "${output}")
        ridgefill_fail("patch ${name} does not apply to llama.cpp ${PIN_commit}"
            "Redo it as 'How to add a patch' in llama.cpp/README.md says, on the tree in ${dir}.\n  ${output}")
    endif()
endfunction()

# make `to` equal to `from`, writing only what differs; `list` holds the files of the last time
function(ridgefill_sync from to list)
    file(GLOB_RECURSE new LIST_DIRECTORIES false RELATIVE "${from}" "${from}/*")
    if(EXISTS "${list}")
        file(STRINGS "${list}" old)
        foreach(path IN LISTS old)
            if(NOT path IN_LIST new)
                file(REMOVE "${to}/${path}")
            endif()
        endforeach()
    endif()
    foreach(path IN LISTS new)
        get_filename_component(parent "${to}/${path}" DIRECTORY)
        file(MAKE_DIRECTORY "${parent}")
        file(COPY_FILE "${from}/${path}" "${to}/${path}" ONLY_IF_DIFFERENT)
    endforeach()
    list(JOIN new "\n" new)
    file(WRITE "${list}" "${new}\n")
endfunction()

function(ridgefill_check_overlay overlay upstream_list)
    file(STRINGS "${upstream_list}" upstream)
    file(GLOB_RECURSE ours LIST_DIRECTORIES false RELATIVE "${overlay}" "${overlay}/*")
    foreach(path IN LISTS ours)
        if(path IN_LIST upstream)
            ridgefill_fail("overlay/${path} would replace an upstream file"
                "Rename it, and call it from a hook in patches/.")
        endif()
    endforeach()
endfunction()

# Make <dir>/src from <root>/{PIN,patches,overlay}.
# Reads RIDGEFILL_LLAMA_CPP_DIR, RIDGEFILL_ARCHIVE (both also from the environment), RIDGEFILL_ALLOW_UNKNOWN_PIN
# and RIDGEFILL_PYTHON.
function(ridgefill_prepare_source root dir)
    ridgefill_read_pin("${root}/PIN" PIN)
    foreach(name RIDGEFILL_LLAMA_CPP_DIR RIDGEFILL_ARCHIVE)
        if(NOT ${name} AND DEFINED ENV{${name}})
            set(${name} "$ENV{${name}}")
        endif()
    endforeach()

    # what src/ is made from, besides the overlay; an existing checkout may change at any time and is always synchronised
    file(SHA256 "${CMAKE_CURRENT_FUNCTION_LIST_FILE}" stamp)
    string(APPEND stamp " ${PIN_commit} ${PIN_sha256}")
    file(GLOB patches "${root}/patches/*.patch")
    list(SORT patches)
    foreach(patch IN LISTS patches)
        file(SHA256 "${patch}" hash)
        string(APPEND stamp " ${hash}")
    endforeach()
    set(last)
    if(EXISTS "${dir}/stamp")
        file(READ "${dir}/stamp" last)
    endif()

    if(RIDGEFILL_LLAMA_CPP_DIR OR NOT stamp STREQUAL last)
        file(REMOVE "${dir}/stamp")
        file(REMOVE_RECURSE "${dir}/next")
        set(next "${dir}/next/src")
        file(MAKE_DIRECTORY "${next}")

        if(RIDGEFILL_LLAMA_CPP_DIR)
            get_filename_component(checkout "${RIDGEFILL_LLAMA_CPP_DIR}" ABSOLUTE)
            message(STATUS "RidgeFill: copying llama.cpp from ${checkout}")
            ridgefill_check_checkout("${checkout}")
            foreach(item IN LISTS RIDGEFILL_UPSTREAM_ITEMS)
                if(EXISTS "${checkout}/${item}")
                    file(COPY "${checkout}/${item}" DESTINATION "${next}")
                endif()
            endforeach()
            set(stamp "${checkout}")
        else()
            ridgefill_fetch_archive("${dir}" archive)
            message(STATUS "RidgeFill: unpacking ${archive}")
            set(unpacked "${dir}/next/unpacked/${PIN_subdir}")
            file(MAKE_DIRECTORY "${dir}/next/unpacked")
            execute_process(COMMAND "${CMAKE_COMMAND}" -E tar xf "${archive}" "${PIN_subdir}"
                WORKING_DIRECTORY "${dir}/next/unpacked" RESULT_VARIABLE status ERROR_VARIABLE output)
            if(NOT status EQUAL 0)
                ridgefill_fail("cannot unpack ${PIN_subdir} from ${archive}"
                    "Correct 'subdir' in ${root}/PIN, or make room on the disk.\n  ${output}")
            endif()
            foreach(item IN LISTS RIDGEFILL_UPSTREAM_ITEMS)
                if(EXISTS "${unpacked}/${item}")
                    file(RENAME "${unpacked}/${item}" "${next}/${item}")
                endif()
            endforeach()
        endif()

        foreach(part src include common tools/server)
            string(REPLACE "/" "." list "stock.${part}.files")
            ridgefill_sync("${next}/${part}" "${dir}/stock/${part}" "${dir}/${list}")
        endforeach()
        foreach(patch IN LISTS patches)
            ridgefill_apply_patch("${patch}" "${next}")
        endforeach()
        ridgefill_sync("${next}" "${dir}/src" "${dir}/upstream.files")
        file(REMOVE_RECURSE "${dir}/next")
    endif()

    ridgefill_check_overlay("${root}/overlay" "${dir}/upstream.files")
    ridgefill_sync("${root}/overlay" "${dir}/src" "${dir}/overlay.files")
    file(WRITE "${dir}/stamp" "${stamp}")
endfunction()
