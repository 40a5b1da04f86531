/* SPDX-License-Identifier: Apache-2.0 */
#include "json_text.h"

#include "cli.h"

#include <math.h>
#include <stdio.h>

#define INDENT 2
#define DIGITS 10

json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

bool json_print(json_t *value)
{
    if (value == NULL) {
        cli_fail("out of memory: the JSON text");
        return false;
    }
    const int failed = json_dumpf(value, stdout, JSON_INDENT(INDENT) | JSON_REAL_PRECISION(DIGITS));
    json_decref(value);
    if (failed)
        cli_fail("standard output: cannot write the JSON text");
    else
        putchar('\n');
    return !failed;
}
