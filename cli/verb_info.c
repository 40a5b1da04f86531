/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "json_text.h"
#include "options.h"
#include "table.h"

#include <stdio.h>
#include <string.h>

enum { KEY_JSON = OPTION_FIRST };

#define ANY_FORMAT "any"
#define GIB        0x1p30

static const struct argp_option table_of_options[] = { { "json", KEY_JSON, 0, 0, "print JSON", 0 },
                                                       OPTION_HELP,
                                                       { 0 } };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bool *json = state->input;
    switch (key) {
    case KEY_JSON: *json = true; return 0;
    case ARGP_KEY_ARG: cli_usage("info takes no input, not \"%.80s\"", arg);
    default: return options_default(key, state);
    }
}

static bool fits(const mxa_impl_info *impl, const char *format)
{
    return impl->available && (strcmp(impl->format, ANY_FORMAT) == 0 || strcmp(impl->format, format) == 0);
}

/*
 * Whether entry i is the first available one for some format; the names of these are added to formats. Plain
 * formats count where an entry names them.
 */
static bool runs(mxa_op op, int i, json_t *formats)
{
    const mxa_format_info *format;
    bool any = false;
    for (int f = MXA_FORMAT_NONE + 1; (format = mxa_format_get((mxa_format)f)) != NULL; f++) {
        mxa_impl_info impl;
        int first = 0;
        while (mxa_impl_at(op, first, &impl) && !fits(&impl, format->name))
            first++;
        if (first != i || (!format->quantized && strcmp(impl.format, ANY_FORMAT) == 0))
            continue;
        any = true;
        json_array_append_new(formats, json_string(format->name));
    }
    return any;
}

/* Every entry of an operation with the formats for which it is the first that can run. */
static json_t *list_entries(mxa_op op)
{
    json_t *list = json_array();
    mxa_impl_info impl;
    for (int i = 0; mxa_impl_at(op, i, &impl); i++) {
        json_t *formats = json_array();
        const bool first = runs(op, i, formats);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b, s:b, s:o}", "name", impl.name, "format",
                                              impl.format, "needs", impl.needs, "available", impl.available,
                                              "runs", first, "runs_for", formats));
    }
    return list;
}

static const char *op_name(mxa_op op)
{
    mxa_impl_info impl;
    return mxa_impl_at(op, 0, &impl) ? impl.op : NULL;
}

/* What is known of every device. */
static json_t *list_devices(void)
{
    json_t *list = json_array();
    const int count = mxa_device_count();
    for (int i = 0; i < count; i++) {
        mxa_device_info info;
        if (mxa_device_query((mxa_device)(MXA_DEVICE_CUDA_0 + i), &info) == MXA_OK)
            json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:i, s:I, s:b, s:s}", "name", info.name,
                                                  "arch_major", info.arch_major, "arch_minor",
                                                  info.arch_minor, "multiprocessors", info.multiprocessors,
                                                  "memory_bytes", (json_int_t)info.memory_bytes, "usable",
                                                  info.usable, "reason", info.reason));
    }
    return list;
}

static void print_devices(void)
{
    const int count = mxa_device_count();
    if (count == 0)
        printf("CUDA devices: none (%s)\n", mxa_error_text());
    for (int i = 0; i < count; i++) {
        mxa_device_info info;
        if (mxa_device_query((mxa_device)(MXA_DEVICE_CUDA_0 + i), &info) != MXA_OK)
            printf("cuda:%d: %s\n", i, mxa_error_text());
        else
            printf("cuda:%d: %s, sm_%d%d, %d multiprocessors, %.1f GiB%s%s\n", i, info.name, info.arch_major,
                   info.arch_minor, info.multiprocessors, (double)info.memory_bytes / GIB,
                   info.usable ? "" : "; not usable: ", info.reason);
    }
}

static bool print_json(void)
{
    json_t *operations = json_object();
    for (int op = 0; op < MXA_OP_COUNT; op++)
        if (op_name((mxa_op)op) != NULL)
            json_object_set_new(operations, op_name((mxa_op)op), list_entries((mxa_op)op));
    return json_print(json_pack("{s:s, s:s, s:s, s:o, s:o}", "version", mxa_version(), "cpu_features",
                                mxa_cpu_features(), "amx_off", mxa_cpu_amx_reason(), "cuda_devices",
                                list_devices(), "operations", operations));
}

static bool print_table(void)
{
    const char *features = mxa_cpu_features();
    printf("mxattn %s\nCPU features: %s\n", mxa_version(), features[0] ? features : "none");
    if (mxa_cpu_amx_reason()[0])
        printf("AMX is off: %s\n", mxa_cpu_amx_reason());
    print_devices();
    puts("");
    static const char *const titles[] = { "operation", "entry", "format", "needs", "here" };
    const size_t columns = sizeof titles / sizeof titles[0];
    table t;
    table_start(&t, columns);
    for (size_t i = 0; i < columns; i++)
        table_add(&t, "%s", titles[i]);
    mxa_impl_info impl;
    for (int op = 0; op < MXA_OP_COUNT; op++)
        for (int i = 0; mxa_impl_at((mxa_op)op, i, &impl); i++) {
            const char *state = !impl.available ? "unavailable" : runs((mxa_op)op, i, NULL) ? "runs" : "-";
            table_add(&t, "%s", impl.op);
            table_add(&t, "%s", impl.name);
            table_add(&t, "%s", impl.format);
            table_add(&t, "%s", impl.needs[0] ? impl.needs : "-");
            table_add(&t, "%s", state);
        }
    if (!table_finish(&t))
        return false;
    puts("\nThe first entry of an operation that fits the format and this machine runs.");
    return true;
}

/* Nothing runs under an unknown word in MXA_CPU; a plan says so, with the known ones. */
static bool machine_is_usable(void)
{
    mxa_problem problem;
    mxa_plan *plan = NULL;
    mxa_problem_default(&problem, 1, 1, 1, 1, 1, 1);
    problem.device = MXA_DEVICE_CPU;
    const mxa_status status = mxa_plan_create(&problem, NULL, &plan);
    mxa_plan_free(plan);
    if (status != MXA_OK)
        cli_fail("%s", mxa_error_text());
    return status == MXA_OK;
}

int verb_info(int argc, char **argv)
{
    static const struct argp argp = { .options = table_of_options,
                                      .parser = parse,
                                      .doc = "The version, the CPU features and CUDA devices found, and for "
                                             "each operation on the CPU its list of "
                                             "kernels, fastest first.\vExample: mxattn info --json" };
    bool json = false;
    options_parse(&argp, argc, argv, &json);
    if (!machine_is_usable())
        return CLI_FAILED;
    return (json ? print_json() : print_table()) ? CLI_DONE : CLI_FAILED;
}
