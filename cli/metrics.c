/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <math.h>

/* The larger one, NaN if there is one. */
static double worse(double a, double b)
{
    return a > b || isnan(a) ? a : b;
}

/* 0 for values that agree, also NaN with NaN and an infinity with itself. */
static double difference(double result, double reference)
{
    return result == reference || (isnan(result) && isnan(reference)) ? 0 : result - reference;
}

/* part / whole, where nothing of nothing is 0. */
static double ratio(double part, double whole)
{
    return part == 0 ? 0 : part / whole;
}

/* One row. What agrees without being finite stays out of the sums. */
static void add_row(metric_sums *sums, const float *result, const float *reference, int64_t dim)
{
    double error = 0, norm = 0;
    for (int64_t d = 0; d < dim; d++) {
        const double o = result[d], r = reference[d], delta = difference(o, r);
        error += delta * delta;
        if (!isfinite(r) && delta == 0)
            continue;
        norm += r * r;
        sums->result += o * o;
        sums->product += o * r;
        sums->peak = worse(sums->peak, fabs(r));
    }
    sums->error += error;
    sums->reference += norm;
    sums->elements += dim;
    sums->worst_row = worse(sums->worst_row, ratio(sqrt(error), sqrt(norm)));
}

metric_sums metrics_head(const float *result, const float *reference, const float *result_lse,
                         const float *reference_lse, int64_t rows, int64_t dim)
{
    metric_sums sums = { 0 };
    for (int64_t i = 0; i < rows; i++) {
        add_row(&sums, result + i * dim, reference + i * dim, dim);
        sums.lse_max_abs = worse(sums.lse_max_abs, fabs(difference(result_lse[i], reference_lse[i])));
    }
    return sums;
}

static void add_head(metric_sums *total, const metric_sums *head)
{
    total->error += head->error;
    total->reference += head->reference;
    total->result += head->result;
    total->product += head->product;
    total->elements += head->elements;
    total->peak = worse(total->peak, head->peak);
    total->worst_row = worse(total->worst_row, head->worst_row);
    total->lse_max_abs = worse(total->lse_max_abs, head->lse_max_abs);
}

metrics metrics_of(const metric_sums *heads, int64_t count)
{
    metric_sums total = { 0 };
    metrics m = { 0 };
    for (int64_t h = 0; h < count; h++) {
        const double rel_l2 = ratio(sqrt(heads[h].error), sqrt(heads[h].reference));
        m.rel_l2 += rel_l2 / (double)count;
        m.rel_l2_worst_head = worse(m.rel_l2_worst_head, rel_l2);
        add_head(&total, &heads[h]);
    }
    m.worst_row = total.worst_row;
    m.lse_max_abs = total.lse_max_abs;
    const double norms = sqrt(total.result) * sqrt(total.reference);
    m.cosine = norms == 0 ? (total.result == total.reference ? 1 : 0) : total.product / norms;
    m.psnr_db = 20 * log10(total.peak / sqrt(total.error / (double)total.elements));
    return m;
}
