/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_masked.h"

#include <math.h>
#include <string.h>

void same_row(const char *what, const attention_result *want, int64_t want_row, const attention_result *got,
              int64_t got_row, int64_t dim)
{
    const bool same =
        memcmp(result_floats(want->out) + want_row * dim, result_floats(got->out) + got_row * dim,
               (size_t)dim * sizeof(float)) == 0 &&
        memcmp(result_floats(want->lse) + want_row, result_floats(got->lse) + got_row, sizeof(float)) == 0;
    if (!same)
        check_fail("%s: row %lld has other bits than row %lld", what, (long long)got_row,
                   (long long)want_row);
}

void check_masked(const attention_problem *a, attention_run_fn *run, const mxa_attention_impl *impl)
{
    const mxa_problem *const p = &a->p;
    if (p->cu_seqlens_q || p->kv_len == 0 || p->q_len == 0 || a->recipe.smooth_k == MXA_SMOOTH_PREFIX ||
        a->recipe.smooth_k == MXA_SMOOTH_FULL)
        return;
    static const float poisons[3] = { NAN, INFINITY, -INFINITY };
    attention_problem with[2] = { *a, *a };
    const int64_t j = check_pick(0, p->kv_len - 1);
    attention_result results[2];
    for (int n = 0; n < 2; n++) {
        with[n].k = tensor_copy(&a->k);
        with[n].v = tensor_copy(&a->v);
        for (int64_t m = 0; m < p->batch * p->heads_kv; m++) {
            for (int64_t d = 0; d < p->head_dim; d++)
                tensor_set(&with[n].k, m / p->heads_kv, m % p->heads_kv, j, d, n ? poisons[d % 3] : 0.0f);
            for (int64_t d = 0; d < p->head_dim_v; d++)
                tensor_set(&with[n].v, m / p->heads_kv, m % p->heads_kv, j, d, n ? poisons[d % 3] : 0.0f);
        }
        results[n] = run(&with[n], impl);
    }
    const mxa_tile_map map = mxa_problem_map(p, &a->recipe, 0);
    for (int64_t row = 0; row < p->batch * p->heads * p->q_len; row++) {
        const int64_t position = row % p->q_len + map.q_offset;
        const mxa_span seen = mxa_visible_keys(&map, position, position);
        if (j < seen.first || j >= seen.end)
            same_row("masked key", &results[0], row, &results[1], row, p->head_dim_v);
    }
}
