# SPDX-License-Identifier: Apache-2.0
# libmxattn_cuda.so, which libmxattn.so loads when a CUDA device is asked for. CUDA's runtime is linked into it, the
# driver is found when it runs: so it builds, loads and answers on machines without a GPU.
set(MXA_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO (with gcc and nvcc 12.4 or later)")
find_program(MXA_NVCC nvcc PATHS /usr/local/cuda/bin)
set(MXA_NVCC_VERSION 0)
if(MXA_NVCC)
  execute_process(COMMAND ${MXA_NVCC} --version OUTPUT_VARIABLE MXA_NVCC_TEXT)
  if(MXA_NVCC_TEXT MATCHES "release ([0-9.]+)")
    set(MXA_NVCC_VERSION ${CMAKE_MATCH_1})
  endif()
  get_filename_component(MXA_CUDA_ROOT ${MXA_NVCC} REALPATH)
  get_filename_component(MXA_CUDA_ROOT ${MXA_CUDA_ROOT}/../.. ABSOLUTE)
  find_path(MXA_CUDART_INCLUDE cuda_runtime_api.h HINTS ${MXA_CUDA_ROOT}/include
            ${MXA_CUDA_ROOT}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include)
endif()
set(MXA_BUILD_CUDA OFF)
if(MXA_CUDA STREQUAL "AUTO")
  # nvcc has gcc as its host compiler.
  if(MXA_NVCC_VERSION VERSION_GREATER_EQUAL 12.4 AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND NOT MXA_SANITIZE)
    set(MXA_BUILD_CUDA ON)
  endif()
elseif(MXA_CUDA)
  if(MXA_NVCC_VERSION VERSION_LESS 12.4)
    message(FATAL_ERROR "MXA_CUDA is ON, but nvcc 12.4 or later is not found (version ${MXA_NVCC_VERSION})")
  endif()
  set(MXA_BUILD_CUDA ON)
endif()
if(NOT MXA_BUILD_CUDA)
  return()
endif()

set(CMAKE_CUDA_COMPILER ${MXA_NVCC})
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_ARCHITECTURES 80)
enable_language(CUDA)
set(MXA_CUDA_INCLUDES ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
set(MXA_CUDA_OPTIONS -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
if(MXA_WERROR)
  list(APPEND MXA_CUDA_OPTIONS -Werror=all-warnings)
endif()

# Kernels of one set of architectures: mxa_cuda_kernels(name architectures sources).
function(mxa_cuda_kernels name architectures)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${MXA_CUDA_INCLUDES})
  set_target_properties(${name} PROPERTIES COMPILE_OPTIONS "${MXA_CUDA_OPTIONS}" CUDA_ARCHITECTURES "${architectures}")
endfunction()

# For every GPU: machine code of sm_80 and sm_90, and what drivers of later ones compile. That is of compute_90, since
# the reference, launched early from sm_90 on, awaits the kernel before it by an instruction of sm_90.
mxa_cuda_kernels(mxattn_cuda_common "80;90"
  src/cuda/fill_rows_cuda.cu
  src/cuda/ref/attention_ref_cuda.cu
)
target_compile_options(mxattn_cuda_common PRIVATE -Xptxas=-v)
set(MXA_GENERIC_ARCHITECTURES 80 90)
if(MXA_NVCC_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND MXA_GENERIC_ARCHITECTURES 100-real 120-real)
endif()
mxa_cuda_kernels(mxattn_cuda_sm80 "${MXA_GENERIC_ARCHITECTURES}" src/cuda/sm80/attention_sm80.cu)
target_compile_options(mxattn_cuda_sm80 PRIVATE -Xptxas=-v)
# The bytes of quantisers are specified: every product and sum is rounded for itself. A kernel that spills is an error.
# Later GPUs compile from compute_90, since these kernels are launched early as well.
mxa_cuda_kernels(mxattn_cuda_quantize "80;90"
  src/cuda/dequantize_cuda.cu
  src/cuda/mean_cuda.cu
  src/cuda/quantize_any.cu
  src/cuda/quantize_cuda.cu
  src/cuda/quantize_hot.cu
  src/cuda/quantize_piece.cu
)
target_compile_options(mxattn_cuda_quantize PRIVATE -fmad=false -Xptxas=-v)
# Caches: what fills pages, whose bytes are specified as well (code of sm_80 spills one register), and what reads pages of
# any format, in float64.
mxa_cuda_kernels(mxattn_cuda_kv "80;90" src/cuda/kv_append_cuda.cu)
target_compile_options(mxattn_cuda_kv PRIVATE -fmad=false)
mxa_cuda_kernels(mxattn_cuda_decode_any "80;90" src/cuda/decode/decode_any_cuda.cu)
# Hopper's own instructions, which run nowhere else. A kernel that spills is an error.
mxa_cuda_kernels(mxattn_cuda_decode "90a-real"
  src/cuda/decode/decode_int8_sm90.cu
  src/cuda/decode/decode_launch_sm90.cu
  src/cuda/decode/decode_mxfp4_sm90.cu
)
target_compile_options(mxattn_cuda_decode PRIVATE -Xptxas=-v)
mxa_cuda_kernels(mxattn_cuda_sm90 "90a-real"
  src/cuda/sm90/attention_sm90.cu
  src/cuda/sm90/prefill_dim64_sm90.cu
  src/cuda/sm90/prefill_dim128_sm90.cu
  src/cuda/sm90/prefill_dim192_sm90.cu
  src/cuda/sm90/prefill_dim256_sm90.cu
  src/cuda/sm90/prefill_launch_sm90.cu
)
target_compile_options(mxattn_cuda_sm90 PRIVATE -Xptxas=-v)
set_target_properties(mxattn_cuda_common mxattn_cuda_decode mxattn_cuda_quantize mxattn_cuda_sm80 mxattn_cuda_sm90
                      PROPERTIES CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/ptxas_check.sh)
add_library(mxattn_cuda MODULE
  src/cuda/attention_call_cuda.c
  src/cuda/attention_layout_cuda.c
  src/cuda/attention_plan_cuda.c
  src/cuda/backend_cuda.c
  src/cuda/decode/decode_cuda.c
  src/cuda/device_cuda.c
  src/cuda/impls_cuda.c
  src/cuda/kv_call_cuda.c
  src/cuda/kv_cuda.c
  $<TARGET_OBJECTS:mxattn_cuda_common>
  $<TARGET_OBJECTS:mxattn_cuda_decode>
  $<TARGET_OBJECTS:mxattn_cuda_decode_any>
  $<TARGET_OBJECTS:mxattn_cuda_kv>
  $<TARGET_OBJECTS:mxattn_cuda_quantize>
  $<TARGET_OBJECTS:mxattn_cuda_sm80>
  $<TARGET_OBJECTS:mxattn_cuda_sm90>
)
target_include_directories(mxattn_cuda PRIVATE ${MXA_CUDA_INCLUDES})
target_include_directories(mxattn_cuda SYSTEM PRIVATE ${MXA_CUDART_INCLUDE})
set_target_properties(mxattn_cuda PROPERTIES LINKER_LANGUAGE CUDA)
# Of the library itself, the files without hardware, each for itself: their names stay inside.
add_dependencies(mxattn_cuda mxattn_static)
target_link_libraries(mxattn_cuda PRIVATE $<TARGET_FILE:mxattn_static> m)
target_link_options(mxattn_cuda PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/mxattn_cuda.map
                                        LINKER:--no-undefined)
set_target_properties(mxattn_cuda PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/mxattn_cuda.map)
install(TARGETS mxattn_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
