/* SPDX-License-Identifier: Apache-2.0 */
/* JSON on stdout. */
#ifndef MXA_JSON_TEXT_H
#define MXA_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>

/* A number, or null for NaN and infinities, which JSON does not have. */
json_t *json_number(double value);

/*
 * Print a value, indented, and release it. False after a message, also for NULL: memory ran out while it was
 * built.
 */
bool json_print(json_t *value);

#endif
