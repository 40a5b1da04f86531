/* SPDX-License-Identifier: Apache-2.0 */
#include "format/pack.h"

#include <string.h>

static void pack_nibbles(const uint8_t *codes, int64_t n, uint8_t *packed)
{
    for (int64_t j = 0; j < n / 2; j++)
        packed[j] = (uint8_t)(codes[2 * j] | codes[2 * j + 1] << 4);
    if (n % 2)
        packed[n / 2] = codes[n - 1];
}

static void unpack_nibbles(const uint8_t *packed, int64_t n, uint8_t *codes)
{
    for (int64_t j = 0; j < n / 2; j++) {
        codes[2 * j] = packed[j] & 0xF;
        codes[2 * j + 1] = packed[j] >> 4;
    }
    if (n % 2)
        codes[n - 1] = packed[n / 2] & 0xF;
}

/* Four codes, lowest first, are 24 bits: three bytes. */
static void pack_sixes(const uint8_t *codes, int64_t n, uint8_t *packed)
{
    for (int64_t k = 0; k < n; k += 4) {
        uint32_t bits = 0;
        const int count = n - k < 4 ? (int)(n - k) : 4;
        for (int i = 0; i < count; i++)
            bits |= (uint32_t)codes[k + i] << 6 * i;
        for (int byte = 0; byte < (count * 6 + 7) / 8; byte++)
            *packed++ = (uint8_t)(bits >> 8 * byte);
    }
}

static void unpack_sixes(const uint8_t *packed, int64_t n, uint8_t *codes)
{
    for (int64_t k = 0; k < n; k += 4) {
        uint32_t bits = 0;
        const int count = n - k < 4 ? (int)(n - k) : 4;
        for (int byte = 0; byte < (count * 6 + 7) / 8; byte++)
            bits |= (uint32_t)*packed++ << 8 * byte;
        for (int i = 0; i < count; i++)
            codes[k + i] = bits >> 6 * i & 0x3F;
    }
}

void mxa_pack(int bits, const uint8_t *codes, int64_t n, uint8_t *packed)
{
    if (bits == 4)
        pack_nibbles(codes, n, packed);
    else if (bits == 6)
        pack_sixes(codes, n, packed);
    else
        memcpy(packed, codes, (size_t)n);
}

void mxa_unpack(int bits, const uint8_t *packed, int64_t n, uint8_t *codes)
{
    if (bits == 4)
        unpack_nibbles(packed, n, codes);
    else if (bits == 6)
        unpack_sixes(packed, n, codes);
    else
        memcpy(codes, packed, (size_t)n);
}
