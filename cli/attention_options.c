/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "cli.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_CAUSAL = OPTION_PROBLEM_FIRST,
    KEY_WINDOW,
    KEY_Q_OFFSET,
    KEY_SCALE,
    KEY_SOFTCAP,
    KEY_THREADS,
    KEY_DEVICE
};

static const struct argp_option mask_table[] = {
    { "causal", KEY_CAUSAL, 0, 0, "a query sees no later key (aligned bottom-right)", 0 },
    { "window", KEY_WINDOW, "L,R", 0, "keys seen to the left and right, -1: no limit", 0 },
    { "q-offset", KEY_Q_OFFSET, "N", 0, "position of query 0 (default kv_len - q_len)", 0 },
    { 0 }
};

static const struct argp_option attention_table[] = {
    { "scale", KEY_SCALE, "X", 0, "softmax scale (default 1 / sqrt(dim))", 0 },
    { "softcap", KEY_SOFTCAP, "X", 0, "logits become X tanh(logit / X)", 0 },
    { "threads", KEY_THREADS, "N", 0, "threads (default: as OpenMP decides)", 0 },
    { "device", KEY_DEVICE, "D", 0, "auto, cpu or cuda:N", 0 },
    { 0 }
};

static void read_window(const char *text, attention_options *options)
{
    long long left, right;
    char rest;
    if (sscanf(text, "%lld,%lld%c", &left, &right, &rest) != 2 || left < -1 || right < -1)
        cli_usage("--window: \"%.80s\" is not L,R with two integers from -1 (no limit)", text);
    options->window_left = left;
    options->window_right = right;
}

static error_t parse_mask(int key, char *arg, struct argp_state *state)
{
    attention_options *options = state->input;
    switch (key) {
    case KEY_CAUSAL: options->causal = true; return 0;
    case KEY_WINDOW: read_window(arg, options); return 0;
    case KEY_Q_OFFSET: options->q_offset = option_integer("--q-offset", arg, -INT64_MAX, INT64_MAX); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_attention(int key, char *arg, struct argp_state *state)
{
    attention_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = options; return 0;
    case KEY_SCALE:
        options->scale = option_number("--scale", arg);
        options->scale_given = true;
        return 0;
    case KEY_SOFTCAP:
        options->softcap = option_number("--softcap", arg);
        if (options->softcap < 0)
            cli_usage("--softcap: %s is below 0 (0: none)", arg);
        return 0;
    case KEY_THREADS: options->threads = (int)option_integer("--threads", arg, 0, INT_MAX); return 0;
    case KEY_DEVICE: options->device = option_device("--device", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child mask_child[] = { { &mask_argp, 0, NULL, 0 }, { 0 } };

const struct argp mask_argp = { .options = mask_table, .parser = parse_mask };
const struct argp attention_argp = { .options = attention_table,
                                     .parser = parse_attention,
                                     .children = mask_child };

void attention_options_start(attention_options *options, struct argp_state *state)
{
    *options = (attention_options){ .window_left = MXA_UNLIMITED,
                                    .window_right = MXA_UNLIMITED,
                                    .q_offset = MXA_OFFSET_AUTO,
                                    .device = MXA_DEVICE_AUTO };
    state->child_inputs[0] = options;
}

void attention_options_apply(const attention_options *options, mxa_problem *problem)
{
    problem->causal = options->causal;
    problem->window_left = options->window_left;
    problem->window_right = options->window_right;
    problem->q_offset = options->q_offset;
    problem->softcap = options->softcap;
    problem->threads = options->threads;
    problem->device = options->device;
    if (options->scale_given)
        problem->softmax_scale = options->scale;
}
