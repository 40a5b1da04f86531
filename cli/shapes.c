/* SPDX-License-Identifier: Apache-2.0 */
#include "shapes.h"

#include "cli.h"
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 512
#define SEPARATORS " \t\r\n"
#define LARGEST    (INT64_C(1) << 40) /* a size, and the elements of a tensor */

/* Where the file lies as seen from the command: beside it as built, beside its folder as installed. */
static const char *const places[] = { "share/mxattn/shapes.txt", "../share/mxattn/shapes.txt" };

/* A line that cannot be read, for messages. */
typedef struct line_place {
    const char *path;
    int number;
} line_place;

static bool fail_line(const line_place *at, const char *rule, const char *word)
{
    cli_fail("%s: line %d: %s \"%.80s\"", at->path, at->number, rule, word);
    return false;
}

static int64_t *size_of(shape *s, const char *key)
{
    const struct {
        const char *key;
        int64_t *size;
    } sizes[] = { { "batch", &s->batch }, { "heads", &s->heads }, { "heads_kv", &s->heads_kv },
                  { "seq", &s->q_len },   { "q_len", &s->q_len }, { "kv_len", &s->kv_len },
                  { "dim", &s->dim },     { "dim_v", &s->dim_v } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (strcmp(sizes[i].key, key) == 0)
            return sizes[i].size;
    return NULL;
}

static bool read_value(shape *s, const char *key, const char *value, const line_place *at)
{
    int64_t *size = size_of(s, key);
    if (size != NULL) {
        char *end;
        *size = strtoll(value, &end, 10);
        return (*end == '\0' && *size >= 1 && *size <= LARGEST) || fail_line(at, "not a size:", value);
    }
    if (strcmp(key, "low") == 0 || strcmp(key, "high") == 0) {
        const mxa_format_info *format = mxa_format_find(value);
        if (format == NULL)
            return fail_line(at, "unknown format", value);
        *(key[0] == 'l' ? &s->low : &s->high) = format->format;
        return true;
    }
    if (strcmp(key, "causal") == 0) {
        s->causal = strcmp(value, "1") == 0;
        return s->causal || strcmp(value, "0") == 0 || fail_line(at, "causal is 0 or 1, not", value);
    }
    int type;
    if (strcmp(key, "type") != 0)
        return fail_line(at, "unknown key", key);
    if (!option_word_find(option_dtypes, value, &type))
        return fail_line(at, "unknown type", value);
    s->type = (mxa_dtype)type;
    return true;
}

/* Whether no tensor of a shape has more elements than LARGEST, so that no product of sizes overflows. */
static bool sizes_fit(const shape *s)
{
    const int64_t widest = s->dim > s->dim_v ? s->dim : s->dim_v;
    const int64_t sizes[2][4] = { { s->batch, s->heads, s->q_len, widest },
                                  { s->batch, s->heads_kv, s->kv_len, widest } };
    for (int i = 0; i < 2; i++) {
        int64_t elements = 1;
        for (int j = 0; j < 4; j++) {
            if (sizes[i][j] > LARGEST / elements)
                return false;
            elements *= sizes[i][j];
        }
    }
    return true;
}

static bool read_words(shape *s, char *line, const line_place *at)
{
    char *rest;
    const char *operation = strtok_r(line, SEPARATORS, &rest), *name = strtok_r(NULL, SEPARATORS, &rest);
    *s = (shape){ .batch = 1,
                  .type = MXA_DTYPE_BF16,
                  .causal = true,
                  .low = MXA_FORMAT_MXFP4,
                  .high = MXA_FORMAT_MXFP8_E4M3 };
    if (strcmp(operation, "attention") != 0 && strcmp(operation, "quantize") != 0)
        return fail_line(at, "unknown operation", operation);
    s->operation = operation[0] == 'a' ? SHAPE_ATTENTION : SHAPE_QUANTIZE;
    if (name == NULL || strlen(name) >= SHAPE_NAME_BYTES)
        return fail_line(at, "no name, or one that is too long, after", operation);
    memcpy(s->name, name, strlen(name) + 1);
    for (char *key; (key = strtok_r(NULL, SEPARATORS, &rest)) != NULL;) {
        char *equals = strchr(key, '=');
        if (equals == NULL)
            return fail_line(at, "no key=value:", key);
        *equals = '\0';
        if (!read_value(s, key, equals + 1, at))
            return false;
    }
    if (s->heads == 0 || s->q_len == 0 || s->dim == 0)
        return fail_line(at, "heads, q_len (or seq) and dim are needed for", s->name);
    s->heads_kv = s->heads_kv ? s->heads_kv : s->heads;
    s->kv_len = s->kv_len ? s->kv_len : s->q_len;
    s->dim_v = s->dim_v ? s->dim_v : s->dim;
    return sizes_fit(s) || fail_line(at, "tensors of more than 2^40 elements:", s->name);
}

static bool add_shape(shape_list *list, char *line, const line_place *at)
{
    const char *first = line + strspn(line, SEPARATORS);
    if (*first == '\0' || *first == '#')
        return true;
    shape *grown = realloc(list->shapes, (list->count + 1) * sizeof *grown);
    if (grown == NULL) {
        cli_fail("out of memory: the list of shapes");
        return false;
    }
    list->shapes = grown;
    return read_words(&list->shapes[list->count++], line, at);
}

/* The first place that exists; false if none does. */
static bool find_default(char path[PATH_MAX])
{
    char folder[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length < 0)
        return false;
    folder[length] = '\0';
    *strrchr(folder, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (snprintf(path, PATH_MAX, "%s/%s", folder, places[i]) < PATH_MAX && access(path, R_OK) == 0)
            return true;
    return false;
}

bool shapes_read(shape_list *list, const char *path)
{
    char found[PATH_MAX], line[LINE_BYTES];
    *list = (shape_list){ 0 };
    if (path == NULL) {
        if (!find_default(found)) {
            cli_fail("no shapes.txt beside the command; name one with --shapes FILE");
            return false;
        }
        path = found;
    }
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        cli_fail("%s: cannot open: %s", path, strerror(errno));
        return false;
    }
    bool ok = true;
    for (line_place at = { path, 1 }; ok && fgets(line, sizeof line, file) != NULL; at.number++)
        ok = add_shape(list, line, &at);
    if (ok && ferror(file)) {
        cli_fail("%s: cannot read: %s", path, strerror(errno));
        ok = false;
    }
    fclose(file);
    return ok;
}

void shapes_free(shape_list *list)
{
    free(list->shapes);
    *list = (shape_list){ 0 };
}

const shape *shapes_find(const shape_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->shapes[i].name, name) == 0)
            return &list->shapes[i];
    return NULL;
}
