/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes one a byte to and from packed codes: docs/formats.md, "Packing". Two nibbles a byte, the even element
 * low; FP6 as a bit stream, lowest bits first; others one a byte.
 */
#ifndef MXA_FORMAT_PACK_H
#define MXA_FORMAT_PACK_H

#include <stdint.h>

/* Bytes that n codes take. */
static inline int64_t mxa_packed_bytes(int bits, int64_t n)
{
    return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

/* bits is 4, 6 or 8; unused bits of the last byte are 0. */
void mxa_pack(int bits, const uint8_t *codes, int64_t n, uint8_t *packed);
void mxa_unpack(int bits, const uint8_t *packed, int64_t n, uint8_t *codes);

#endif
