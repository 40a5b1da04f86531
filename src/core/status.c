/* SPDX-License-Identifier: Apache-2.0 */
#include "core/status.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[512];

mxa_status mxa_fail(mxa_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    for (char *c = error_text; *c; c++) /* a caller's text that is quoted must not break the sentence */
        if (iscntrl((unsigned char)*c))
            *c = '?';
    return status;
}

const char *mxa_error_text(void)
{
    return error_text;
}

const char *mxa_status_name(mxa_status status)
{
    switch (status) {
    case MXA_OK: return "MXA_OK";
    case MXA_ERR_ARG: return "MXA_ERR_ARG";
    case MXA_ERR_SHAPE: return "MXA_ERR_SHAPE";
    case MXA_ERR_FORMAT: return "MXA_ERR_FORMAT";
    case MXA_ERR_RULE: return "MXA_ERR_RULE";
    case MXA_ERR_LAYOUT: return "MXA_ERR_LAYOUT";
    case MXA_ERR_ALIGN: return "MXA_ERR_ALIGN";
    case MXA_ERR_NONFINITE: return "MXA_ERR_NONFINITE";
    case MXA_ERR_SCALE: return "MXA_ERR_SCALE";
    case MXA_ERR_UNSUPPORTED: return "MXA_ERR_UNSUPPORTED";
    case MXA_ERR_WORKSPACE: return "MXA_ERR_WORKSPACE";
    case MXA_ERR_MEMORY: return "MXA_ERR_MEMORY";
    case MXA_ERR_DEVICE: return "MXA_ERR_DEVICE";
    case MXA_ERR_FILE: return "MXA_ERR_FILE";
    }
    return "unknown status";
}

const char *mxa_version(void)
{
    return "0.1.0";
}
