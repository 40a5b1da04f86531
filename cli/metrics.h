/* SPDX-License-Identifier: Apache-2.0 */
/* How far attention outputs are from a reference, in double. */
#ifndef MXA_METRICS_H
#define MXA_METRICS_H

#include <stdint.h>

typedef struct metrics {
    double rel_l2;            /* |o - r| / |r|; of several heads the mean of each head's */
    double rel_l2_worst_head; /* the largest of the heads */
    double worst_row;         /* the largest |o_i - r_i| / |r_i| of a row */
    double cosine;            /* <o, r> / |o||r| */
    double psnr_db;           /* 20 log10(largest |r| / root mean square of o - r) */
    double lse_max_abs;       /* the largest difference of log-sum-exps */
} metrics;

/* Sums over rows from which metrics follow. */
typedef struct metric_sums {
    double error, reference, result, product; /* of o - r, r, o squared; of o r */
    double peak, worst_row, lse_max_abs;
    int64_t elements;
} metric_sums;

/*
 * One head: rows of dim elements and their log-sum-exps. Equal non-finite values agree; a non-finite value
 * where the other has none makes the metrics NaN or infinite.
 */
metric_sums metrics_head(const float *result, const float *reference, const float *result_lse,
                         const float *reference_lse, int64_t rows, int64_t dim);

/* The metrics of several heads. */
metrics metrics_of(const metric_sums *heads, int64_t count);

#endif
