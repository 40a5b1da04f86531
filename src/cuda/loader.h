/* SPDX-License-Identifier: Apache-2.0 */
/* Finds libmxattn_cuda.so at the first use of a CUDA device. Belongs to libmxattn.so, without CUDA. */
#ifndef MXA_CUDA_LOADER_H
#define MXA_CUDA_LOADER_H

#include "cuda/backend.h"

/*
 * The backend's table, for a device that the sentence names (MXA_DEVICE_AUTO: none). MXA_ERR_DEVICE if the
 * library is not there, cannot be loaded or belongs to another build; the answer is that of the first call.
 */
mxa_status mxa_cuda_table(mxa_device device, const mxa_cuda_backend **table);

/* What a function of the table returned, with its sentence taken over. */
mxa_status mxa_cuda_result(const mxa_cuda_backend *table, mxa_status status);

#endif
