/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element formats by their definition, in double and with the mathematical library: written apart from the
 * library's integer rules, so that its reference is tested against something else.
 */
#ifndef EXACT_VALUES_H
#define EXACT_VALUES_H

#include <mxattn/mxattn.h>

/* Value of an element code, without scales; INT8 codes are whole numbers, those of MXINT8 64ths. */
double exact_element(mxa_format format, uint32_t code);

/*
 * The element nearest to t: ties to the even code, saturated, sign of zero kept (not in the integer formats).
 */
double exact_nearest(mxa_format format, double t);

/* Values of scale bytes; NaN for 0xFF and 0x7F. */
double exact_e8m0(uint8_t byte);
double exact_ue4m3(uint8_t byte);

/* Code k of a packed row of codes of `bits` bits each, the lowest bits first. */
uint32_t exact_code(const uint8_t *row, int bits, int64_t k);

/* The power of two that a scale rule gives a block with this largest magnitude, as its exponent. */
int exact_block_exponent(mxa_format format, mxa_rule rule, double amax);

#endif
