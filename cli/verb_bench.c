/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_decode.h"
#include "cli.h"
#include "device_memory.h"
#include "json_text.h"
#include "options.h"
#include "progress.h"
#include "table.h"
#include "time_decode.h"
#include "time_shape.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SHAPE = OPTION_FIRST, KEY_SHAPES, KEY_DECODE, KEY_LAYERS, KEY_THREADS, KEY_DEVICE, KEY_JSON };

enum { DEFAULT_LAYERS = 32 };

#define LIST_BYTES 600

typedef struct bench_options {
    const char *file;
    const char **names;
    size_t name_count;
    int threads; /* 0: as OpenMP decides */
    mxa_device device;
    bool decode;
    int64_t layers; /* 0: as many as by default */
    bool json;
} bench_options;

/* A shape and the times of its variants. */
typedef struct bench_result {
    const shape *shape;
    shape_time times[MAX_VARIANTS];
    int count;
} bench_result;

static const struct argp_option table_of_options[] = {
    { "shape", KEY_SHAPE, "NAME", 0, "a shape to time, may be repeated (default: all)", 0 },
    { "shapes", KEY_SHAPES, "FILE", 0, "read the shapes from this file", 0 },
    { "decode", KEY_DECODE, 0, 0, "time decode steps from KV caches: shapes of one query", 0 },
    { "layers", KEY_LAYERS, "N", 0, "caches of a decode step (default 32)", 0 },
    { "threads", KEY_THREADS, "N", 0, "threads (default: as OpenMP decides)", 0 },
    { "device", KEY_DEVICE, "D", 0, "auto, cpu or cuda:N", 0 },
    { "json", KEY_JSON, 0, 0, "print a JSON list", 0 },
    OPTION_HELP,
    { 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bench_options *options = state->input;
    switch (key) {
    case KEY_SHAPE: options->names[options->name_count++] = arg; return 0;
    case KEY_SHAPES: options->file = arg; return 0;
    case KEY_DECODE: options->decode = true; return 0;
    case KEY_LAYERS: options->layers = option_integer("--layers", arg, 1, DECODE_LAYERS_MAX); return 0;
    case KEY_THREADS: options->threads = (int)option_integer("--threads", arg, 0, INT_MAX); return 0;
    case KEY_DEVICE: options->device = option_device("--device", arg); return 0;
    case KEY_JSON: options->json = true; return 0;
    case ARGP_KEY_END:
        if (options->decode && device_is_cuda(options->device))
            cli_usage("--decode: times the CPU");
        if (!options->decode && options->layers > 0)
            cli_usage("--layers: belongs to --decode");
        return 0;
    case ARGP_KEY_ARG: cli_usage("bench takes no input, not \"%.80s\"", arg);
    default: return options_default(key, state);
    }
}

static _Noreturn void refuse_shape(const shape_list *list, const char *name)
{
    char known[LIST_BYTES] = "";
    for (size_t i = 0; i < list->count; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", list->shapes[i].name);
    cli_usage("--shape: unknown \"%.80s\"; known:%s", name, known);
}

/* Operations or bytes of a second, in units of 10^9. */
static double rate(const shape_time *t)
{
    return t->work / t->time.median_ms * 1e-6;
}

static const char *unit(const shape *s)
{
    return s->operation == SHAPE_ATTENTION ? "GFLOP/s" : "GB/s";
}

/* A quantiser's speed as a share of the copy's, its last variant; negative for an attention. */
static double share_of_copy(const bench_result *r, int variant)
{
    return r->shape->operation == SHAPE_QUANTIZE ? rate(&r->times[variant]) / rate(&r->times[r->count - 1])
                                                 : -1;
}

/* (90th - 10th percentile) / median. */
static double spread(const timing *t)
{
    return (t->p90_ms - t->p10_ms) / t->median_ms;
}

static void print_machine(mxa_device device)
{
    mxa_device_info info;
    printf("mxattn %s, CPU features: %s\n", mxa_version(), mxa_cpu_features());
    if (device_is_cuda(device) && mxa_device_query(device, &info) == MXA_OK)
        printf("on cuda:%d, %s\n", device - MXA_DEVICE_CUDA_0, info.name);
}

static bool print_table(const bench_result *results, size_t count, mxa_device device)
{
    static const char *const titles[] = { "shape", "variant", "median ms", "spread",
                                          "rate",  "unit",    "of memcpy", "runs" };
    table t;
    table_start(&t, sizeof titles / sizeof titles[0]);
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        table_add(&t, "%s", titles[i]);
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < results[i].count; j++) {
            const shape_time *time = &results[i].times[j];
            table_add(&t, "%s", results[i].shape->name);
            table_add(&t, "%s", time->variant);
            table_add(&t, "%.3f", time->time.median_ms);
            table_add(&t, "%.0f %%", 100 * spread(&time->time));
            table_add(&t, "%.2f", rate(time));
            table_add(&t, "%s", unit(results[i].shape));
            const double share = share_of_copy(&results[i], j);
            table_add(&t, share >= 0 ? "%.2f" : "-", share);
            table_add(&t, "%d", time->time.runs);
        }
    print_machine(device);
    if (!table_finish(&t))
        return false;
    puts("Random normal data. GFLOP/s counts visible scores only; GB/s counts bytes of input. A shape's "
         "variants\n"
         "alternate. The spread is from the 10th to the 90th percentile, of the median.");
    return true;
}

static bool print_json(const bench_result *results, size_t count)
{
    json_t *list = json_array();
    int failed = list == NULL;
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < results[i].count; j++) {
            const shape_time *t = &results[i].times[j];
            const shape *s = results[i].shape;
            const double share = share_of_copy(&results[i], j);
            failed |= json_array_append_new(
                list,
                json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:i, s:s}", "shape",
                          s->name, "operation", s->operation == SHAPE_ATTENTION ? "attention" : "quantize",
                          "variant", t->variant, "median_ms", json_number(t->time.median_ms), "p10_ms",
                          json_number(t->time.p10_ms), "p90_ms", json_number(t->time.p90_ms), "spread",
                          json_number(spread(&t->time)), "rate", json_number(rate(t)), "unit", unit(s),
                          "of_memcpy", share >= 0 ? json_number(share) : json_null(), "work",
                          json_number(t->work), "runs", t->time.runs, "cpu_features", mxa_cpu_features()));
        }
    if (failed) {
        json_decref(list);
        list = NULL;
    }
    return json_print(list);
}

