/* SPDX-License-Identifier: Apache-2.0 */
/* One case of tests/vectors/attention.json as plain arrays. */
#ifndef GOLDEN_ATTENTION_H
#define GOLDEN_ATTENTION_H

#include <jansson.h>
#include <mxattn/mxattn.h>

typedef struct golden_case {
    const json_t *json;
    const char *name;
    int64_t heads, heads_kv, q_len, kv_len, kv_rows, head_dim;
    float *q, *k, *v;    /* [heads][q_len][head_dim], [heads_kv][kv_rows][head_dim] */
    float *sinks;        /* [heads], or NULL */
    double *o, *lse;     /* [heads][stored rows][head_dim], [heads][q_len] */
    const int64_t *rows; /* which rows o holds */
    int64_t n_rows;
} golden_case;

/* A number or one of the strings "nan", "inf", "-inf". */
double golden_number(const json_t *value);

double golden_field(const json_t *json, const char *key);

golden_case golden_load(const json_t *json);
void golden_free(golden_case *c);

#endif
