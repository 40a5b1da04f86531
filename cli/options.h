/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: words and numbers with their rules. What is not right ends the process through
 * cli_usage.
 */
#ifndef MXA_OPTIONS_H
#define MXA_OPTIONS_H

#include <argp.h>
#include <mxattn/mxattn.h>

/* Keys of long options without a letter start here. */
enum { OPTION_FIRST = 256, OPTION_PROBLEM_FIRST = 512 };

/* The last line of each verb's table of options. */
#define OPTION_HELP                                                                                          \
    {                                                                                                        \
        "help", 'h', 0, 0, "print this help", -1                                                             \
    }

/* argp_parse with our messages; NULL inputs are for the verb to refuse. */
void options_parse(const struct argp *argp, int argc, char **argv, void *input);

/* What a verb's parser returns for keys that are not its own: help, and the errors of argp. */
error_t options_default(int key, struct argp_state *state);

/* Keep the one positional argument of a verb. */
void options_one_input(const char **input, const char *arg);

typedef struct option_word {
    const char *word;
    int value;
} option_word;

/* The value of a word in a list that ends with a NULL word. */
int option_word_value(const char *option, const option_word *words, const char *text);
const char *option_word_text(const option_word *words, int value); /* NULL for a value without a word */
bool option_word_find(const option_word *words, const char *text, int *value);

extern const option_word option_dtypes[], option_rules[], option_levels[], option_layouts[], option_axes[];

int64_t option_integer(const char *option, const char *text, int64_t least, int64_t most);
float option_number(const char *option, const char *text);
mxa_format option_format(const char *option, const char *text);
mxa_recipe option_recipe(const char *text);
mxa_device option_device(const char *option, const char *text);

/* Options of one attention: a child parser of the verbs that have them. Its input is an attention_options. */
typedef struct attention_options {
    bool causal;
    int64_t window_left, window_right, q_offset;
    float scale, softcap;
    bool scale_given;
    int threads;
    mxa_device device;
} attention_options;

extern const struct argp
    attention_argp;                 /* --causal --window --q-offset --scale --softcap --threads --device */
extern const struct argp mask_argp; /* the first three alone */

/* At ARGP_KEY_INIT: hand the defaults to the child parser. */
void attention_options_start(attention_options *options, struct argp_state *state);

/* Fill in a problem whose sizes and types are set. */
void attention_options_apply(const attention_options *options, mxa_problem *problem);

#endif