static bool time_shape(bench_result *result, const shape *s, const bench_options *options)
{
    *result = (bench_result){ .shape = s };
    progress_label(s->name);
    if (s->operation == SHAPE_QUANTIZE) {
        result->count = QUANTIZE_VARIANTS;
        if (device_is_cuda(options->device))
            return time_quantizer_cuda(s, options->device, result->times);
        return time_quantizer(s, options->threads, result->times);
    }
    result->count = ATTENTION_VARIANTS;
    return time_attention(s, options->threads, options->device, result->times);
}

static bool bench(const bench_options *options, const shape_list *list)
{
    const size_t count = options->name_count > 0 ? options->name_count : list->count;
    bench_result *results = cli_alloc(count * sizeof *results, "the results");
    bool ok = results != NULL;
    progress_begin("bench", (int64_t)count);
    for (size_t i = 0; i < count && ok; i++, progress_step())
        ok = time_shape(&results[i],
                        options->name_count > 0 ? shapes_find(list, options->names[i]) : &list->shapes[i],
                        options);
    progress_end();
    if (ok)
        ok = options->json ? print_json(results, count) : print_table(results, count, options->device);
    free(results);
    return ok;
}

int verb_bench(int argc, char **argv)
{
    static const struct argp argp = {
        .options = table_of_options,
        .parser = parse,
        .doc =
            "Time attention (GFLOP/s), quantisers (GB/s; fused, unfused, memcpy) and decode steps on random "
            "data.\v"
            "All shapes take minutes. Example: mxattn bench --shape prefill-2k-d64"
    };
    bench_options options = { .names = cli_alloc((uint64_t)argc * sizeof(char *), "the list of shapes"),
                              .device = MXA_DEVICE_CPU };
    if (options.names == NULL)
        return CLI_FAILED;
    options_parse(&argp, argc, argv, &options);
    shape_list list;
    bool ok = shapes_read(&list, options.file);
    for (size_t i = 0; ok && i < options.name_count; i++)
        if (shapes_find(&list, options.names[i]) == NULL)
            refuse_shape(&list, options.names[i]);
    if (ok && options.decode)
        ok =
            bench_decode(&list, options.names, options.name_count,
                         options.layers > 0 ? options.layers : DEFAULT_LAYERS, options.threads, options.json);
    else
        ok = ok && bench(&options, &list);
    shapes_free(&list);
    free(options.names);
    return ok ? CLI_DONE : CLI_FAILED;
}
