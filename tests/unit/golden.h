/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the vectors of tests/vectors (their README describes them). A file that is missing or odd fails the
 * test.
 */
#ifndef MXA_TESTS_GOLDEN_H
#define MXA_TESTS_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "cpu/kernels.h"

#define GOLDEN_FIELDS 12

/* A text file of fields, one line at a time. */
typedef struct golden_lines {
    void *stream;
    char *text;
    size_t capacity;
    const char *name;
    int line;
    const char *fields[GOLDEN_FIELDS];
    int count;
} golden_lines;

golden_lines golden_open(const char *name);
/* False at the end, where the file is closed. Header lines are passed over. */
bool golden_next(golden_lines *g);

json_t *golden_json(const char *name);
/* A string member that must be there. */
const char *golden_text(const json_t *object, const char *key);

/* Two digits a byte; n is checked against the length of the text. */
void golden_bytes(const char *hex, uint8_t *bytes, size_t n);
uint32_t golden_word(const char *hex, int digits);
/* fp32 patterns of eight digits; n is checked. */
void golden_floats(const char *hex, float *x, size_t n);
/* Members of a JSON list of hex strings. */
size_t golden_float_list(const json_t *list, float *x, size_t most);
size_t golden_byte_list(const json_t *list, uint8_t *bytes, size_t most);

/* MXA_FORMAT_MX... of "E2M1" or "INT8"; with "MX-" in front too; also "NVFP4" and "FP8". */
mxa_format golden_format(const char *name);
mxa_rule golden_rule(const char *name);

/* Bit patterns must be equal; the message names what and the index. */
void golden_same_floats(const char *what, const float *want, const float *got, size_t n);
void golden_same_bytes(const char *what, const uint8_t *want, const uint8_t *got, size_t n);

/*
 * Quantise n <= 64 elements as one row with every entry that runs here, compare codes (one a byte) and, where
 * the format has them, scales; then decode with every entry and compare with want_out, g multiplied in.
 * Returns the number of non-finite blocks or elements.
 */
typedef struct golden_row {
    mxa_code_spec spec;
    float g;
    size_t n;
    const float *x;
    const uint8_t *codes, *scales;
    const float *out;
} golden_row;

int64_t golden_check_row(const char *what, const golden_row *row);

#endif
