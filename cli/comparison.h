/* SPDX-License-Identifier: Apache-2.0 */
/* What compare finds about each recipe, and how it is shown. */
#ifndef MXA_COMPARISON_H
#define MXA_COMPARISON_H

#include "attention_input.h"
#include "metrics.h"

typedef struct comparison_row {
    const char *recipe;
    metrics total;
    metric_sums *heads; /* [matrices] */
    double high_share;  /* high / (high + low) tiles */
    double k_bits;      /* stored bits of an element of K: codes, scales and factors */
    double time_ms;
} comparison_row;

typedef struct comparison {
    comparison_row *rows;
    size_t count;
    int64_t matrices, heads; /* [batch][heads], and the heads of a batch entry */
    int64_t heads_kv, q_len, kv_len, dim;
    int64_t rows_compared, nonfinite; /* rows of the reference, and those of them with NaN or Inf */
    const char *baseline;             /* operands of the attention that times are set against: fp32 or bf16 */
    double baseline_ms;
} comparison;

/*
 * Each recipe text (known to be one) against float64. False after a message; comparison_free may follow
 * either way.
 */
bool comparison_run(comparison *c, const attention_input *input, const char *const *recipes, size_t count);
void comparison_free(comparison *c);

/* Print; per_head adds a row for each head. False after a message. */
bool comparison_print_table(const comparison *c, bool per_head);
bool comparison_print_json(const comparison *c, bool per_head);
bool comparison_print_csv(const comparison *c, bool per_head);

#endif
