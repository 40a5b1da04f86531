/* SPDX-License-Identifier: Apache-2.0 */
#include "time_shape.h"

#include "cli.h"

#include <math.h>
#include <stdlib.h>

/* splitmix64: a counter, scrambled. */
static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Uniform in (0, 1]: 53 bits, as many as a double has. */
static double next_uniform(uint64_t *state)
{
    return ((double)(next_bits(state) >> 11) + 1) * 0x1p-53;
}

/* Box and Muller. */
static float next_normal(uint64_t *state)
{
    const double radius = sqrt(-2 * log(next_uniform(state)));
    return (float)(radius * cos(2 * M_PI * next_uniform(state)));
}

void *random_tensor(mxa_dtype type, int64_t elements, uint64_t seed)
{
    float *x = cli_alloc((uint64_t)elements * sizeof *x, "random numbers");
    if (x == NULL)
        return NULL;
    for (int64_t i = 0; i < elements; i++)
        x[i] = next_normal(&seed);
    if (type == MXA_DTYPE_F32)
        return x;

    const mxa_tensor wide = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, 1, 1, elements);
    const mxa_packed narrow = { .codes = cli_alloc((uint64_t)elements * sizeof(uint16_t), "random numbers") };
    const mxa_format format = type == MXA_DTYPE_F16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16;
    const mxa_status status = narrow.codes ? mxa_quantize(&wide, format, NULL, &narrow, NULL) : MXA_OK;
    free(x);
    if (status == MXA_OK)
        return narrow.codes;
    cli_fail("random numbers: %s", mxa_error_text());
    free(narrow.codes);
    return NULL;
}
