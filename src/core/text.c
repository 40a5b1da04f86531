/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text.h"

#include <stdarg.h>
#include <stdio.h>

void mxa_text_put(mxa_text *text, const char *format, ...)
{
    const size_t used = text->length < text->capacity ? text->length : text->capacity;
    va_list args;
    va_start(args, format);
    const int n =
        vsnprintf(used < text->capacity ? text->at + used : NULL, text->capacity - used, format, args);
    va_end(args);
    text->length += n > 0 ? (size_t)n : 0;
}
