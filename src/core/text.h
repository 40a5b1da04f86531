/* SPDX-License-Identifier: Apache-2.0 */
/* Text appended to a buffer that may be too small, with snprintf's conventions. */
#ifndef MXA_CORE_TEXT_H
#define MXA_CORE_TEXT_H

#include <stddef.h>

typedef struct mxa_text {
    char *at;
    size_t capacity; /* 0: only the length is wanted */
    size_t length;   /* of the whole text so far, what did not fit included */
} mxa_text;

void mxa_text_put(mxa_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
