/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_decode.h"

#include "cli.h"
#include "json_text.h"
#include "progress.h"
#include "table.h"
#include "time_decode.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct result {
    const shape *shape;
    decode_time times[DECODE_RECIPES];
    double read; /* bytes a second of the run */
} result;

static double bytes_per_second(const decode_time *t)
{
    return t->step_bytes / (t->step.median_ms * 1e-3);
}

static bool print_table(const result *results, size_t count, int64_t layers)
{
    static const char *const titles[] = { "shape",         "recipe", "ms a token", "spread", "append",
                                          "bytes a token", "GB/s",   "of read",    "runs" };
    table t;
    table_start(&t, sizeof titles / sizeof titles[0]);
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        table_add(&t, "%s", titles[i]);
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < DECODE_RECIPES; j++) {
            const decode_time *const d = &results[i].times[j];
            table_add(&t, "%s", results[i].shape->name);
            table_add(&t, "%s", d->recipe);
            table_add(&t, "%.3f", d->step.median_ms);
            table_add(&t, "%.0f %%", 100 * (d->step.p90_ms - d->step.p10_ms) / d->step.median_ms);
            table_add(&t, "%.2f %%", 100 * d->append_share);
            table_add(&t, "%.0f", d->bytes_per_token);
            table_add(&t, "%.2f", bytes_per_second(d) * 1e-9);
            table_add(&t, "%.2f", bytes_per_second(d) / results[i].read);
            table_add(&t, "%d", d->step.runs);
        }
    printf("mxattn %s, CPU features: %s\n", mxa_version(), mxa_cpu_features());
    if (!table_finish(&t))
        return false;
    for (size_t i = 0; i < count; i++)
        printf("%s: %.2f GB/s read by as many threads.\n", results[i].shape->name, results[i].read * 1e-9);
    printf(
        "A step appends a token to the caches of %lld layers and attends to them; recipes and the read take\n"
        "turns. Append is its share of the step, of a whole page's tokens. Bytes are those of a layer's "
        "pages, all KV heads.\n",
        (long long)layers);
    return true;
}

static json_t *json_of(const result *r, const decode_time *d, int64_t layers)
{
    return json_pack(
        "{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:s}", "shape", r->shape->name,
        "recipe", d->recipe, "layers", (json_int_t)layers, "median_ms", json_number(d->step.median_ms),
        "p10_ms", json_number(d->step.p10_ms), "p90_ms", json_number(d->step.p90_ms), "append_share",
        json_number(d->append_share), "bytes_per_token", json_number(d->bytes_per_token), "gb_per_s",
        json_number(bytes_per_second(d) * 1e-9), "read_gb_per_s", json_number(r->read * 1e-9), "of_read",
        json_number(bytes_per_second(d) / r->read), "runs", d->step.runs, "cpu_features", mxa_cpu_features());
}

static bool print_json(const result *results, size_t count, int64_t layers)
{
    json_t *list = json_array();
    int failed = list == NULL;
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < DECODE_RECIPES; j++)
            failed |= json_array_append_new(list, json_of(&results[i], &results[i].times[j], layers));
    if (failed) {
        json_decref(list);
        list = NULL;
    }
    return json_print(list);
}

static bool is_step(const shape *s)
{
    return s->operation == SHAPE_ATTENTION && s->q_len == 1;
}

/* The shapes that are asked for; *count receives their number. */
static void choose(const shape_list *list, const char *const *names, size_t n_names, result *results,
                   size_t *count)
{
    for (size_t i = 0; i < n_names; i++) {
        const shape *const s = shapes_find(list, names[i]);
        if (!is_step(s))
            cli_usage("--decode: shape \"%.80s\" is no attention of one query", names[i]);
        results[(*count)++].shape = s;
    }
    for (size_t i = 0; i < list->count && n_names == 0; i++)
        if (is_step(&list->shapes[i]))
            results[(*count)++].shape = &list->shapes[i];
}

bool bench_decode(const shape_list *list, const char *const *names, size_t n_names, int64_t layers,
                  int threads, bool json)
{
    const size_t most = n_names > 0 ? n_names : list->count;
    result *const results = cli_alloc(most * sizeof *results, "the results");
    size_t count = 0;
    bool ok = results != NULL;
    if (ok)
        choose(list, names, n_names, results, &count);
    if (ok && count == 0) {
        cli_fail("--decode: no shape is an attention of one query");
        ok = false;
    }
    progress_begin("bench", (int64_t)count);
    for (size_t i = 0; i < count && ok; i++, progress_step()) {
        progress_label(results[i].shape->name);
        ok = time_decode(results[i].shape, layers, threads, results[i].times, &results[i].read);
    }
    progress_end();
    if (ok)
        ok = json ? print_json(results, count, layers) : print_table(results, count, layers);
    free(results);
    return ok;
}
